// Models whose matrices stay in four bits on the GPU: a step's logits are those of the same model
// with its matrices expanded at load, but for the order of sums, whichever way its products are made.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_steps.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

constexpr int32_t kTokens = 90;

struct Way {
    const char *name;
    Quantize quantize = Quantize::stored;
    bool sm90 = true, tune = false, reproducible = false;
    int64_t expanded_rows = 1 << 20, rounded_rows = 1 << 20;
};

struct Ran {
    std::vector<float> logits; // of all tokens of a step, then of one more token
    std::string type, warning;
};

Ran run_steps(const Model &model, DType element, const Way &way) {
    ForwardOptions options;
    options.element = element;
    options.residual = residual_type(element);
    options.step_tokens = 128;
    options.tune = way.tune;
    options.tuning_cache = "none";
    options.threads = 2;
    options.quantize = way.quantize;
    options.reproducible = options.attention.reproducible = way.reproducible;
    options.expanded_rows = way.expanded_rows;
    options.rounded_rows = way.rounded_rows;
    options.most_in_e4m3 = 0; // integers stay in four bits
    set_device(&options, way.sm90 ? "auto" : "sm80");
    options.experts = std::string(options.attention.family->name) == "sm90" ? GroupedKernel::sm90
                                                                            : GroupedKernel::sm80;
    StepRun run(model, options);
    Ran ran{{}, run.forward().compute_type(), run.forward().warning()};
    const auto step = [&](int32_t first, int32_t last) {
        std::vector<int32_t> tokens, wanted;
        for (int32_t i = first; i < last; ++i) {
            tokens.push_back((i * 37 + 11) % (model.vocabulary - 8));
            wanted.push_back(i - first);
        }
        return run.logits(first, tokens, wanted);
    };
    ran.logits = step(0, kTokens);
    const std::vector<float> last = step(kTokens, kTokens + 1);
    for (int round = 0; round < 2; ++round) { // launched before, now captured and replayed
        assert_true(step(kTokens, kTokens + 1) == last);
    }
    ran.logits.insert(ran.logits.end(), last.begin(), last.end());
    return ran;
}

double relative_error(const std::vector<float> &got, const std::vector<float> &wanted) {
    assert_int_equal(got.size(), wanted.size());
    double wrong = 0, all = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        const double off = double(got[i]) - double(wanted[i]);
        wrong += std::isfinite(off) ? off * off : 1e9;
        all += double(wanted[i]) * double(wanted[i]);
    }
    return std::sqrt(wrong / all);
}

struct Case {
    const char *golden, *packed; // in bf16: what compute_type says of weights
    bool f16;                    // some stay packed in f16 too
    double most;                 // error; a rounding may change a token's experts
};

void steps_are_those_of_expanded_weights(void **) {
    // Heads of 16 are padded, so that the matrix after attention is expanded.
    const Case cases[] = {
        {"llama_awq", "some weights in int4", true, 0.02},
        {"phi3_awq", "some weights in int4", true, 0.02},
        {"phi3_gptq_v2", "some weights in int4", false, 0.02},
        {"llama_gptq_sym", "some weights in int4", true, 0.02},
        {"llama_ct_packed", "some weights in int4", false, 0.02}, // down: columns in another order
        {"llama_ct_mxfp4", "some weights in mxfp4", false, 0.02},
        {"llama_ct_nvfp4", "weights in nvfp4", false, 0.02},
        {"qwen3_moe_gptq", "weights in int4", true, 0.03},
        {"qwen3_moe_modelopt_nvfp4", "weights in nvfp4", false, 0.03},
    };
    const Way ways[] = {
        {"packed"},
        {"of family sm80", Quantize::stored, false},
        {"expanded in the step", Quantize::stored, true, false, false, 1},
        {"expanded, sm80", Quantize::stored, false, false, false, 1},
        {"tuned", Quantize::stored, true, true},
        {"reproducible", Quantize::stored, true, false, true},
        {"reproducible, sm80", Quantize::stored, false, false, true},
    };
    bool good = true;
    for (const Case &of : cases) {
        auto model = load_model(std::string("golden/") + of.golden);
        check(model.status());
        for (const DType element : {DType::bf16, DType::f16}) {
            const Ran expanded = run_steps(**model, element, {"expanded", Quantize::none});
            assert_string_equal(expanded.type.c_str(), dtype_name(element));
            assert_string_equal(expanded.warning.c_str(), "");
            for (const Way &way : ways) {
                const Ran ran = run_steps(**model, element, way);
                const double error = relative_error(ran.logits, expanded.logits);
                print_message("%s, %s, %s: off by %.5f; %s\n", of.golden, ran.type.c_str(),
                              way.name, error, ran.warning.c_str());
                good = good && error < of.most;
                const bool packed = element == DType::bf16 || of.f16;
                good = good && (ran.type.find("weights in") != std::string::npos) == packed;
                if (element != DType::bf16) continue;
                assert_string_equal(ran.type.c_str(), ("bf16, " + std::string(of.packed)).c_str());
            }
        }
    }
    assert_true(good);
}

// With quantize=fp8 integers stay in four bits, and steps of many rows round them to e4m3; what is in groups that cannot
// stay, or is not an integer, is rounded at load.
void integers_are_rounded_in_steps_of_many_rows(void **) {
    struct Rounded {
        const char *golden, *type;
    };
    bool good = true;
    for (const Rounded &of :
         {Rounded{"llama_awq", ", some weights in int4, products in fp8 (e4m3)"},
          Rounded{"llama_gptq_sym", ", some weights in int4, products in fp8 (e4m3)"},
          Rounded{"phi3_awq", ", some weights in int4, some products in fp8 (e4m3)"},
          Rounded{"llama_ct_mxfp4", ", products in fp8 (e4m3)"}}) {
        auto model = load_model(std::string("golden/") + of.golden);
        check(model.status());
        for (const DType element : {DType::bf16, DType::f16}) {
            const std::vector<float> wanted =
                run_steps(**model, element, {"expanded", Quantize::none}).logits;
            const auto run = [&](const Way &way) {
                const Ran ran = run_steps(**model, element, way);
                const double error = relative_error(ran.logits, wanted);
                print_message("%s, %s, %s: off by %.5f; %s\n", of.golden, ran.type.c_str(),
                              way.name, error, ran.warning.c_str());
                if (element == DType::bf16 && !way.reproducible) {
                    good = good && ran.type == "bf16" + std::string(of.type);
                }
                return error;
            };
            constexpr Quantize fp8 = Quantize::fp8;
            const double exactly = run({"packed", fp8});
            const double rounded = run({"rounded", fp8, true, false, false, 1 << 20, 1});
            const double tuned = run({"tuned", fp8, true, true});
            const double sm80 = run({"rounded, sm80", fp8, false, false, false, 1 << 20, 1});
            const double in_order = run({"reproducible", fp8, true, false, true});
            for (const double error : {exactly, rounded, tuned, sm80, in_order}) {
                good = good && error < 0.3;
            }
            good = good && exactly <= rounded && rounded > 0.01;
        }
    }
    assert_true(good);
}

// What cannot stay in four bits says why.
void what_is_expanded_is_said(void **) {
    for (const auto &[golden, why] :
         {std::pair("qwen2_gptq_act_order", "multiples of 32"),
          std::pair("llama_ct_packed", "g_idx"), std::pair("llama_awq", "padded")}) {
        auto model = load_model(std::string("golden/") + golden);
        check(model.status());
        const Ran ran = run_steps(**model, DType::bf16, {"packed"});
        print_message("%s: %s\n", golden, ran.warning.c_str());
        assert_non_null(std::strstr(ran.warning.c_str(), why));
        assert_non_null(std::strstr(ran.warning.c_str(), "are expanded to bf16"));
    }
}

// Made up weights, as for measuring: packed where the configuration says so.
void random_weights_are_packed_as_the_configuration_says(void **) {
    for (const auto &[golden, type] :
         {std::pair("llama_ct_nvfp4", "bf16, weights in nvfp4"),
          std::pair("qwen3_moe_gptq", "bf16, weights in int4"),
          std::pair("llama_ct_mxfp4", "bf16, some weights in mxfp4")}) {
        auto described = describe_model(std::string("golden/") + golden);
        check(described.status());
        ForwardOptions options;
        options.step_tokens = 64;
        options.tune = false;
        options.random_weights = true;
        set_device(&options);
        auto made = Forward::create(*described, options);
        check(made.status());
        assert_string_equal((*made)->compute_type().c_str(), type);
    }
}

} // namespace

int main() {
    if (const int code = skipped()) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_expanded_weights),
        cmocka_unit_test(integers_are_rounded_in_steps_of_many_rows),
        cmocka_unit_test(what_is_expanded_is_said),
        cmocka_unit_test(random_weights_are_packed_as_the_configuration_says),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
