// Finished rows -> one column batch that the caller owns.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"
#include "runtime/embedding.h"
#include "sample/sampling.h"

namespace batchllm {

// Log-probabilities of some tokens, and the most likely tokens at the position of each.
struct TokenLogprobs {
    std::vector<float> values;
    std::vector<int32_t> top_counts; // [values]
    std::vector<TopLogprob> top;     // [sum of top_counts]

    void add(float value, const std::vector<TopLogprob> &likeliest) {
        values.push_back(value);
        top_counts.push_back(static_cast<int32_t>(likeliest.size()));
        top.insert(top.end(), likeliest.begin(), likeliest.end());
    }
};

// One result: a row, or one of its samples. A row's samples are adjacent, sample 0 first.
struct Outcome {
    uint64_t tag = 0;
    int32_t status = BATCHLLM_OK;
    int32_t finish = BATCHLLM_FINISH_ERROR;
    int32_t sample = 0;
    int64_t prompt_tokens = 0;
    int64_t shared_tokens = 0;
    std::vector<int32_t> tokens;
    std::string text;
    std::string error;
    bool constraint_started = true; // false: its start_after has not been generated
    bool constraint_met = true;    // false: stop strings or tokens ended a text before it was whole
    TokenLogprobs logprobs;        // of the tokens, if requested
    TokenLogprobs prompt_logprobs; // of all prompt tokens but the first, if requested
    std::vector<int32_t> score_lengths; // one per continuation
    std::vector<float> score_logprobs;  // [sum of score_lengths]
    std::vector<float> embedding;
    LabelScores labels;
};

// Adds the outcomes of one row to a queue: all of them stay, or none.
class OutcomesOfRow {
  public:
    explicit OutcomesOfRow(std::deque<Outcome> *outcomes)
        : outcomes_(outcomes), before_(outcomes->size()) {}
    OutcomesOfRow(const OutcomesOfRow &) = delete;
    OutcomesOfRow &operator=(const OutcomesOfRow &) = delete;
    ~OutcomesOfRow() {
        while (!kept_ && outcomes_->size() > before_) outcomes_->pop_back();
    }
    void keep() { kept_ = true; }

  private:
    std::deque<Outcome> *outcomes_;
    size_t before_;
    bool kept_ = false;
};

// batchllm_results with the memory that its pointers refer to, deleted together.
struct ResultBatch : batchllm_results {
    // Takes up to max_results outcomes (0: all) from the front of the queue, never splitting a row.
    // Strong guarantee: takes none if memory runs out.
    static std::unique_ptr<ResultBatch> take(std::deque<Outcome> *outcomes, int64_t max_results);

  private:
    ResultBatch() : batchllm_results{} {}
    // Log-probabilities of tokens, as a column with three levels.
    struct LogprobColumns {
        std::vector<int64_t> offsets{0};
        std::vector<float> values;
        std::vector<int64_t> top_offsets{0};
        std::vector<int32_t> top_tokens;
        std::vector<float> top_logprobs;

        void append(const TokenLogprobs &logprobs);
    };

    void append(const Outcome &outcome);
    void publish();

    struct {
        std::vector<uint64_t> tags;
        std::vector<int32_t> statuses, finish_reasons, samples;
        std::vector<int64_t> prompt_tokens, shared_tokens;
        std::vector<int64_t> token_offsets{0};
        std::vector<int32_t> tokens;
        std::vector<int64_t> text_offsets{0};
        std::string text;
        std::vector<int64_t> error_offsets{0};
        std::string errors;
        LogprobColumns logprobs, prompt_logprobs;
        std::vector<int64_t> score_offsets{0};
        std::vector<double> scores;
        std::vector<int64_t> score_token_offsets{0};
        std::vector<float> score_logprobs;
        std::vector<int64_t> embedding_offsets{0};
        std::vector<float> embeddings;
        std::vector<int64_t> label_offsets{0};
        std::vector<float> label_logits, label_probabilities;
    } columns_;
};

} // namespace batchllm
