// O = softmax(scale Q K^T) V, f32. Each of a block's four warps takes every fourth key and keeps its
// own running maximum (natural base); the warps merge at the end in a fixed order.
#include "attention/plain.h"

#include "attention/attention.h"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kElements = 8; // of a head in a lane: head_dim up to 256

__global__ void plain_attention(PlainAttentionArguments a) {
    const int token = blockIdx.x, head = blockIdx.y;
    const int kv_head = head / (a.heads / a.kv_heads);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int position = a.positions[token];
    const int low = a.window > 0 ? position - a.window + 1 : 0;
    const float *q = a.q + token * a.q_stride + head * a.head_dim;
    float query[kElements], sum[kElements] = {};
    for (int i = 0; i < kElements; ++i) {
        const int e = lane + 32 * i;
        query[i] = e < a.head_dim ? q[e] * a.scale : 0.0f;
    }
    float largest = -INFINITY, total = 0;
    for (int n = a.node_of[token]; n >= 0; n = a.nodes[n].parent) {
        const PlainNode node = a.nodes[n];
        for (int key = warp; key < node.keys; key += kWarps) {
            const int at = node.start + key;
            if (at > position || at < low) continue;
            const int64_t page = a.pages[node.page_begin + key / kPageKeys];
            const float *block =
                a.kv + ((page * a.kv_heads + kv_head) * 2) * kPageKeys * a.head_dim;
            const float *k = block + key % kPageKeys * a.head_dim;
            const float *v = k + kPageKeys * a.head_dim;
            float dot = 0;
            for (int i = 0; i < kElements; ++i) {
                const int e = lane + 32 * i;
                if (e < a.head_dim) dot += query[i] * k[e];
            }
            for (int offset = 16; offset > 0; offset /= 2) dot += __shfl_xor_sync(~0u, dot, offset);
            const float next = fmaxf(largest, dot);
            const float keep = expf(largest - next), weight = expf(dot - next);
            largest = next;
            total = total * keep + weight;
            for (int i = 0; i < kElements; ++i) {
                const int e = lane + 32 * i;
                if (e < a.head_dim) sum[i] = sum[i] * keep + weight * v[e];
            }
        }
    }
    __shared__ float sums[kWarps][32 * kElements];
    __shared__ float maxima[kWarps], totals[kWarps];
    for (int i = 0; i < kElements; ++i) sums[warp][lane + 32 * i] = sum[i];
    if (lane == 0) {
        maxima[warp] = largest;
        totals[warp] = total;
    }
    __syncthreads();
    float all = -INFINITY;
    for (int w = 0; w < kWarps; ++w) all = fmaxf(all, maxima[w]);
    float scale[kWarps], whole = 0;
    for (int w = 0; w < kWarps; ++w) {
        scale[w] = maxima[w] == -INFINITY ? 0.0f : expf(maxima[w] - all);
        whole += scale[w] * totals[w];
    }
    float *out = a.out + (int64_t{token} * a.heads + head) * a.head_dim;
    for (int e = threadIdx.x; e < a.head_dim; e += blockDim.x) {
        float merged = 0;
        for (int w = 0; w < kWarps; ++w) merged += scale[w] * sums[w][e];
        out[e] = merged / whole;
    }
}

} // namespace

cudaError_t launch_plain_attention(const PlainAttentionArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.head_dim > 32 * kElements) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>(a.tokens), static_cast<unsigned>(a.heads));
    plain_attention<<<grid, kWarps * 32, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
