// Token batches -> made-up tokens and a modelled time, without tensors: so that the scheduling of
// large jobs is tested anywhere in seconds.
//
// Tokens are pseudo-random, a function of (random key, position) alone; a row's output length is one
// of its random key alone. Nothing depends on sharing, on the pool or on the company a row keeps.
//
// Modelled seconds of a step:
//     overhead + max(weights read, tokens / rate) + (KV bytes read + written) / bandwidth
// The linear layers wait for whichever is longer, reading the weights or the arithmetic. Attention
// reads each context node of the batch once: a shared prefix once for all the requests below it.
// The quadratic arithmetic of prefill attention is left out.
#pragma once

#include "backend/backend.h"
#include "backend/sim/sim_options.h"

namespace batchllm {

class SimBackend : public SynchronousBackend {
  public:
    SimBackend(const SimOptions &options, const BackendOptions &backend_options);

    const BackendInfo &info() const override { return info_; }
    double last_run_seconds() const override { return seconds_; }

    // Output length of a row that does not ignore EOS, the EOS included; 0: without end.
    int64_t output_length(uint64_t random_key) const;

  private:
    Status compute(const TokenBatch &batch, BatchOutput *output) override;
    void sample_row(const SampleInput &input, SampleOutput *out) const;
    int32_t other_token(uint64_t key, int32_t position, int32_t rank) const;

    SimOptions options_;
    BackendInfo info_;
    double seconds_ = 0;
};

} // namespace batchllm
