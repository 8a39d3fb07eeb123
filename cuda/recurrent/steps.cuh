// What the two kernels that go token by token (steps_inputs.cu, steps.cu) share: four neighbouring channels of a lane.
// kWhole: heads are of 128 by 128, so that four are there and aligned; else `count` of them are.
#pragma once

#include "attention/mma.cuh"
#include "recurrent/delta.cuh"

namespace batchllm::cuda::steps {

// As they are stored.
template <size_t kBytes> struct FourRaw { using type = uint2; };
template <> struct FourRaw<4> { using type = uint4; };
template <typename T> struct Four {
    typename FourRaw<sizeof(T)>::type raw;
    __device__ __forceinline__ T &operator[](int e) { return reinterpret_cast<T *>(&raw)[e]; }
    __device__ __forceinline__ T operator[](int e) const {
        return reinterpret_cast<const T *>(&raw)[e];
    }
};
template <bool kWhole, typename T>
__device__ __forceinline__ Four<T> load_four(const T *from, int count) {
    Four<T> four = {};
    if constexpr (kWhole) {
        four.raw = __ldcg(reinterpret_cast<const decltype(four.raw) *>(from));
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (e < count) four[e] = from[e];
        }
    }
    return four;
}
template <bool kWhole, typename T>
__device__ __forceinline__ void store_four(T *to, int count, const Four<T> &four) {
    if constexpr (kWhole) {
        *reinterpret_cast<decltype(four.raw) *>(to) = four.raw;
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (e < count) to[e] = four[e];
        }
    }
}

// q, k and v convolved, which take the place of what they are made from. Numbers are in f32: of those of models in 16
// bits the upper half is there, the lower half in DeltaArguments::halves.
template <typename T, bool kWhole> struct Mixed {
    static constexpr bool kHalves = sizeof(T) == 2;
    using Half = uint16_t;
    Four<std::conditional_t<kHalves, Half, float>> upper;
    Four<Half> lower;

    static __device__ __forceinline__ auto *upper_at(const DeltaArguments &a, int64_t token,
                                                     int at) {
        return static_cast<std::conditional_t<kHalves, Half, float> *>(a.projected) +
               token * a.stride + at;
    }
    static __device__ __forceinline__ Half *lower_at(const DeltaArguments &a, int64_t token,
                                                     int at) {
        return static_cast<Half *>(a.halves) + token * a.channels() + at;
    }
    __device__ __forceinline__ void load(const DeltaArguments &a, int64_t token, int at,
                                         int count) {
        upper = load_four<kWhole>(upper_at(a, token, at), count);
        if constexpr (kHalves) lower = load_four<kWhole>(lower_at(a, token, at), count);
    }
    __device__ __forceinline__ void store(const DeltaArguments &a, int64_t token, int at,
                                          int count) const {
        store_four<kWhole>(upper_at(a, token, at), count, upper);
        if constexpr (kHalves) store_four<kWhole>(lower_at(a, token, at), count, lower);
    }
    __device__ __forceinline__ float4 get() const {
        if constexpr (kHalves) {
            const auto both = [](uint32_t upper, uint32_t lower, int which) {
                return __uint_as_float(__byte_perm(lower, upper, which));
            };
            constexpr int kFirst = 0x5410, kSecond = 0x7632;
            return make_float4(
                both(upper.raw.x, lower.raw.x, kFirst), both(upper.raw.x, lower.raw.x, kSecond),
                both(upper.raw.y, lower.raw.y, kFirst), both(upper.raw.y, lower.raw.y, kSecond));
        } else {
            return make_float4(upper[0], upper[1], upper[2], upper[3]);
        }
    }
    __device__ __forceinline__ void set(const float (&x)[4]) {
        if constexpr (kHalves) {
            const auto halves = [](float a, float b, int which) {
                return __byte_perm(__float_as_uint(a), __float_as_uint(b), which);
            };
            upper.raw = {halves(x[0], x[1], 0x7632), halves(x[2], x[3], 0x7632)};
            lower.raw = {halves(x[0], x[1], 0x5410), halves(x[2], x[3], 0x5410)};
        } else {
            for (int e = 0; e < 4; ++e) upper[e] = x[e];
        }
    }
};

// One of them.
template <typename T> struct MixedOne {
    static constexpr bool kHalves = sizeof(T) == 2;
    uint16_t upper, lower;
    float number;

    __device__ __forceinline__ void load(const DeltaArguments &a, int64_t token, int at,
                                         bool there) {
        using All = Mixed<T, true>;
        if constexpr (kHalves) {
            upper = there ? All::upper_at(a, token, at)[0] : 0;
            lower = there ? All::lower_at(a, token, at)[0] : 0;
        } else {
            number = there ? All::upper_at(a, token, at)[0] : 0;
        }
    }
    __device__ __forceinline__ float get() const {
        return kHalves ? __uint_as_float(uint32_t{upper} << 16 | lower) : number;
    }
};

inline bool whole(const DeltaArguments &a) {
    return a.key_dim == kMostDeltaDim && a.value_dim == kMostDeltaDim;
}

// Behind it, what launches before this one wrote may be read; before it, only what was there when the launch before this
// one began.
__device__ __forceinline__ void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next launch may begin, as far as wait_for_launch_before().
__device__ __forceinline__ void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace batchllm::cuda::steps
