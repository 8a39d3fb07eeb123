// Bound by memory: a norm reads a row and writes it, an addition reads one more and writes one more.
// 16-byte accesses (32 for f32); a thread keeps its part of the row in registers. An addition whose rows a rank owns is
// bound by the link, over which it writes what it passes on to other ranks.
#include "elementwise/norm.cuh"

namespace batchllm::cuda {
namespace {

template <typename R, typename T, int Vectors> __global__ void
__launch_bounds__(Vectors < kNormVectors ? 512 : 1024, Vectors < kNormVectors ? 2 : 1)
    add_norms(const __grid_constant__ AddNormsArguments a) {
    __shared__ float sums[32];
    const int hidden = a.add.hidden;
    const int64_t begin = int64_t{blockIdx.x} * hidden;
    R *residual = static_cast<R *>(a.add.residual) + begin;
    const StoredRow<R, Vectors, false> was(residual, hidden);
    const StoredRow<R, Vectors, true> delta(static_cast<const R *>(a.add.delta) + begin, hidden);
    float x[Vectors][8];
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = vector_begin(v);
        if (i >= hidden) break;
        delta.get(v, x[v]);
        if (a.add.bias == nullptr) continue;
        float bias[8];
        load8(a.add.bias + i, bias);
#pragma unroll
        for (int k = 0; k < 8; ++k) x[v][k] += bias[k];
    }
    add_to_residual(a.add, was, x, residual, sums);
    float sum = 0;
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        if (vector_begin(v) >= hidden) break;
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[v][k] * x[v][k];
    }
    const float mean = block_sum(sum, sums) / static_cast<float>(hidden);
    const auto write = [&](const DeviceNorm &norm, void *out) {
        const float scale = rsqrtf(mean + norm.epsilon);
#pragma unroll
        for (int v = 0; v < Vectors; ++v) {
            const int i = vector_begin(v);
            if (i >= hidden) break;
            float y[8];
            load8(norm.weight + i, y);
#pragma unroll
            for (int k = 0; k < 8; ++k) y[k] *= x[v][k] * scale;
            store8(static_cast<T *>(out) + begin + i, y);
        }
    };
    write(a.add.next, a.add.out);
    write(a.more[0], a.out[0]);
    write(a.more[1], a.out[1]);
}

} // namespace

cudaError_t launch_add_norms(const AddNormsArguments &a, cudaStream_t stream) {
    if (a.add.count == 0) return cudaSuccess;
    return with_shape(a.add.hidden, [&](auto vectors, int threads) {
        return with_type(a.add.stream_type, [&](auto r) {
            return with_type(a.add.element, [&](auto t) {
                add_norms<decltype(r), decltype(t), decltype(vectors)::value>
                    <<<static_cast<unsigned>(a.add.count), threads, 0, stream>>>(a);
                return cudaGetLastError();
            });
        });
    });
}

cudaError_t launch_rms_norm(const NormArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    if (a.element == DType::e4m3) return launch_rms_norm_e4m3(a, stream);
    return with_type(a.element, [&](auto t) { return launch_rms_norm_to<decltype(t)>(a, stream); });
}

cudaError_t launch_add_norm(const AddNormArguments &a, cudaStream_t stream) {
    if (a.count == 0 || (a.delta == nullptr && a.out == nullptr)) return cudaSuccess;
    if (a.element == DType::e4m3) return launch_add_norm_e4m3(a, stream);
    return with_type(a.element, [&](auto t) { return launch_add_norm_to<decltype(t)>(a, stream); });
}

} // namespace batchllm::cuda
