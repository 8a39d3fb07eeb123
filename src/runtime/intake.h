// Columns that the caller adds -> rows that wait to be planned, or the error of a row that cannot
// be computed, which is its result at once.
//
// Owns every row's memory, from its addition until its result has been made: the other places of
// the engine borrow the rows. It does not know what becomes of a row once it has been planned.
//
// Always: each call that adds rows adds all of them or none. Ids and default tags follow the order
// of addition. unplanned() lists the waiting rows of no plan, and waiting_tokens() counts theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/addition.h"
#include "runtime/cancels.h"
#include "runtime/columns.h"
#include "runtime/row_checks.h"
#include "runtime/row_reader.h"
#include "runtime/row_run.h"
#include "runtime/row_store.h"
#include "table/table.h"

namespace batchllm {

// Continuations for n rows: those of row i are numbers [rows[i], rows[i + 1]).
template <typename T> struct ContinuationColumns {
    Column<T> continuations;
    const int64_t *rows = nullptr; // [n + 1]
};

// Pictures for n rows: those of row i are numbers [rows[i], rows[i + 1]).
struct PictureColumns {
    Column<std::byte> items;
    const int64_t *rows = nullptr;  // [n + 1]; null: there are none
    const uint8_t *kinds = nullptr; // [items.n] BATCHLLM_PICTURE_; null: all are bytes
    bool chat = false;              // the rows' texts are conversations

    // Replaces *inputs.
    void of_row(int64_t i, std::vector<PictureInput> *inputs) const;
};

class Intake {
  public:
    Intake(RowReader *reader, const RunLimits &limits, Answers *answers);

    // The columns have been checked.
    Status add_tokens(const Column<int32_t> &prompts, const uint64_t *tags,
                      const ParamsColumn &params);
    Status add_text(const Column<char> &prompts, const uint64_t *tags, const ParamsColumn &params);
    Status add_chat(const Column<char> &conversations, const uint64_t *tags,
                    const ParamsColumn &params);
    Status add_pictures(const Column<char> &texts, const PictureColumns &pictures,
                        const uint64_t *tags, const ParamsColumn &params);
    Status add_table(const Table &table, const PictureColumns &pictures, const uint64_t *tags,
                     const ParamsColumn &params);
    Status add_scores(const Column<int32_t> &prompts, const ContinuationColumns<int32_t> &scored,
                      const uint64_t *tags, const batchllm_params &params);
    // pictures null: texts that have none.
    Status add_score_text(const Column<char> &prompts, const PictureColumns *pictures,
                          const ContinuationColumns<char> &scored, const uint64_t *tags,
                          const batchllm_params &params);

    // The devices that rows must fit from now on.
    void set_devices(std::vector<DevicePages> devices) { checks_.set_devices(std::move(devices)); }
    void set_whole_pictures(bool whole) { checks_.set_whole_pictures(whole); }

    // Any thread.
    void cancel(uint64_t tag) { cancels_.cancel(tag); }
    void cancel_all() { cancels_.cancel_all(); }
    // What has been cancelled since the last call.
    std::optional<Cancels> take_cancels() { return cancels_.take(); }

    RowStore *rows() { return &pending_.rows; }
    // Ids in order of addition; -1: a row that was answered at once.
    const std::vector<int64_t> &unplanned() const { return pending_.unplanned; }
    const RowTokens &waiting_tokens() const { return pending_.tokens; }
    // A plan has all unplanned rows now. Cannot fail.
    void clear_unplanned();
    // All rows that wait are unplanned again, whatever plan they were in. Rows that were answered
    // while they waited are released.
    void unplan_all();

    int64_t added() const { return pending_.added; }
    double tokenize_seconds() const { return tokenize_seconds_; }

  private:
    class RowParams;
    template <typename Encode>
    Status add_encoded(int64_t n, const uint64_t *tags, const ParamsColumn &params, Encode encode);
    void add_sampled(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                     const RowParams &params, int64_t tokens_to_come);
    Result<std::shared_ptr<const RowPictures>> pictures_of(std::span<const int32_t> prompt) const;
    using ScoredParams = Result<std::shared_ptr<const PreparedParams>>;
    void add_scored(Addition *addition, uint64_t tag, std::span<const int32_t> prompt,
                    std::unique_ptr<ScoreSpec> score, const ScoredParams &params,
                    int64_t tokens_to_come);
    void commit(Addition *addition);

    RowReader &reader_;
    RunLimits limits_;
    Answers &answers_;
    RowChecks checks_;
    PendingRows pending_;
    CancelRequests cancels_;
    double tokenize_seconds_ = 0;
};

} // namespace batchllm
