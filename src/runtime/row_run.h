// Rows -> requests. A run of a row computes it and all rows equal to it, from the time when it is
// started until it has its results. It has one sequence for each of the row's samples or scored
// continuations, or a single sequence for its hidden state.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "constraint/constraint.h"
#include "draft/row_draft.h"
#include "runtime/outcome.h"
#include "runtime/row_store.h"
#include "sample/stop.h"
#include "schedule/scheduler.h"
#include "text/tokenizer.h"

namespace batchllm {

class Lane;
struct GroupRun;
struct RowRun;

// The text of a sequence as it grows, up to its first stop string.
struct StopFinder {
    StreamDecoder decoder;
    StopScanner scanner;
    std::string text;

    // True once a stop string has been found.
    bool push(int32_t token) { return scanner.push(decoder.push(token), &text); }
    // Appends a token's text without looking for stop strings in it.
    void pass(int32_t token) { text += decoder.push(token); }
    // There are no more tokens. Returns true if what the decoder held back (an incomplete character
    // becomes U+FFFD) completes a stop string. Nothing may be pushed afterwards.
    bool end() { return scanner.push(decoder.finish(), &text); }
};

// A sequence's position in its constraint.
struct Constrained {
    explicit Constrained(std::shared_ptr<const Constraint> constraint)
        : state(std::move(constraint)) {}

    ConstraintState state; // after the whole output of the sequence
    Status failed;         // why no mask could be made; a token sampled without one is discarded
    // Tokens that must come next, taken instead of sampling. Cleared once they have been taken.
    std::vector<int32_t> forced;
    bool takes_forced = false; // no parameter of the row requires every token to be sampled
    // After each of the proposed tokens that a step computes, which the constraint allows.
    std::vector<ConstraintState> ahead;
    int32_t masked_ahead =
        0; // how many of them have a mask: what is sampled behind others is discarded
};

// What the scheduler computes, plus what the runtime needs to know about it.
struct Sequence : Request {
    RowRun *run = nullptr;
    std::vector<int32_t> own_tokens;   // prompt and continuation of a scored sequence; else empty
    TokenLogprobs logprobs;            // of `output`, if requested
    TokenLogprobs prompt_logprobs;     // generate: of `targets`, as they arrive
    std::vector<float> score_logprobs; // [targets], as they arrive
    std::vector<float> hidden;         // embed: the sum so far; once done, the row's vector
    int32_t pooled = 0;                // how many positions are in that sum
    LabelScores labels;                // classify: once done
    std::unique_ptr<StopFinder> stop;  // null: no stop strings
    std::unique_ptr<Constrained> constrained; // null: no constraint
    std::unique_ptr<RowDraft> draft;          // null: its text has not been looked at
    int32_t text_tokens = -1;                 // how many tokens of `output` are text; -1: all
    int32_t finish = 0;                       // BATCHLLM_FINISH_..., once done
    int32_t status = BATCHLLM_OK;
    std::string error;
};

struct RowRun {
    struct Answer {
        int64_t row;
        uint64_t tag;
        int32_t samples;
        int32_t prompt_length; // differs between rows for which only the first token counts
        bool answered;         // its result has been made already: it was cancelled before the
                               // others
    };

    Lane *lane = nullptr;            // of the device that computes the whole run
    std::vector<Answer> answers;     // the row, then the rows equal to it
    std::vector<Sequence> sequences; // never moved once the scheduler has them
    std::shared_ptr<const PreparedParams> params;
    const ScoreSpec *score = nullptr; // borrowed from the row that owns the tokens
    Task task = Task::generate;
    int32_t prompt_length = 0;
    int32_t computed_length = 0;                 // tokens of the prompt: Row::computed_length()
    int32_t unfinished = 0;                      // sequences that are not done
    std::shared_ptr<GroupRun> group_run;         // for the report; null: none
    std::shared_ptr<const RowPictures> pictures; // null: none
    std::vector<PromptPicture> placed_pictures;  // [pictures' places], with the lane's numbers

    bool any_answer_left() const;
    // Tokens of the prompt that were not computed for one result alone.
    int32_t shared_tokens(const Sequence &sequence) const;
};

struct RunLimits {
    int64_t max_request_tokens = 0;
    uint64_t engine_seed = 0;
    const Tokenizer *tokenizer = nullptr; // null: no text, no stop strings
    bool sharing = true;                  // false: each sample is computed separately
    int32_t picture_token = -1;           // Model::picture_token
    int32_t supply_threads = 1; // of a lane, that read adapters, and as many that prepare pictures
};
// The run for waiting rows that are all equal; the first one lends its tokens. A run determines
// what is computed, not where it ends: it knows no EOS ids.
std::unique_ptr<RowRun> make_run(RowStore *rows, const std::vector<int64_t> &ids,
                                 const RunLimits &limits);

// Appends the result of one of the run's rows: one outcome per sample, or none if memory runs out.
// A cancelled row gets whatever there is so far.
void add_outcomes(const RowRun &run, const RowRun::Answer &to, bool cancelled,
                  const Tokenizer *tokenizer, std::deque<Outcome> *outcomes);

// The prompt tokens that would be computed for an answer, or for all that come from a sequence, if nothing were shared.
int64_t logical_tokens(const RowRun &run, const RowRun::Answer &answer);
int64_t logical_tokens(const RowRun &run, const Sequence &sequence);

// How many of a row's samples are computed. With sharing, greedy rows compute one, since all are
// equal.
int32_t computed_samples(const SamplingParams &params, bool sharing);

// The most tokens that a row may generate: its max_tokens, limited by the longest request.
int32_t clipped_max_tokens(const SamplingParams &params, int64_t prompt_length,
                           int64_t max_request_tokens);
// The same over all of its samples that are computed.
int64_t most_generated(const PreparedParams &params, int64_t prompt_length,
                       const RunLimits &limits);
int64_t most_generated(const Row &row, const RunLimits &limits);

} // namespace batchllm
