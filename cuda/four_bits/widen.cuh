// Four-bit codes -> registers of 16-bit elements, in the layout of wgmma's A and of mma.sync's operands.
//
// int4: a code is OR-ed into the fraction of 128 (bf16) or 1024 (f16), which makes code + 128; minus 128 and the zero
// point, exactly; times the scale, rounded once, as if computed in f32. A scale of more bits than an element has is
// two: the lower part times the code is exact or far below a rounding, and the sum is rounded once.
// e2m1: two ANDs and a shift make a float that lacks 2^126; times the scale, which has it: exact.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/mma.cuh"
#include "four_bits/layout.h"

namespace batchllm::cuda {

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

// Both halves of a word at once. What is rounded is rounded to nearest.
template <typename T> struct Pairs;
template <> struct Pairs<__nv_bfloat16> {
    using Two = __nv_bfloat162;
    static constexpr uint32_t kCarrier = 0x43004300; // 128, whose fraction counts ones
};
template <> struct Pairs<__half> {
    using Two = __half2;
    static constexpr uint32_t kCarrier = 0x64006400; // 1024
};
template <typename T> __device__ __forceinline__ typename Pairs<T>::Two as_pair(uint32_t x) {
    typename Pairs<T>::Two two;
    memcpy(&two, &x, 4);
    return two;
}
template <typename Two> __device__ __forceinline__ uint32_t as_word(const Two &two) {
    uint32_t x;
    memcpy(&x, &two, 4);
    return x;
}
template <typename T> __device__ __forceinline__ uint32_t add(uint32_t x, uint32_t y) {
    return as_word(__hadd2_rn(as_pair<T>(x), as_pair<T>(y)));
}
template <typename T> __device__ __forceinline__ uint32_t times(uint32_t x, uint32_t y) {
    return as_word(__hmul2_rn(as_pair<T>(x), as_pair<T>(y)));
}
template <typename T>
__device__ __forceinline__ uint32_t times_plus(uint32_t x, uint32_t y, uint32_t z) {
    return as_word(__hfma2(as_pair<T>(x), as_pair<T>(y), as_pair<T>(z)));
}

// The scales of a thread's two rows of a block of 64, of the columns that it is at. Split: int4's scales have a lower
// part.
template <typename T, PackedForm Form, bool Split> struct Widener {
    static constexpr bool kInt4 = is_int4(Form);
    static_assert(kInt4 || std::is_same_v<T, __nv_bfloat16>);
    uint32_t scale[2], zero[2],
        lower[2];    // in both half-words; zero: - 128 (or 1024) - the zero point
    uint32_t raw[2]; // of mxfp4 (the first), nvfp4: of a half

    __device__ __forceinline__ void take(int i, uint32_t word) {
        scale[i] = __byte_perm(word, 0, 0x3232);
        zero[i] = (word & 15u) * 0x10001u | Pairs<T>::kCarrier | 0x80008000u;
        if constexpr (Split) lower[i] = __byte_perm(word, 0, 0x1010) & 0xfff0fff0u;
    }
    __device__ __forceinline__ void take_words(uint32_t address) {
        const uint2 words = load_shared_pair(address);
        take(0, words.x);
        take(1, words.y);
    }
    // pair: 8 warp + lane / 4, which is half the number of the first row's entry.
    __device__ __forceinline__ void begin_cell(uint32_t cell, int pair) {
        if constexpr (Form == PackedForm::int4_128) take_words(cell + pair * 8);
    }
    // scales: of the half.
    __device__ __forceinline__ void begin_half(uint32_t scales, int pair) {
        if constexpr (Form == PackedForm::mxfp4) raw[0] = load_word(scales + pair * 4);
        if constexpr (Form == PackedForm::nvfp4) {
            const uint2 words = load_shared_pair(scales + pair * 8);
            raw[0] = words.x;
            raw[1] = words.y;
        }
    }
    // Sixteen columns, number j of the half.
    __device__ __forceinline__ void begin_columns(uint32_t scales, int pair, int j) {
        if constexpr (Form == PackedForm::int4_32) {
            if (j % 2 == 0) take_words(scales + j / 2 * 256 + pair * 8);
        }
        if constexpr (Form == PackedForm::mxfp4) {
            if (j % 2 != 0) return;
            scale[0] = __byte_perm(raw[0], 0, 0x4040 + j / 2 * 0x0101) << 7;
            scale[1] = __byte_perm(raw[0], 0, 0x4242 + j / 2 * 0x0101) << 7;
        }
        if constexpr (Form == PackedForm::nvfp4) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                scale[i] = __byte_perm(raw[i], 0, 0x4040 + j * 0x0101) * 16 + 0x70007000u;
            }
        }
    }
    // A thread's word of sixteen columns -> registers 0 to 3; 0 and 2 are of the first row.
    __device__ __forceinline__ void widen(uint32_t word, uint32_t *a) const {
        if constexpr (kInt4) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const uint32_t code = (word >> 4 * r & 0x000f000fu) | Pairs<T>::kCarrier;
                const uint32_t whole = add<T>(code, zero[r % 2]);
                if constexpr (Split) {
                    const uint32_t rest = times<T>(whole, lower[r % 2]);
                    a[r] = times_plus<T>(whole, scale[r % 2], rest);
                } else {
                    a[r] = times<T>(whole, scale[r % 2]);
                }
            }
        } else {
            constexpr uint32_t kPlaces = 0x81c081c0u;
            a[0] = times<T>(word & kPlaces, scale[0]);
            a[1] = times<T>(word << 3 & kPlaces, scale[1]);
            a[2] = times<T>(word << 6 & kPlaces, scale[0]);
            a[3] = times<T>((word << 1 & 0x80008000u) | (word >> 3 & 0x01800180u) |
                                (word >> 7 & 0x00400040u),
                            scale[1]);
        }
    }
};

} // namespace batchllm::cuda
