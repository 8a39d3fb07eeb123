// Kernels in plain C++, for any processor, in f32 and in bf16. Every other table is checked against
// these.
#include <bit>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "base/narrow_floats.h"

#define KERNEL_TARGET
#define KERNEL_NAME "portable"

namespace batchllm::cpu {
namespace {

struct Simd {
    struct Vector {
        float lane[16];
    };
    static constexpr float kInfinity = __builtin_inff();
    static constexpr int kScoreRows = 4;
    static constexpr int kGroups = 1;
    static constexpr int kFewRows = 0;
    static constexpr int kWideGroups = 1;
    static constexpr int kWeighRows = 4;
    static constexpr int kColumns = 1;

    template <typename F> static Vector each(F f) {
        Vector v;
        for (int i = 0; i < 16; ++i) v.lane[i] = f(i);
        return v;
    }
    static Vector zero() { return set(0); }
    static Vector set(float x) {
        return each([&](int) { return x; });
    }
    static Vector load(const float *p) {
        return each([&](int i) { return p[i]; });
    }
    static void store(float *p, const Vector &x) {
        for (int i = 0; i < 16; ++i) p[i] = x.lane[i];
    }
    static Vector add(const Vector &a, const Vector &b) {
        return each([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Vector subtract(const Vector &a, const Vector &b) {
        return each([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static Vector multiply(const Vector &a, const Vector &b) {
        return each([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Vector divide(const Vector &a, const Vector &b) {
        return each([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static Vector maximum(const Vector &a, const Vector &b) {
        return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Vector multiply_add(const Vector &a, const Vector &b, const Vector &c) {
        return each([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
    }
    static float reduce_add(Vector a) {
        for (int half = 8; half > 0; half /= 2) {
            for (int i = 0; i < half; ++i) a.lane[i] += a.lane[i + half];
        }
        return a.lane[0];
    }
    static float reduce_maximum(const Vector &a) {
        float most = a.lane[0];
        for (int i = 1; i < 16; ++i) most = a.lane[i] > most ? a.lane[i] : most;
        return most;
    }
    static float exp2_fraction(float f) {
        float p = 1.3276472e-3f;
        p = p * f + 9.6755415e-3f;
        p = p * f + 5.5507133e-2f;
        p = p * f + 2.4022120e-1f;
        p = p * f + 6.9314697e-1f;
        return p * f + 1.0f;
    }
    // As in simd_avx512.h.
    static float exp2_one(float x) {
        if (x < -127) x = -127;
        if (x > 128) x = 128;
        // Rounds to the nearest integer by adding 1.5 * 2^23, whose last bit has the value 1.
        const float shifted = x + 12582912.0f;
        const float p = exp2_fraction(x - (shifted - 12582912.0f));
        const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u;
        return p * std::bit_cast<float>(exponent << 23);
    }
    static float exp2_one_over(float x, float base) {
        if (x < -1e30f) x = -1e30f;
        const float whole = std::nearbyint(x);
        float exponent = whole - base;
        if (exponent < -127) exponent = -127;
        if (!(exponent < 128))
            exponent = 128; // also for a NaN, which the factor before it propagates
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(exponent) + 127) << 23;
        return exp2_fraction(x - whole) * std::bit_cast<float>(bits);
    }
    static Vector exp2_over(const Vector &x, const Vector &base) {
        return each([&](int i) { return exp2_one_over(x.lane[i], base.lane[i]); });
    }
    static Vector exp2(const Vector &x) {
        return each([&](int i) { return exp2_one(x.lane[i]); });
    }
};

namespace f32 {

struct Element {
    using Type = float;
    using Operand = Simd::Vector;
    static constexpr DType kType = DType::f32;
    static constexpr int32_t kPack = 1;
    static constexpr bool kLaterFirst = false;

    static Operand load(const Type *p) { return Simd::load(p); }
    static Operand broadcast(const Type *p) { return Simd::set(*p); }
    static Simd::Vector multiply_add(const Operand &a, const Operand &b, const Simd::Vector &c) {
        return Simd::multiply_add(a, b, c);
    }
    static Simd::Vector rounded(const Simd::Vector &x) { return x; }
    static void store(Type *p, const Simd::Vector &x) { Simd::store(p, x); }
    static Simd::Vector weight(const Simd::Vector &x) { return Simd::exp2(x); }
    static void store_weights(Type *p, const Simd::Vector &x, const Simd::Vector &y) {
        store(p, x);
        store(p + kLanes, y);
    }
    static void store_weights(Type *p, const Simd::Vector &x) { store(p, x); }
};

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_attention_calls.h"

#include "backend/cpu/kernel_elementwise.h"

} // namespace f32

namespace bf16 {

struct Element {
    using Type = uint16_t;
    struct Operand {
        Simd::Vector even, odd;
    };
    static constexpr DType kType = DType::bf16;
    static constexpr int32_t kPack = 2;
    static constexpr bool kLaterFirst = false;

    static Operand load(const Type *p) {
        return {Simd::each([&](int i) { return bfloat16_to_float(p[2 * i]); }),
                Simd::each([&](int i) { return bfloat16_to_float(p[2 * i + 1]); })};
    }
    static Operand broadcast(const Type *p) {
        return {Simd::set(bfloat16_to_float(p[0])), Simd::set(bfloat16_to_float(p[1]))};
    }
    static Simd::Vector multiply_add(const Operand &a, const Operand &b, const Simd::Vector &c) {
        return Simd::multiply_add(a.odd, b.odd, Simd::multiply_add(a.even, b.even, c));
    }
    static Simd::Vector rounded(const Simd::Vector &x) {
        return Simd::each([&](int i) { return bfloat16_to_float(float_to_bfloat16(x.lane[i])); });
    }
    static void store(Type *p, const Simd::Vector &x) {
        for (int i = 0; i < 16; ++i) p[i] = float_to_bfloat16(x.lane[i]);
    }
    static Simd::Vector weight(const Simd::Vector &x) { return Simd::exp2(x); }
    static void store_weights(Type *p, const Simd::Vector &x, const Simd::Vector &y) {
        store(p, x);
        store(p + kLanes, y);
    }
    static void store_weights(Type *p, const Simd::Vector &x) { store(p, x); }
};

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_attention_calls.h"

#include "backend/cpu/kernel_elementwise.h"

} // namespace bf16

} // namespace

const Kernels *portable_kernels(DType element) {
    if (element == DType::f32) return &f32::kKernels;
    if (element == DType::bf16) return &bf16::kKernels;
    return nullptr;
}

} // namespace batchllm::cpu
