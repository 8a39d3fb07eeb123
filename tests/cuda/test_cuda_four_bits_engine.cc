// Golden models in four bits through the engine on the GPU, with their weights packed: scores and
// tokens against those of the same weights expanded to 16 bits, with libbatchllm_cuda.so loaded as in
// a user's program.
#include <string>
#include <vector>

#include "batchllm.h"
#include "engine_ways.h"
#include "testing.h"

namespace {

// Those of which some matrices stay in four bits.
std::vector<Golden> packed_models() {
    std::vector<Golden> models;
    for (Golden &golden : golden_on_cuda()) {
        if (!config_has(golden, "\"quantization_config\"") &&
            !golden.directory.ends_with("nvfp4")) {
            continue;
        }
        const EngineHandle engine = create(golden, {"packed"}, int64_t{64} << 20);
        const std::string type = compute_type_of(engine);
        if (type.find("weights in") == std::string::npos) continue;
        print_message("%s: %s\n", golden.directory.c_str(), type.c_str());
        models.push_back(std::move(golden));
    }
    assert_true(models.size() >= size_t{9});
    return models;
}

void scores_are_as_good_as_those_of_expanded_weights(void **) {
    bool good = true;
    for (const Golden &golden : packed_models()) {
        const double expanded = error_of_scores(golden, {"expanded", "none"});
        // A rounding may change a token's experts.
        const double most = has_experts(golden) ? 2.5 * expanded + 0.1 : 1.3 * expanded + 0.01;
        for (const Way &way : {Way{"packed"}, Way{"sm80", "stored", "tuning=0,attention=sm80"},
                               Way{"tuned", "stored", "tuning=at_once"},
                               Way{"steps of 64", "stored", "tuning=0", 64}}) {
            good &= error_of_scores(golden, way) < most;
        }
    }
    assert_true(good);
}

// In bf16, a choice between tokens that are nearly as likely may fall otherwise.
void tokens_are_those_of_expanded_weights_but_for_near_choices(void **) {
    Compared all, reproducible;
    const Way exact{"reproducible", "stored", "tuning=0", 0, BATCHLLM_ENLARGE_OPTIMAL, 1, 0,
                    false,          false,    1};
    Way narrow = exact;
    narrow.step_tokens = 64;
    narrow.backwards = true;
    for (const Golden &golden : packed_models()) {
        int64_t preemptions = 0;
        const std::vector<Said> expanded = run_rows(golden, {"expanded", "none"}, &preemptions);
        compare(expanded, golden, {"packed"}, &all);
        const std::vector<Said> whole = run_rows(golden, exact, &preemptions);
        compare(whole, golden, narrow, &reproducible);
    }
    print({"packed"}, all);
    print({"reproducible, steps of 64"}, reproducible);
    assert_true(all.same > all.tokens * 8 / 10);
    assert_int_equal(reproducible.equal, reproducible.rows);
}

} // namespace

int main() {
    if (!cuda_available()) return 77;
    const CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_as_good_as_those_of_expanded_weights),
        cmocka_unit_test(tokens_are_those_of_expanded_weights_but_for_near_choices),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
