// Golden models in fp8 and in four bits, or with keys and values in fp8, on two devices that work as one, against one
// device. Exact types are tests/cuda/test_cuda_engine.cc's. Skipped (77) without two devices.
#include <string>
#include <vector>

#include "batchllm.h"
#include "engine_ways.h"
#include "testing.h"

namespace {

struct Subject {
    const char *name;
    const char *quantize = "stored";
    const char *options = "";
    bool rounds = true; // products' inputs, keys or values to e4m3
};
constexpr Subject kSubjects[] = {
    {"phi3_ct_channel_fp8"},
    {"mistral_static_fp8"},
    {"llama_ct_block_fp8"},
    {"qwen3_moe_channel_fp8"},
    {"qwen3_moe_wide_block_fp8"},
    {"qwen3_bf16", "fp8"},
    {"llama3_gqa_sharded_bf16", "stored", ",kv_type=fp8"},
    {"qwen3_moe_bf16", "stored", ",kv_type=fp8"},
    {"llama_awq", "stored", "", false},
    {"llama_gptq_sym", "stored", "", false},
    {"llama_ct_nvfp4", "stored", "", false},
    {"qwen3_moe_gptq", "stored", "", false},
    {"gpt_oss_mxfp4", "stored", "", false},
};

Way way_of(const Subject &subject, const char *name, const char *more) {
    Way way{name, subject.quantize, "tuning=0,drafts=off" + std::string(subject.options) + more};
    if (*more != 0) way.devices = "0,1";
    return way;
}

// What each rank rounds to e4m3 has scales of its own, and a width that is cut may be widened: so roundings differ, by
// which tokens of these models, of random weights, soon do. The measure is how far off one device is.
void quantised_models_are_as_good_as_on_one_device(void **) {
    bool good = true;
    for (const Subject &subject : kSubjects) {
        const Golden golden = read_golden(std::string("golden/") + subject.name);
        const Way one = way_of(subject, "one device", "");
        const double error = error_of_scores(golden, one);
        int64_t preemptions = 0;
        const std::vector<Said> said = run_rows(golden, one, &preemptions);
        for (const Way &two :
             {way_of(subject, "two as one", ",tensor_parallel=2"),
              way_of(subject, "rows with owners", ",tensor_parallel=2,owned_rows=1")}) {
            // A rounding may change a token's experts.
            const double factor = has_experts(golden) ? 2.5 : 1.3;
            good &= error_of_scores(golden, two) < factor * error + 0.05;
            Compared compared;
            compare(said, golden, two, &compared);
            print(two, compared);
            good &= subject.rounds || 2 * compared.same > compared.tokens;
        }
    }
    assert_true(good);
}

} // namespace

int main() {
    if (!cuda_available("0,1")) return 77;
    const CMUnitTest tests[] = {
        cmocka_unit_test(quantised_models_are_as_good_as_on_one_device),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
