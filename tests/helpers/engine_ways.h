// Golden models through the engine on the GPU in various ways, with libbatchllm_cuda.so loaded as
// in a user's program: the errors of their log-probabilities, and whether rows have the same
// tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

struct Way {
    const char *name;
    const char *quantize = "stored";
    std::string options = "tuning=0";
    int64_t step_tokens = 0;
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    int32_t levels = 1;
    int64_t pages = 0; // 0: 64 MiB
    bool backwards = false;
    bool after_short_rows = false;
    int32_t reproducible = 0;
    const char *devices = "0";
};

// Whether there is a library, a driver and these devices. If not, a program of tests exits with 77, which tells meson that it
// was skipped.
inline bool cuda_available(const char *devices = "0") {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "golden/qwen3_bf16";
    options.backend = "cuda";
    options.backend_options = "tuning=0";
    options.devices = devices;
    options.kv_memory_bytes = int64_t{64} << 20;
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    if (status != BATCHLLM_OK) print_message("%s\n", batchllm_last_error());
    batchllm_engine_destroy(engine);
    return status != BATCHLLM_ERROR_BACKEND_UNAVAILABLE;
}

inline EngineHandle create(const Golden &golden, const Way &way, int64_t kv_bytes) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    const std::string extra = way.options + ",tuning_cache=none,quantize=" + way.quantize;
    options.model_dir = golden.directory.c_str();
    options.backend = "cuda";
    options.compute_type = "bf16";
    options.backend_options = extra.c_str();
    options.step_tokens = way.step_tokens;
    options.enlarge = way.enlarge;
    options.levels = way.levels;
    options.kv_memory_bytes = kv_bytes;
    options.threads = 2;
    options.reproducible = way.reproducible;
    options.devices = way.devices;
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    if (status == BATCHLLM_ERROR_UNSUPPORTED && std::string(way.quantize) == "fp8") {
        print_message("%s: %s\n", golden.directory.c_str(), batchllm_last_error());
        return nullptr;
    }
    check(status, golden.directory.c_str());
    return EngineHandle(engine);
}

inline std::string compute_type_of(const EngineHandle &engine) {
    batchllm_info info;
    info.struct_size = sizeof info;
    CHECK(batchllm_engine_info(engine.get(), 0, &info));
    return info.compute_type;
}

// Root mean square of the errors of log-probabilities.
inline double error_of_scores(const Golden &golden, const Way &way) {
    const EngineHandle engine = create(golden, way, int64_t{64} << 20);
    add_scores(engine.get(), golden);
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, golden.scores.size());
    double squares = 0, largest = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < results->count; ++i) {
        const GoldenScore &score = golden.scores[results->tags[i]];
        for (size_t c = 0; c < score.logprobs.size(); ++c) {
            const int64_t begin =
                results->score_token_offsets[results->score_offsets[i] + static_cast<int64_t>(c)];
            for (size_t t = 0; t < score.logprobs[c].size(); ++t) {
                const double got = double(results->score_logprobs[begin + static_cast<int64_t>(t)]);
                const double wrong = std::fabs(got - score.logprobs[c][t]);
                squares += std::isfinite(wrong) ? wrong * wrong : 1e9;
                largest = std::max(largest, wrong);
                ++count;
            }
        }
    }
    const double error = std::sqrt(squares / static_cast<double>(count));
    print_message("%s, %s: %s: log-probabilities off by %.4f, %.3f at most\n", way.name,
                  golden.directory.c_str(), compute_type_of(engine).c_str(), error, largest);
    return error;
}

// A row's output in a job: its tokens, and by how much each was likelier than the second likeliest.
struct Said {
    std::vector<int32_t> tokens;
    std::vector<float> margins;
};

inline std::vector<Said> run_rows(const Golden &golden, const Way &way, int64_t *preemptions) {
    EngineHandle engine = create(golden, way, int64_t{64} << 20);
    if (way.pages > 0) {
        // A page holds one KV group: models with windowed layers have several.
        const int64_t groups = has_windowed_layers(golden) ? 4 : 1;
        const int64_t bytes = groups * way.pages * stats_of(engine).kv_page_bytes;
        engine.reset();
        engine = create(golden, way, bytes);
    }
    if (way.after_short_rows) run_short_rows(engine.get(), golden);
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = golden.new_tokens;
    params.logprobs = 2;
    const size_t count = golden.rows.size();
    for (size_t i = 0; i < count; ++i) {
        const uint64_t tag = way.backwards ? count - 1 - i : i;
        const auto &prompt = golden.rows[tag].prompt;
        const int64_t offsets[] = {0, static_cast<int64_t>(prompt.size())};
        CHECK(batchllm_add_tokens(engine.get(), 1, prompt.data(), offsets, &tag, &params, 1));
    }
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, count);
    std::vector<Said> all(count);
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        Said &said = all[results->tags[i]];
        said.tokens.assign(results->tokens + results->token_offsets[i],
                           results->tokens + results->token_offsets[i + 1]);
        for (size_t t = 0; t < said.tokens.size(); ++t) {
            const int64_t top =
                results->top_offsets[results->logprob_offsets[i] + static_cast<int64_t>(t)];
            said.margins.push_back(results->top_logprobs[top] - results->top_logprobs[top + 1]);
        }
    }
    *preemptions += stats_of(engine).preemptions;
    return all;
}

// How a job's rows compare with those of the first job.
struct Compared {
    int64_t rows = 0, equal = 0, preemptions = 0;
    int64_t tokens = 0, same = 0; // up to a row's first difference
    float widest = 0;             // margin of a choice that differed
};

inline void compare(const std::vector<Said> &first, const Golden &golden, const Way &way,
                    Compared *out) {
    const std::vector<Said> all = run_rows(golden, way, &out->preemptions);
    for (size_t r = 0; r < all.size(); ++r) {
        const Said &a = first[r], &b = all[r];
        const size_t most = std::min(a.tokens.size(), b.tokens.size());
        size_t t = 0;
        while (t < most && a.tokens[t] == b.tokens[t]) ++t;
        ++out->rows;
        out->tokens += static_cast<int64_t>(a.tokens.size());
        out->same += static_cast<int64_t>(t);
        out->equal += a.tokens == b.tokens;
        if (t < most) out->widest = std::max(out->widest, a.margins[t]);
    }
}

inline void print(const Way &way, const Compared &all) {
    print_message("%s: %d of %d rows and %d of %d tokens are the same, the widest choice that "
                  "fell otherwise %.3f; %d preemptions\n",
                  way.name, int(all.equal), int(all.rows), int(all.same), int(all.tokens),
                  double(all.widest), int(all.preemptions));
}
