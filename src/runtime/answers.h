// What batches computed -> the sequences' tokens, scores and vectors, and their ends -> the results
// of rows, in the order in which the rows end, until the caller polls them.
//
// Always: a row gets exactly one answer: refused when it is added, cancelled, or the end of its
// run. All results of a row (one for each sample) are adjacent, and are there together or not at
// all. rows_done() counts the answered rows.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cancels.h"
#include "runtime/cut_off.h"
#include "runtime/outcome.h"
#include "runtime/row_reader.h"
#include "runtime/row_run.h"

namespace batchllm {

// Tokens that steps computed because they were proposed.
struct DraftWork {
    int64_t proposed = 0;
    int64_t accepted = 0; // right, so that each saved its row a step
};

class Answers {
  public:
    explicit Answers(const RowReader *reader) : reader_(*reader) {}

    // The results of a row that cannot be computed. It counts as answered only once
    // count_refused() says so; until then, take_back() may remove its results.
    void refuse(uint64_t tag, int64_t prompt_tokens, int32_t samples, const Status &why);
    void count_refused(int64_t rows) { refused_ += rows; }
    // Removes the newest results, until this many wait to be polled.
    void take_back(size_t waiting);
    size_t waiting() const { return outcomes_.size(); }

    // Post-processing. Both return how many tokens that the requests might have generated they no
    // longer will: those that they now have, and the rest of those that end here.
    // hidden: the size of a hidden state.
    int64_t accept(const BatchRecord &record, const BatchOutput &output, size_t hidden);
    // Takes the tokens that must come next, instead of a sample.
    int64_t accept_forced(Sequence *sequence);
    // The runs of which nothing is left to compute since the last call; valid until the next one.
    // It is called before the next batch is post-processed.
    std::span<RowRun *const> take_ended() {
        std::swap(ended_, taken_);
        ended_.clear();
        return taken_;
    }

    // Nothing of the run that is not done can be computed.
    void fail(RowRun *run, const Status &why);
    // Answers those of the run's rows that have no answer yet; equal rows get copies.
    void answer(RowRun *run);
    // Answers the rows that the cancels name, with what there is so far.
    void cancel(RowRun *run, const Cancels &cancels);
    void cancel(const Row &waiting);

    // These tokens were generated for runs that start again from nothing.
    void lose_tokens(int64_t tokens);

    std::unique_ptr<ResultBatch> poll(int64_t max_results);

    // See CutOff.
    std::string take_warning(bool all_done) { return cut_off_.take_warning(all_done); }

    int64_t rows_done() const { return refused_ + answered_; }
    int64_t generated_tokens() const { return completion_tokens_ + lost_tokens_; }
    const DraftWork &draft_work() const { return drafts_; }
    void add_to(batchllm_stats *stats) const;

  private:
    void answer(const RowRun &run, RowRun::Answer *to, bool cancelled);
    void accept_sample(Sequence *sequence, const SampleOutput &sample);
    void accept_hidden(Sequence *sequence, std::span<const float> sum, int32_t tokens, bool finite);
    bool accept_constrained(Sequence *sequence, int32_t token);
    void accept_token(Sequence *sequence, int32_t token);
    void accept_scores(Sequence *sequence, std::span<const float> logprobs, bool finite);
    void accept_prompt_score(Sequence *sequence, float logprob, const SampleOutput &output);
    void finish(Sequence *sequence, int32_t reason);
    void fail(Sequence *sequence, int32_t status, std::string message);
    bool ends_row(const SamplingParams &params, int32_t token) const;

    const RowReader &reader_;
    std::deque<Outcome> outcomes_; // not polled
    std::vector<RowRun *> ended_, taken_;
    int64_t settled_ = 0; // what accept() returns
    int64_t refused_ = 0, answered_ = 0, failed_ = 0;
    int64_t completion_tokens_ = 0;
    int64_t lost_tokens_ = 0;
    DraftWork drafts_;
    CutOff cut_off_;
};

} // namespace batchllm
