// Several samples per row, on models whose layers have windows: the pages of each KV group are
// shared, released and reused, and every sample equals that of a row by itself.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

namespace {

struct Sample {
    std::vector<int32_t> tokens;
    std::vector<std::map<int32_t, float>> likeliest; // [tokens] token -> log-probability
};
using Samples = std::map<std::pair<uint64_t, int32_t>, Sample>; // by tag and sample

constexpr int32_t samples_a_row = 4;
constexpr int32_t top_k = 20;
constexpr float logprob_tolerance = 2e-3f;

batchllm_info info_of(const EngineHandle &engine) {
    batchllm_info info;
    info.struct_size = sizeof info;
    CHECK(batchllm_engine_info(engine.get(), 0, &info));
    return info;
}

void add_rows(const EngineHandle &engine, const Golden &golden) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = golden.new_tokens;
    params.samples = samples_a_row;
    params.temperature = 1;
    params.top_k = top_k;
    params.logprobs = top_k;
    params.seed = 11;
    for (const GoldenRow &row : golden.rows) {
        const int64_t offsets[] = {0, static_cast<int64_t>(row.prompt.size())};
        CHECK(
            batchllm_add_tokens(engine.get(), 1, row.prompt.data(), offsets, nullptr, &params, 1));
    }
}

ResultsHandle poll(const EngineHandle &engine) {
    batchllm_results *results = nullptr;
    CHECK(batchllm_poll(engine.get(), 0, &results));
    return ResultsHandle(results);
}

Samples run(const EngineHandle &engine, const Golden &golden) {
    add_rows(engine, golden);
    CHECK(batchllm_run(engine.get(), nullptr, nullptr));
    const ResultsHandle results = poll(engine);
    Samples samples;
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        Sample &sample = samples[{results->tags[i], results->samples[i]}];
        sample.tokens.assign(results->tokens + results->token_offsets[i],
                             results->tokens + results->token_offsets[i + 1]);
        for (int64_t t = results->logprob_offsets[i]; t < results->logprob_offsets[i + 1]; ++t) {
            std::map<int32_t, float> &likeliest = sample.likeliest.emplace_back();
            for (int64_t k = results->top_offsets[t]; k < results->top_offsets[t + 1]; ++k) {
                likeliest[results->top_tokens[k]] = results->top_logprobs[k];
            }
        }
    }
    assert_int_equal(samples.size(), golden.rows.size() * samples_a_row);
    return samples;
}

// The smallest pool in which every row fits.
int64_t least_pages(const Golden &golden, batchllm_engine_options options) {
    const batchllm_info info = info_of(make_engine(golden.directory, options));
    int64_t refuses = 0, fits = info.kv_pages;
    while (fits - refuses > 1) {
        const int64_t pages = (fits + refuses) / 2;
        options.kv_memory_bytes = pages * info.kv_page_bytes;
        const EngineHandle engine = make_engine(golden.directory, options);
        add_rows(engine, golden);
        (poll(engine)->count > 0 ? refuses : fits) = pages;
    }
    return fits;
}

// Whether a token is as likely in both, within rounding.
bool as_likely(int32_t token, const std::map<int32_t, float> &a,
               const std::map<int32_t, float> &b) {
    const auto x = a.find(token), y = b.find(token);
    return x != a.end() && y != b.end() && std::fabs(x->second - y->second) <= logprob_tolerance;
}

// Whether the samples are the same; false if rounding has decided a draw, after which they have
// nothing in common. Up to there, the log-probabilities must be the same too.
bool same(const char *name, const Sample &expected, const Sample &got) {
    for (size_t t = 0; t < expected.tokens.size() && t < got.tokens.size(); ++t) {
        const int32_t token = expected.tokens[t];
        if (!as_likely(token, expected.likeliest[t], got.likeliest[t]) ||
            !as_likely(got.tokens[t], expected.likeliest[t], got.likeliest[t])) {
            fail_msg("%s: token %zu is drawn from other probabilities", name, t);
        }
        if (got.tokens[t] != token) return false;
    }
    assert_int_equal(expected.tokens.size(), got.tokens.size());
    return true;
}

void samples_are_those_of_rows_by_themselves(void **) {
    int64_t preemptions = 0, most_groups = 0;
    for (const char *model :
         {"golden/gemma3_text_bf16", "golden/mistral_window_bf16", "golden/qwen2_window_bf16"}) {
        const Golden golden = read_golden(model);
        batchllm_engine_options alone = float32_options();
        alone.enlarge = BATCHLLM_ENLARGE_NONE;
        alone.max_requests = 1;
        const EngineHandle reference = make_engine(golden.directory, alone);
        const Samples expected = run(reference, golden);
        assert_int_equal(stats_of(reference).shared_prompt_tokens, 0);
        // Samples of a row differ from each other.
        int64_t unlike = 0;
        for (uint64_t tag = 0; tag < golden.rows.size(); ++tag) {
            unlike += expected.at({tag, 0}).tokens != expected.at({tag, samples_a_row - 1}).tokens;
        }
        assert_true(unlike * 2 > static_cast<int64_t>(golden.rows.size()));

        for (const int32_t levels : {1, 2}) {
            for (const bool tight : {false, true}) {
                batchllm_engine_options options = float32_options();
                options.levels = levels;
                if (tight) {
                    options.step_tokens = 48;
                    options.kv_memory_bytes =
                        (least_pages(golden, options) * 3 / 2) * info_of(reference).kv_page_bytes;
                }
                const EngineHandle engine = make_engine(golden.directory, options);
                const Samples got = run(engine, golden);
                int64_t others = 0;
                for (const auto &[of, sample] : expected)
                    others += !same(model, sample, got.at(of));
                assert_true(others * 20 < static_cast<int64_t>(expected.size()));
                const batchllm_stats stats = stats_of(engine);
                assert_true(stats.shared_prompt_tokens > 0);
                preemptions += stats.preemptions;
                most_groups = std::max<int64_t>(most_groups, info_of(engine).kv_groups);
                if (tight) {
                    print_message("%s, levels %d: %d groups, %d pages, %d preemptions, %d "
                                  "recomputed, %d others\n",
                                  model, levels, info_of(engine).kv_groups,
                                  int(stats.kv_pages_total), int(stats.preemptions),
                                  int(stats.recomputed_tokens), int(others));
                }
            }
        }
    }
    assert_true(preemptions > 0);
    assert_true(most_groups > 1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(samples_are_those_of_rows_by_themselves),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
