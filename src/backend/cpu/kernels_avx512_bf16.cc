// bf16 kernels on AVX-512 with its bfloat16 dot product: two neighbours along the summed dimension
// in one instruction, summed in float.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

// GCC 12 reports the undefined registers in its own intrinsics as errors (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define KERNEL_TARGET                                                                              \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
#define KERNEL_NAME "avx512_bf16"

namespace batchllm::cpu {
namespace {

#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/element_avx512_bf16.h"

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_attention_calls.h"

#include "backend/cpu/kernel_elementwise.h"

} // namespace

const Kernels *avx512_bf16_kernels() { return &kKernels; }

} // namespace batchllm::cpu

#else

namespace batchllm::cpu {
const Kernels *avx512_bf16_kernels() { return nullptr; }
} // namespace batchllm::cpu

#endif
