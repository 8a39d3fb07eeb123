// The agenda's next rows -> runs of rows on lanes, one lane for each device -> batches in flight.
//
// Owns the lanes and all runs: the rows that have been started and have not ended. A run stays on
// one lane. If the lane's device fails, the run's rows wait again, as if they had never been
// started: what a device computes depends only on its rows, so another device can compute it.
//
// Always: a run's requests are in its lane's scheduler, or it has ended; Lane::tokens_to_generate()
// counts what they may still generate. A lane keeps exactly those of the plan's prefixes that it
// was given and that groups to come continue.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/agenda.h"
#include "runtime/cancels.h"
#include "runtime/lane.h"
#include "runtime/lane_balance.h"
#include "runtime/masks.h"
#include "runtime/observers.h"
#include "runtime/row_checks.h"
#include "runtime/row_reader.h"

namespace batchllm {

class Placement {
  public:
    // backends: [devices]. rows: the intake's.
    Placement(const std::vector<int32_t> &devices, std::vector<std::unique_ptr<Backend>> backends,
              const SchedulerOptions &scheduling, const RunLimits &limits, RowReader *reader,
              RowStore *rows, Observers *observers, DraftOptions drafts = {});

    struct Device {
        int32_t number;
        BackendInfo info;
    };
    // As loaded, including those that have failed since then.
    const std::vector<Device> &devices() const { return devices_; }
    const Lanes &lanes() const { return lanes_; } // of devices that have not failed
    std::vector<DevicePages> device_pages() const;

    // The agenda has another plan. Cannot fail.
    void begin_plan();
    // Starts as many of the agenda's rows as the lanes need now.
    Status place(Agenda *agenda);
    // Places rows and builds the lane's next batch; empty if there is nothing to compute yet.
    Result<const TokenBatch *> next_batch(Lane *lane, Agenda *agenda);
    Status submit(Lane *lane, const TokenBatch &batch);
    // Samples the newest batch, with the masks of constrained rows. forced() lists the rows whose
    // next tokens take the place of the sample.
    Status sample(Lane *lane);
    std::span<Sequence *const> forced() const { return masks_.forced(); }
    // The lane whose oldest batch is ready, or will be first; null: nothing is in flight.
    Lane *first_ready();
    // Waits for the lane's oldest batch, which its record and output then describe.
    Status collect(Lane *lane);
    // The outputs of that batch have been accepted.
    void finish_batch(Lane *lane);

    // Started runs with a row that is named and not answered, in order of their first rows.
    std::vector<RowRun *> runs_with(const Cancels &cancels) const;
    // Nothing more is to be computed for the run.
    void drop(RowRun *run);
    // The run's rows have been answered: it goes, and their memory with it.
    void remove_run(RowRun *run);

    // The lane's runs whose adapter or a picture could not be read, which why_unreadable() explains, in
    // order of their first rows. Before next_batch(): takes note of what has been read.
    Result<std::vector<RowRun *>> unreadable_runs(Lane *lane);
    Status why_unreadable(const RowRun &run) const;

    // The lane of a device that has failed; null: none has.
    Lane *lost_lane() const;
    // Removes the lane, which need not be the last. Its rows without an answer wait again.
    struct Lost {
        int64_t rows = 0;
        int64_t generated = 0; // tokens that go with it
    };
    Lost remove_lane(Lane *lane);

    int64_t rows_running() const;
    int64_t pages_used() const;
    int64_t pages() const;
    RowTokens tokens_left() const;
    double device_seconds() const; // of the device that has computed for the longest
    MaskWork mask_work() const;
    void forget_group_runs(); // of a report that ends
    void add_to(batchllm_stats *stats) const;

  private:
    Status place_wanted(Agenda *agenda);
    Status place_group(const PlanGroup &group, LaneBalance *balance, Agenda *agenda);
    RowRun *start_run(const std::vector<int64_t> &rows, Lane *lane);
    void place_pictures(RowRun *run);
    Status queue(Lane *lane, const Agenda &agenda, int32_t prefix);
    void add_to(const Lane &lane, batchllm_stats *stats) const;

    RunLimits limits_;
    RowReader &reader_;
    RowStore &rows_;
    Observers &observers_;
    std::vector<Device> devices_;
    Lanes lanes_;
    std::unordered_map<RowRun *, std::unique_ptr<RowRun>> runs_;
    int64_t unusual_runs_ = 0; // runs other than one row with one request
    RowMasks masks_;
    std::vector<RowRun *> placed_;    // scratch
    std::vector<Request *> requests_; // scratch
    double schedule_seconds_ = 0;
    int64_t rows_deduplicated_ = 0;
    std::set<AdapterHash> adapters_used_;
    int64_t row_pictures_ = 0;
    batchllm_stats lost_{}; // of the lanes that have been removed
};

} // namespace batchllm
