// Token batches -> made-up tokens and a simulated time, without tensors, so that the scheduling of
// large jobs can be tested anywhere in seconds.
//
// Adapters take slots and memory, two bytes for each number, and change nothing. They take time only
// on a described device. Pictures take slots, and time before the next batch: their tokens count like
// those of a batch.
//
// Tokens are pseudo-random and depend only on (random key, position); a row's output length depends
// only on its random key. Nothing depends on sharing, on the pool or on other rows, with one
// exception: equal greedy rows, whose keys differ, are run as one if they wait at the same time.
//
// Simulated seconds of a batch on the device:
//     overhead + max(weights read, tokens / rate) + (KV and state bytes read + written) / bandwidth
// The host's seconds between two batches are hidden behind the device's if a batch goes forward
// while another is in flight (overlap); otherwise they are added. With a described device (option
// `device`), StepCost provides both.
//
// The linear layers take as long as reading the weights or as the arithmetic, whichever is longer.
// Attention reads each context node of the batch once: a shared prefix once for all the requests
// below it. In layers with a window, it reads a node from the start of the window of the first
// query that sees it. The quadratic arithmetic of prefill attention is left out.
#pragma once

#include <array>
#include <cstdint>

#include "backend/backend.h"
#include "backend/sim/sim_options.h"

namespace batchllm {

class SimBackend : public Backend {
  public:
    SimBackend(const SimOptions &options, const BackendOptions &backend_options);

    const BackendInfo &info() const override { return info_; }
    Status forward(const TokenBatch &batch) override;
    Status sample(std::span<const TokenMask> masks) override;
    Status collect(BatchOutput *output) override;
    bool feeds(const SampleInput &) const override { return options_.overlap != 0; }
    double last_run_seconds() const override { return seconds_; }
    Result<int64_t> adapter_bytes(const Adapter &adapter) const override;
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const override;
    Status load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) override;

    Status load_pictures(std::span<const PictureLoad> pictures) override;

    double common_prefix_cost() const { return options_.common_prefix_cost; }
    // Over all batches that went forward; zeros if no device is described.
    const StepSeconds &spent() const { return spent_; }
    const WeightBytes &weights() const { return options_.weights; }

    // Output length, including the EOS, of a row that does not ignore EOS; 0: unlimited.
    int64_t output_length(uint64_t random_key) const;

  private:
    // What is kept of an output row, since the data that the batch points to may be gone after
    // sampling.
    struct Drawn {
        Task task;
        uint64_t key;
        int32_t position;
        int64_t generated;
        bool may_end;
        int32_t logprobs;
        std::vector<int32_t> forbidden; // add_forbidden
    };
    struct InFlight {
        std::vector<Drawn> rows;
        BatchOutput output;
        double seconds = 0;
    };
    double device_seconds(const TokenBatch &batch);
    int64_t kv_bytes(const TokenBatch &batch) const;
    void sample_row(const Drawn &row, TokenMask mask, SampleOutput *out) const;
    int32_t other_token(uint64_t key, int32_t position, int32_t rank) const;
    int32_t allowed_token(int32_t wanted, const Drawn &row, TokenMask mask) const;
    void list_likeliest(const SampleInput &input, SampleOutput *out) const;

    SimOptions options_;
    BackendInfo info_;
    std::array<InFlight, 2> batches_; // from batches_[oldest_] on
    size_t oldest_ = 0;
    int32_t in_flight_ = 0;
    int64_t collected_ = 0;
    std::vector<AdapterCost> adapters_; // by slot, if a device is described
    StepSeconds spent_;
    double picture_seconds_ = 0; // of pictures loaded since the last batch went forward
    double seconds_ = 0;         // of the batch collected last
};

} // namespace batchllm
