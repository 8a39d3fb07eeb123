// An adapter's change of the embedding, its first half: instead of shrink (adapters/adapters.h), of which x is 1 for one of
// A's columns, the token, and 0 for the others. A is transposed: [vocabulary, ranks].
#pragma once

#include "adapters/adapters.h"
#include "sampling/sampling.h"

namespace batchllm::cuda {

// arguments.x: tokens as launch_embed() has them. t has one range.
cudaError_t launch_look_up(const AdapterArguments &arguments, const SampleResult *samples, int sms,
                           cudaStream_t stream);

} // namespace batchllm::cuda
