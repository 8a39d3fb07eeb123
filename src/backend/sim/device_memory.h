// A described device and a model -> how large its steps are, and what weights and their buffers leave of its memory for
// keys and values.
#pragma once

#include <cstdint>
#include <string>

#include "backend/sim/device_costs.h"
#include "backend/step_buffers.h"
#include "model/model.h"

namespace batchllm {

// As the CUDA backend computes the model with an option compute_type of this value.
StepForm form_on_gpu(const Model &model, const std::string &compute_type, bool reproducible);

// Where the options do not say: as the description has it, and of a model without experts on a GPU no more than the
// backend takes there (default_step_tokens).
int64_t step_tokens_on(const DeviceCosts &costs, const Model &model, const StepForm &form);

// Weights, buffers of steps of so many tokens, and what the driver takes. widens: keys and values are in fp8, and are
// widened before many tokens read them.
int64_t bytes_beside_pages(const DeviceCosts &costs, const Model &model, const StepForm &form,
                           int64_t step_tokens, bool widens);

} // namespace batchllm
