// Golden models in fp8 and in four bits, or with keys and values in fp8, on two devices that work as one, against one
// device. Exact types are tests/cuda/test_cuda_engine.cc's. Skipped (77) without two devices.
#include <string>

#include "batchllm.h"
#include "engine_ways.h"
#include "testing.h"

namespace {

struct Subject {
    const char *name;
    const char *quantize = "stored";
    const char *options = "";
};
constexpr Subject kSubjects[] = {
    {"phi3_ct_channel_fp8"},
    {"mistral_static_fp8"},
    {"llama_ct_block_fp8"},
    {"qwen3_moe_channel_fp8"},
    {"qwen3_moe_wide_block_fp8"},
    {"llama_awq"},
    {"llama_gptq_sym"},
    {"llama_ct_nvfp4"},
    {"qwen3_moe_gptq"},
    {"gpt_oss_mxfp4"},
    {"gpt_oss_mxfp4", "fp8"},
    {"qwen3_bf16", "fp8"},
    {"llama3_gqa_sharded_bf16", "stored", ",kv_type=fp8"},
    {"qwen3_moe_bf16", "stored", ",kv_type=fp8"},
};

Way way_of(const Subject &subject, const char *name, const char *more) {
    Way way{name, subject.quantize, "tuning=0,drafts=off" + std::string(subject.options) + more};
    if (*more != 0) way.devices = "0,1";
    return way;
}

// What each rank rounds to e4m3 has scales of its own, and a width that is cut may be widened: so rounding differs, and
// what one device says is right to the same measure.
void quantised_models_are_as_good_as_on_one_device(void **) {
    Compared all;
    bool good = true;
    for (const Subject &subject : kSubjects) {
        const Golden golden = read_golden(std::string("golden/") + subject.name);
        const Way one = way_of(subject, "one device", "");
        for (const char *more : {",tensor_parallel=2", ",tensor_parallel=2,owned_rows=1"}) {
            const Way two = way_of(subject, more, more);
            const double error = error_of_scores(golden, one),
                         of_two = error_of_scores(golden, two);
            // A rounding may change a token's experts.
            const double factor = has_experts(golden) ? 2.5 : 1.3;
            good &= of_two < factor * error + 0.05;
            int64_t preemptions = 0;
            Compared own;
            compare(run_rows(golden, one, &preemptions), golden, two, &own);
            print(two, own);
            all.tokens += own.tokens;
            all.same += own.same;
        }
    }
    print_message("%d of %d tokens are one device's\n", int(all.same), int(all.tokens));
    assert_true(good);
    assert_true(2 * all.same > all.tokens);
}

bool available() {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "golden/llama_awq";
    options.backend = "cuda";
    options.devices = "0,1";
    options.kv_memory_bytes = int64_t{64} << 20;
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    batchllm_engine_destroy(engine);
    return status != BATCHLLM_ERROR_BACKEND_UNAVAILABLE;
}

} // namespace

int main() {
    if (!available()) return 77;
    const CMUnitTest tests[] = {
        cmocka_unit_test(quantised_models_are_as_good_as_on_one_device),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
