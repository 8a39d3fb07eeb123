// Rows -> requests. A job computes one row, and the rows that equal it: a sequence for each of its
// samples or scored continuations, or one sequence for its hidden state.
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
    // Appends a token's text without looking for stop strings in it.
    void pass(int32_t token) { text += decoder.push(token); }
    // There are no more tokens. True if what the decoder held back (a character cut short becomes
    // U+FFFD) completes a stop string. Nothing may be pushed afterwards.
    bool end() { return scanner.push(decoder.finish(), &text); }
};

// A sequence's place in its constraint.
struct Constrained {
    explicit Constrained(std::shared_ptr<const Constraint> constraint)
        : state(std::move(constraint)) {}

    ConstraintState state; // after all of the sequence's output
    Status failed;         // no mask could be made: what was sampled without it is discarded
    // Tokens that must come next: taken instead of a sample. Kept only until then.
    std::vector<int32_t> forced;
    bool takes_forced = false; // no parameter of the row requires every token to be sampled
};

// What the scheduler computes, with what the runtime remembers of it.
struct Sequence : Request {
    Job *job = nullptr;
    std::vector<int32_t> own_tokens;   // prompt and continuation of a scored sequence; else empty
    TokenLogprobs logprobs;            // of `output`, where asked
    TokenLogprobs prompt_logprobs;     // generate: of `targets`, as they arrive
    std::vector<float> score_logprobs; // [targets], as they arrive
    std::vector<float> hidden;         // embedded: the sum so far; once done, the row's vector
    int32_t pooled = 0;                // positions in that sum
    LabelScores labels;                // classified, once done
    std::unique_ptr<StopFinder> stop;  // only with stop strings
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
        int32_t prompt_length; // differs between rows of which only the first token counts
        bool given;            // its result has been made: it was cancelled before the others
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

struct JobLimits {
    int64_t max_request_tokens = 0;
    uint64_t engine_seed = 0;
    const Tokenizer *tokenizer = nullptr; // null: no text, no stop strings
    bool sharing = true;                  // false: each sample is computed separately
};
// The job of rows that are all equal and waiting; the first one lends its tokens. A job determines what
// is computed, not where it ends: it knows no EOS ids.
std::unique_ptr<Job> make_job(RowStore *rows, const std::vector<int64_t> &ids,
                              const JobLimits &limits);

// Appends the result of one of the job's rows: `samples` outcomes, or none if memory runs out. A
// cancelled row gets what there is so far.
void answer(const Job &job, const Job::Answer &to, bool cancelled, const Tokenizer *tokenizer,
            std::deque<Outcome> *outcomes);

// Prompt tokens that would be computed if nothing were shared between the job's results.
int64_t logical_tokens(const Job &job);

// How many of a row's samples are computed: with sharing one if they are greedy, since all are the same.
int32_t computed_samples(const SamplingParams &params, bool sharing);

// The most tokens that a row may generate: its max_tokens, limited by the longest request.
int32_t clipped_max_tokens(const SamplingParams &params, int64_t prompt_length,
                           int64_t max_request_tokens);

} // namespace batchllm
