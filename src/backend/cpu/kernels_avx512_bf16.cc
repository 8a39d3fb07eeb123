// bf16 kernels on AVX-512 with its bfloat16 dot product: two neighbours along the summed dimension
// in one instruction, summed in float.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

// GCC 12 takes the undefined registers inside its own intrinsics for a fault (its bug 105593).
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

struct Element {
    using Type = uint16_t;
    using Operand = __m512i;
    static constexpr DType kType = DType::bf16;
    static constexpr int32_t kPack = 2;
    static constexpr bool kLaterFirst = true;

    KERNEL_TARGET static Operand load(const Type *p) { return _mm512_loadu_si512(p); }
    KERNEL_TARGET static Operand broadcast(const Type *p) {
        int32_t pair;
        __builtin_memcpy(&pair, p, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    // c + (the second of each pair), and then + (the first), each rounded, as the instruction is specified.
    KERNEL_TARGET static __m512 multiply_add(Operand a, Operand b, __m512 c) {
        return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
    KERNEL_TARGET static __m512 rounded(__m512 x) {
        const auto halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
    KERNEL_TARGET static void store(Type *p, __m512 x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                            reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    }
    KERNEL_TARGET static void store_weights(Type *p, __m512 x) {
        const auto halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm256_rol_epi32(halves, 16));
    }
};

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_elementwise.h"

} // namespace

const Kernels *avx512_bf16_kernels() { return &kKernels; }

} // namespace batchllm::cpu

#else

namespace batchllm::cpu {
const Kernels *avx512_bf16_kernels() { return nullptr; }
} // namespace batchllm::cpu

#endif
