// Two prompts in, two texts out. Usage: hello MODEL_DIRECTORY
#include <exception>
#include <iostream>

#include <batchllm/handles.h>

using batchllm::check;
using batchllm::Engine;
using batchllm::make;
using batchllm::Results;

int main(int argc, char **argv) try {
    auto options = batchllm::init(batchllm_engine_options_init);
    options.model_dir = argc > 1 ? argv[1] : ".";
    const Engine engine = make(batchllm_engine_create, &options);
    uint64_t tag = 0;
    for (const char *prompt : {"The capital of France is", "The capital of Peru is"})
        check(batchllm_add_prompt(engine.get(), prompt, -1, tag++, nullptr));
    check(batchllm_run(engine.get(), nullptr, nullptr));
    const Results results = make(batchllm_poll, engine.get(), 0);
    for (int64_t i = 0; i < results->count; ++i)
        std::cout << results->tags[i] << ": " << batchllm::text_of(results, i) << '\n';
    return 0;
} catch (const std::exception &fault) {
    std::cerr << fault.what() << '\n';
    return 1;
}
