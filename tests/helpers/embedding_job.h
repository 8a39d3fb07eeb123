// tests/golden/embedding (format: golden/README.md), run through the public header on any backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

struct EmbeddingRow {
    std::vector<int32_t> prompt;
    std::vector<double> last, mean, first;     // for a model without a head
    std::vector<double> logits, probabilities; // for a classifier
};

struct EmbeddingGolden {
    std::string directory;
    std::vector<EmbeddingRow> rows;
};

inline EmbeddingGolden read_embedding_golden(const std::string &name) {
    EmbeddingGolden golden;
    golden.directory = "golden/embedding/" + name;
    simdjson::dom::parser parser;
    const simdjson::dom::element file = parser.load(golden.directory + "/embedding.json");
    for (const auto row : file["rows"]) {
        EmbeddingRow read;
        read.prompt = read_ints(row["prompt"]);
        const auto column = [&](const char *key, std::vector<double> *to) {
            simdjson::dom::element values;
            if (row[key].get(values) == simdjson::SUCCESS) *to = read_doubles(values);
        };
        column("last", &read.last);
        column("mean", &read.mean);
        column("first", &read.first);
        column("logits", &read.logits);
        column("probabilities", &read.probabilities);
        golden.rows.push_back(std::move(read));
    }
    return golden;
}

inline std::vector<double> normalised(std::vector<double> values) {
    double squares = 0;
    for (const double x : values) squares += x * x;
    for (double &x : values) x /= std::sqrt(squares);
    return values;
}

// An engine that lives as long as the job; its rows are added and run at once.
class EmbeddingJob {
  public:
    using Results = std::unique_ptr<batchllm_results, ResultsDeleter>;

    EmbeddingJob(const std::string &directory, batchllm_engine_options options) {
        options.model_dir = directory.c_str();
        batchllm_engine *engine = nullptr;
        CHECK(batchllm_engine_create(&options, &engine));
        engine_.reset(engine);
    }

    batchllm_engine *engine() const { return engine_.get(); }
    batchllm_stats stats() const {
        batchllm_stats stats;
        stats.struct_size = sizeof stats;
        CHECK(batchllm_engine_stats(engine_.get(), &stats));
        return stats;
    }

    // The row's number is its tag.
    Results run_prompts(const std::vector<std::vector<int32_t>> &prompts,
                        const batchllm_params &params) {
        std::vector<int32_t> tokens;
        std::vector<int64_t> offsets{0};
        std::vector<uint64_t> tags;
        for (const std::vector<int32_t> &prompt : prompts) {
            tokens.insert(tokens.end(), prompt.begin(), prompt.end());
            offsets.push_back(static_cast<int64_t>(tokens.size()));
            tags.push_back(tags.size());
        }
        CHECK(batchllm_add_tokens(engine_.get(), static_cast<int64_t>(prompts.size()),
                                  tokens.data(), offsets.data(), tags.data(), &params, 1));
        CHECK(batchllm_run(engine_.get(), nullptr, nullptr));
        batchllm_results *results = nullptr;
        CHECK(batchllm_poll(engine_.get(), 0, &results));
        assert_int_equal(results->count, prompts.size());
        return Results(results);
    }
    Results run(const EmbeddingGolden &golden, const batchllm_params &params) {
        std::vector<std::vector<int32_t>> prompts;
        for (const EmbeddingRow &row : golden.rows) prompts.push_back(row.prompt);
        return run_prompts(prompts, params);
    }

  private:
    std::unique_ptr<batchllm_engine, EngineDeleter> engine_;
};

inline batchllm_params task_params(int32_t task, int32_t pooling = BATCHLLM_POOLING_MODEL,
                                   int32_t normalize = 0, int32_t dimensions = 0) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.task = task;
    params.pooling = pooling;
    params.normalize = normalize;
    params.dimensions = dimensions;
    return params;
}

inline void assert_close_values(const std::string &what, uint64_t row, const float *got,
                                int64_t count, const std::vector<double> &wanted,
                                double tolerance) {
    if (count != static_cast<int64_t>(wanted.size())) {
        fail_msg("%s, row %d: %d values and not %zu", what.c_str(), int(row), int(count),
                 wanted.size());
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
        const double value = static_cast<double>(got[i]);
        if (std::fabs(value - wanted[i]) <= tolerance) continue;
        fail_msg("%s, row %d: value %zu is %.7g and not %.7g (limit %g)", what.c_str(), int(row), i,
                 value, wanted[i], tolerance);
    }
}

// wanted_of(row): the row's vector.
template <typename WantedOf>
void compare_embeddings(const std::string &what, const EmbeddingGolden &golden,
                        const batchllm_results &results, double tolerance, WantedOf wanted_of) {
    for (int64_t i = 0; i < results.count; ++i) {
        assert_int_equal(results.statuses[i], BATCHLLM_OK);
        assert_int_equal(results.finish_reasons[i], BATCHLLM_FINISH_EMBEDDED);
        const int64_t begin = results.embedding_offsets[i];
        assert_close_values(what, results.tags[i], results.embeddings + begin,
                            results.embedding_offsets[i + 1] - begin,
                            wanted_of(golden.rows[results.tags[i]]), tolerance);
    }
}

inline void compare_labels(const std::string &what, const EmbeddingGolden &golden,
                           const batchllm_results &results, double tolerance) {
    for (int64_t i = 0; i < results.count; ++i) {
        const EmbeddingRow &row = golden.rows[results.tags[i]];
        assert_int_equal(results.statuses[i], BATCHLLM_OK);
        assert_int_equal(results.finish_reasons[i], BATCHLLM_FINISH_CLASSIFIED);
        const int64_t begin = results.label_offsets[i];
        const int64_t count = results.label_offsets[i + 1] - begin;
        assert_close_values(what, results.tags[i], results.label_logits + begin, count, row.logits,
                            tolerance);
        assert_close_values(what, results.tags[i], results.label_probabilities + begin, count,
                            row.probabilities, tolerance);
    }
}

// Compares all of tests/golden/embedding with these options: each pooling of the models without a
// head, raw and normalised, and each classifier. tolerance: for vectors of length 1, and for
// labels; exact: raw vectors are compared too, with the same tolerance.
inline void compare_all_embeddings(const batchllm_engine_options &options, double tolerance,
                                   bool exact) {
    const std::string way = std::string(", in ") + options.compute_type + ", steps of " +
                            std::to_string(options.step_tokens) + " tokens";
    for (const char *name : {"qwen3_last_bf16", "llama_mean_f32"}) {
        const EmbeddingGolden golden = read_embedding_golden(name);
        EmbeddingJob job(golden.directory, options);
        const std::pair<int32_t, std::vector<double> EmbeddingRow::*> poolings[] = {
            {BATCHLLM_POOLING_LAST, &EmbeddingRow::last},
            {BATCHLLM_POOLING_MEAN, &EmbeddingRow::mean},
            {BATCHLLM_POOLING_FIRST, &EmbeddingRow::first}};
        for (const auto &entry : poolings) {
            const auto column = entry.second;
            const int32_t pooling = entry.first;
            if (exact) {
                const auto results = job.run(golden, task_params(BATCHLLM_TASK_EMBED, pooling, -1));
                compare_embeddings(name + way, golden, *results, tolerance,
                                   [&](const EmbeddingRow &row) { return row.*column; });
            }
            const auto results = job.run(golden, task_params(BATCHLLM_TASK_EMBED, pooling, 1));
            compare_embeddings(name + way, golden, *results, tolerance,
                               [&](const EmbeddingRow &row) { return normalised(row.*column); });
        }
    }
    for (const char *name : {"qwen3_labels_bf16", "llama_several_f32"}) {
        const EmbeddingGolden golden = read_embedding_golden(name);
        EmbeddingJob job(golden.directory, options);
        const auto results = job.run(golden, task_params(BATCHLLM_TASK_CLASSIFY));
        // Logits are about as large as the weights, some thirty times the values of a normalised
        // vector; transformers itself is off by up to 0.08 in bf16.
        compare_labels(name + way, golden, *results, exact ? tolerance : 20 * tolerance);
    }
}
