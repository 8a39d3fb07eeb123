// The ways in which bench/throughput does jobs: on one backend, and on the whole engine.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "throughput_arguments.h"
#include "throughput_models.h"

namespace batchllm {

// Jobs of one model on one backend, each beside its floor.
Status bench_backend(const std::vector<NamedJob> &jobs, const Model &model,
                     const Arguments &arguments);

// A job on the whole engine: on the first of the devices alone (unless told not to), then on all of them.
Status bench_engine(const NamedJob &job, const BenchModel &model, const Arguments &arguments);

} // namespace batchllm
