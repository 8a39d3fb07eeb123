// Whether this backend computes all that a description asks for.
#pragma once

#include "base/status.h"
#include "model/model.h"

namespace batchllm::cuda {

// An error names the layer and what is missing.
Status check_supported(const Model &model);

} // namespace batchllm::cuda
