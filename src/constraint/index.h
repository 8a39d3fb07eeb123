// Numbers of nodes, states and tokens have 32 bits; what they index takes size_t.
#pragma once

#include <cstddef>
#include <cstdint>

namespace batchllm {

inline size_t at(int32_t index) { return static_cast<size_t>(index); }

} // namespace batchllm
