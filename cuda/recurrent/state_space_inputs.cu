// What the chunks of a Mamba-2 layer are made of (state_space_chunks.cu): q, k and v convolved, and of each head the
// decays and steps of a chunk's tokens. A block has a chunk and 128 channels, or 32 heads; a warp 16 of the tokens.
#include "recurrent/chunk.cuh"
#include "recurrent/convolve.cuh"
#include "recurrent/state_space.h"

#include <algorithm>

namespace batchllm::cuda {
namespace space {
namespace {

using Element = __nv_bfloat16;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kTokens = kStateChunk / kWarps; // of a warp
constexpr int kBatch = 8;                     // of these, that are loaded together
constexpr int kChannels = 128, kHeads = 32;   // of a block
constexpr int kBlocks = 4;                    // on an SM, as registers allow

__device__ __forceinline__ float2 wide(uint32_t pair) {
    return Pair<Element>::wide(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}

// Tokens [begin, end) of the chunk, four channels.
__device__ __forceinline__ void mix_tokens(const StateSpaceChunks &c, const ChunkPlace &place,
                                           int channel, int begin, int end) {
    const DeltaArguments &a = c.space.delta;
    Convolution<4> convolution(
        [&](int e) { return reinterpret_cast<const float4 *>(a.convolution)[channel + e]; });
    float4 bias = {};
    if (c.space.bias != nullptr) bias = *reinterpret_cast<const float4 *>(c.space.bias + channel);
    const auto load = [&](const Element *row) {
        return *reinterpret_cast<const uint2 *>(row + channel);
    };
    const auto see = [&](const uint2 &raw, bool valid) {
        const float2 low = wide(raw.x), high = wide(raw.y);
        const float x[4] = {valid ? low.x : 0.0f, valid ? low.y : 0.0f, valid ? high.x : 0.0f,
                            valid ? high.y : 0.0f};
        convolution.see(x);
    };
    uint2 before[kRing];
#pragma unroll
    for (int w = 1; w < kRing; ++w) {
        before[w] = load(seen_row<Element>(a, place.item, place.first + begin, kRing - w));
    }
#pragma unroll
    for (int w = 1; w < kRing; ++w) {
        see(before[w], place.item.position + place.first + begin >= kRing - w);
    }
    const auto mixed = [&](int e, float of) {
#pragma unroll
        for (int w = 0; w < kRing; ++w) of += convolution.seen[w][e] * convolution.weights[e][w];
        return silu_approximate(of);
    };
#pragma unroll 1
    for (int t = begin; t < end; t += kBatch) {
        uint2 batch[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            batch[i] = load(projected_of<Element>(a, place.token + min(t + i, end - 1)));
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if (t + i >= end) break;
            see(batch[i], true);
            const uint2 raw = {pack(mixed(0, bias.x), mixed(1, bias.y), Element()),
                               pack(mixed(2, bias.z), mixed(3, bias.w), Element())};
            *reinterpret_cast<uint2 *>(static_cast<Element *>(c.mixed) +
                                       (place.token + t + i) * a.channels() + channel) = raw;
        }
    }
}

// A lane's head. totals: the decays of each warp's tokens together.
__device__ __forceinline__ void make_gates(const StateSpaceChunks &c, const ChunkPlace &place,
                                           int head, int begin, float (*totals)[kHeads]) {
    const DeltaArguments &a = c.space.delta;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const bool there = head < a.value_heads;
    const float rate = there ? -expf(a.decay[head]) * kLog2e : 0.0f;
    const float bias = there ? a.step[head] : 0.0f;
    const int column = a.channels() + a.values_size() + head;
    Element raw[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        raw[i] = Element{};
        if (there && begin + i < place.count) {
            raw[i] = projected_of<Element>(a, place.token + begin + i)[column];
        }
    }
    float2 gates[kTokens];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        gates[i].y =
            fminf(fmaxf(softplus(to_float(raw[i]) + bias), c.space.least_step), c.space.most_step);
        sum += rate * gates[i].y;
        gates[i].x = sum;
    }
    totals[warp][lane] = sum;
    __syncthreads();
    float before = 0;
    for (int w = 0; w < warp; ++w) before += totals[w][lane];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
        if (!there || begin + i >= place.count) break;
        c.gates[(place.token + begin + i) * a.value_heads + head] =
            make_float2(before + gates[i].x, gates[i].y);
    }
    __syncthreads(); // before the next chunk's
}

__host__ __device__ int channel_blocks(const DeltaArguments &a) {
    return (a.channels() + kChannels - 1) / kChannels;
}

__global__ void __launch_bounds__(kThreads)
    state_space_inputs(const __grid_constant__ StateSpaceChunks c) {
    __shared__ float totals[kWarps][kHeads];
    const DeltaArguments &a = c.space.delta;
    const StateLevel level = *a.level;
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    const int part = static_cast<int>(blockIdx.y), begin = warp * kTokens;
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += gridDim.x) {
        const StateChunk chunk = c.chunks[i];
        const ChunkPlace place(a.items[chunk.item], chunk.first);
        if (part >= channel_blocks(a)) {
            make_gates(c, place, (part - channel_blocks(a)) * kHeads + lane, begin, totals);
            continue;
        }
        const int channel = part * kChannels + lane * 4, end = min(begin + kTokens, place.count);
        if (begin < end && channel < a.channels()) mix_tokens(c, place, channel, begin, end);
    }
}

} // namespace
} // namespace space

cudaError_t launch_state_space_inputs(const StateSpaceChunks &c, cudaStream_t stream) {
    const DeltaArguments &a = c.space.delta;
    const int parts =
        space::channel_blocks(a) + (a.value_heads + space::kHeads - 1) / space::kHeads;
    // Enough for the device: a graph's next replay may have many more chunks than the step that was captured.
    const int at_once = space::kBlocks * std::max(a.sms, 1);
    const int along = std::max(c.chunk_count, (at_once + parts - 1) / parts);
    const dim3 grid(static_cast<unsigned>(along), static_cast<unsigned>(parts));
    space::state_space_inputs<<<grid, space::kThreads, 0, stream>>>(c);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
