// Adapters' low-rank products beside a layer's own: y[row] += alpha * scale * B (A x[row]), where a row of a step has an
// adapter or none, and A, B and scale are its adapter's. In two launches: shrink makes t = A x, expand adds to y.
//
// A product's W may be several matrices of the model, one below the other (Q, K and V; gate and up): its parts. Each
// has a B of its own, of whatever rank; their A stand one below the other and are one, or are the same.
//
// A step's rows are listed by adapter, in tiles of one adapter each: a launch's CTAs take tiles from a list in device memory,
// so that a launch is the same for all steps of a shape, and a graph can repeat it. A sum over x's columns is cut by their
// number alone, so where all tiles are short, the bits of y[row] depend on nothing but the row and its adapter; in tall tiles
// and those of few rows a sum has another order.
//
// On devices of compute capability 9.0, where A has 16 bits, the CTAs of a cluster can add up their parts of a sum: t is whole
// then. It is where adapter_sums_are_whole() says so; sums of short tiles are in ranges there too, but where products add.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "linear/scaling.h"

namespace batchllm::cuda {

inline constexpr int32_t kAdapterParts = 8;
// Rows of a tile at most: where adapters have many rows each, their A and B are read for more at once.
inline constexpr int32_t kShortTile = 16, kTallTile = 64;
// Rows of a tile of those whose adapters have few rows each (adapters/few.h).
inline constexpr int32_t kFewRows = 8;
// Rows of which a step knows the adapters: a CTA's of the product of gate and up.
inline constexpr int32_t kAdapterBlock = 128;
// Columns of each of two parts that take turns in y, as experts' gate and up do (experts/tile.h).
inline constexpr int32_t kPartTurn = 8;

// On the device, for each adapter and product. Ranks are padded with zeros to multiples of 8. Parts that share columns of t
// have the same scale.
struct alignas(16) AdapterPart {
    int32_t rank;    // 0: the adapter leaves this part as it is
    int32_t first;   // of t, the part's first column: a multiple of 8
    int32_t b_units; // where B begins, in units of 16 bytes from AdapterEntry::b
    float scale;
};
struct alignas(16) AdapterEntry {
    const void *a;   // [ranks, columns] of the element's type
    const void *b;   // packed_b() of each part
    int32_t ranks;   // rows of A; 0: the adapter does nothing here
    int32_t entries; // in an adapter's first: how many it has, those of experts last
    int32_t unused[2];
    AdapterPart parts[kAdapterParts];
};

// Rows [begin, begin + count) of a list of rows have the adapter.
struct alignas(16) AdapterTile {
    const AdapterEntry
        *entries; // of the adapter: [products]; or of the tile's expert and those after it
    int32_t begin, count;
};

// A step's work, on the device.
struct AdapterWork {
    const int32_t *tile_count; // [1], of those after the few
    const AdapterTile *tiles;
    const int32_t *rows; // of x, y and t, by the adapters; null: as they come, [0, ..)
    const AdapterEntry *const *entries; // of each row's adapter: [products]; null: it has none
    bool tall;                          // tiles have up to kTallTile rows, else kShortTile
    // Of each kAdapterBlock rows: how many adapters they have, and which: [kAdapterBlock] of each block.
    const int32_t *block_counts = nullptr;
    const AdapterEntry *const *block_entries = nullptr;
    // Tiles come first whose adapters have no more than kFewRows rows in the step. Launches of their own take them.
    const int32_t *few_count = nullptr; // [1]; null: there are none
    bool has_few = false, has_others = true;
    const uint8_t *in_others =
        nullptr; // of each row: whether it is in a tile that is not of few rows
};

struct AdapterArguments {
    DType element; // of x, A and B: bf16, f16 or f32
    AdapterWork work;
    int32_t product;      // which of an adapter's entries
    int32_t most_ranks;   // of AdapterEntry::ranks, over the loaded adapters
    int32_t most_of_part; // the same of AdapterPart::rank
    // x [rows, columns]; with scales it is in e4m3, as a base product takes it (linear/scaling.h).
    const void *x;
    int32_t columns;       // a multiple of 8
    const int32_t *x_rows; // of a place in the list; null: work's
    // null: x is of the element's type. Of a row's kScaleBlock columns g: [row * x_row_stride + g * x_group_stride]; if the
    // latter is 0, of all columns.
    const float *x_scales;
    int64_t x_row_stride, x_group_stride;
    // Columns that a sum is over: a multiple of 128. Unless t is whole it has a sum for each such range, which expand adds up in
    // order.
    int32_t range;
    // [ranges(), t_rows, t_stride] f32; of a tile of few rows the first range has the whole sums.
    // whole: [t_rows, t_stride] of the element's type, times its parts' scales.
    void *t;
    int32_t t_rows, t_stride;
    bool whole;
    // y [rows, width] of y_type: bf16, f16 or f32. parts: first[p] is the first column of part p, first[parts] the end; all
    // are multiples of 8, but in f32.
    void *y;
    DType y_type;
    int32_t width;
    int32_t parts;
    int32_t first[kAdapterParts + 1];
    bool turns; // both parts take turns in y, kPartTurn columns each
    float alpha;
    // Only rows [first_row, first_row + some_rows) are computed; y begins with the first of them. some_rows 0: all.
    int32_t first_row, some_rows;

    constexpr int32_t ranges() const { return (columns + range - 1) / range; }
};

// AdapterArguments::range: some ranges are so many items that a few tiles are for all multiprocessors; with more than eight,
// expand waits for them. turns: of experts, whose t has a row for each turn: fewer.
constexpr int32_t adapter_range(int64_t columns, bool turns = false) {
    const int64_t eighth = (columns + 1023) / 1024 * 128, least = turns ? 2048 : 1024;
    return static_cast<int32_t>(eighth > least ? eighth : least);
}

// Whether t can be whole. hopper: the device is of compute capability 9.0.
constexpr bool adapter_sums_can_be_whole(DType element, bool hopper) {
    return hopper && element != DType::f32;
}
// Whether it is, where tiles are tall or not. Short ones are faster in ranges, but products that add what adapters do
// (gated/gated.h, experts/grouped.h) take none.
constexpr bool adapter_sums_are_whole(DType element, bool hopper, bool tall, bool product_adds) {
    return (tall || product_adds) && adapter_sums_can_be_whole(element, hopper);
}

// sms: of the device. Whatever the list has, the launches have the same size.
cudaError_t launch_adapter_shrink(const AdapterArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_adapter_expand(const AdapterArguments &arguments, int sms, cudaStream_t stream);

// W as it is with an adapter: merged = W + scale * B A, [rows, columns], of the element's type; all parts at once.
struct AdapterMerge {
    DType element;             // bf16, f16 or f32
    const AdapterEntry *entry; // of the product, on the device
    const void *w;
    void *merged;
    int32_t rows, columns; // columns: a multiple of 8
    int32_t parts;
    int32_t first[kAdapterParts + 1]; // rows of W, as AdapterArguments'
};
cudaError_t launch_adapter_merge(const AdapterMerge &merge, cudaStream_t stream);

// ---- Packing ------------------------------------------------------------------------------------

// B of a part in groups of 32 rows (columns of y), each with all ranks: for each 16 of the ranks two units of 16 bytes for
// each lane of a warp, and for 8 that are left one; what a lane needs for mma.sync with 4 x 8 of the rows. Rows are dealt so
// that in y a lane has 8 columns that follow one another. The place of B's element in f32 is the same.
constexpr int32_t kPackedRows = 32;
constexpr int32_t padded_rank(int64_t rank) { return static_cast<int32_t>((rank + 7) / 8 * 8); }
constexpr int64_t packed_b_elements(int64_t rows, int64_t rank) {
    return (rows + kPackedRows - 1) / kPackedRows * kPackedRows * padded_rank(rank);
}
// rank: padded.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr int64_t
    packed_b(int64_t row, int32_t of_rank, int32_t rank) {
    const int32_t in_group = static_cast<int32_t>(row % kPackedRows);
    const int32_t n = in_group / 8 * 2 + in_group % 2, j = in_group % 8 / 2; // of the j-th mma
    const int64_t group = row / kPackedRows * kPackedRows * rank;
    const int32_t whole = rank / 16 * 16;
    if (of_rank < whole) {
        const int32_t lane = n * 4 + of_rank % 16 / 4;
        return group + of_rank / 16 * 512 + j / 2 * 256 + lane * 8 + j % 2 * 4 + of_rank % 4;
    }
    const int32_t lane = n * 4 + of_rank % 8 / 2;
    return group + whole * kPackedRows + lane * 8 + j * 2 + of_rank % 2;
}

// One of an adapter's matrices as it is in the file, on its way to A or B.
struct alignas(16) AdapterPiece {
    const void *from; // [rows, columns]
    void *to;         // the element's type
    DType type;       // of from: f32, f16 or bf16
    bool is_b;        // else A
    bool turned;      // from is A's transpose, [from_places, rank]
    // A: rows (ranks) beyond from's are zeros, up to `ranks`; columns are heads of `size` in `padded` places each.
    // B: the same of its rows, where the heads are `stride` rows apart in from and begin at row `begin` of it.
    int32_t ranks;       // padded
    int32_t rank;        // of from
    int64_t places;      // A: columns; B: rows, a multiple of kPackedRows; with padding
    int64_t from_places; // that from has
    int32_t size, padded, stride, begin;
    // B: where it is one of several that are packed as one: its first row and rank there, all ranks (0: its own), and what its
    // elements are multiplied by.
    int32_t to_row = 0, to_rank = 0, to_ranks = 0;
    float factor = 1;
};
// What launch_adapter_pack() runs is loaded now instead of at its first launch, which may wait for the device.
cudaError_t load_adapter_pack(DType element);
// pieces: on the device, [count].
cudaError_t launch_adapter_pack(DType element, const AdapterPiece *pieces, int32_t count, int sms,
                                cudaStream_t stream);

} // namespace batchllm::cuda
