// The fused attention against a float64 reference, on random shapes, page tables, windows, softcaps,
// sinks and node forests: what `bench_attention --check` does.
#pragma once

#include "attention/family.h"

namespace batchllm::cuda {

// Prints what was checked. Whether all was within rounding.
bool check_attention(const AttentionFamily &family, unsigned seed, int rounds);

} // namespace batchllm::cuda
