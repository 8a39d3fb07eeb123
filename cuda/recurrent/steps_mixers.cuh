// The mixers of the kernel that goes token by token (steps.cu): convolution, gates, the result's gain.
#pragma once

#include "recurrent/steps.cuh"

namespace batchllm::cuda::steps {

// Nothing is computed from x before this, so that loads before it are all under way by then.
template <typename T> __device__ __forceinline__ void not_before(T *x) {
    if constexpr (sizeof(T) == 2) {
        asm volatile("" : "+h"(*reinterpret_cast<uint16_t *>(x)));
    } else {
        asm volatile("" : "+r"(*reinterpret_cast<uint32_t *>(x)));
    }
}

// Zeros where not `there`; and from here on in whole registers, not element by element.
template <typename T> __device__ __forceinline__ void keep_if(bool there, Packed4<T> *four) {
    auto *words = reinterpret_cast<uint32_t *>(&four->bits);
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(four->bits) / 4); ++i) {
        words[i] = there ? words[i] : 0;
        not_before(words + i);
    }
}

// A lane's four channels of a part, of which `count` are in the head. kWhole: heads are of 128 by 128, so that all four
// are, and aligned; then past L1, where the convolution's weights stay.
template <bool kWhole, typename T>
__device__ __forceinline__ Packed4<T> load_some(const T *from, int count) {
    Packed4<T> four;
    if constexpr (kWhole) {
        four = load4_past_l1(from);
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) four.set(e, e < count ? from[e] : from_float<T>(0.0f));
    }
    return four;
}
template <bool kWhole, typename T>
__device__ __forceinline__ void store_some(T *to, int count, const Packed4<T> &four) {
    if constexpr (kWhole) {
        store4(to, four);
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (e < count) to[e] = four.at(e);
        }
    }
}

// The rows that the item's next token will see, of an item of one token. Rows of one slot that other blocks
// still read are not among those written.
template <bool kWhole, typename T>
__device__ __forceinline__ void keep_in_ring(const DeltaArguments &a, const StateItem &item,
                                             int channel, int count,
                                             const Packed4<T> (&seen)[kRing]) {
    int slot = item.state, position = item.position;
    asm volatile("" : "+r"(slot), "+r"(position)); // addresses are not kept from part to part
    T *ring = ring_of<T>(a, slot) + channel;
    const int back = item.from == item.state ? 1 : kRing;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
        if (i >= back || position < i) break;
        store_some<kWhole>(ring + int64_t{(position - i) % kRing} * a.channels(), count,
                           seen[kRing - 1 - i]);
    }
}

__device__ __forceinline__ float dot(const float4 &x, const float4 &y) {
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
__device__ __forceinline__ float4 scaled(const float4 &x, float scale) {
    return make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
}

// The convolution of a lane's four channels.
template <bool kWhole, typename T>
__device__ __forceinline__ float4 convolved_four(const DeltaArguments &a, int channel, int count,
                                                 const Packed4<T> (&seen)[kRing]) {
    float4 weights[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        weights[e] = kWhole || e < count
                         ? reinterpret_cast<const float4 *>(a.convolution)[channel + e]
                         : float4{};
    }
    asm volatile("" ::: "memory"); // the four loads stay together
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const T inputs[kRing] = {seen[0].at(e), seen[1].at(e), seen[2].at(e), seen[3].at(e)};
        x[e] = convolved(weights[e], inputs);
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

// The first channel of q, k or v of a value head.
__device__ __forceinline__ int channel_begin(const DeltaArguments &a, int head, int key_head,
                                             int part) {
    return part < 2 ? part * a.keys_size() + key_head * a.key_dim
                    : 2 * a.keys_size() + head * a.value_dim;
}

// Brings the weights of a head's channels to L1, all at once: a lane asks for one in each of its 32 bytes.
__device__ __forceinline__ void bring_weights(const DeltaArguments &a, int head, int key_head,
                                              float *discarded) {
    constexpr int kChannels = 2; // in 32 bytes
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = 0;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        const int begin = channel_begin(a, head, key_head, part);
#pragma unroll
        for (int e = 0; e < kMostDeltaDim; e += 32 * kChannels) {
            sum += a.convolution[(begin + e + lane * kChannels) * kRing];
        }
    }
    discard(sum, discarded);
}

// Where S is, in bytes from DeltaArguments::states on.
template <typename S>
__device__ __forceinline__ int64_t state_begin(const DeltaArguments &a, int slot, int head) {
    return reinterpret_cast<std::byte *>(state_of<S>(a, slot, head)) - a.states;
}

// Token t of the item, by a warp. The token's place is written once `used` lets it. fresh: the weights of the head's
// channels may not be in L1.
template <typename T, typename S, bool kWhole>
__device__ __forceinline__ void mix_token(const DeltaArguments &a, const StepItem &its, int t,
                                          bool fresh, StepToken *to, uint64_t *used, uint32_t use,
                                          float *discarded) {
    const StateItem item = its.item;
    int lane = threadIdx.x % 32, head = its.head, key_head = its.key_head;
    // Addresses are not kept from token to token.
    asm volatile("" : "+r"(lane), "+r"(head), "+r"(key_head));
    const int key_dim = kWhole ? kMostDeltaDim : a.key_dim;
    const int value_dim = kWhole ? kMostDeltaDim : a.value_dim;
    const int64_t token = int64_t{item.token_begin} + t;
    const auto channel_of = [&](int part) {
        return channel_begin(a, head, key_head, part) + 4 * lane;
    };
    const auto count_of = [&](int part) { return (part < 2 ? key_dim : value_dim) - 4 * lane; };
    // All that is read is asked for at once, while the place is waited for: of the three parts, as many as there are
    // registers for.
    constexpr int kAhead = sizeof(T) == 4 ? 0 : kWhole ? 3 : 1;
    Packed4<T> ahead[kAhead + 1][kRing]; // the last: loaded in the loop
    const auto load = [&](int first, int end, Packed4<T>(*to)[kRing]) {
#pragma unroll
        for (int w = 0; w < kRing; ++w) {
            const T *row = seen_row<T>(a, item, t, kRing - 1 - w);
#pragma unroll
            for (int part = first; part < end; ++part) {
                to[part - first][w] = load_some<kWhole>(row + channel_of(part), count_of(part));
            }
        }
    };
    load(0, kAhead, ahead);
    const int value_at = head * value_dim + 4 * lane;
    Packed4<T> gate =
        load_some<kWhole>(projected_of<T>(a, token) + a.channels() + value_at, count_of(2));
    const T *gates_at = projected_of<T>(a, token) + a.channels() + a.values_size() + head;
    T rate = gates_at[0], step = gates_at[a.value_heads];
    float head_decay = a.decay[head], head_step = a.step[head];
    if (kWhole && fresh) bring_weights(a, head, key_head, discarded);
    await(used, use);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
        if (kAhead < 3 && part + kAhead < 3) load(part + kAhead, part + kAhead + 1, ahead + kAhead);
        Packed4<T> seen[kRing];
#pragma unroll
        for (int w = 0; w < kRing; ++w) {
            seen[w] = ahead[0][w];
            keep_if(item.position + t >= kRing - 1 - w, &seen[w]);
#pragma unroll
            for (int i = 0; i < kAhead; ++i) ahead[i][w] = ahead[i + 1][w];
        }
        const int channel = channel_of(part), count = count_of(part);
        reinterpret_cast<float4 *>(to->mixed[part])[lane] =
            convolved_four<kWhole>(a, channel, count, seen);
        if (item.token_count == 1 && (part == 2 || its.keeps_keys)) {
            keep_in_ring<kWhole>(a, item, channel, count, seen);
        }
    }
    keep_if(true, &gate);
    not_before(&rate), not_before(&step), not_before(&head_decay), not_before(&head_step);
    float4 norm = {};
    if (count_of(2) > 0) norm = reinterpret_cast<const float4 *>(a.norm)[lane];
    reinterpret_cast<float4 *>(to->gain)[lane] =
        make_float4(norm.x * silu(to_float(gate.at(0))), norm.y * silu(to_float(gate.at(1))),
                    norm.z * silu(to_float(gate.at(2))), norm.w * silu(to_float(gate.at(3))));
    const float4 query = reinterpret_cast<const float4 *>(to->mixed[0])[lane];
    const float4 key = reinterpret_cast<const float4 *>(to->mixed[1])[lane];
    const float of_query =
        rsqrtf(warp_sum(dot(query, query)) + 1e-6f) * rsqrtf(static_cast<float>(key_dim));
    const float of_key = rsqrtf(warp_sum(dot(key, key)) + 1e-6f);
    const float overlap = warp_sum(dot(query, key));
    if (lane == 0) {
        const DeltaGates gates = gates_of(to_float(rate), to_float(step), head_step, head_decay);
        const float decay = expf(gates.log_decay);
        to->decay = decay;
        to->forget = decay * of_key;
        to->learn = gates.rate * of_key;
        to->of_query = of_query;
        to->overlap = overlap;
        to->first = t == 0;
        to->last = t + 1 == item.token_count;
        to->continues = item.from >= 0;
        to->more = its.more;
        to->out = token * a.values_size() + head * value_dim;
        to->to = state_begin<S>(a, item.state, head);
        to->next = its.next < 0 ? -1 : state_begin<S>(a, its.next, its.next_head);
    }
}

// Of the block's j-th item and head.
__device__ __forceinline__ StepItem step_item(const DeltaArguments &a, const StepWork &work, int j,
                                              int stages) {
    StepItem made;
    made.item = work.item(j);
    made.next = j + stages < work.mine ? work.item(j + stages).from : -1;
    made.next_head = static_cast<int16_t>(work.head(j + stages));
    made.head = static_cast<int16_t>(work.head(j));
    const int ratio = work.value_heads / a.key_heads;
    made.key_head = static_cast<int16_t>(made.head / ratio);
    made.keeps_keys = made.head % ratio == 0;
    made.more = j + kGroups < work.mine;
    return made;
}

// Of the group's tokens every kMixers-th.
template <typename T, typename S, bool kWhole> __device__ __forceinline__ void
run_mixer(const DeltaArguments &a, StepShared *shared, int stages, int group, int mixer) {
    const StepWork &work = shared->work;
    const int lane = threadIdx.x % 32;
    uint32_t n = 0; // the group's tokens so far
    for (int j = group; j < work.mine; j += kGroups) {
        int here = mixer;
        asm volatile("" : "+r"(here)); // its address is not kept
        StepItem(&upcoming)[kUpcoming] = shared->upcoming[group][here];
        const int i = j / kGroups % kUpcoming;
        if (i == 0) {
            const int of_lane = j + lane * kGroups;
            __syncwarp();
            if (lane < kUpcoming && of_lane < work.mine) {
                upcoming[lane] = step_item(a, work, of_lane, stages);
            }
            __syncwarp();
        }
        const StepItem &its = upcoming[i];
        for (int t = 0; t < its.item.token_count; ++t, ++n) {
            if (n % kMixers != static_cast<uint32_t>(mixer)) continue;
            const uint32_t place = n % kTokens, use = n / kTokens;
            const bool fresh = t < kMixers && !work.one_head;
            mix_token<T, S, kWhole>(a, its, t, fresh, &shared->tokens[group][place],
                                    &shared->used[group][place], use + 1, &shared->discarded);
            __syncwarp();
            if (lane == 0) arrive(&shared->mixed[group][place]);
        }
    }
}

} // namespace batchllm::cuda::steps
