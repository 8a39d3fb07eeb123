// The grouped products for sm_80 and later: 128 turns x 128 rows of W a tile, 64 columns a stage, three stages
// of cp.async (96 KB), eight warps of 64 x 32. Warps whose turns are beyond the tile's compute nothing.
#include <algorithm>

#include "attention/mma.cuh"
#include "device/launch.cuh"
#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 128, kStages = 3;
constexpr int kSide = kTileRows * 128; // bytes of a stage's x, and of its W
constexpr int kShared = kStages * 2 * kSide;
constexpr int kEach = kTileRows * 8 / kThreads; // 16-byte chunks of either that a thread copies
static_assert(kColumns == kTileRows);

// Copies a tile's stages. The thread has chunk threadIdx.x % 8 of every 32nd row.
struct Feed {
    const uint4 *w;         // its chunk of the first row, first panel
    const uint4 *x[kEach];  // its chunk of its rows; null: the row is not there
    int64_t panel;          // chunks from a panel of W to the next
    int columns, rows_left; // of x; of W from its first row on

    template <typename T> __device__ Feed(const GroupedArguments &a, const GroupedWork &work, T) {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        const int64_t panels = (a.columns + kPanel - 1) / kPanel;
        panel = int64_t{a.rows} * 8;
        w = static_cast<const uint4 *>(a.w) + work.expert * panels * panel +
            int64_t{work.column + row} * 8 + chunk;
        columns = a.columns;
        rows_left = a.rows - work.column - row;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int r = row + 32 * i;
            x[i] = nullptr;
            if (r >= work.count) continue;
            const int turn = work.begin + r;
            const int64_t from = a.row_of != nullptr ? __ldg(a.row_of + turn) : turn;
            x[i] = static_cast<const uint4 *>(a.x) + from * (a.columns / 8) + chunk;
        }
    }

    __device__ void load(int step, uint32_t stage) const {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        const bool inside = step * kPanel + chunk * 8 < columns;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int r = row + 32 * i;
            const bool valid = inside && x[i] != nullptr;
            copy_async(stage + r * 128 + (chunk ^ r % 8) * 16, valid ? x[i] + step * 8 : w, valid);
            const bool there = 32 * i < rows_left;
            copy_async(stage + kSide + r * 128 + chunk * 16,
                       there ? w + step * panel + 32 * 8 * i : w - chunk - row * 8, there);
        }
    }
};

template <typename T> __device__ __forceinline__ void
multiply(uint32_t stage, int warp_row, int warp_column, int tall, float (&sums)[4][4][4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t x = stage + (warp_row + lane % 16) * 128;
    const uint32_t w = stage + kSide + (warp_column + lane % 8 + lane / 16 * 8) * 128;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t b[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            load_matrix(b[j], w + j * 16 * 128 + ((2 * k + lane / 8 % 2) ^ lane % 8) * 16);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i >= tall) break;
            uint32_t a[4];
            load_matrix(a, x + i * 16 * 128 + ((2 * k + lane / 16) ^ lane % 8) * 16);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                mma_sync(sums[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
            }
        }
    }
}

// To all of the warp's turns.
__device__ void add_bias(const GroupedArguments &a, const GroupedWork &work, int warp_column,
                         float (&sums)[4][4][4]) {
    const float *bias = a.bias + int64_t{work.expert} * a.rows;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = work.column + warp_column + j * 8 + threadIdx.x % 4 * 2; // of W
        if (row >= a.rows) return;
        const float2 own = *reinterpret_cast<const float2 *>(bias + row);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sums[i][j][0] += own.x, sums[i][j][1] += own.y;
            sums[i][j][2] += own.x, sums[i][j][3] += own.y;
        }
    }
}

template <typename T, bool Squared>
__device__ void store(const GroupedArguments &a, const GroupedWork &work, int warp_row,
                      int warp_column, const float (&sums)[4][4][4]) {
    const int lane = threadIdx.x % 32;
    const int width = a.gated ? a.rows / 2 : a.rows;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + i * 16 + half * 8 + lane / 4;
            if (row >= work.count) continue;
            T *y = static_cast<T *>(a.y) + int64_t{work.begin + row} * width + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                const int column = work.column + warp_column + j * 8;
                const float *first = sums[i][j] + 2 * half, *second = sums[i][j + 1] + 2 * half;
                if (a.gated) {
                    if (column >= a.rows) continue;
                    const float low = gated(a.activation, first[0], second[0]);
                    const float high = gated(a.activation, first[1], second[1]);
                    *reinterpret_cast<uint32_t *>(y + column / 2) = pack(low, high, T());
                    continue;
                }
                if (column < a.rows) {
                    *reinterpret_cast<uint32_t *>(y + column) =
                        pack(ungated<Squared>(first[0]), ungated<Squared>(first[1]), T());
                }
                if (column + 8 < a.rows) {
                    *reinterpret_cast<uint32_t *>(y + column + 8) =
                        pack(ungated<Squared>(second[0]), ungated<Squared>(second[1]), T());
                }
            }
        }
    }
}

template <typename T, bool Squared> __global__ void __launch_bounds__(kThreads, 1)
    grouped(const __grid_constant__ GroupedArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = shared_address(shared);
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int steps = (a.columns + kPanel - 1) / kPanel;
    const GroupedQueue<kColumns> queue(a);
    for (int number = blockIdx.x; number < queue.total; number += gridDim.x) {
        const GroupedWork work = queue.at(number);
        const Feed feed(a, work, T());
        const int tall = (work.count - warp_row + 15) / 16; // of its sixteens of turns, those there
        float sums[4][4][4] = {};
        __syncthreads(); // the stages of before have been read
        for (int s = 0; s < kStages - 1; ++s) {
            if (s < steps) feed.load(s, base + s * 2 * kSide);
            copy_async_commit();
        }
        for (int s = 0; s < steps; ++s) {
            copy_async_wait<kStages - 2>();
            __syncthreads();
            const int next = s + kStages - 1;
            if (next < steps) feed.load(next, base + next % kStages * 2 * kSide);
            copy_async_commit();
            multiply<T>(base + s % kStages * 2 * kSide, warp_row, warp_column, tall, sums);
        }
        if (a.bias != nullptr) add_bias(a, work, warp_column, sums);
        store<T, Squared>(a, work, warp_row, warp_column, sums);
    }
    copy_async_wait<0>();
}

template <typename T> cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = squares(a) ? grouped<T, true> : grouped<T, false>;
    return launch_with_shared(kernel, static_cast<unsigned>(sms), kThreads, kShared, stream, a);
}

} // namespace

cudaError_t launch_grouped_sm80(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) return launch<__nv_bfloat16>(a, sms, stream);
    return a.element == DType::f16 ? launch<__half>(a, sms, stream) : cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
