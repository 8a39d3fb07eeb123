// The cases that bench_attention times, by group: this project's own table, and the grids of the
// papers and libraries that it is compared with (docs/lab/jobs.md).
#pragma once

#include <string>

#include "attention_time.h"

namespace batchllm::cuda {

void time_group(const std::string &group, AttentionTimer *timer);

} // namespace batchllm::cuda
