// Norm and gate of what the states' warpgroups found, by kResultWarps warps: half a warp has a token, a lane eight of
// its values.
#pragma once

#include "elementwise/element.cuh"
#include "recurrent/rule_ring.cuh"

namespace batchllm::cuda {
namespace {

constexpr uint32_t kRowStep = 2 * kResultWarps; // from a half warp's token to its next one
constexpr int kRowsAtOnce = 3;

// No denormal to be seen to.
__device__ __forceinline__ float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Of a row's norm, what all of half a warp multiply by.
template <typename T> __device__ __forceinline__ float scale_of(const uint4 &raw, float epsilon) {
    float x[8], squares = 0;
    widen(Packed8<T>{raw}, x);
#pragma unroll
    for (const float e : x) squares += e * e;
#pragma unroll
    for (int offset = 8; offset > 0; offset /= 2) {
        squares += __shfl_xor_sync(~0u, squares, offset);
    }
    return reciprocal_root(squares / static_cast<float>(kHeadDim) + epsilon);
}

// Times the norm's weights and the gate.
template <typename T> __device__ __forceinline__ uint4 finish_row(const uint4 &raw,
                                                                  const uint4 &gate, float scale,
                                                                  const float *weights) {
    const auto pair = [&](uint32_t x, uint32_t z, int e) {
        const float2 two = Pair<T>::wide(reinterpret_cast<const typename Pair<T>::type &>(x));
        const float2 by = Pair<T>::wide(reinterpret_cast<const typename Pair<T>::type &>(z));
        return pack(two.x * (scale * weights[e]) * silu_approximate(by.x),
                    two.y * (scale * weights[e + 1]) * silu_approximate(by.y), T());
    };
    return {pair(raw.x, gate.x, 0), pair(raw.y, gate.y, 2), pair(raw.z, gate.z, 4),
            pair(raw.w, gate.w, 6)};
}

// Where a lane's eight values of token `row` are in two panels: bytes from their beginning.
__device__ __forceinline__ uint32_t place_of(uint32_t row) {
    const uint32_t piece = static_cast<uint32_t>(thread_anew()) % 16;
    return piece / 8 * kHalfBytes + row * 128 + ((piece ^ row) % 8 << 4);
}

// warp: among kResultWarps
template <typename T>
__device__ void finish_results(const ChunkArguments &c, RuleShared *shared, uint32_t warp) {
    const DeltaArguments &a = c.delta;
    Next<kPlaces> places;
    Next<kTurns> turns;
    for (;;) {
        const auto at = places.take();
        const RuleWork work = shared->wait_for_work(at);
        if (work.count == RuleWork::kEnd) return;
        shared->place_turns[at.slot].release();
        if (work.count == RuleWork::kState) continue;
        const auto count = static_cast<uint32_t>(work.count);
        const auto half = [] { return static_cast<uint32_t>(thread_anew()) % 32 / 16; };
        const int column = work.head * kHeadDim + thread_anew() % 16 * 8;
        const auto from = turns.take();
        const uint32_t found = shared_address(shared->found[from.slot]);
        const uint32_t gates = shared_address(shared->output_gates[from.slot]);
        T *out = static_cast<T *>(a.out) + int64_t{work.token} * a.values_size() + column;
        shared->gate_turns[from.slot].wait_full(from.phase);
        shared->found_turns[from.slot].wait_full(from.phase);
#pragma unroll 1
        for (uint32_t pair = 2 * warp; pair < count; pair += kRowsAtOnce * kRowStep) {
            uint4 raw[kRowsAtOnce], gate[kRowsAtOnce];
#pragma unroll
            for (uint32_t i = 0; i < kRowsAtOnce; ++i) { // rows that are not there are not stored
                const uint32_t place =
                    place_of(min(pair + i * kRowStep + half(), kStateChunk - 1U));
                raw[i] = load_shared(found + place);
                gate[i] = load_shared(gates + place);
            }
            float scales[kRowsAtOnce];
#pragma unroll
            for (int i = 0; i < kRowsAtOnce; ++i) scales[i] = scale_of<T>(raw[i], a.epsilon);
#pragma unroll
            for (uint32_t i = 0; i < kRowsAtOnce; ++i) {
                const uint32_t row = pair + i * kRowStep + half();
                const uint4 done = finish_row<T>(raw[i], gate[i], scales[i],
                                                 shared->norm + thread_anew() % 16 * 8);
                if (row < count) {
                    __stcs(reinterpret_cast<uint4 *>(out +
                                                     row * static_cast<uint32_t>(a.values_size())),
                           done);
                }
            }
        }
        shared->found_turns[from.slot].release();
        shared->gate_turns[from.slot].release();
    }
}

} // namespace
} // namespace batchllm::cuda
