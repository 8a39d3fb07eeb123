// Golden models in fp8 through the engine on the GPU, against transformers with the dequantised weights, with
// libbatchllm_cuda.so loaded as a user's program loads it. What remains of a difference is the rounding of
// activations to e4m3.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

namespace {

using EngineHandle = std::unique_ptr<batchllm_engine, EngineDeleter>;
using ResultsHandle = std::unique_ptr<batchllm_results, ResultsDeleter>;

struct Way {
    const char *name;
    const char *quantize = "stored";
    const char *options = "tuning=0";
    int64_t step_tokens = 0;
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    int32_t levels = 1;
    int64_t pages = 0; // 0: 64 MiB
    bool backwards = false;
    bool after_short_rows = false;
};

EngineHandle create(const Golden &golden, const Way &way, int64_t kv_bytes) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    const std::string extra =
        std::string(way.options) + ",tuning_cache=none,quantize=" + way.quantize;
    options.model_dir = golden.directory.c_str();
    options.backend = "cuda";
    options.compute_type = "bf16";
    options.backend_options = extra.c_str();
    options.step_tokens = way.step_tokens;
    options.enlarge = way.enlarge;
    options.levels = way.levels;
    options.kv_memory_bytes = kv_bytes;
    options.threads = 2;
    batchllm_engine *engine = nullptr;
    CHECK(batchllm_engine_create(&options, &engine));
    return EngineHandle(engine);
}

batchllm_stats stats_of(const EngineHandle &engine) {
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(batchllm_engine_stats(engine.get(), &stats));
    return stats;
}

std::string compute_type_of(const EngineHandle &engine) {
    batchllm_info info;
    info.struct_size = sizeof info;
    CHECK(batchllm_engine_info(engine.get(), 0, &info));
    return info.compute_type;
}

ResultsHandle run(batchllm_engine *engine) {
    CHECK(batchllm_run(engine, nullptr, nullptr));
    batchllm_results *results = nullptr;
    CHECK(batchllm_poll(engine, 0, &results));
    return ResultsHandle(results);
}

// Rows that end after a token: more of those that follow are admitted than the pool can hold to their ends.
void run_short_rows(batchllm_engine *engine, const Golden &golden) {
    for (const GoldenRow &row : golden.rows) {
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.max_tokens = golden.new_tokens;
        params.stop_tokens = row.tokens.data();
        params.stop_token_count = 1;
        const int64_t offsets[] = {0, static_cast<int64_t>(row.prompt.size())};
        CHECK(batchllm_add_tokens(engine, 1, row.prompt.data(), offsets, nullptr, &params, 1));
    }
    run(engine);
}

struct Compared {
    int64_t equal = 0, all = 0, close = 0, preemptions = 0, models = 0;
    double largest = 0, squares = 0; // errors of log-probabilities
};

// A token that differs ends its row: what follows depends on it.
void compare(const Golden &golden, const batchllm_results &results, double margin, Compared *out) {
    double largest = 0;
    int64_t equal = 0, all = 0;
    for (int64_t i = 0; i < results.count; ++i) {
        const GoldenRow &row = golden.rows[results.tags[i]];
        assert_int_equal(results.statuses[i], BATCHLLM_OK);
        const int64_t begin = results.token_offsets[i];
        const int64_t count = results.token_offsets[i + 1] - begin;
        all += static_cast<int64_t>(row.tokens.size());
        for (int64_t t = 0; t < static_cast<int64_t>(row.tokens.size()); ++t) {
            const auto at = static_cast<size_t>(t);
            const int32_t token = t < count ? results.tokens[begin + t] : -1;
            if (token != row.tokens[at]) {
                if (!(row.margins[at] < margin)) {
                    fail_msg("%s: row %d, token %d is %d and not %d (margin %g)",
                             golden.directory.c_str(), int(results.tags[i]), int(t), token,
                             row.tokens[at], row.margins[at]);
                }
                ++out->close;
                break;
            }
            const double wrong = std::fabs(
                double(results.logprobs[results.logprob_offsets[i] + t]) - row.logprobs[at]);
            if (!(wrong <= margin)) {
                fail_msg("%s: row %d, token %d: log-probability off by %g",
                         golden.directory.c_str(), int(results.tags[i]), int(t), wrong);
            }
            largest = std::max(largest, wrong);
            out->squares += wrong * wrong;
            ++equal;
        }
    }
    print_message("  %s: %d of %d tokens, log-probabilities within %.3f\n",
                  golden.directory.c_str(), int(equal), int(all), largest);
    out->equal += equal;
    out->all += all;
    out->largest = std::max(out->largest, largest);
    ++out->models;
}

bool is_fp8(const Golden &golden) { return golden.directory.ends_with("_fp8"); }

// Two logits may each be off, and their difference by twice as much.
constexpr double kStored = 0.6, kQuantised = 1.0;

Compared compare_all(const Way &way, bool stored) {
    Compared compared;
    print_message("%s\n", way.name);
    for (const Golden &golden : golden_without_experts()) {
        if (is_fp8(golden) != stored) continue;
        EngineHandle engine;
        if (stored || compared.models < 12) engine = create(golden, way, int64_t{64} << 20);
        if (engine == nullptr) break;
        // Those with blocks of small widths are widened.
        if (compute_type_of(engine).find("fp8") == std::string::npos) continue;
        if (way.pages > 0) {
            // A page holds one KV group: models with windowed layers have several.
            const int64_t groups = config_has(golden, "sliding_window") ? 4 : 1;
            const int64_t bytes = groups * way.pages * stats_of(engine).kv_page_bytes;
            engine.reset();
            engine = create(golden, way, bytes);
        }
        if (way.after_short_rows) run_short_rows(engine.get(), golden);
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.max_tokens = golden.new_tokens;
        params.logprobs = 0;
        const size_t count = golden.rows.size();
        for (size_t i = 0; i < count; ++i) {
            const uint64_t tag = way.backwards ? count - 1 - i : i;
            const auto &prompt = golden.rows[tag].prompt;
            const int64_t offsets[] = {0, static_cast<int64_t>(prompt.size())};
            CHECK(batchllm_add_tokens(engine.get(), 1, prompt.data(), offsets, &tag, &params, 1));
        }
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, count);
        compare(golden, *results, stored ? kStored : kQuantised, &compared);
        compared.preemptions += stats_of(engine).preemptions;
    }
    print_message("%s: %d models, %d of %d tokens equal, %d close calls, log-probabilities within "
                  "%.3f, %.4f on average, %d preemptions\n",
                  way.name, int(compared.models), int(compared.equal), int(compared.all),
                  int(compared.close), compared.largest,
                  std::sqrt(compared.squares / static_cast<double>(compared.equal)),
                  int(compared.preemptions));
    return compared;
}

// Every way of running the rows keeps to the reference as closely.
void golden_models_in_fp8_are_their_references_every_way(void **) {
    for (const Way &way :
         {Way{"sharing, two levels", "stored", "tuning=0", 0, BATCHLLM_ENLARGE_OPTIMAL, 2},
          Way{"no sharing", "stored", "tuning=0", 0, BATCHLLM_ENLARGE_NONE},
          Way{"no sharing, steps of 64", "stored", "tuning=0", 64, BATCHLLM_ENLARGE_NONE},
          Way{"tuned", "stored", "tuning=1"},
          Way{"no overlap, no graphs", "stored", "tuning=0,overlap=0,graphs=0"},
          Way{"residual stream in f32", "stored", "tuning=0,residual=f32"},
          Way{"fast accumulation", "stored", "tuning=0,fast_accumulation=1"},
          Way{"rows backwards", "stored", "tuning=0", 0, BATCHLLM_ENLARGE_OPTIMAL, 1, 0, true},
          Way{"12 pages, after short rows", "stored", "tuning=0", 0, BATCHLLM_ENLARGE_OPTIMAL, 1,
              12, false, true}}) {
        const Compared compared = compare_all(way, true);
        assert_true(compared.models >= 6);
        assert_true(10 * compared.equal >= 4 * compared.all);
        assert_int_equal(compared.preemptions > 0, way.pages > 0);
    }
}

void checkpoints_of_16_bits_are_quantised_at_load(void **) {
    const Compared compared = compare_all({"quantize=fp8", "fp8"}, false);
    assert_true(compared.models >= 6);
    assert_true(10 * compared.equal >= 3 * compared.all);
}

void the_same_job_twice_gives_the_same_bits(void **) {
    for (const Golden &golden : golden_without_experts()) {
        if (!golden.directory.ends_with("phi3_ct_channel_fp8")) continue;
        std::vector<int32_t> tokens[2];
        std::vector<float> logprobs[2];
        for (int round = 0; round < 2; ++round) {
            const EngineHandle engine = create(golden, {"twice"}, int64_t{64} << 20);
            assert_string_equal(compute_type_of(engine).c_str(), "bf16, products in fp8 (e4m3)");
            batchllm_params params;
            batchllm_params_init(&params, sizeof params);
            params.max_tokens = golden.new_tokens;
            params.logprobs = 0;
            for (const GoldenRow &row : golden.rows) {
                const int64_t offsets[] = {0, static_cast<int64_t>(row.prompt.size())};
                CHECK(batchllm_add_tokens(engine.get(), 1, row.prompt.data(), offsets, nullptr,
                                          &params, 1));
            }
            const ResultsHandle results = run(engine.get());
            const int64_t count = results->token_offsets[results->count];
            tokens[round].assign(results->tokens, results->tokens + count);
            logprobs[round].assign(results->logprobs, results->logprobs + count);
        }
        assert_true(!tokens[0].empty() && tokens[0] == tokens[1] && logprobs[0] == logprobs[1]);
        return;
    }
    fail_msg("%s", "golden/phi3_ct_channel_fp8 is not there");
}

// Exit status 77 tells meson that the test was skipped: no library, driver or device here, or one that has no
// products in fp8.
bool available() {
    for (const Golden &golden : golden_without_experts()) {
        if (!golden.directory.ends_with("phi3_ct_channel_fp8")) continue;
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.model_dir = golden.directory.c_str();
        options.backend = "cuda";
        options.backend_options = "quantize=fp8,tuning=0";
        options.kv_memory_bytes = int64_t{64} << 20;
        batchllm_engine *engine = nullptr;
        const int32_t status = batchllm_engine_create(&options, &engine);
        batchllm_engine_destroy(engine);
        if (status == BATCHLLM_OK) return true;
        std::printf("%s\n", batchllm_last_error());
        // On 9.0 the products are there.
        if (status == BATCHLLM_ERROR_BACKEND_UNAVAILABLE) return false;
        return std::strstr(batchllm_last_error(), "compute capability") == nullptr;
    }
    return true;
}

} // namespace

int main() {
    if (!available()) return 77;
    const CMUnitTest tests[] = {
        cmocka_unit_test(golden_models_in_fp8_are_their_references_every_way),
        cmocka_unit_test(checkpoints_of_16_bits_are_quantised_at_load),
        cmocka_unit_test(the_same_job_twice_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
