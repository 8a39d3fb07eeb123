// f32 kernels on AVX-512.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

// GCC 12 reports the undefined registers in its own intrinsics as errors (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define KERNEL_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")))
#define KERNEL_NAME "avx512"

namespace batchllm::cpu {
namespace {

#include "backend/cpu/simd_avx512.h"

struct Element {
    using Type = float;
    using Operand = __m512;
    static constexpr DType kType = DType::f32;
    static constexpr int32_t kPack = 1;
    static constexpr bool kLaterFirst = false;

    KERNEL_TARGET static Operand load(const Type *p) { return _mm512_loadu_ps(p); }
    KERNEL_TARGET static Operand broadcast(const Type *p) { return _mm512_set1_ps(*p); }
    KERNEL_TARGET static __m512 multiply_add(Operand a, Operand b, __m512 c) {
        return _mm512_fmadd_ps(a, b, c);
    }
    KERNEL_TARGET static __m512 rounded(__m512 x) { return x; }
    KERNEL_TARGET static void store(Type *p, __m512 x) { _mm512_storeu_ps(p, x); }
    KERNEL_TARGET static __m512 weight(__m512 x) { return Simd::exp2(x); }
    KERNEL_TARGET static void store_weights(Type *p, __m512 x, __m512 y) {
        store(p, x);
        store(p + kLanes, y);
    }
    KERNEL_TARGET static void store_weights(Type *p, __m512 x) { store(p, x); }
};

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_attention_calls.h"

#include "backend/cpu/kernel_elementwise.h"

} // namespace

const Kernels *avx512_kernels() { return &kKernels; }

} // namespace batchllm::cpu

#else

namespace batchllm::cpu {
const Kernels *avx512_kernels() { return nullptr; }
} // namespace batchllm::cpu

#endif
