// O = softmax(scale Q K^T) V, f32. Each of a block's four warps takes every fourth key and keeps
// its own running maximum (natural base); the warps merge at the end in a fixed order. A warp takes
// every fourth key of each node, from the token's own node up; by position, every fourth of all
// keys from the first on.
#include "attention/plain.h"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4;

// A warp's part of a token's head, over the keys that it has taken. Elements: elements of a head
// per lane.
template <int Elements> struct Part {
    float query[Elements], sum[Elements] = {};
    float largest = -INFINITY, total = 0;

    __device__ void add(float logit, const float *v, int head_dim, int lane) {
        const float next = fmaxf(largest, logit);
        const float keep = expf(largest - next), weight = expf(logit - next);
        largest = next;
        total = total * keep + weight;
        for (int i = 0; i < Elements; ++i) {
            const int e = lane + 32 * i;
            if (e < head_dim) sum[i] = sum[i] * keep + weight * v[e];
        }
    }
};

// Adds every fourth key of a node, from `first` on, that the token sees.
template <int Elements>
__device__ void read_node(const PlainAttentionArguments &a, const AttentionNode &node, int first,
                          int position, int last, int kv_head, Part<Elements> *part) {
    const int lane = threadIdx.x % 32;
    const int low = a.window <= 0 ? 0
                    : a.chunked   ? position / a.window * a.window
                                  : position - a.window + 1;
    for (int key = first; key < node.keys; key += kWarps) {
        const int at = node.start + key;
        if (at > last || at < low) continue;
        const int64_t page = a.pages[node.page_begin + key / kPageKeys];
        const bool latent = a.latent_dim > 0;
        const int64_t blocks = (page * a.kv_heads + kv_head) * (latent ? 1 : 2);
        const float *k = a.kv + (blocks * kPageKeys + key % kPageKeys) * a.head_dim;
        const float *v = latent ? k : k + kPageKeys * a.head_dim;
        float dot = 0;
        for (int i = 0; i < Elements; ++i) {
            const int e = lane + 32 * i;
            if (e < a.head_dim) dot += part->query[i] * k[e];
        }
        for (int offset = 16; offset > 0; offset /= 2) dot += __shfl_xor_sync(~0u, dot, offset);
        if (a.softcap > 0) dot = a.softcap * tanhf(dot / a.softcap);
        part->add(dot, v, a.head_dim, lane);
    }
}

template <int Elements> __device__ void read_keys(const PlainAttentionArguments &a, int token,
                                                  int kv_head, Part<Elements> *part) {
    const int warp = threadIdx.x / 32;
    const int position = a.positions[token], own = a.node_of[token];
    const int last = a.last_seen != nullptr ? a.last_seen[token] : position;
    if (!a.by_position) {
        for (int n = own; n >= 0; n = a.nodes[n].parent) {
            read_node(a, a.nodes[n], warp, position, last, kv_head, part);
        }
        return;
    }
    int depth = 0; // of the token's node
    for (int n = own; n >= 0; n = a.nodes[n].parent) ++depth;
    for (int above = depth - 1; above >= 0; --above) {
        int n = own;
        for (int i = 0; i < above; ++i) n = a.nodes[n].parent;
        const AttentionNode node = a.nodes[n];
        read_node(a, node, (warp - node.start % kWarps + kWarps) % kWarps, position, last, kv_head,
                  part);
    }
}

template <int Elements> __global__ void plain_attention(PlainAttentionArguments a) {
    const int token = blockIdx.x, head = blockIdx.y;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float *q = a.q + token * a.q_stride + head * a.head_dim;
    Part<Elements> part;
    for (int i = 0; i < Elements; ++i) {
        const int e = lane + 32 * i;
        part.query[i] = e < a.head_dim ? q[e] * a.scale : 0.0f;
    }
    read_keys(a, token, head / (a.heads / a.kv_heads), &part);

    __shared__ float sums[kWarps][32 * Elements];
    __shared__ float maxima[kWarps], totals[kWarps];
    for (int i = 0; i < Elements; ++i) sums[warp][lane + 32 * i] = part.sum[i];
    if (lane == 0) {
        maxima[warp] = part.largest;
        totals[warp] = part.total;
    }
    __syncthreads();
    const float sink = a.sinks == nullptr ? -INFINITY : a.sinks[head];
    float all = sink;
    for (int w = 0; w < kWarps; ++w) all = fmaxf(all, maxima[w]);
    float scale[kWarps], whole = sink == -INFINITY ? 0.0f : expf(sink - all);
    for (int w = 0; w < kWarps; ++w) {
        scale[w] = maxima[w] == -INFINITY ? 0.0f : expf(maxima[w] - all);
        whole += scale[w] * totals[w];
    }
    const int value_dim = a.latent_dim > 0 ? a.latent_dim : a.head_dim;
    float *out = a.out + (int64_t{token} * a.heads + head) * value_dim;
    for (int e = threadIdx.x; e < value_dim; e += blockDim.x) {
        float merged = 0;
        for (int w = 0; w < kWarps; ++w) merged += scale[w] * sums[w][e];
        out[e] = merged / whole;
    }
}

} // namespace

cudaError_t launch_plain_attention(const PlainAttentionArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.head_dim > kMostPlainHeadDim) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>(a.tokens), static_cast<unsigned>(a.heads));
    if (a.head_dim <= 256) {
        plain_attention<8><<<grid, kWarps * 32, 0, stream>>>(a);
    } else if (a.head_dim > 512) {
        plain_attention<kMostPlainHeadDim / 32><<<grid, kWarps * 32, 0, stream>>>(a);
    } else {
        plain_attention<16><<<grid, kWarps * 32, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

} // namespace batchllm::cuda
