// The grouped products for Hopper of x in e4m3 and W in mxfp4 (layout.h, mxfp4_e4m3; experts/sm90_e4m3.cuh). Weights go
// through registers, where four codes become four bytes of wgmma's operand A: a code's three bits of magnitude choose one
// of the eight bytes of a table, which has the scale of 32 columns in it, and its sign is OR-ed. That is exact, but for
// scales 2^-15 times a row's largest and smaller ones, whose weights are 0.
//
// In gated products x has a scale a row, and the tensor cores add up all columns, in their own precision. The sums of other
// products are scaled and added up in f32 for every 128 columns, for which those before them have made a scale.
#include "experts/sm90_e4m3.cuh"

#include "device/wgmma_registers.cuh"
#include "four_bits/product.h"
#include "four_bits/widen.cuh"

namespace batchllm::cuda {
namespace {

constexpr PackedForm kForm = PackedForm::mxfp4_e4m3;
constexpr int kCells = kColumns / kCellRows;
static_assert(kCells * cell_bytes(kForm) <= kWBytes);
// [16][8] bytes: e2m1's magnitudes times what a scale's place stands for.
constexpr int kTables = kShared, kSharedWithTables = kTables + 128;
static_assert(kSharedWithTables <= kMostShared && kTables % 8 == 0);

// Sixteen columns of the rows lane / 4 (words[0]) and + 8 (words[1]), and the sixteen after them -> registers 0 to 3.
__device__ __forceinline__ void widen(const uint32_t *words, const uint2 *tables, uint32_t *a) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t word = words[i], places = word & 0x77777777u;
        a[i] = __byte_perm(tables[i].x, tables[i].y, places) | (word & 0x80808080u);
        a[2 + i] = __byte_perm(tables[i].x, tables[i].y, places >> 16) | (word << 4 & 0x80808080u);
    }
}

// made: of Blocks blocks of 64 rows, `size` bytes from one cell to the next; adds: to what is there. Its last products may
// be under way.
template <int Blocks, int Turns> __device__ __forceinline__ void
multiply_cells(uint32_t cell, uint32_t size, bool whole, const Operand &x, uint32_t tables,
               float (&made)[Blocks][Turns / 2], bool adds = false) {
    constexpr std::integral_constant<int, Turns> kTurns{};
    const int thread = threadIdx.x % 128, pair = thread / 4;
    uint32_t a[2][Blocks][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (half == 1 && !whole) break;
        const uint32_t codes = cell + half * half_bytes(kForm);
        uint4 words[Blocks];
        uint2 table[Blocks][2][2]; // [][32 columns][row]
#pragma unroll
        for (int b = 0; b < Blocks; ++b) {
            words[b] = load_shared(codes + b * size + thread * 16);
            // Bits that no scale has are those of what is beyond W's last row.
            const uint32_t scales =
                load_word(codes + b * size + kHalfCodes + pair * 4) & 0x78787878u;
#pragma unroll
            for (int i = 0; i < 4; ++i) { // two of each row
                table[b][i % 2][i / 2] =
                    load_shared_pair(tables + __byte_perm(scales, 0, 0x4440 + i));
            }
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
            for (int b = 0; b < Blocks; ++b) {
                const uint32_t two[2] = {k == 0 ? words[b].x : words[b].z,
                                         k == 0 ? words[b].y : words[b].w};
                widen(two, table[b][k], a[k][b]);
            }
            wgmma_fence();
#pragma unroll
            for (int b = 0; b < Blocks; ++b) {
                wgmma_rs(made[b], a[k][b], x.at(half * 64 + k * 32), adds || half > 0 || k > 0,
                         kTurns, __nv_fp8_e4m3());
            }
            wgmma_commit();
            wgmma_wait<1>();
        }
    }
}

// The same of one block, all widened before the first product: then the products of a stage follow one another, while the
// other warpgroup adds up and widens. With 128 turns registers do not hold what this takes.
template <int Turns>
__device__ __forceinline__ void multiply_cell(uint32_t cell, bool whole, const Operand &x,
                                              uint32_t tables, float (&made)[Turns / 2]) {
    constexpr std::integral_constant<int, Turns> kTurns{};
    const int thread = threadIdx.x % 128, pair = thread / 4;
    uint32_t a[4][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint32_t codes = cell + half * half_bytes(kForm);
        const uint4 words = load_shared(codes + thread * 16);
        // Bits that no scale has are those of what is beyond W's last row. Beyond its last column weights are 0, and x is.
        const uint32_t scales =
            load_word(codes + kHalfCodes + pair * 4) & (half == 0 || whole ? 0x78787878u : 0u);
        uint2 table[2][2]; // [32 columns][row]
#pragma unroll
        for (int i = 0; i < 4; ++i) { // two of each row
            table[i % 2][i / 2] = load_shared_pair(tables + __byte_perm(scales, 0, 0x4440 + i));
        }
        const uint32_t first[2] = {words.x, words.y}, second[2] = {words.z, words.w};
        widen(first, table[0], a[2 * half]);
        widen(second, table[1], a[2 * half + 1]);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        wgmma_rs(made, a[k], x.at(k * 32), k > 0, kTurns, __nv_fp8_e4m3());
    }
    wgmma_commit();
}

struct Packed {
    static constexpr bool kBlocks = false, kWholeTurns = true, kBiased = true, kBfloatAlone = true;
    static constexpr int kRegisters = 232, kFeeders = 40;
    using Queue = GroupedQueue<kColumns>;

    struct FeedW {
        const std::byte *w = nullptr; // the expert's
        int block = 0, cells = 0;

        __device__ explicit FeedW(const GroupedArguments &) {}
        __device__ void begin(const GroupedArguments &a, const GroupedWork &work, int) {
            const PackedShape shape{kForm, a.rows, a.columns};
            w = static_cast<const std::byte *>(a.w) + work.expert * shape.bytes();
            block = work.column / kCellRows;
            cells = min(kCells, shape.row_blocks() - block);
        }
        __device__ void load(const GroupedArguments &a, int s, uint32_t stage,
                             uint32_t full) const {
            const PackedShape shape{kForm, a.rows, a.columns};
            const uint32_t bytes = cells * cell_bytes(kForm, shape.halves_of(s));
            barrier_expect(full, bytes);
            bulk_copy(stage, w + shape.cell(s, block), bytes, full);
        }
    };

    static __device__ __forceinline__ void prepare(unsigned char *shared) {
        if (threadIdx.x >= 128) return;
        const int entry = threadIdx.x / 8, code = threadIdx.x % 8;
        const float size = code < 2 ? 0.5f * code : ldexpf(1 + 0.5f * (code % 2), code / 2 - 1);
        const float value = entry > 0 ? ldexpf(size, entry - kMxfp4Places) : 0;
        shared[kTables + threadIdx.x] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    }

    // 16, 32, 64, 96 or 128: with all multiples of 16, ptxas finds no registers for the products' operands.
    template <int Turns = 16, typename Act>
    static __device__ __forceinline__ void with_turns(const GroupedWork &work, const Act &act) {
        if constexpr (Turns < kTileRows) {
            if (__shfl_sync(~0u, work.count, 0) > Turns) {
                return with_turns<Turns + (Turns < 32 ? 16 : 32)>(work, act);
            }
        }
        act(std::integral_constant<int, Turns>());
    }

    template <int Turns> static __device__ __forceinline__ void
    multiply_whole_turns(const PackedShape &shape, Ring *place, int group,
                         const unsigned char *shared, float (&sums)[2][Turns / 2]) {
        const uint32_t tables = shared_address(shared) + kTables;
        const int cells = shape.cell_columns();
        Ring before = *place;
        for (int c = 0; c < cells; ++c) {
            const bool whole = shape.halves_of(c) == 2;
            const uint32_t size = whole ? cell_bytes(kForm) : cell_bytes(kForm, 1);
            await_stage(*place);
            multiply_cells<2, Turns>(place->stage() + group * 2 * size, size, whole,
                                     Operand(place->stage() + kWBytes), tables, sums, c > 0);
            if (c > 0) release(before.empty());
            before = *place;
            place->advance();
        }
        wgmma_wait<0>();
        const StageSums<false> scales(before.slot, group, shared);
#pragma unroll
        for (int b = 0; b < 2; ++b) {
#pragma unroll
            for (int i = 0; i < Turns / 2; i += 8) {
                const float4 of = scales.of_x[i / 2];
                sums[b][i] *= of.x, sums[b][i + 1] *= of.y;
                sums[b][i + 2] *= of.x, sums[b][i + 3] *= of.y;
                sums[b][i + 4] *= of.z, sums[b][i + 5] *= of.w;
                sums[b][i + 6] *= of.z, sums[b][i + 7] *= of.w;
            }
        }
        release(before.empty());
    }

    template <bool Gated, int Turns>
    static __device__ __forceinline__ void multiply(const GroupedArguments &a, Ring *place,
                                                    int group, const unsigned char *shared,
                                                    float (&sums)[2][Turns / 2]) {
        if constexpr (Gated) {
            const PackedShape own{kForm, a.rows, a.columns};
            return multiply_whole_turns<Turns>(own, place, group, shared, sums);
        }
        constexpr int kTogether = Turns <= 64 ? 2 : 1; // blocks: registers hold no more
        const PackedShape shape{kForm, a.rows, a.columns};
        const int cells = shape.cell_columns();
        const uint32_t tables = shared_address(shared) + kTables;
        float made[kTogether][Turns / 2];
        await_stage(*place);
        for (int c = 0; c < cells; ++c) {
            const StageSums<false> scales(place->slot, group, shared);
            const bool whole = shape.halves_of(c) == 2;
            const uint32_t size = whole ? cell_bytes(kForm) : cell_bytes(kForm, 1);
            const uint32_t cell = place->stage() + group * 2 * size;
            const Operand x(place->stage() + kWBytes);
            const uint32_t empty = place->empty();
            place->advance();
#pragma unroll
            for (int b = 0; b < 2; b += kTogether) {
                if constexpr (kTogether == 1 && Turns < kTileRows) {
                    multiply_cell<Turns>(cell + b * size, whole, x, tables, made[0]);
                } else {
                    multiply_cells<kTogether, Turns>(cell + b * size, size, whole, x, tables, made);
                }
                const auto first = scales.template first<Turns / 2>();
                if (b + kTogether == 2 && c + 1 < cells) await_stage(*place);
                wgmma_wait<0>();
#pragma unroll
                for (int i = 0; i < kTogether; ++i) {
                    scales.template add<Gated>(first, made[i], sums[b + i]);
                }
            }
            release(empty);
        }
    }
};

} // namespace

cudaError_t launch_mxfp4_e4m3_sm90(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const GroupedScales &s = a.scales;
    if (a.rows % (a.gated ? 2 * kGateRows : 8) != 0 || a.columns % 16 != 0 || s.x == nullptr ||
        s.w == nullptr || s.scaling != Scaling::rows || squares(a) || a.adapters.tiles != nullptr) {
        return cudaErrorInvalidValue;
    }
    if (!a.gated) {
        if (s.y_type != DType::bf16) return cudaErrorInvalidValue;
        return launch_tiles(grouped_e4m3<Packed, false, Activation::silu>, kSharedWithTables, a,
                            sms, stream);
    }
    if (a.rows % 32 != 0 || s.y == nullptr) return cudaErrorInvalidValue;
    switch (a.activation) {
    case Activation::silu:
        return launch_tiles(grouped_e4m3<Packed, true, Activation::silu>, kSharedWithTables, a, sms,
                            stream);
    case Activation::clamped_swiglu:
        return launch_tiles(grouped_e4m3<Packed, true, Activation::clamped_swiglu>,
                            kSharedWithTables, a, sms, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace batchllm::cuda
