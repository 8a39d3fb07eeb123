// What adapters add to gate and up and the activation in one launch: of what the product has made, [rows, 2 width], each element is
// read once. For rows in e4m3, and for fewer tokens than the product with the activation in its epilogue is for (gated.h). On
// devices of compute capability 9.0.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "adapters/adapters.h"
#include "elementwise/elementwise.h"

namespace batchllm::cuda {

// adapters: of the product of gate and up, after shrink. activation: x is what the product has made. scales: [rows], of out in
// e4m3; null: out is of the element's type. Rows without an adapter and those of tiles of few rows are left as they are.
cudaError_t launch_adapted_activation(const AdapterArguments &adapters,
                                      const ActivationArguments &activation, float *scales, int sms,
                                      cudaStream_t stream);
// Elements of 16 bits, widths that are multiples of 32, no bias, and gated kinds that need no numbers of their own. Not for e4m3
// where gate and up take turns, as experts' do.
bool takes_adapted_activation(const AdapterArguments &adapters,
                              const ActivationArguments &activation, bool in_e4m3);

} // namespace batchllm::cuda
