// A described device and a model -> how large its steps are, and what weights and their buffers leave of its memory for
// keys and values.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/sim/device_costs.h"
#include "backend/step_buffers.h"
#include "model/model.h"

namespace batchllm {

// As the CUDA backend computes the model, of whose options the type of elements counts. Layers in e4m3 are not
// predicted; partials are those of steps that are not reproducible.
StepForm form_on_gpu(const Model &model, const BackendOptions &options);

// Where the options do not say: as many as the description allows, and on a GPU no more than the backend there takes
// (default_step_tokens).
int64_t step_tokens_on(const DeviceCosts &costs, const Model &model, const BackendOptions &options);

// Weights, buffers of such steps, and what the driver takes.
int64_t bytes_beside_pages(const DeviceCosts &costs, const Model &model,
                           const BackendOptions &options, int64_t step_tokens);

// KV memory of a device with nothing on it but this model: the options' fraction, or the device's default, of the rest.
int64_t default_kv_bytes(const DeviceCosts &costs, const Model &model,
                         const BackendOptions &options, int64_t step_tokens);

} // namespace batchllm
