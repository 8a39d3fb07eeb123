// A planned job through one lane on one backend: how long it took, and where the time went.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda_backend.h"
#include "model/model.h"
#include "throughput_adapters.h"
#include "throughput_arguments.h"
#include "throughput_floor.h"
#include "throughput_linear.h"
#include "throughput_models.h"

namespace batchllm {

// One device's, or several devices' that work as one. What is measured inside a step is measured on the first.
struct BenchBackend {
    std::unique_ptr<Backend> all;
    cuda::CudaBackend *first = nullptr;
};

struct Measured {
    int64_t steps = 0, full = 0, tokens = 0, sampled = 0, preemptions = 0;
    int64_t most_rows = 0;            // maximum rows that decode in one step
    std::vector<int64_t> step_tokens; // [steps]
    int64_t decode_steps = 0;         // without a prompt's tokens
    double decode_seconds = 0;
    std::vector<double> step_seconds; // [steps], on the device
    std::vector<double>
        step_attention; // [steps], attention's floor with decode's arithmetic, seconds
    double seconds = 0, backend = 0, scheduler = 0, host = 0, waited = 0;
    uint64_t hash = 0; // of all tokens, in row order
    AttentionFloor attention;
};

// probe: its passes follow each step. Once it is done, no more steps start, so the result is not
// that of the whole job.
Result<Measured> run_job(const BenchBackend &backend, const Plan &plan, const JobRows &rows,
                         const NamedJob &job, const Arguments &arguments,
                         const BenchAdapters *adapters = nullptr, LinearProbe *probe = nullptr);

} // namespace batchllm
