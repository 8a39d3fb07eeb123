// The products for sm_80 and later: 128 turns (or tokens) x 128 rows of W a tile, 64 columns a stage, by cp.async; eight
// warps of 64 turns x 32 rows of W. A warp reads its codes from shared memory as they lie packed and widens them to
// mma.sync's B: registers 0 and 2 of a word are B of rows 0 to 7 of sixteen, 1 and 3 of the others. Warps whose turns are
// beyond the tile's compute nothing.
#include <algorithm>

#include "attention/mma.cuh"
#include "device/launch.cuh"
#include "experts/work.cuh"
#include "four_bits/product.h"
#include "four_bits/widen.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256, kColumns = 128, kStages = 4; // rows of W a tile
constexpr int kX = kTileRows * 128;                        // bytes of a stage's x
constexpr int kEach = kTileRows * 8 / kThreads; // 16-byte chunks of x that a thread copies

// A stage has the codes and scales of two half cells. What int4_128 has before a cell's halves comes with each half.
constexpr int half_room(PackedForm form) { return shared_scales(form) + half_bytes(form); }
constexpr int stage_bytes(PackedForm form) { return kX + 2 * half_room(form); }
constexpr int shared_bytes(PackedForm form) { return kStages * stage_bytes(form); }

// The tile with a number; dense: tiles of tokens that read the same part of W are next to each other.
struct Tiles {
    int32_t across, of_tokens, total;

    __device__ explicit Tiles(const FourBitArguments &a)
        : across((a.w_shape.rows + kColumns - 1) / kColumns),
          of_tokens((a.tokens + kTileRows - 1) / kTileRows),
          total((a.tiles != nullptr ? __ldg(a.tile_count) : of_tokens) * across) {}
    __device__ GroupedWork at(const FourBitArguments &a, int32_t number) const {
        if (a.tiles == nullptr) {
            const int32_t begin = number % of_tokens * kTileRows;
            return {0, begin, min(kTileRows, a.tokens - begin), number / of_tokens * kColumns};
        }
        const int4 t = __ldg(reinterpret_cast<const int4 *>(a.tiles + number / across));
        const int32_t of_expert = (t.z - t.y + kTileRows - 1) / kTileRows;
        const int32_t place = number - t.w * across;
        const int32_t row = t.y + place % of_expert * kTileRows;
        return {t.x, row, min(kTileRows, t.z - row), place / of_expert * kColumns};
    }
};

// Copies a tile's stages. The thread has chunk threadIdx.x % 8 of every 32nd row of x.
template <PackedForm Form> struct Feed {
    const FourBitArguments &a;
    PackedShape shape;
    const std::byte *w; // of the expert
    int first_block, blocks;
    const uint4 *x[kEach]; // null: the row is not there

    __device__ Feed(const FourBitArguments &arguments, const GroupedWork &work)
        : a(arguments), shape{Form, a.w_shape.rows, a.w_shape.columns},
          w(a.w + work.expert * shape.bytes()), first_block(work.column / kCellRows),
          blocks(min(2, shape.row_blocks() - first_block)) {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            x[i] = nullptr;
            if (row + 32 * i >= work.count) continue;
            const int turn = work.begin + row + 32 * i;
            const int64_t from = a.row_of != nullptr ? __ldg(a.row_of + turn) : turn;
            x[i] = static_cast<const uint4 *>(a.x) + from * (a.w_shape.columns / 8) + chunk;
        }
    }

    __device__ void load(int step, uint32_t stage) const {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        const bool inside = step * kHalfColumns + chunk * 8 < shape.columns;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int r = row + 32 * i;
            const bool valid = inside && x[i] != nullptr;
            copy_async(stage + r * 128 + (chunk ^ r % 8) * 16,
                       valid ? static_cast<const void *>(x[i] + step * 8) : w, valid);
        }
        constexpr int shared_chunks = shared_scales(Form) / 16;
        constexpr int chunks = half_room(Form) / 16; // of a block
        for (int i = threadIdx.x; i < blocks * chunks; i += kThreads) {
            const int block = i / chunks, own = i % chunks;
            const std::byte *cell = w + shape.cell(step / 2, first_block + block);
            const std::byte *from = own < shared_chunks
                                        ? cell + own * 16
                                        : cell + step % 2 * half_bytes(Form) + own * 16;
            copy_async(stage + kX + block * half_room(Form) + own * 16, from, true);
        }
    }
};

// sums[i][j]: of sixteen turns and eight rows of W; tall: of the warp's sixteens of turns those that are there.
template <typename T, PackedForm Form, bool Split> __device__ __forceinline__ void
multiply(uint32_t stage, int warp_row, int warp_column, int tall, float (&sums)[4][4][4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t x = stage + (warp_row + lane % 16) * 128;
    const uint32_t w = stage + kX + warp_column / kCellRows * half_room(Form);
    const uint32_t codes = w + shared_scales(Form), scales = codes + kHalfCodes;
    Widener<T, Form, Split> own[2];
    uint32_t words[2][4];
    int pair[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) { // sixteen rows of W
        const int of_block = warp_column % kCellRows / 16 + n;
        pair[n] = of_block * 8 + lane / 4;
        own[n].begin_cell(w, pair[n]);
        own[n].begin_half(scales, pair[n]);
        const uint4 four = load_shared(codes + (of_block * 32 + lane) * 16);
        words[n][0] = four.x, words[n][1] = four.y, words[n][2] = four.z, words[n][3] = four.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t b[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            own[n].begin_columns(scales, pair[n], k);
            own[n].widen(words[n][k], b[n]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i >= tall) break;
            uint32_t a[4];
            load_matrix(a, x + i * 16 * 128 + ((2 * k + lane / 16) ^ lane % 8) * 16);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                mma_sync(sums[i][j], a, b[j / 2][j % 2], b[j / 2][j % 2 + 2], T());
            }
        }
    }
}

// Two neighbouring columns of y.
template <typename T>
__device__ __forceinline__ void put(const FourBitArguments &a, int64_t at, float low, float high) {
    if (a.y_type == DType::f32) {
        auto *y = reinterpret_cast<float2 *>(static_cast<float *>(a.y) + at);
        const float2 before = a.add ? *y : float2{};
        *y = make_float2(before.x + low, before.y + high);
        return;
    }
    auto *y = reinterpret_cast<uint32_t *>(static_cast<T *>(a.y) + at);
    if (a.add) {
        const auto before = as_pair<T>(*y);
        low += static_cast<float>(before.x);
        high += static_cast<float>(before.y);
    }
    *y = pack(low, high, T());
}

// Factors and biases of two neighbouring rows of W.
__device__ __forceinline__ void load_finish(const FourBitArguments &a, int64_t row, float2 *factor,
                                            float2 *bias) {
    *factor = make_float2(a.scale, a.scale);
    *bias = make_float2(0, 0);
    if (a.factors != nullptr) {
        const float2 own = *reinterpret_cast<const float2 *>(a.factors + row);
        *factor = make_float2(a.scale * own.x, a.scale * own.y);
    }
    if (a.bias != nullptr) *bias = *reinterpret_cast<const float2 *>(a.bias + row);
}

template <typename T>
__device__ __forceinline__ void store(const FourBitArguments &a, const GroupedWork &work,
                                      int warp_row, int warp_column, float (&sums)[4][4][4]) {
    const int lane = threadIdx.x % 32, rows = a.w_shape.rows;
    const int width = a.gated ? rows / 2 : rows;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int row = work.column + warp_column + j * 8 + lane % 4 * 2; // of W
        if (row >= rows) break;
        float2 factor, bias;
        load_finish(a, int64_t{work.expert} * rows + row, &factor, &bias);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float *d = sums[i][j] + 2 * half;
                d[0] = fmaf(d[0], factor.x, bias.x);
                d[1] = fmaf(d[1], factor.y, bias.y);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + i * 16 + half * 8 + lane / 4;
            if (row >= work.count) continue;
            const int64_t y = int64_t{work.begin + row} * width + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                const int column = work.column + warp_column + j * 8;
                const float *first = sums[i][j] + 2 * half, *second = sums[i][j + 1] + 2 * half;
                if (a.gated) {
                    if (column >= rows) continue;
                    put<T>(a, y + column / 2, gated(a.activation, first[0], second[0]),
                           gated(a.activation, first[1], second[1]));
                    continue;
                }
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const float *own = n == 0 ? first : second;
                    if (column + 8 * n >= rows) continue;
                    put<T>(a, y + column + 8 * n, a.squared ? ungated<true>(own[0]) : own[0],
                           a.squared ? ungated<true>(own[1]) : own[1]);
                }
            }
        }
    }
}

template <typename T, PackedForm Form, bool Split> __global__ void __launch_bounds__(kThreads, 1)
    four_bit_product(const __grid_constant__ FourBitArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = shared_address(shared);
    const int warp = threadIdx.x / 32;
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const int steps = a.w_shape.halves();
    const Tiles tiles(a);
    for (int number = blockIdx.x; number < tiles.total; number += gridDim.x) {
        const GroupedWork work = tiles.at(a, number);
        const Feed<Form> feed(a, work);
        const int tall = (work.count - warp_row + 15) / 16;
        float sums[4][4][4] = {};
        __syncthreads(); // the stages of before have been read
        for (int s = 0; s < kStages - 1; ++s) {
            if (s < steps) feed.load(s, base + s * stage_bytes(Form));
            copy_async_commit();
        }
        for (int s = 0; s < steps; ++s) {
            copy_async_wait<kStages - 2>();
            __syncthreads();
            const int next = s + kStages - 1;
            if (next < steps) feed.load(next, base + next % kStages * stage_bytes(Form));
            copy_async_commit();
            if (tall > 0 && work.column + warp_column < a.w_shape.rows) {
                multiply<T, Form, Split>(base + s % kStages * stage_bytes(Form), warp_row,
                                         warp_column, tall, sums);
            }
        }
        store<T>(a, work, warp_row, warp_column, sums);
    }
    copy_async_wait<0>();
}

template <typename T, PackedForm Form, bool Split>
cudaError_t launch_of(const FourBitArguments &a, int sms, cudaStream_t stream) {
    return launch_with_shared(four_bit_product<T, Form, Split>, static_cast<unsigned>(sms),
                              kThreads, shared_bytes(Form), stream, a);
}

template <PackedForm Form>
cudaError_t launch_int4(const FourBitArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::f16) return launch_of<__half, Form, false>(a, sms, stream);
    return a.split ? launch_of<__nv_bfloat16, Form, true>(a, sms, stream)
                   : launch_of<__nv_bfloat16, Form, false>(a, sms, stream);
}

} // namespace

cudaError_t launch_four_bits_sm80(const FourBitArguments &a, int sms, cudaStream_t stream) {
    if (!takes_four_bits(a)) return cudaErrorInvalidValue;
    if (a.tiles == nullptr && a.tokens == 0) return cudaSuccess;
    switch (a.w_shape.form) {
    case PackedForm::int4_128:
        return launch_int4<PackedForm::int4_128>(a, sms, stream);
    case PackedForm::int4_32:
        return launch_int4<PackedForm::int4_32>(a, sms, stream);
    case PackedForm::mxfp4:
        return launch_of<__nv_bfloat16, PackedForm::mxfp4, false>(a, sms, stream);
    case PackedForm::nvfp4:
        return launch_of<__nv_bfloat16, PackedForm::nvfp4, false>(a, sms, stream);
    case PackedForm::mxfp4_e4m3:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
