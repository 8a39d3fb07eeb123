// Rows -> requests. A job is one row (with the rows that equal it) being computed: a sequence for
// each of its samples, or for each thing about it that is scored; or one for its hidden state.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "constraint/constraint.h"
#include "runtime/outcome.h"
#include "runtime/row_store.h"
#include "sample/stop.h"
#include "schedule/scheduler.h"
#include "text/tokenizer.h"

namespace batchllm {

class Lane;
struct GroupRun;
struct Job;

// The text of a sequence as it grows, up to the first stop string in it.
struct StopFinder {
    StreamDecoder decoder;
    StopScanner scanner;
    std::string text;

    // True once a stop string has been found.
    bool push(int32_t token) { return scanner.push(decoder.push(token), &text); }
    // A token whose text counts for none.
    void pass(int32_t token) { text += decoder.push(token); }
    // No more tokens: true when what the decoder held back (a character cut short becomes U+FFFD)
    // completes a stop string. Nothing may be pushed after it.
    bool end() { return scanner.push(decoder.finish(), &text); }
};

// A sequence's place in its constraint.
struct Constrained {
    explicit Constrained(std::shared_ptr<const Constraint> constraint)
        : state(std::move(constraint)) {}

    ConstraintState state; // after all of the sequence's output
    Status failed;         // no mask could be made: what was sampled without is discarded
    // Tokens that must come next: taken in place of a sample. Kept only until they are.
    std::vector<int32_t> forced;
    bool takes_forced = false; // no parameter of the row asks for each token's sample
};

// What the scheduler computes, with what the runtime remembers of it.
struct Sequence : Request {
    Job *job = nullptr;
    std::vector<int32_t> own_tokens;   // prompt and continuation of a scored sequence; else empty
    TokenLogprobs logprobs;            // of `output`, where asked
    TokenLogprobs prompt_logprobs;     // generate: of `targets`, as they arrive
    std::vector<float> score_logprobs; // [targets], as they arrive
    std::vector<float> hidden; // embedded: the sum so far; once done, the vector that is wanted
    int32_t pooled = 0;        // positions in that sum
    LabelScores labels;        // classified, once done
    std::unique_ptr<StopFinder> stop;         // only with stop strings
    std::unique_ptr<Constrained> constrained; // only with a constraint
    int32_t text_tokens = -1;                 // tokens of `output` that are text; -1: all
    int32_t finish = 0;                       // BATCHLLM_FINISH_, once done
    int32_t status = BATCHLLM_OK;
    std::string error;
};

struct Job {
    struct Answer {
        int64_t row;
        uint64_t tag;
        int32_t samples;
        int32_t prompt_length; // rows of which the first token alone counts may differ
        bool given;            // its result has been made: cancelled before the others
    };

    Lane *lane = nullptr;            // the device that computes all of it
    std::vector<Answer> answers;     // the row, then its equals
    std::vector<Sequence> sequences; // never moved once they have been handed to the scheduler
    std::shared_ptr<const PreparedParams> params;
    const ScoreSpec *score = nullptr; // borrowed from the row that owns the tokens
    Task task = Task::generate;
    int32_t prompt_length = 0;
    int32_t computed_length = 0;         // of the prompt: Row::computed_length()
    int32_t shared_tokens = 0;           // of the prompt, not computed for one result alone
    int32_t unfinished = 0;              // sequences not done
    std::shared_ptr<GroupRun> group_run; // the report's; null: none

    bool any_answer_left() const;
};

// What a row's job is to be, of rows that are all equal and waiting, the first of which lends its
// tokens. eos etc. are not known here: only what is computed, not when it ends.
struct JobLimits {
    int64_t max_request_tokens = 0;
    uint64_t engine_seed = 0;
    const Tokenizer *tokenizer = nullptr; // null: no text, no stop strings
    bool sharing = true;                  // false: each sample is computed for itself
};
std::unique_ptr<Job> make_job(RowStore *rows, const std::vector<int64_t> &ids,
                              const JobLimits &limits);

// The result that the job gives one of its rows: `samples` outcomes, or none when memory runs out. A
// cancelled row gets what there is so far.
void answer(const Job &job, const Job::Answer &to, bool cancelled, const Tokenizer *tokenizer,
            std::deque<Outcome> *outcomes);

// Prompt tokens that computing each of the job's results for itself would take.
int64_t logical_tokens(const Job &job);

// How many of a row's samples are computed: greedy ones are all the same, so that sharing needs one.
int32_t computed_samples(const SamplingParams &params, bool sharing);

// Most tokens that a row may generate: its max_tokens, within the longest request.
int32_t clipped_max_tokens(const SamplingParams &params, int64_t prompt_length,
                           int64_t max_request_tokens);

} // namespace batchllm
