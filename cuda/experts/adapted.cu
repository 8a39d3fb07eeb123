// Tiles are the runs of one adapter in each 16 or 64 turns of an expert: turns are in the order of tokens, and a request's
// tokens follow one another. A CTA has an expert at a time, a warp or two of it a tile's height. Tiles are listed in any order;
// no result depends on it. Products that add adapters' changes themselves go by the adapters of each of their own tiles, which are
// listed too. The activation is bound by memory: it reads turns x 2 width and writes a half of that.
#include "experts/adapted.h"

#include <algorithm>

#include "elementwise/element.cuh"
#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256;

// Of the turn's token; null: none that changes experts.
__device__ __forceinline__ const AdapterEntry *adapter_of(const AdaptedTurns &a, int32_t turn) {
    const AdapterEntry *own = a.entries[__ldg(a.token_of + turn)];
    return own != nullptr && own->entries > a.first ? own : nullptr;
}

// The adapters of a product's tile, in the order of their first turns. By a block.
__device__ void list_adapters(const AdaptedTurns &a, const ExpertTile &expert, int32_t number) {
    __shared__ const AdapterEntry *of_turn[kTileRows];
    __shared__ int32_t counts[kTileRows / 32], numbers[kTileRows];
    TileAdapters *const to = a.tile_adapters + number;
    const int2 turns = turns_of_tile<kTurnStep>(expert.begin, expert.end, number - expert.first);
    const auto turn = static_cast<int32_t>(threadIdx.x);
    const AdapterEntry *own = nullptr;
    if (turn < turns.y) own = adapter_of(a, turns.x + turn);
    __syncthreads(); // what was there has been read
    if (turn < kTileRows) of_turn[turn] = own;
    __syncthreads();
    int32_t first = 0; // the first turn that has it
    while (own != nullptr && of_turn[first] != own) ++first;
    const bool leads = own != nullptr && first == turn;
    const uint32_t leaders = __ballot_sync(~0u, leads);
    if (turn < kTileRows && turn % 32 == 0) counts[turn / 32] = __popc(leaders);
    __syncthreads();
    int32_t before = __popc(leaders & ((1U << turn % 32) - 1)), all = 0;
    for (int32_t w = 0; w < kTileRows / 32; ++w) {
        if (w < turn / 32) before += counts[w];
        all += counts[w];
    }
    if (leads) {
        numbers[turn] = before;
        to->entries[before] = own + expert.expert * a.each;
    }
    if (turn == 0) to->count = all;
    __syncthreads();
    if (turn < kTileRows) {
        const int32_t of = own != nullptr ? numbers[first] : kNoAdapter;
        to->of_turn[turn % 8][turn / 8] = static_cast<uint8_t>(of);
    }
}
static_assert(kTileRows <= kThreads && kTileRows <= kNoAdapter);

template <int Height> __global__ void __launch_bounds__(kThreads)
    list_turns(const __grid_constant__ AdaptedTurns a) {
    __shared__ const AdapterEntry *of_turn[kThreads];
    const int32_t tiles = __ldg(a.expert_tiles);
    for (int32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const ExpertTile expert = a.of_experts[number];
        if (a.tile_adapters != nullptr) list_adapters(a, expert, number);
        const int32_t mine = number - expert.first; // of the expert's tiles, which share its turns
        const int32_t of_expert = (expert.end - expert.begin + kTileRows - 1) / kTileRows;
        for (int32_t begin = expert.begin + mine * kThreads; begin < expert.end;
             begin += of_expert * kThreads) {
            const int32_t turn = begin + static_cast<int32_t>(threadIdx.x);
            const AdapterEntry *own = nullptr;
            if (turn < expert.end) own = adapter_of(a, turn);
            if (turn < expert.end) a.in_tiles[turn] = own != nullptr ? 1 : 0;
            __syncthreads(); // what was there has been read
            of_turn[threadIdx.x] = own;
            __syncthreads();
            const int place = static_cast<int>(threadIdx.x) % Height;
            if (own == nullptr || (place > 0 && of_turn[threadIdx.x - 1] == own)) continue;
            int count = 1;
            while (place + count < Height && of_turn[threadIdx.x + count] == own) ++count;
            a.tiles[atomicAdd(a.tile_count, 1)] = {own + expert.expert * a.each, turn, count};
        }
    }
}

// A thread has a turn's eight.
template <typename T, Activation Kind>
__global__ void activate_turns(const T *x, T *activated_turns, int64_t eights, int32_t of_turn,
                               const uint8_t *left_out) {
    constexpr bool gates = Kind != Activation::relu_squared;
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < eights; i += step) {
        if (left_out != nullptr && left_out[i / of_turn] != 0) continue;
        float first[8], up[8];
        load8(x + i * (gates ? 16 : 8), first);
        if constexpr (gates) load8(x + i * 16 + 8, up);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            if constexpr (gates) {
                first[k] = gated<Kind>(first[k], up[k]);
            } else {
                first[k] = activated<Kind>(first[k]);
            }
        }
        store8(activated_turns + i * 8, first);
    }
}

} // namespace

cudaError_t launch_adapted_turns(const AdaptedTurns &a, int sms, cudaStream_t stream) {
    const cudaError_t cleared = cudaMemsetAsync(a.tile_count, 0, sizeof(int32_t), stream);
    if (cleared != cudaSuccess) return cleared;
    const auto kernel = a.tall ? list_turns<kTallTile> : list_turns<kShortTile>;
    kernel<<<static_cast<unsigned>(4 * sms), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_turn_activation(const TurnActivation &a, int sms, cudaStream_t stream) {
    if (a.turns == 0) return cudaSuccess;
    if (a.width % kGateRows != 0) return cudaErrorInvalidValue;
    const int64_t eights = a.turns * (a.width / 8);
    const auto blocks =
        static_cast<unsigned>(std::min<int64_t>((eights + kThreads - 1) / kThreads, 16 * sms));
    return with_type(a.element, [&](auto t) {
        using T = decltype(t);
        const auto launch = [&](auto kernel) {
            kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const T *>(a.x),
                                                    static_cast<T *>(a.activated), eights,
                                                    a.width / 8, a.left_out);
            return cudaGetLastError();
        };
        switch (a.kind) {
        case Activation::silu:
            return launch(activate_turns<T, Activation::silu>);
        case Activation::gelu:
            return launch(activate_turns<T, Activation::gelu>);
        case Activation::gelu_tanh:
            return launch(activate_turns<T, Activation::gelu_tanh>);
        case Activation::clamped_swiglu:
            return launch(activate_turns<T, Activation::clamped_swiglu>);
        case Activation::relu_squared:
            return launch(activate_turns<T, Activation::relu_squared>);
        case Activation::xielu: // supported.cc refuses it
            break;
        }
        return cudaErrorInvalidValue;
    });
}

} // namespace batchllm::cuda
