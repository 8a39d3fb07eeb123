// The ways in which bench/throughput runs jobs: on one backend, and on the whole engine.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "throughput_arguments.h"
#include "throughput_models.h"

namespace batchllm {

// Runs jobs of one model on one backend, each beside its floor. weights: the backend's
// random_weights. Returns their best rates, rows/s.
Result<std::vector<double>> bench_backend(const std::vector<NamedJob> &jobs, const Model &model,
                                          const Arguments &arguments,
                                          const std::string &weights = "1");

// Runs a job on the whole engine: on the first device alone (unless told not to), then on all of
// them.
Status bench_engine(const NamedJob &job, const BenchModel &model, const Arguments &arguments);

} // namespace batchllm
