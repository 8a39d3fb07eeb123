// Attention's two products with AMX tiles, for bfloat16: at most 16 rows of 64 bytes. Included
// after kernel_attention.h. Tile is the processor's own or, on processors without AMX, a stand-in
// (for tests):
//   configure, release           configure the eight tiles; without, there are none
//   load<T>, store<T>, zero<T>   rows are `stride` bytes apart
//   multiply_add<C, A, B>        C[m, n] += sum over k, i in {0, 1} of A[m, 2 k + i] * B[k, 2 n +
//   i]
//
// A key group has the layout of such a B with 16 tokens and 32 dimensions; two consecutive value
// groups have that of a B with 32 tokens and 16 dimensions.

// In the layout that LDTILECFG reads.
struct TileConfig {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

template <typename Tile> struct TileProducts {
    static constexpr int32_t kRows = 32; // two tiles: the upper and the lower
    static constexpr int32_t kHalf = 16;
    static constexpr int32_t kDepth = 32; // elements in a tile's row
    // Tiles 0 to 3 are results: [upper, lower][left, right].
    static constexpr int kUpper = 4, kLower = 5, kLeft = 6, kRight = 7;

    // depth: the number of elements that a tile sums over, kDepth or half of it.
    KERNEL_TARGET static void configure(int32_t rows, int32_t depth) {
        const int32_t upper = rows < kHalf ? rows : kHalf;
        TileConfig config = {};
        config.palette = 1;
        const auto set = [&](int tile, int32_t tile_rows, int32_t bytes) {
            config.rows[tile] = static_cast<uint8_t>(tile_rows);
            config.row_bytes[tile] = static_cast<uint16_t>(tile_rows > 0 ? bytes : 0);
        };
        for (const int tile : {0, 1}) set(tile, upper, 64);
        for (const int tile : {2, 3}) set(tile, rows - upper, 64);
        set(kUpper, upper, 2 * depth);
        set(kLower, rows - upper, 2 * depth);
        for (const int tile : {kLeft, kRight}) set(tile, depth / 2, 64);
        Tile::configure(config);
    }

    // For one group of keys or, if right is not null, for two.
    template <bool kBoth>
    KERNEL_TARGET static void score_groups(const Type *queries, int64_t head_dim, int32_t depth,
                                           const Type *left, const Type *right, float *scores) {
        constexpr int64_t stride = kPassKeys * 4;
        const int64_t row = head_dim * 2;
        Tile::template zero<0>();
        Tile::template zero<1>();
        if constexpr (kBoth) {
            Tile::template zero<2>();
            Tile::template zero<3>();
        }
        for (int64_t d = 0; d < head_dim; d += depth) {
            Tile::template load<kUpper>(queries + d, row);
            Tile::template load<kLeft>(left + d * kGroupTokens, 64);
            Tile::template multiply_add<0, kUpper, kLeft>();
            if constexpr (kBoth) {
                Tile::template load<kLower>(queries + kHalf * head_dim + d, row);
                Tile::template multiply_add<2, kLower, kLeft>();
            }
            if (right == nullptr) continue;
            Tile::template load<kRight>(right + d * kGroupTokens, 64);
            Tile::template multiply_add<1, kUpper, kRight>();
            if constexpr (kBoth) Tile::template multiply_add<3, kLower, kRight>();
        }
        Tile::template store<0>(scores, stride);
        if constexpr (kBoth) Tile::template store<2>(scores + kHalf * kPassKeys, stride);
        if (right == nullptr) return;
        Tile::template store<1>(scores + kGroupTokens, stride);
        if constexpr (kBoth) {
            Tile::template store<3>(scores + kHalf * kPassKeys + kGroupTokens, stride);
        }
    }

    KERNEL_TARGET static void score(int32_t rows, const Type *queries, int64_t head_dim,
                                    const void *const *key_groups, int32_t groups, float *scores) {
        const int32_t depth = head_dim % kDepth == 0 ? kDepth : kDepth / 2;
        configure(rows, depth);
        const auto function = rows > kHalf ? score_groups<true> : score_groups<false>;
        for (int32_t g = 0; g < groups; g += 2) {
            const void *right = g + 1 < groups ? key_groups[g + 1] : nullptr;
            function(queries, head_dim, depth, static_cast<const Type *>(key_groups[g]),
                     static_cast<const Type *>(right), scores + g * kGroupTokens);
        }
    }

    // The values of two groups in 16 dimensions, copied so that they are consecutive. second may be
    // null: zeros.
    struct Joined {
        alignas(64) Type values[kHalf * kDepth];

        KERNEL_TARGET const Type *join(const Type *first, const Type *second, int64_t head_dim) {
            for (int64_t t = 0; t < kHalf; ++t) {
                const Type *from = t < kHalf / 2 ? first : second;
                const int64_t at = t % (kHalf / 2) * head_dim * 2;
                const Element::Operand pairs =
                    from == nullptr ? Element::Operand{} : Element::load(from + at);
                __builtin_memcpy(values + t * kDepth, &pairs, sizeof pairs);
            }
            return values;
        }
    };

    // 16 columns of the output or, if kWide, 32.
    template <bool kBoth, bool kWide>
    KERNEL_TARGET static void weigh_columns(const Type *weights, const void *const *value_groups,
                                            int32_t groups, int64_t head_dim, int64_t column,
                                            float *output) {
        const int64_t row = head_dim * 4; // bytes in a row of the output, or of a pair of tokens'
                                          // values
        float *lower = output + kHalf * head_dim;
        Tile::template load<0>(output, row);
        if constexpr (kWide) Tile::template load<1>(output + 16, row);
        if constexpr (kBoth) Tile::template load<2>(lower, row);
        if constexpr (kBoth && kWide) Tile::template load<3>(lower + 16, row);
        Joined left, right;
        for (int32_t g = 0; g < groups; g += 2) {
            const Type *first = static_cast<const Type *>(value_groups[g]) + column * 2;
            const Type *second = nullptr;
            if (g + 1 < groups) {
                second = static_cast<const Type *>(value_groups[g + 1]) + column * 2;
            }
            const bool follows = second == first + kGroupTokens * head_dim;
            Tile::template load<kLeft>(follows ? first : left.join(first, second, head_dim),
                                       follows ? row : 64);
            Tile::template load<kUpper>(weights + g * kGroupTokens, kPassKeys * 2);
            Tile::template multiply_add<0, kUpper, kLeft>();
            if constexpr (kBoth) {
                Tile::template load<kLower>(weights + kHalf * kPassKeys + g * kGroupTokens,
                                            kPassKeys * 2);
                Tile::template multiply_add<2, kLower, kLeft>();
            }
            if constexpr (kWide) {
                first += 32;
                second = second == nullptr ? nullptr : second + 32;
                Tile::template load<kRight>(follows ? first : right.join(first, second, head_dim),
                                            follows ? row : 64);
                Tile::template multiply_add<1, kUpper, kRight>();
                if constexpr (kBoth) Tile::template multiply_add<3, kLower, kRight>();
            }
        }
        Tile::template store<0>(output, row);
        if constexpr (kWide) Tile::template store<1>(output + 16, row);
        if constexpr (kBoth) Tile::template store<2>(lower, row);
        if constexpr (kBoth && kWide) Tile::template store<3>(lower + 16, row);
    }

    KERNEL_TARGET static void weigh(int32_t rows, Type *weights, const void *const *value_groups,
                                    int32_t groups, int64_t head_dim, const float *rescale,
                                    float *output) {
        for (int32_t r = 0; r < rows; ++r) {
            if (groups % 2 != 0) { // a tile holds two groups: clear the missing one
                Element::store(weights + r * kPassKeys + groups * kGroupTokens, Simd::zero());
            }
            if (rescale[r] == 1) continue;
            const Vector factor = Simd::set(rescale[r]);
            for (float *x = output + r * head_dim; x < output + (r + 1) * head_dim; x += kLanes) {
                Simd::store(x, Simd::multiply(Simd::load(x), factor));
            }
        }
        configure(rows, kDepth);
        const bool both = rows > kHalf;
        const auto wide = both ? weigh_columns<true, true> : weigh_columns<false, true>;
        const auto narrow = both ? weigh_columns<true, false> : weigh_columns<false, false>;
        for (int64_t column = 0; column < head_dim; column += 32) {
            (column + 16 < head_dim ? wide : narrow)(weights, value_groups, groups, head_dim,
                                                     column, output + column);
        }
    }
};

// A tile with few rows costs as much as the loads of a full one.
template <typename Tile> KERNEL_TARGET void attend_by_tiles(const AttentionCall &call) {
    constexpr int32_t few = 8;
    if (call.rows < few) return attend<VectorProducts>(call);
    attend<TileProducts<Tile>>(call);
    Tile::release();
}
