// f32 kernels on AVX2 with FMA: sixteen floats in two registers.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define KERNEL_TARGET __attribute__((target("avx2,fma")))
#define KERNEL_NAME "avx2"

namespace batchllm::cpu {
namespace {

struct Simd {
    struct Vector {
        __m256 low, high;
    };
    static constexpr float kInfinity = __builtin_inff();
    // Register blocking for 16 registers; a vector takes two.
    static constexpr int kScoreRows = 6;
    static constexpr int kGroups = 1;
    static constexpr int kFewRows = 2;
    static constexpr int kWideGroups = 2;
    static constexpr int kWeighRows = 6;
    static constexpr int kColumns = 1;

    KERNEL_TARGET static Vector zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    KERNEL_TARGET static Vector set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    KERNEL_TARGET static Vector load(const float *p) {
        return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
    }
    KERNEL_TARGET static void store(float *p, Vector x) {
        _mm256_storeu_ps(p, x.low);
        _mm256_storeu_ps(p + 8, x.high);
    }
    KERNEL_TARGET static Vector add(Vector a, Vector b) {
        return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
    }
    KERNEL_TARGET static Vector subtract(Vector a, Vector b) {
        return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
    }
    KERNEL_TARGET static Vector multiply(Vector a, Vector b) {
        return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
    }
    KERNEL_TARGET static Vector divide(Vector a, Vector b) {
        return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
    }
    KERNEL_TARGET static Vector maximum(Vector a, Vector b) {
        return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
    }
    KERNEL_TARGET static Vector multiply_add(Vector a, Vector b, Vector c) {
        return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
    }
    KERNEL_TARGET static float reduce_add(Vector a) {
        const __m256 eight = _mm256_add_ps(a.low, a.high);
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
    }
    KERNEL_TARGET static float reduce_maximum(Vector a) {
        const __m256 eight = _mm256_max_ps(a.low, a.high);
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
    }

    KERNEL_TARGET static __m256 exp2_fraction(__m256 f) {
        __m256 p = _mm256_set1_ps(1.3276472e-3f);
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.6755415e-3f));
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5507133e-2f));
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.4022120e-1f));
        p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.9314697e-1f));
        return _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    }
    // As in simd_avx512.h, with the exponent assembled by hand. The order of operands matters for
    // min and max: if one is NaN, they return the second.
    KERNEL_TARGET static __m256 exp2_half(__m256 x) {
        x = _mm256_min_ps(_mm256_set1_ps(128), _mm256_max_ps(_mm256_set1_ps(-127), x));
        const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256 p = exp2_fraction(_mm256_sub_ps(x, whole));
        const __m256i exponent = _mm256_slli_epi32(
            _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23);
        return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
    }
    KERNEL_TARGET static __m256 exp2_half_over(__m256 x, __m256 base) {
        x = _mm256_max_ps(_mm256_set1_ps(-1e30f), x);
        const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256 p = exp2_fraction(_mm256_sub_ps(x, whole));
        const __m256 exponent = _mm256_min_ps(
            _mm256_set1_ps(128), _mm256_max_ps(_mm256_set1_ps(-127), _mm256_sub_ps(whole, base)));
        const __m256i bits = _mm256_slli_epi32(
            _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127)), 23);
        return _mm256_mul_ps(p, _mm256_castsi256_ps(bits));
    }
    KERNEL_TARGET static Vector exp2_over(Vector x, Vector base) {
        return {exp2_half_over(x.low, base.low), exp2_half_over(x.high, base.high)};
    }
    KERNEL_TARGET static Vector exp2(Vector x) { return {exp2_half(x.low), exp2_half(x.high)}; }
    KERNEL_TARGET static float exp2_one(float x) {
        return _mm256_cvtss_f32(exp2_half(_mm256_set1_ps(x)));
    }
};

struct Element {
    using Type = float;
    using Operand = Simd::Vector;
    static constexpr DType kType = DType::f32;
    static constexpr int32_t kPack = 1;
    static constexpr bool kLaterFirst = false;

    KERNEL_TARGET static Operand load(const Type *p) { return Simd::load(p); }
    KERNEL_TARGET static Operand broadcast(const Type *p) { return Simd::set(*p); }
    KERNEL_TARGET static Simd::Vector multiply_add(Operand a, Operand b, Simd::Vector c) {
        return Simd::multiply_add(a, b, c);
    }
    KERNEL_TARGET static Simd::Vector rounded(Simd::Vector x) { return x; }
    KERNEL_TARGET static void store(Type *p, Simd::Vector x) { Simd::store(p, x); }
    KERNEL_TARGET static Simd::Vector weight(Simd::Vector x) { return Simd::exp2(x); }
    KERNEL_TARGET static void store_weights(Type *p, Simd::Vector x, Simd::Vector y) {
        store(p, x);
        store(p + kLanes, y);
    }
    KERNEL_TARGET static void store_weights(Type *p, Simd::Vector x) { store(p, x); }
};

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_attention_calls.h"

#include "backend/cpu/kernel_elementwise.h"

} // namespace

const Kernels *avx2_kernels() { return &kKernels; }

} // namespace batchllm::cpu

#else

namespace batchllm::cpu {
const Kernels *avx2_kernels() { return nullptr; }
} // namespace batchllm::cpu

#endif
