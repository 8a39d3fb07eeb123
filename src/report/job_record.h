// What an engine does, while it does it -> what a report shows: sums, counts, and lists of bounded
// length.
//
// During its steps an engine calls the functions below "Written by an engine". They never throw: if
// memory runs out, what they would have recorded is missing, and complete() says so.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "batchllm.h"
#include "plan/plan.h"
#include "report/batch_curve.h"
#include "report/length_counts.h"
#include "report/sharing_tree.h"

namespace batchllm {

using TokenDecoder = std::function<std::string(std::span<const int32_t>)>;

// A group, or the part of it that one device computes, from the time it is placed on the device.
struct GroupRun {
    double started = 0; // seconds, by the engine's clock
    double seconds = 0; // until its last row had a result
    int64_t rows = 0;
    int64_t prefix_tokens = 0;
    int64_t prompt_tokens = 0; // sum over all rows, each including the prefix
    int64_t generated = 0;
    int64_t longest_output = 0;
    int64_t unfinished = 0; // rows, each with its equals
    // The first tokens of the prefix (or of the only row), which other groups may share, and its
    // last tokens.
    std::vector<int32_t> first_tokens, last_tokens;
    std::string words; // these tokens as text, once decoded
};

struct FailureKind {
    int64_t rows = 0;
    uint64_t tag = 0; // of the first such row
    std::string message;
};

// What the rows run on.
struct EngineFacts {
    std::string backend, device, compute_type, model;
    int32_t devices = 0;
    int64_t step_tokens = 0;
    int64_t kv_pages = 0; // sum over all devices
    int64_t kv_page_bytes = 0;
    int32_t page_tokens = 0;
    bool modelled = false; // seconds are simulated, not measured
};

// Sums over plans that no engine ran.
struct PlannedSums {
    int64_t plans = 0, rows = 0, groups = 0, grouped_rows = 0;
    int64_t logical_tokens = 0, processed_tokens = 0;
    int64_t longest_prefix = 0, largest_group = 0;
    double seconds = 0;
};

class JobRecord {
  public:
    static constexpr size_t slowest_kept = 12;
    static constexpr size_t failure_kinds_kept = 40;
    static constexpr size_t facts_kept = 64;

    // For rows that no engine received, and plans that no engine ran. These may throw
    // std::bad_alloc.
    void add_failure(uint64_t tag, const std::string &kind, const std::string &message);
    bool add_fact(const std::string &name, const std::string &value); // false: too many facts
    void add_prediction(const batchllm_prediction &of);               // added to earlier ones
    void add_plan(const Plan &plan, std::span<const TokenRow> rows, const TokenDecoder &decoder);

    // Written by an engine.
    void attach(const void *engine, const EngineFacts &facts, const batchllm_stats &before,
                TokenDecoder decoder);
    void detach() { writer_ = nullptr; }
    const void *writer() const { return writer_; } // the engine that writes; null: none
    // row: one of the group's rows. Its first `shared` tokens are the prefix; the group computes
    // those from computed_from on.
    std::shared_ptr<GroupRun> start_group(std::span<const int32_t> row, int64_t shared,
                                          int64_t computed_from, const GroupRun &run) noexcept;
    void end_run(GroupRun *run, int64_t generated, int64_t longest, double now) noexcept;
    void add_batch(double now, double seconds, const BatchTokens &batch) noexcept;
    void add_advice(const std::string &text, double gain) noexcept; // gain: in tokens, used to
                                                                    // choose among advice
    void add_results(const batchllm_results &results) noexcept;
    void set_stats(const batchllm_stats &now) noexcept; // of the engine since its creation

    // Call before reading the record: decodes the words that are still missing.
    void decode_words();

    // For readers.
    bool ran() const { return ran_; }
    bool complete() const { return complete_; }
    const EngineFacts &engine() const { return engine_; }
    const batchllm_stats &stats() const {
        return stats_;
    } // for the time that engines were
      // attached
    const PlannedSums &planned() const { return planned_; }
    // The sum over all predicted parts of the job; null: none was predicted.
    const batchllm_prediction *prediction() const { return prediction_ ? &*prediction_ : nullptr; }
    const SharingTree &tree() const { return tree_; }
    const BatchCurve &curve() const { return curve_; }
    double mean_fill() const; // mean tokens of a batch as a share of the maximum; 0 if none ran
    int64_t small_batches() const {
        return small_batches_;
    } // batches filled to less than half the
      // maximum
    const LengthCounts &prompts() const { return prompts_; }
    const LengthCounts &outputs() const { return outputs_; }
    const std::map<int32_t, int64_t> &finish_reasons() const { return finish_reasons_; }
    const std::map<std::string, FailureKind> &failures() const { return failures_; }
    int64_t rows_refused() const { return rows_refused_; }            // reported by add_failure
    const std::vector<GroupRun> &slowest() const { return slowest_; } // slowest first
    const std::string &advice() const { return advice_; }
    const std::vector<std::pair<std::string, std::string>> &facts() const { return facts_; }

  private:
    template <typename Body> void note(Body body) noexcept;
    void add_plan_advice(const Plan &plan, std::span<const TokenRow> rows,
                         const TokenDecoder &decoder);
    void count_failure(uint64_t tag, const std::string &kind, const std::string &message);

    const void *writer_ = nullptr;
    bool ran_ = false;
    bool complete_ = true;
    EngineFacts engine_;
    batchllm_stats before_{}, earlier_{},
        stats_{};            // before: of the engine; earlier: of other attachments
    double clock_start_ = 0; // start of the engine's clock, on the record's clock
    PlannedSums planned_;
    std::optional<batchllm_prediction> prediction_;
    SharingTree tree_;
    BatchCurve curve_;
    int64_t batch_tokens_ = 0, small_batches_ = 0;
    LengthCounts prompts_, outputs_;
    std::map<int32_t, int64_t> finish_reasons_;
    std::map<std::string, FailureKind> failures_;
    int64_t rows_refused_ = 0;
    std::vector<GroupRun> slowest_;
    std::string advice_;
    double advice_gain_ = 0;
    std::vector<std::pair<std::string, std::string>> facts_;
    TokenDecoder decoder_;
};

} // namespace batchllm
