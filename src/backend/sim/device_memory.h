// A described device and a model -> the size of its steps, and the memory that remains for keys and
// values after weights and step buffers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backend/gpu/packed_form.h"
#include "backend/gpu/scaled_fit.h"
#include "backend/gpu/step_buffers.h"
#include "backend/sim/device_costs.h"
#include "model/model.h"

namespace batchllm {

// How the CUDA backend computes the model with this value of the option compute_type.
StepForm form_on_gpu(const Model &model, const std::string &compute_type, bool reproducible,
                     Quantize quantize = Quantize::stored);

// The default for the step size: the description's value, but on a GPU at most what the backend uses there
// (default_step_tokens), unless that is the one of experts (has_sparse_steps).
int64_t step_tokens_on(const DeviceCosts &costs, const Model &model, const StepForm &form);

// What the weights take, and how much of that those take that stay in four bits.
struct WeightBytes {
    int64_t all = 0;
    int64_t in_four_bits = 0;
};
WeightBytes weight_bytes(const DeviceCosts &costs, const Model &model, DType element,
                         Quantize quantize = Quantize::stored);

// Calls act(layer, rows, columns, packing, matrices) with those that stay in four bits; matrices: experts, or 1.
using ActOnPacked = std::function<void(const Layer &layer, int64_t rows, int64_t columns,
                                       const Packing &packing, int64_t matrices)>;
void for_each_packed(const Model &model, DType element, const ActOnPacked &act);

// Weights, buffers for steps of this many tokens, and the driver's memory. widens: keys and values
// are in fp8, and are widened before many tokens read them.
int64_t bytes_beside_pages(const DeviceCosts &costs, const Model &model, const StepForm &form,
                           int64_t step_tokens, bool widens, Quantize quantize = Quantize::stored);

} // namespace batchllm
