// The fused attention against a float64 reference, on random shapes, page tables, windows, softcaps,
// sinks and node forests: the work of `attention --check`.
#pragma once

#include <random>

#include "attention/family.h"
#include "attention_case.h"

namespace batchllm::cuda {

// Prints what was checked, and returns whether all of it was within rounding. e4m3: keys and values
// are in it.
bool check_attention(const AttentionFamily &family, unsigned seed, int rounds, bool e4m3);

// The same for bits: in a step by position, a token's result is the same as alone, whatever else is
// in the step.
bool check_by_row(const AttentionFamily &family, unsigned seed, int rounds, bool e4m3);

// shape: heads, KV heads, head_dim.
AttentionCase random_case(std::mt19937 &random, const int (&shape)[3]);
inline constexpr int kCheckedShapes[][3] = {{32, 8, 128}, {28, 4, 128}, {8, 1, 128},  {8, 8, 64},
                                            {32, 8, 64},  {16, 2, 256}, {4, 4, 128},  {14, 2, 64},
                                            {20, 1, 128}, {8, 1, 512},  {16, 2, 512}, {4, 4, 512}};

} // namespace batchllm::cuda
