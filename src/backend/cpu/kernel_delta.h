// The rules of linear attention and the convolution before them, written once for any vector type.
// Included by kernel_elementwise.h, under the same rules.
//
// A state S is [key_dim][D], where D = value_dim padded to whole vectors. A row of S, or of the
// values, is processed a few vectors at a time. The padding of the values counts as zero, so the
// padding of S stays zero.

constexpr int32_t kDeltaColumns = 4; // vectors of S processed together

// Loads vector i of a row of n floats, filling with zeros; and the reverse.
KERNEL_TARGET inline Vector load_part(const float *row, int32_t i, int32_t n) {
    const int32_t left = n - i * kLanes;
    return left >= kLanes ? Simd::load(row + i * kLanes) : load_some(row + i * kLanes, left);
}

KERNEL_TARGET inline void store_part(float *row, Vector x, int32_t i, int32_t n) {
    const int32_t left = n - i * kLanes;
    if (left >= kLanes) return Simd::store(row + i * kLanes, x);
    store_some(row + i * kLanes, x, left);
}

// out[i] = silu(bias[i] + sum over w of inputs[w][i] * weight[w][i])
KERNEL_TARGET void convolve(const float *const *inputs, const float *weight, const float *bias,
                            int32_t width, int32_t n, float *out) {
    for (int32_t i = 0; i < n; i += kLanes) {
        const int32_t left = n - i;
        Vector sum = bias != nullptr ? load_part(bias, i / kLanes, n) : Simd::zero();
        for (int32_t w = 0; w < width; ++w) {
            const float *x = inputs[w] + i;
            const float *factor = weight + int64_t{w} * n + i;
            sum = left >= kLanes
                      ? Simd::multiply_add(Simd::load(x), Simd::load(factor), sum)
                      : Simd::multiply_add(load_some(x, left), load_some(factor, left), sum);
        }
        sum = Silu::times(sum, Simd::set(1.0f));
        if (left >= kLanes) {
            Simd::store(out + i, sum);
        } else {
            store_some(out + i, sum, left);
        }
    }
}

struct Sigmoid {
    KERNEL_TARGET static Vector times(Vector gate, Vector x) {
        // -log2(e)
        const Vector power = Simd::exp2(Simd::multiply(gate, Simd::set(-1.44269504f)));
        return Simd::divide(x, Simd::add(power, Simd::set(1.0f)));
    }
};

// x *= sigmoid(gate), or silu(gate)
template <typename Function>
KERNEL_TARGET void scale_gated(const float *gate, int32_t n, float *x) {
    for (int32_t i = 0; i < n; i += kLanes) {
        const int32_t left = n - i;
        const Vector g = left >= kLanes ? Simd::load(gate + i) : load_some(gate + i, left);
        const Vector v = left >= kLanes ? Simd::load(x + i) : load_some(x + i, left);
        const Vector scaled = Function::times(g, v);
        if (left >= kLanes) {
            Simd::store(x + i, scaled);
        } else {
            store_some(x + i, scaled, left);
        }
    }
}

// One token, for vectors [first, first + kCount) of S's rows. kByRow: with call.decays.
template <bool kRemoves, bool kByRow, int32_t kCount> KERNEL_TARGET inline void
delta_token(const DeltaCall &call, int32_t t, const float *from, int32_t first) {
    const int32_t stride = padded_head_dim(call.value_dim);
    const float *key = call.keys + t * call.token_stride;
    const float *query = call.queries + t * call.token_stride;
    float *value = call.values + t * call.token_stride;
    const float *decays = kByRow ? call.decays + t * call.decay_stride : nullptr;
    const float one = kByRow ? 1.0f : __builtin_expf(call.log_decay[t * call.gate_stride]);
    const Vector every = Simd::set(one);
    const Vector rate = Simd::set(call.rate[t * call.gate_stride]);
    Vector sum[kCount];
    for (int32_t c = 0; c < kCount; ++c) sum[c] = Simd::zero();
    for (int32_t k = 0; kRemoves && from != nullptr && k < call.key_dim; ++k) {
        const Vector factor = Simd::set(key[k]);
        const Vector decay = kByRow ? Simd::set(decays[k]) : every;
        const float *row = from + int64_t{k} * stride + first * kLanes;
        for (int32_t c = 0; c < kCount; ++c) {
            sum[c] = Simd::multiply_add(Simd::multiply(Simd::load(row + c * kLanes), decay), factor,
                                        sum[c]);
        }
    }
    Vector change[kCount], result[kCount];
    for (int32_t c = 0; c < kCount; ++c) {
        const Vector wanted = load_part(value, first + c, call.value_dim);
        change[c] = Simd::multiply(kRemoves ? Simd::subtract(wanted, sum[c]) : wanted, rate);
        result[c] = Simd::multiply(wanted, Simd::set(call.skip));
    }
    for (int32_t k = 0; k < call.key_dim; ++k) {
        const Vector factor = Simd::set(key[k]), weight = Simd::set(query[k]);
        const Vector decay = kByRow ? Simd::set(decays[k]) : every;
        const int64_t at = int64_t{k} * stride + first * kLanes;
        for (int32_t c = 0; c < kCount; ++c) {
            const Vector before = from == nullptr
                                      ? Simd::zero()
                                      : Simd::multiply(Simd::load(from + at + c * kLanes), decay);
            const Vector now = Simd::multiply_add(factor, change[c], before);
            Simd::store(call.state + at + c * kLanes, now);
            result[c] = Simd::multiply_add(now, weight, result[c]);
        }
    }
    for (int32_t c = 0; c < kCount; ++c) store_part(value, result[c], first + c, call.value_dim);
}

template <bool kRemoves, bool kByRow>
KERNEL_TARGET inline void delta_tokens(const DeltaCall &call) {
    const int32_t vectors = padded_head_dim(call.value_dim) / kLanes;
    for (int32_t t = 0; t < call.tokens; ++t) {
        const float *from = t == 0 ? call.from : call.state;
        int32_t i = 0;
        for (; i + kDeltaColumns <= vectors; i += kDeltaColumns) {
            delta_token<kRemoves, kByRow, kDeltaColumns>(call, t, from, i);
        }
        for (; i < vectors; ++i) delta_token<kRemoves, kByRow, 1>(call, t, from, i);
    }
}

// Token by token.
KERNEL_TARGET void delta_recurrent(const DeltaCall &call) {
    if (call.decays != nullptr) return delta_tokens<true, true>(call);
    call.removes ? delta_tokens<true, false>(call) : delta_tokens<false, false>(call);
}

// out[r][0, columns) += sum over d of a[r][d] * b[d][0, columns); columns in whole vectors.
struct DeltaProduct {
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
    float *out;
    int64_t out_stride;
    int32_t depth;
    int32_t columns;
};

template <int32_t kRows, int32_t kCount>
KERNEL_TARGET inline void delta_product_tile(const DeltaProduct &p, int32_t row, int32_t column) {
    Vector sum[kRows][kCount];
    for (int32_t r = 0; r < kRows; ++r) {
        for (int32_t c = 0; c < kCount; ++c) {
            sum[r][c] = Simd::load(p.out + (row + r) * p.out_stride + column + c * kLanes);
        }
    }
    for (int32_t d = 0; d < p.depth; ++d) {
        Vector b[kCount];
        for (int32_t c = 0; c < kCount; ++c) {
            b[c] = Simd::load(p.b + d * p.b_stride + column + c * kLanes);
        }
        for (int32_t r = 0; r < kRows; ++r) {
            const Vector a = Simd::set(p.a[(row + r) * p.a_stride + d]);
            for (int32_t c = 0; c < kCount; ++c) {
                sum[r][c] = Simd::multiply_add(a, b[c], sum[r][c]);
            }
        }
    }
    for (int32_t r = 0; r < kRows; ++r) {
        for (int32_t c = 0; c < kCount; ++c) {
            Simd::store(p.out + (row + r) * p.out_stride + column + c * kLanes, sum[r][c]);
        }
    }
}

template <int32_t kRows>
KERNEL_TARGET inline void delta_product_rows(const DeltaProduct &p, int32_t row) {
    constexpr int32_t kWide = Simd::kColumns;
    int32_t c = 0;
    for (; c + kWide * kLanes <= p.columns; c += kWide * kLanes) {
        delta_product_tile<kRows, kWide>(p, row, c);
    }
    for (; c < p.columns; c += kLanes) delta_product_tile<kRows, 1>(p, row, c);
}

KERNEL_TARGET inline void delta_product(const DeltaProduct &p, int32_t rows) {
    constexpr int32_t kRows = Simd::kWeighRows;
    int32_t r = 0;
    for (; r + kRows <= rows; r += kRows) delta_product_rows<kRows>(p, r);
    for (; r < rows; ++r) delta_product_rows<1>(p, r);
}

KERNEL_TARGET inline void delta_zero(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += kLanes) Simd::store(x + i, Simd::zero());
}

// The scratch of a chunk, inside the call's. C = kDeltaChunk, D = padded value_dim.
struct DeltaChunk {
    float *keys_across; // [key_dim][C]
    float *key_key;     // [C][C] with removal: k_i . k_j, then times rate_i and the decay between
    float *query_key;   // [C][C] q_i . k_j, then times the decay between them
    float *rows;        // [C][D] with removal: k_i S, then the changes u_i
    float *results;     // [C][D]
    double *sums;       // [C] log2 of the cumulative decay up to a token
    int32_t tokens;
    int32_t begin; // its first token
};

KERNEL_TARGET inline DeltaChunk delta_chunk(const DeltaCall &call, int32_t begin) {
    const int64_t padded = padded_head_dim(call.value_dim);
    DeltaChunk chunk;
    chunk.keys_across = call.scratch;
    chunk.key_key = chunk.keys_across + int64_t{call.key_dim} * kDeltaChunk;
    chunk.query_key = chunk.key_key + kDeltaChunk * kDeltaChunk;
    chunk.rows = chunk.query_key + kDeltaChunk * kDeltaChunk;
    chunk.results = chunk.rows + kDeltaChunk * padded;
    chunk.sums = reinterpret_cast<double *>(chunk.results + kDeltaChunk * padded);
    chunk.begin = begin;
    chunk.tokens = call.tokens - begin < kDeltaChunk ? call.tokens - begin : kDeltaChunk;
    double sum = 0;
    for (int32_t i = 0; i < chunk.tokens; ++i) {
        sum += static_cast<double>(call.log_decay[(begin + i) * call.gate_stride]) *
               1.4426950408889634;
        chunk.sums[i] = sum;
    }
    return chunk;
}

// The products of each token's query (with removal also its key) with the keys up to that token,
// times the decay between them.
template <bool kRemoves>
KERNEL_TARGET inline void delta_within(const DeltaCall &call, const DeltaChunk &chunk) {
    const float *keys = call.keys + chunk.begin * call.token_stride;
    const float *queries = call.queries + chunk.begin * call.token_stride;
    delta_zero(chunk.keys_across, int64_t{call.key_dim} * kDeltaChunk);
    for (int32_t j = 0; j < chunk.tokens; ++j) {
        for (int32_t d = 0; d < call.key_dim; ++d) {
            chunk.keys_across[d * kDeltaChunk + j] = keys[j * call.token_stride + d];
        }
    }
    const int32_t columns = padded_head_dim(chunk.tokens);
    delta_zero(chunk.key_key, int64_t{2} * kDeltaChunk * kDeltaChunk);
    DeltaProduct product{keys,          call.token_stride, chunk.keys_across, kDeltaChunk,
                         chunk.key_key, kDeltaChunk,       call.key_dim,      columns};
    if (kRemoves) delta_product(product, chunk.tokens);
    product.a = queries;
    product.out = chunk.query_key;
    delta_product(product, chunk.tokens);
    for (int32_t i = 0; i < chunk.tokens; ++i) {
        const float rate = call.rate[(chunk.begin + i) * call.gate_stride];
        alignas(64) float between[kDeltaChunk];
        for (int32_t j = 0; j < columns; ++j) {
            between[j] = j < i ? static_cast<float>(chunk.sums[i] - chunk.sums[j]) : 0.0f;
        }
        for (int32_t j = 0; j < columns; j += kLanes) {
            const Vector decay = Simd::exp2(Simd::load(between + j));
            float *key = chunk.key_key + i * kDeltaChunk + j;
            float *query = chunk.query_key + i * kDeltaChunk + j;
            if (kRemoves) {
                Simd::store(
                    key, Simd::multiply(Simd::multiply(Simd::load(key), decay), Simd::set(rate)));
            }
            Simd::store(query, Simd::multiply(Simd::load(query), decay));
        }
    }
}

// results = q_i S and, with removal, rows = k_i S, for the state S before the chunk; zeros if there
// is none.
template <bool kRemoves> KERNEL_TARGET inline void
delta_before(const DeltaCall &call, const DeltaChunk &chunk, const float *from) {
    const int32_t padded = padded_head_dim(call.value_dim);
    delta_zero(chunk.rows, int64_t{2} * kDeltaChunk * padded);
    if (from == nullptr) return;
    DeltaProduct product{call.keys + chunk.begin * call.token_stride,
                         call.token_stride,
                         from,
                         padded,
                         chunk.rows,
                         padded,
                         call.key_dim,
                         padded};
    if (kRemoves) delta_product(product, chunk.tokens);
    product.a = call.queries + chunk.begin * call.token_stride;
    product.out = chunk.results;
    delta_product(product, chunk.tokens);
}

// Vectors [first, first + kCount) for token i of what delta_changes() computes.
template <bool kRemoves, int32_t kCount> KERNEL_TARGET inline void
delta_change(const DeltaCall &call, const DeltaChunk &chunk, int32_t i, int32_t first) {
    const int32_t padded = padded_head_dim(call.value_dim);
    float *value = call.values + (chunk.begin + i) * call.token_stride;
    const Vector rate = Simd::set(call.rate[(chunk.begin + i) * call.gate_stride]);
    const Vector decay = Simd::set(Simd::exp2_one(static_cast<float>(chunk.sums[i])));
    const float *key = chunk.key_key + i * kDeltaChunk;
    const float *query = chunk.query_key + i * kDeltaChunk;
    const float *others = chunk.rows + first * kLanes;
    float *row = chunk.rows + i * padded + first * kLanes;
    const float *before = chunk.results + i * padded + first * kLanes;
    const Vector skip = Simd::set(call.skip);
    Vector change[kCount], result[kCount];
    for (int32_t c = 0; c < kCount; ++c) {
        const Vector wanted = load_part(value, first + c, call.value_dim);
        change[c] = wanted;
        if (kRemoves) {
            const Vector known = Simd::multiply(Simd::load(row + c * kLanes), decay);
            change[c] = Simd::subtract(wanted, known);
        }
        change[c] = Simd::multiply(change[c], rate);
        result[c] = Simd::multiply_add(Simd::load(before + c * kLanes), decay,
                                       Simd::multiply(wanted, skip));
    }
    for (int32_t j = 0; j < i; ++j) {
        const Vector less = Simd::set(-key[j]), weight = Simd::set(query[j]);
        for (int32_t c = 0; c < kCount; ++c) {
            const Vector other = Simd::load(others + j * padded + c * kLanes);
            if (kRemoves) change[c] = Simd::multiply_add(less, other, change[c]);
            result[c] = Simd::multiply_add(weight, other, result[c]);
        }
    }
    const Vector own = Simd::set(query[i]);
    for (int32_t c = 0; c < kCount; ++c) {
        Simd::store(row + c * kLanes, change[c]);
        store_part(value, Simd::multiply_add(own, change[c], result[c]), first + c, call.value_dim);
    }
}

// The changes u_i = rate_i (v_i - decay_i k_i S) - sum over j < i of key_key_ij u_j (without
// removal rate_i v_i), and the results decay_i q_i S + sum over j <= i of query_key_ij u_j + skip
// v_i.
template <bool kRemoves>
KERNEL_TARGET inline void delta_changes(const DeltaCall &call, const DeltaChunk &chunk) {
    const int32_t vectors = padded_head_dim(call.value_dim) / kLanes;
    for (int32_t i = 0; i < chunk.tokens; ++i) {
        int32_t c = 0;
        for (; c + kDeltaColumns <= vectors; c += kDeltaColumns) {
            delta_change<kRemoves, kDeltaColumns>(call, chunk, i, c);
        }
        for (; c < vectors; ++c) delta_change<kRemoves, 1>(call, chunk, i, c);
    }
}

// S = decay of the chunk * S + sum over j of (decay after j) k_j u_j^T
KERNEL_TARGET inline void delta_after(const DeltaCall &call, const DeltaChunk &chunk,
                                      const float *from) {
    const int32_t padded = padded_head_dim(call.value_dim);
    const int64_t floats = int64_t{call.key_dim} * padded;
    const double all = chunk.sums[chunk.tokens - 1];
    if (from == nullptr) {
        delta_zero(call.state, floats);
    } else {
        const Vector decay = Simd::set(Simd::exp2_one(static_cast<float>(all)));
        for (int64_t i = 0; i < floats; i += kLanes) {
            Simd::store(call.state + i, Simd::multiply(Simd::load(from + i), decay));
        }
    }
    alignas(64) float behind[kDeltaChunk] = {};
    for (int32_t j = 0; j < chunk.tokens; ++j) {
        behind[j] = Simd::exp2_one(static_cast<float>(all - chunk.sums[j]));
    }
    for (int32_t d = 0; d < call.key_dim; ++d) {
        for (int32_t j = 0; j < chunk.tokens; j += kLanes) {
            float *keys = chunk.keys_across + d * kDeltaChunk + j;
            Simd::store(keys, Simd::multiply(Simd::load(keys), Simd::load(behind + j)));
        }
    }
    const DeltaProduct product{chunk.keys_across, kDeltaChunk, chunk.rows,   padded,
                               call.state,        padded,      chunk.tokens, padded};
    delta_product(product, call.key_dim);
}

template <bool kRemoves> KERNEL_TARGET inline void delta_chunks(const DeltaCall &call) {
    for (int32_t begin = 0; begin < call.tokens; begin += kDeltaChunk) {
        const float *from = begin == 0 ? call.from : call.state;
        const DeltaChunk chunk = delta_chunk(call, begin);
        delta_within<kRemoves>(call, chunk);
        delta_before<kRemoves>(call, chunk, from);
        delta_changes<kRemoves>(call, chunk);
        delta_after(call, chunk, from);
    }
}

// kDeltaChunk tokens at a time, with matrix products (the WY form of arXiv 2406.06484, with
// decays).
KERNEL_TARGET void delta_chunked(const DeltaCall &call) {
    call.removes ? delta_chunks<true>(call) : delta_chunks<false>(call);
}
