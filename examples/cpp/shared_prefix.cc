// Many questions about a few documents: each document is computed once. The plan is saved, and used again by
// the next run, which plans only what has changed. Usage: shared_prefix MODEL_DIRECTORY PLAN_FILE
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <batchllm/handles.h>

using batchllm::check;
using batchllm::Engine;
using batchllm::make;
using batchllm::Plan;

namespace {

// All prompts in one buffer, as a data platform holds them.
struct TextColumn {
    std::string text;
    std::vector<int64_t> offsets = {0};

    void push_back(const std::string &item) {
        text += item;
        offsets.push_back(static_cast<int64_t>(text.size()));
    }
    int64_t size() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

TextColumn prompts() {
    TextColumn column;
    for (const char *document : {"Lighthouses: The first ones were fires on hills. Towers with "
                                 "lamps and mirrors came later; the "
                                 "lens of rings that Fresnel built in 1822 threw the light of one "
                                 "lamp over thirty kilometres.",
                                 "Bees: A hive of honey bees has one queen, some hundred drones "
                                 "and up to sixty thousand workers. A "
                                 "worker tells the others where food is by a dance whose angle to "
                                 "the vertical is that to the sun."}) {
        for (const char *question :
             {" Question: who is named? Answer:", " Question: which number is largest? Answer:",
              " Question: what is it about? Answer:"})
            column.push_back(std::string(document) + question);
    }
    return column;
}

void use_saved_plan(const Engine &engine, const char *path) {
    if (!std::filesystem::exists(path)) return; // the first run
    const Plan plan = make(batchllm_plan_load, path);
    check(batchllm_engine_use_plan(engine.get(), plan.get()));
}

void save_plan(const Engine &engine, const char *path) {
    const Plan plan = make(batchllm_engine_get_plan, engine.get());
    batchllm_plan_stats stats;
    stats.struct_size = sizeof stats;
    check(batchllm_plan_get_stats(plan.get(), &stats));
    std::cout << stats.rows << " rows in " << stats.groups << " groups, " << stats.reused_rows
              << " kept from the saved plan\n";
    check(batchllm_plan_save(plan.get(), path));
}

} // namespace

int main(int argc, char **argv) try {
    if (argc != 3) {
        std::cerr << "usage: " << argv[0] << " MODEL_DIRECTORY PLAN_FILE\n";
        return 2;
    }
    const TextColumn column = prompts();
    auto params = batchllm::init(batchllm_params_init);
    params.max_tokens = 16;

    auto options = batchllm::init(batchllm_engine_options_init);
    options.model_dir = argv[1];
    const Engine engine = make(batchllm_engine_create, &options);
    use_saved_plan(engine, argv[2]);
    check(batchllm_add_text(engine.get(), column.size(), column.text.data(), column.offsets.data(),
                            nullptr, &params, 1));
    check(batchllm_build_groups(engine.get()));
    save_plan(engine, argv[2]);
    check(batchllm_run(engine.get(), nullptr, nullptr));

    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    check(batchllm_engine_stats(engine.get(), &stats));
    std::cout << stats.logical_prompt_tokens << " prompt tokens, " << stats.processed_prompt_tokens
              << " computed: " << static_cast<int>(100 * stats.saving_ratio + 0.5) << " % saved\n";
    return 0;
} catch (const std::exception &fault) {
    std::cerr << fault.what() << '\n';
    return 1;
}
