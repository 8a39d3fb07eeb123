// tests/golden for the engine's tests (format: golden/README.md), and owners of C handles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "batchllm.h"
#include "golden_json.h"
#include "testing.h"

struct GoldenRow {
    std::vector<int32_t> prompt;
    std::vector<int32_t> tokens;
    std::vector<double> margins;
    std::vector<double> logprobs;
};

struct GoldenScore {
    int64_t prompt = 0;
    std::vector<std::vector<int32_t>> continuations;
    std::vector<std::vector<double>> logprobs;
};

struct Golden {
    std::string directory;
    int32_t new_tokens = 0;
    std::vector<GoldenRow> rows;
    std::vector<GoldenScore> scores;
};

inline Golden read_golden(const std::string &directory) {
    simdjson::dom::parser parser;
    const simdjson::dom::element file = parser.load(directory + "/golden.json");
    Golden golden;
    golden.directory = directory;
    golden.new_tokens = static_cast<int32_t>(int64_t(file["new_tokens"]));
    for (const auto row : file["rows"]) {
        golden.rows.push_back({read_ints(row["prompt"]), read_ints(row["tokens"]),
                               read_doubles(row["margins"]), read_doubles(row["logprobs"])});
    }
    for (const auto score : file["scores"]) {
        GoldenScore read;
        read.prompt = int64_t(score["prompt"]);
        for (const auto c : score["continuations"]) read.continuations.push_back(read_ints(c));
        for (const auto l : score["logprobs"]) read.logprobs.push_back(read_doubles(l));
        golden.scores.push_back(std::move(read));
    }
    return golden;
}

// All golden models, by directory name.
inline std::vector<Golden> all_golden() {
    std::vector<Golden> all;
    for (const std::string &name : golden_models("golden.json")) {
        all.push_back(read_golden("golden/" + name));
    }
    return all;
}

inline bool file_has(const Golden &golden, const char *name, const char *part) {
    std::ifstream file(golden.directory + "/" + name);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    return text.find(part) != std::string::npos;
}
inline bool config_has(const Golden &golden, const char *key) {
    return file_has(golden, "config.json", key);
}

// Models with layers that keep only the last positions: their pages are freed while a row goes on.
inline bool has_windowed_layers(const Golden &golden) {
    return config_has(golden, "sliding_window") || config_has(golden, "attention_chunk_size");
}

// Models whose layers have one sublayer each.
inline bool is_nemotron(const Golden &golden) { return config_has(golden, "\"nemotron_h\""); }

// Models with delta nets.
inline bool has_delta_nets(const Golden &golden) {
    return config_has(golden, "linear_num_value_heads") || config_has(golden, "\"kimi_linear\"");
}
inline bool has_mamba(const Golden &golden) {
    return is_nemotron(golden) || config_has(golden, "\"bamba\"") ||
           config_has(golden, "\"falcon_h1\"") ||
           (config_has(golden, "\"granitemoehybrid\"") &&
            (config_has(golden, "\"mamba\"") || config_has(golden, "\"linear_attention\"")));
}
inline bool has_convolutions(const Golden &golden) { return config_has(golden, "conv_L_cache"); }
inline bool has_states(const Golden &golden) {
    return has_delta_nets(golden) || has_mamba(golden) || has_convolutions(golden);
}

// Nemotron-H's configurations always have the key.
inline bool has_experts(const Golden &golden) {
    return config_has(golden, "\"enable_moe_block\": true") || config_has(golden, "moe_k") ||
           config_has(golden, "moe_topk") ||
           (config_has(golden, "num_experts_per_tok") &&
            (!is_nemotron(golden) || file_has(golden, "model.safetensors", ".experts.")));
}

// Sizes that are not multiples of 8.
inline bool refused_by_cuda(const Golden &golden) {
    return config_has(golden, "\"hidden_size\": 60,");
}

inline std::vector<Golden> golden_on_cuda() {
    std::vector<Golden> all = all_golden();
    std::erase_if(all, refused_by_cuda);
    return all;
}

inline std::vector<Golden> golden_without_experts() {
    std::vector<Golden> all = golden_on_cuda();
    std::erase_if(all, [](const Golden &golden) { return has_experts(golden); });
    return all;
}

inline void check(int32_t status, const char *what) {
    if (status != BATCHLLM_OK) fail_msg("%s: %s", what, batchllm_last_error());
}
#define CHECK(call) check(call, #call)

struct EngineDeleter {
    void operator()(batchllm_engine *engine) const { batchllm_engine_destroy(engine); }
};
struct ResultsDeleter {
    void operator()(batchllm_results *results) const { batchllm_results_free(results); }
};
using EngineHandle = std::unique_ptr<batchllm_engine, EngineDeleter>;
using ResultsHandle = std::unique_ptr<batchllm_results, ResultsDeleter>;

// The CPU backend, computing as the reference does.
inline batchllm_engine_options float32_options() {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "cpu";
    options.compute_type = "f32";
    options.kv_memory_bytes = int64_t{64} << 20;
    options.threads = 2;
    return options;
}

inline EngineHandle make_engine(const std::string &model, batchllm_engine_options options) {
    options.model_dir = model.c_str();
    batchllm_engine *engine = nullptr;
    CHECK(batchllm_engine_create(&options, &engine));
    return EngineHandle(engine);
}

// Runs all rows until they have ended.
inline ResultsHandle run(batchllm_engine *engine) {
    CHECK(batchllm_run(engine, nullptr, nullptr));
    batchllm_results *results = nullptr;
    CHECK(batchllm_poll(engine, 0, &results));
    return ResultsHandle(results);
}

// Runs rows that end after a token or two, long before their max_tokens: the scheduler then expects
// later rows to be short, and admits more of them than the pool can hold to their ends.
inline ResultsHandle run_short_rows(batchllm_engine *engine, const Golden &golden) {
    for (const GoldenRow &row : golden.rows) {
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.max_tokens = golden.new_tokens;
        params.stop_tokens = row.tokens.data();
        params.stop_token_count = 1;
        const int64_t offsets[] = {0, static_cast<int64_t>(row.prompt.size())};
        CHECK(batchllm_add_tokens(engine, 1, row.prompt.data(), offsets, nullptr, &params, 1));
    }
    return run(engine);
}

inline batchllm_stats stats_of(const EngineHandle &engine) {
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(batchllm_engine_stats(engine.get(), &stats));
    return stats;
}

struct Prompts {
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};

    int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

inline Prompts prompts_of(const Golden &golden) {
    Prompts prompts;
    for (const GoldenRow &row : golden.rows) {
        prompts.tokens.insert(prompts.tokens.end(), row.prompt.begin(), row.prompt.end());
        prompts.offsets.push_back(static_cast<int64_t>(prompts.tokens.size()));
    }
    return prompts;
}

// The rows' tags are their indices in golden.rows.
inline void add_prompts(batchllm_engine *engine, const Golden &golden,
                        const batchllm_params &params) {
    const Prompts prompts = prompts_of(golden);
    std::vector<uint64_t> tags(golden.rows.size());
    std::iota(tags.begin(), tags.end(), 0);
    CHECK(batchllm_add_tokens(engine, prompts.count(), prompts.tokens.data(),
                              prompts.offsets.data(), tags.data(), &params, 1));
}

// Adds the prompts with continuations to score; their tags are their indices in golden.scores.
inline void add_scores(batchllm_engine *engine, const Golden &golden) {
    std::vector<int32_t> tokens, continuations;
    std::vector<int64_t> offsets{0}, ends{0}, rows{0};
    for (const GoldenScore &score : golden.scores) {
        const std::vector<int32_t> &prompt = golden.rows[static_cast<size_t>(score.prompt)].prompt;
        tokens.insert(tokens.end(), prompt.begin(), prompt.end());
        offsets.push_back(static_cast<int64_t>(tokens.size()));
        for (const std::vector<int32_t> &c : score.continuations) {
            continuations.insert(continuations.end(), c.begin(), c.end());
            ends.push_back(static_cast<int64_t>(continuations.size()));
        }
        rows.push_back(static_cast<int64_t>(ends.size()) - 1);
    }
    CHECK(batchllm_add_scores(engine, static_cast<int64_t>(golden.scores.size()), tokens.data(),
                              offsets.data(), continuations.data(), ends.data(), rows.data(),
                              nullptr));
}
