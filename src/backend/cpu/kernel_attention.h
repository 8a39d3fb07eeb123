// The attention kernel, written once for any vector type and element type. Each kernels_*.cc
// includes it inside its anonymous namespace, after defining KERNEL_TARGET (the target attribute of
// every function), Simd (16 floats) and Element. This way, code compiled for one instruction set
// cannot be linked into another's.
//
// Flash attention (online softmax): for each pass of kPassKeys positions and each tile of rows,
// scores = queries x keys, running maximum, weights = 2^(score - maximum), output = output * 2^(old
// maximum - new maximum) + weights x values. Groups of 16 positions that no row of a tile sees are
// skipped.
//
// In-order mode: a maximum is rounded to a whole number, so that rescaling by a power of 2 is
// exact, and a weight is rounded before it is scaled. Positions are added one by one, even in a
// multiply-add that takes a pair. Skipped and hidden positions would only add zeros. So the result
// does not depend on tiles, passes and calls.

using Type = Element::Type;
using Vector = Simd::Vector;
constexpr int32_t kPack = Element::kPack;

// scores[r * kPassKeys + 16 g + lane] for R rows and G groups.
template <int R, int G> KERNEL_TARGET inline void
score_tile(const Type *queries, int64_t head_dim, const void *const *key_groups, float *scores) {
    Vector sums[R][G];
    const Type *keys[G];
    for (int r = 0; r < R; ++r) {
        for (int g = 0; g < G; ++g) sums[r][g] = Simd::zero();
    }
    for (int g = 0; g < G; ++g) keys[g] = static_cast<const Type *>(key_groups[g]);
    for (int64_t d = 0; d < head_dim; d += kPack) {
        Element::Operand key[G];
        for (int g = 0; g < G; ++g) key[g] = Element::load(keys[g] + d * kLanes);
        for (int r = 0; r < R; ++r) {
            const Element::Operand query = Element::broadcast(queries + r * head_dim + d);
            for (int g = 0; g < G; ++g) {
                sums[r][g] = Element::multiply_add(query, key[g], sums[r][g]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int g = 0; g < G; ++g) Simd::store(scores + r * kPassKeys + g * kLanes, sums[r][g]);
    }
}

template <int R> KERNEL_TARGET void score_rows(const Type *queries, int64_t head_dim,
                                               const void *const *key_groups, int32_t groups,
                                               float *scores) {
    constexpr int kWide = R <= Simd::kFewRows ? Simd::kWideGroups : Simd::kGroups;
    int32_t g = 0;
    for (; g + kWide <= groups; g += kWide) {
        score_tile<R, kWide>(queries, head_dim, key_groups + g, scores + g * kLanes);
    }
    for (; g < groups; ++g) {
        score_tile<R, 1>(queries, head_dim, key_groups + g, scores + g * kLanes);
    }
}

// output[r, 16 c ..] = output * rescale[r] + sum over tokens of weights[r, token] * values.
template <int R, int C>
KERNEL_TARGET inline void weigh_tile(const Type *weights, const void *const *value_groups,
                                     int32_t groups, int64_t head_dim, const float *rescale,
                                     int64_t column, float *output) {
    Vector sums[R][C];
    for (int r = 0; r < R; ++r) {
        const Vector factor = Simd::set(rescale[r]);
        for (int c = 0; c < C; ++c) {
            sums[r][c] =
                Simd::multiply(Simd::load(output + r * head_dim + column + c * kLanes), factor);
        }
    }
    for (int32_t g = 0; g < groups; ++g) {
        const Type *values = static_cast<const Type *>(value_groups[g]) + column * kPack;
        for (int64_t t = 0; t < kGroupTokens; t += kPack) {
            Element::Operand value[C];
            for (int c = 0; c < C; ++c) {
                value[c] = Element::load(values + t * head_dim + c * kLanes * kPack);
            }
            for (int r = 0; r < R; ++r) {
                const Element::Operand weight =
                    Element::broadcast(weights + r * kPassKeys + g * kGroupTokens + t);
                for (int c = 0; c < C; ++c) {
                    sums[r][c] = Element::multiply_add(weight, value[c], sums[r][c]);
                }
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) {
            Simd::store(output + r * head_dim + column + c * kLanes, sums[r][c]);
        }
    }
}

template <int R> KERNEL_TARGET void weigh_rows(const Type *weights, const void *const *value_groups,
                                               int32_t groups, int64_t head_dim,
                                               const float *rescale, float *output) {
    int64_t column = 0;
    for (; column + Simd::kColumns * kLanes <= head_dim; column += Simd::kColumns * kLanes) {
        weigh_tile<R, Simd::kColumns>(weights, value_groups, groups, head_dim, rescale, column,
                                      output);
    }
    if constexpr (Simd::kColumns > 2) {
        for (; column + 2 * kLanes <= head_dim; column += 2 * kLanes) {
            weigh_tile<R, 2>(weights, value_groups, groups, head_dim, rescale, column, output);
        }
    }
    for (; column < head_dim; column += kLanes) {
        weigh_tile<R, 1>(weights, value_groups, groups, head_dim, rescale, column, output);
    }
}

using ScoreFunction = void (*)(const Type *, int64_t, const void *const *, int32_t, float *);
using WeighFunction = void (*)(const Type *, const void *const *, int32_t, int64_t, const float *,
                               float *);

// By number of rows: entry r - 1 takes r rows. Tables end at Simd::kScoreRows and kWeighRows.
constexpr int32_t kVectorRows = 12;
constexpr ScoreFunction kScoreRows[kVectorRows] = {
    score_rows<1>,
    Simd::kScoreRows >= 2 ? score_rows<Simd::kScoreRows >= 2 ? 2 : 1> : nullptr,
    Simd::kScoreRows >= 3 ? score_rows<Simd::kScoreRows >= 3 ? 3 : 1> : nullptr,
    Simd::kScoreRows >= 4 ? score_rows<Simd::kScoreRows >= 4 ? 4 : 1> : nullptr,
    Simd::kScoreRows >= 5 ? score_rows<Simd::kScoreRows >= 5 ? 5 : 1> : nullptr,
    Simd::kScoreRows >= 6 ? score_rows<Simd::kScoreRows >= 6 ? 6 : 1> : nullptr,
    Simd::kScoreRows >= 7 ? score_rows<Simd::kScoreRows >= 7 ? 7 : 1> : nullptr,
    Simd::kScoreRows >= 8 ? score_rows<Simd::kScoreRows >= 8 ? 8 : 1> : nullptr,
    Simd::kScoreRows >= 9 ? score_rows<Simd::kScoreRows >= 9 ? 9 : 1> : nullptr,
    Simd::kScoreRows >= 10 ? score_rows<Simd::kScoreRows >= 10 ? 10 : 1> : nullptr,
    Simd::kScoreRows >= 11 ? score_rows<Simd::kScoreRows >= 11 ? 11 : 1> : nullptr,
    Simd::kScoreRows >= 12 ? score_rows<Simd::kScoreRows >= 12 ? 12 : 1> : nullptr,
};
constexpr WeighFunction kWeighRows[kVectorRows] = {
    weigh_rows<1>,
    Simd::kWeighRows >= 2 ? weigh_rows<Simd::kWeighRows >= 2 ? 2 : 1> : nullptr,
    Simd::kWeighRows >= 3 ? weigh_rows<Simd::kWeighRows >= 3 ? 3 : 1> : nullptr,
    Simd::kWeighRows >= 4 ? weigh_rows<Simd::kWeighRows >= 4 ? 4 : 1> : nullptr,
    Simd::kWeighRows >= 5 ? weigh_rows<Simd::kWeighRows >= 5 ? 5 : 1> : nullptr,
    Simd::kWeighRows >= 6 ? weigh_rows<Simd::kWeighRows >= 6 ? 6 : 1> : nullptr,
};

// The two products of a tile of rows, with vectors. weights may be written past the last group.
struct VectorProducts {
    static constexpr int32_t kRows = Simd::kScoreRows; // per tile

    KERNEL_TARGET static void score(int32_t rows, const Type *queries, int64_t head_dim,
                                    const void *const *key_groups, int32_t groups, float *scores) {
        kScoreRows[rows - 1](queries, head_dim, key_groups, groups, scores);
    }
    KERNEL_TARGET static void weigh(int32_t rows, Type *weights, const void *const *value_groups,
                                    int32_t groups, int64_t head_dim, const float *rescale,
                                    float *output) {
        for (int32_t r = 0; r < rows;) {
            const int32_t left = rows - r;
            const int32_t take = left < Simd::kWeighRows ? left : Simd::kWeighRows;
            kWeighRows[take - 1](weights + r * kPassKeys, value_groups, groups, head_dim,
                                 rescale + r, output + r * head_dim);
            r += take;
        }
    }
};

// Hides the positions outside [begin, end) in a row of scores. A hidden score may be anything,
// including NaN, since its key may never have been written.
KERNEL_TARGET inline void hide(float *scores, int32_t width, int32_t begin, int32_t end) {
    for (int32_t i = 0; i < begin; ++i) scores[i] = -Simd::kInfinity;
    for (int32_t i = end < 0 ? 0 : end; i < width; ++i) scores[i] = -Simd::kInfinity;
}

// softcap * tanh(x / softcap)
KERNEL_TARGET inline Vector capped(Vector x, float softcap) {
    // tanh(u) = 1 - 2 / (1 + e^2u). If e^2u overflows to inf, the quotient is 0.
    const Vector power = Simd::exp2(Simd::multiply(x, Simd::set(2.88539008177792681f / softcap)));
    const Vector quotient = Simd::divide(Simd::set(2.0f), Simd::add(power, Simd::set(1.0f)));
    return Simd::multiply(Simd::subtract(Simd::set(1.0f), quotient), Simd::set(softcap));
}

// A row's scores -> its weights, 2^(score - offset). Returns `total` plus their sum, lane by lane.
template <bool kInOrder> KERNEL_TARGET inline Vector
make_weights(const float *scores, int32_t width, Vector offset, Vector total, Type *weights) {
    int32_t i = 0;
    for (; !kInOrder && i + 2 * kLanes <= width; i += 2 * kLanes) {
        const Vector left = Element::weight(Simd::subtract(Simd::load(scores + i), offset));
        const Vector right =
            Element::weight(Simd::subtract(Simd::load(scores + i + kLanes), offset));
        total = Simd::add(total, Simd::add(left, right));
        Element::store_weights(weights + i, left, right);
    }
    for (; i < width; i += kLanes) {
        const Vector score = Simd::load(scores + i);
        // In order, the largest weight is not 1: weights are rounded like elements, and so is their
        // sum.
        const Vector weight = kInOrder ? Element::rounded(Simd::exp2_over(score, offset))
                                       : Element::weight(Simd::subtract(score, offset));
        total = Simd::add(total, weight);
        Element::store_weights(weights + i, weight);
    }
    return total;
}

// The first value_dim elements of a group's keys, in the layout of values.
KERNEL_TARGET inline void lay_out_values(const Type *keys, int64_t value_dim, Type *values) {
    for (int64_t d = 0; d < value_dim; d += kPack) {
        for (int64_t t = 0; t < kGroupTokens; ++t) {
            const int64_t place = Element::kLaterFirst ? kPack - 1 - t % kPack : t % kPack;
            Type *to = values + t / kPack * kPack * value_dim + d * kPack + place;
            const Type *from = keys + d * kGroupTokens + t * kPack;
            for (int64_t p = 0; p < kPack; ++p) to[p * kPack] = from[p];
        }
    }
}

// One tile: rows [0, rows) of the call's arrays, offset to the tile, and positions [begin, end).
// values: the value groups from that of `begin` on.
template <bool kInOrder, typename Products>
KERNEL_TARGET void attend_tile(const AttentionCall &call, const void *const *values, int32_t first,
                               int32_t rows, int32_t begin, int32_t end) {
    const int64_t head_dim = call.head_dim;
    const int32_t *visible_begin = call.visible_begin + first;
    const int32_t *visible_end = call.visible_end + first;
    int32_t low = end;
    int32_t high = begin;
    int32_t last_begin = begin;
    int32_t first_end = end;
    for (int32_t r = 0; r < rows; ++r) {
        if (visible_begin[r] < low) low = visible_begin[r];
        if (visible_end[r] > high) high = visible_end[r];
        if (visible_begin[r] > last_begin) last_begin = visible_begin[r];
        if (visible_end[r] < first_end) first_end = visible_end[r];
    }
    if (low < begin) low = begin;
    if (high > end) high = end;
    if (low >= high) return;
    const int32_t group = low / kGroupTokens;
    const int32_t groups = (high + kGroupTokens - 1) / kGroupTokens - group;
    const int32_t origin = group * kGroupTokens;
    const int32_t width = groups * kGroupTokens;

    const Type *queries = static_cast<const Type *>(call.queries) + first * head_dim;
    float *scores = call.scratch;
    Type *weights = reinterpret_cast<Type *>(call.scratch + Products::kRows * kPassKeys);
    Products::score(rows, queries, head_dim, call.key_groups + group, groups, scores);

    float rescale[Products::kRows];
    const bool some_hidden = last_begin > origin || first_end < origin + width;
    for (int32_t r = 0; r < rows; ++r) {
        float *row = scores + r * kPassKeys;
        if (call.softcap != 0) {
            for (int32_t i = 0; i < width; i += kLanes) {
                Simd::store(row + i, capped(Simd::load(row + i), call.softcap));
            }
        }
        if (some_hidden) hide(row, width, visible_begin[r] - origin, visible_end[r] - origin);
        Vector most = Simd::load(row);
        for (int32_t i = kLanes; i < width; i += kLanes) {
            most = Simd::maximum(most, Simd::load(row + i));
        }
        const float old_maximum = call.maximum[first + r];
        float maximum = Simd::reduce_maximum(most);
        if constexpr (kInOrder) maximum = __builtin_rintf(maximum);
        if (!(maximum > old_maximum)) maximum = old_maximum;
        // Nothing seen so far: any finite maximum gives weights of zero. NaN scores stay NaN.
        const float base = maximum == -Simd::kInfinity ? 0.0f : maximum;
        const float factor = Simd::exp2_one(old_maximum - base);
        const Vector offset = Simd::set(base);
        Vector total = Simd::zero();
        float *sum = call.sum + (kInOrder ? (first + r) * kLanes : first + r);
        if constexpr (kInOrder) total = Simd::multiply(Simd::load(sum), Simd::set(factor));
        total = make_weights<kInOrder>(row, width, offset, total, weights + r * kPassKeys);
        rescale[r] = factor;
        call.maximum[first + r] = maximum;
        if constexpr (kInOrder) {
            Simd::store(sum, total);
        } else {
            *sum = *sum * factor + Simd::reduce_add(total);
        }
    }
    Products::weigh(rows, weights, values + (group - begin / kGroupTokens), groups, call.value_dim,
                    rescale, call.output + first * int64_t{call.value_dim});
}

template <bool kInOrder, typename Products>
KERNEL_TARGET inline void attend_passes(const AttentionCall &call) {
    // Tiles of equal size, instead of a small last one.
    const int32_t tiles = (call.rows + Products::kRows - 1) / Products::kRows;
    // Wide heads take shorter passes: the keys and values of a pass are at most 128 KiB.
    int32_t pass = static_cast<int32_t>(131072 / (2 * sizeof(Type)) / call.head_dim);
    pass = pass >= kPassKeys ? kPassKeys : pass < 64 ? 64 : pass / kGroupTokens * kGroupTokens;
    for (int32_t begin = call.key_begin; begin < call.key_end; begin += pass) {
        const int32_t end = begin + pass < call.key_end ? begin + pass : call.key_end;
        const int32_t group = begin / kGroupTokens;
        const void *laid_out[kPassKeys / kGroupTokens];
        const void *const *values = laid_out;
        if (call.value_groups != nullptr) {
            values = call.value_groups + group;
        } else {
            Type *to = static_cast<Type *>(call.values);
            for (int32_t g = 0; group * kGroupTokens + g * kGroupTokens < end; ++g) {
                lay_out_values(static_cast<const Type *>(call.key_groups[group + g]),
                               call.value_dim, to);
                laid_out[g] = to;
                to += int64_t{kGroupTokens} * call.value_dim;
            }
        }
        int32_t first = 0;
        for (int32_t tile = 0; tile < tiles; ++tile) {
            const int32_t rows = (call.rows - first + tiles - tile - 1) / (tiles - tile);
            attend_tile<kInOrder, Products>(call, values, first, rows, begin, end);
            first += rows;
        }
    }
}

template <typename Products> KERNEL_TARGET void attend(const AttentionCall &call) {
    for (int32_t r = 0; r < call.rows; ++r) {
        call.maximum[r] = -Simd::kInfinity;
        call.sum[r] = 0;
    }
    const int64_t values = int64_t{call.rows} * call.value_dim;
    for (int64_t i = 0; i < values; i += kLanes) Simd::store(call.output + i, Simd::zero());
    attend_passes<false, Products>(call);
}
