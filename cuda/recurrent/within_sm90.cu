// Convolution, gates and what of a chunk depends on no state (chunk.h), by wgmma. A block has one chunk, one key head
// and two of its value heads, a warpgroup each, then the next such; it reads `projected` once, and q and k stay where
// they are mixed.
//
// Of a warpgroup's 64 rows each warp has 16: of A and P in the accumulators of K K^T and Q K^T, then of T, which is
// the left operand of T (rate exp(G) k) and T (rate v) from where it is found: the factors go into its columns.
#include <algorithm>

#include "device/launch.cuh"
#include "recurrent/within_inputs_sm90.cuh"

namespace batchllm::cuda {
namespace {

// ---- A, P ----

// K K^T to -A, Q K^T to P.
__device__ __forceinline__ void apply_gates(const GroupShared &shared, int warp, SquareSums &across,
                                            SquareSums &weights) {
    const int lane = thread_anew() % 32, first = warp * kSquare + lane / 4;
    const float sums[2] = {shared.sums[first], shared.sums[first + 8]};
    const float rates[2] = {-shared.rates[first], -shared.rates[first + 8]};
#pragma unroll
    for (int n = 0; n < kSquares; ++n) {
        if (n > warp) { // later tokens
#pragma unroll
            for (float &x : weights[n]) x = 0;
            continue;
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const int i = first + e / 2 % 2 * 8, j = n * kSquare + e / 4 * 8 + lane % 4 * 2 + e % 2;
            const float decay =
                exp2_approximate(j <= i ? sums[e / 2 % 2] - shared.sums[j] : -INFINITY);
            const float product = rates[e / 2 % 2] * decay * across[n][e];
            weights[n][e] *= decay;
            across[n][e] = j < i ? product : 0.0f;
        }
    }
}

// ---- W, U ----

// A warp's 16 rows by way of those of `panels` from `row` on, whole rows at a time; out: where the first belongs, of
// which `count` are there.
template <typename T, int kColumns, int kSums>
__device__ __forceinline__ void store_rows(const float (&sums)[kSums], const Panels &panels,
                                           int row, int count, T *out, int stride) {
    static_assert(kSums == kColumns / 2);
    if (count <= 0) return;
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            r[i] = pack(sums[8 * k + 2 * i], sums[8 * k + 2 * i + 1], T());
        }
        store_matrix(panels.at(row + lane % 16, 2 * k + lane / 16), r);
    }
    __syncwarp();
    constexpr int kLanes = kColumns / 8, kRows = 32 / kLanes; // that store a row; at a time
    const int begin = lane / kLanes, piece = lane % kLanes;
    out += begin * stride + piece * 8;
#pragma unroll
    for (int r = 0; r < kSquare; r += kRows) {
        const uint4 packed = load_shared(panels.at(row + begin + r, piece));
        if (begin + r < count) __stcg(reinterpret_cast<uint4 *>(out + r * stride), packed);
    }
    __syncwarp();
}

// T's columns times `scales`, as A.
template <typename T> __device__ __forceinline__ void
scale_columns(const SquareSums &inverse, const float *scales, uint32_t (&a)[kSquares][4]) {
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int k = 0; k < kSquares; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 by =
                *reinterpret_cast<const float2 *>(scales + k * kSquare + i / 2 * 8 + lane % 4 * 2);
            a[k][i] = pack(inverse[k][2 * i] * by.x, inverse[k][2 * i + 1] * by.y, T());
        }
    }
}

// 64 rows: a times the panels.
template <typename T> __device__ __forceinline__ void
multiply_panels(const uint32_t (&a)[kSquares][4], const Panels &panels, float (&sums)[64]) {
    const Operand right(panels.base, kPanelBytes);
#pragma unroll
    for (float &x : sums) x = 0;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSquares; ++k) wgmma_rs(sums, a[k], right.at(k * kSquare * 128), T());
    wgmma_commit();
    wgmma_wait<0>();
}

// A warpgroup's value head.
template <typename T> __device__ __forceinline__ void within_head(const ChunkArguments &c,
                                                                  const ChunkPlace &place, int head,
                                                                  int group, WithinShared *all) {
    const DeltaArguments &a = c.delta;
    GroupShared &shared = all->groups[group];
    const int warp = static_cast<int>(threadIdx.x % kGroup / 32);
    const Panels queries{shared_address(all->tiles[0])}, keys{shared_address(all->tiles[1])},
        values{shared_address(all->tiles[2 + group])};
    const int count = place.count - warp * kSquare; // rows of the warp that are there
    const int64_t row = place.token + warp * kSquare;
    uint32_t left[kSquares][4], for_w[kSquares][4];
    {
        float across[32], weights[32];
        const Operand q(queries.base), k(keys.base);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; ++i) {
            const uint32_t at = i / 4 * kPanelBytes + i % 4 * 32;
            wgmma_ss(weights, q.at(at), k.at(at), i > 0, T());
            wgmma_ss(across, k.at(at), k.at(at), i > 0, T());
        }
        wgmma_commit();
        wgmma_wait<0>();
        auto &squares = reinterpret_cast<SquareSums &>(across);
        const int used = (place.count + kSquare - 1) / kSquare; // warps with rows
        if (warp < used) {
            apply_gates(shared, warp, squares, reinterpret_cast<SquareSums &>(weights));
        }
        store_rows<T, kStateChunk>(weights, Panels{shared_address(shared.staging[warp])}, 0, count,
                                   static_cast<T *>(c.p) +
                                       (row * a.value_heads + head) * kStateChunk,
                                   a.value_heads * kStateChunk);
        SquareSums inverse;
        invert(squares, used, group, warp, &shared.inverse, inverse);
        scale_columns<T>(inverse, shared.rates, left);
        scale_columns<T>(inverse, shared.key_rates, for_w);
    }
    T *out = mixed_of<T>(c, row) + 2 * a.keys_size() + head * kHeadDim;
    int stride = a.channels();
#pragma unroll 1
    for (int product = 0; product < 2; ++product) { // U, then W
        float sums[64];
        multiply_panels<T>(left, product == 0 ? values : keys, sums);
        if (product == 0) named_barrier(1 + group, kGroup); // v is no longer read
        store_rows<T, kHeadDim>(sums, values, warp * kSquare, count, out, stride);
#pragma unroll
        for (int i = 0; i < 16; ++i) left[i / 4][i % 4] = for_w[i / 4][i % 4];
        stride = a.value_heads * kHeadDim;
        out = static_cast<T *>(c.w) + (row * a.value_heads + head) * kHeadDim;
    }
}

template <typename T> __global__ void __launch_bounds__(kThreads, 2)
    within_chunks(const __grid_constant__ ChunkArguments c) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto *shared = reinterpret_cast<WithinShared *>(memory);
    const DeltaArguments &a = c.delta;
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0);
    const int first = static_cast<int>(blockIdx.x);
    if (first >= Work::count(a)) return;
    if (threadIdx.x == 0) shared->works[0] = Work(c, first);
    __syncthreads();
#pragma unroll 1
    for (int turn = 0;; turn ^= 1) {
        const Work &work = shared->works[turn];
        const bool there = group < work.heads.count;
        const int head = work.heads.first + group;
        // One warp of each group, on different schedulers.
        const bool gates = there && static_cast<int>(threadIdx.x % kGroup / 32) == 3 * group;
        GateInputs<T> inputs;
        if (gates) inputs.load(a, work.place, head);
        copy_inputs<T>(a, work.place, work.heads, group, shared);
        if (gates) make_gates<T>(c, work.place, inputs, head, &shared->groups[group]);
        if (thread_anew() == kThreads - 1) {
            const int next = work.index + static_cast<int>(gridDim.x);
            shared->more = next < Work::count(a);
            if (shared->more) shared->works[turn ^ 1] = Work(c, next);
        }
        copy_async_wait<1>();
        named_barrier(1 + group, kGroup);
        mix_tile<T, true>(c, work.place, work.heads, group, shared);
        copy_async_wait<0>();
        named_barrier(1 + group, kGroup);
        mix_tile<T, false>(c, work.place, work.heads, group, shared);
        async_proxy_fence();
        __syncthreads();
        const bool more = shared->more;
        if (more) {
            const Work &next = shared->works[turn ^ 1];
            prefetch_inputs<T>(a, next.place, next.heads);
        }
        if (there) within_head<T>(c, work.place, head, group, shared);
        if (!more) return;
        __syncthreads(); // before the next chunk's rows come
    }
}

} // namespace

cudaError_t launch_within_sm90(const ChunkArguments &a, cudaStream_t stream) {
    const int work = a.chunk_count * a.delta.key_heads * parts_of(a.delta);
    const dim3 grid(static_cast<unsigned>(std::min(work, 2 * a.delta.sms)));
    return with_half(a.delta.element, [&](auto t) {
        return launch_with_shared(within_chunks<decltype(t)>, grid, kThreads,
                                  static_cast<int>(sizeof(WithinShared)), stream, a);
    });
}

} // namespace batchllm::cuda
