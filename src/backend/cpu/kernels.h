// The CPU backend's own vector code behind a table of functions: attention over KV pages, and the
// operations between the matrix products. There is one table for each instruction set and compute
// type. All tables compute the same up to rounding, and the portable ones run anywhere.
//
// "Element" is the compute type: float in f32 mode, bfloat16 (as uint16_t) in bf16 mode. The
// packing P is 1 for float and 2 for bfloat16: how many neighbours along the summed dimension one
// multiply-add takes.
//
// The keys and values of 16 tokens of one KV head form a key group and a value group, in the layout
// that the kernels read. head_dim is padded with zeros to a multiple of 16 (D):
//   keys   [D / P][16 tokens][P]     dimension-major, so that one vector holds 16 tokens
//   values [16 / P tokens][D][P]     token-major, so that one vector holds 16 dimensions
// Both have 16 * D elements. One exception: AVX-512's bfloat16 instruction adds the product of a
// pair's second elements first, so its table puts the later of two tokens first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace batchllm::cpu {

// amx: avx512_bf16 with attention's products on AMX tiles.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16, amx };
inline constexpr Isa kAllIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                                   Isa::amx};

constexpr int32_t kGroupTokens = 16;
constexpr int32_t kLanes = 16;

constexpr int32_t padded_head_dim(int32_t head_dim) {
    return (head_dim + kLanes - 1) / kLanes * kLanes;
}

// Query rows of one KV head against a range of positions in one context node. A row is one query
// head of one token. Positions count from the node's first token.
struct AttentionCall {
    const void *queries = nullptr; // [rows, D] elements, scaled by log2(e) / sqrt(head_dim)
    int32_t rows = 0;
    int32_t head_dim = 0;  // D
    int32_t value_dim = 0; // that of the values, a multiple of 16
    // The node's key group g is key_groups[g]; only the groups of [key_begin, key_end) are read.
    const void *const *key_groups = nullptr;
    // Null: the values are the first value_dim elements of the keys.
    const void *const *value_groups = nullptr;
    int32_t key_begin = 0; // a multiple of kGroupTokens
    int32_t key_end = 0;
    // [rows] row r sees the positions [visible_begin[r], visible_end[r]) of [key_begin, key_end).
    const int32_t *visible_begin = nullptr;
    const int32_t *visible_end = nullptr;
    // Output: softmax parts, base 2. A row that sees nothing has maximum -inf, sum 0, output 0.
    float *maximum = nullptr; // [rows]
    float *sum = nullptr;     // [rows] of 2^(score - maximum); in order: [rows, kGroupTokens]
    float *output = nullptr;  // [rows, value_dim] sum of 2^(score - maximum) * value
    float *scratch = nullptr; // [attention_scratch_floats()], this thread's, 64-byte aligned
    // Scores become softcap * tanh(score / softcap), computed on the base-2 scores. 0: no softcap.
    float softcap = 0;
    // Without value groups: [kPassKeys * value_dim] elements, this thread's, where a pass lays the
    // values out.
    void *values = nullptr;
};

// Positions in one pass: its keys and values stay in the processor's cache for all rows.
constexpr int32_t kPassKeys = 256;
constexpr int32_t kTileRows = 32; // upper bound over all tables
constexpr int64_t attention_scratch_floats() { return int64_t{2} * kTileRows * kPassKeys; }

// The rule of linear attention (model.h) for one value head, over consecutive tokens of one context
// node. The results replace the values. queries and keys must already be normed and scaled as the
// rule expects.
struct DeltaCall {
    int32_t tokens = 0;
    int32_t key_dim = 0;
    int32_t value_dim = 0;          // D is this, padded to a multiple of kLanes
    const float *queries = nullptr; // token t's at queries + t * token_stride, [key_dim]
    const float *keys = nullptr;    // likewise
    float *values = nullptr;        // likewise, [value_dim]
    int64_t token_stride = 0;
    const float *log_decay = nullptr; // token t's at log_decay + t * gate_stride, at most 0
    const float *rate = nullptr;      // likewise: factor of the values (and the removal) in the
                                      // state
    int64_t gate_stride = 0;
    // Instead of log_decay, the factor of each row of the state: token t's at decays + t * decay_stride, [key_dim]. Only
    // token by token, and with `removes`.
    const float *decays = nullptr;
    int64_t decay_stride = 0;
    const float *from = nullptr; // [key_dim, D] the state before the first token; null: zeros
    float *state = nullptr;      // [key_dim, D] out: the state after the last token; may be `from`
    bool removes = true;         // the delta rule; false: the state-space rule
    float skip = 0;              // factor of the values in the results
    float *scratch = nullptr; // chunked: [delta_scratch_floats()], this thread's, 64-byte aligned
};

// Tokens in one pass of the chunked form.
constexpr int32_t kDeltaChunk = 32;
constexpr int64_t delta_scratch_floats(int32_t key_dim, int32_t value_dim) {
    return int64_t{kDeltaChunk} *
           (key_dim + 2 * kDeltaChunk + 2 * padded_head_dim(value_dim) + 2); // 2: a double
}

struct Kernels {
    const char *name;
    DType element;

    void (*attention)(const AttentionCall &call);
    // The same, but continues from the contents of maximum, sum and output, and adds in an order
    // that does not depend on how positions are divided between calls and passes: `output` one
    // position after another, and a separate sum for each of the 16 places in a group. A maximum is
    // a whole number, so that rescaling to a larger one is exact (except for weights less than
    // 2^-126 of the largest).
    void (*attention_in_order)(const AttentionCall &call);
    // output[i] = sum over parts p of 2^(maximum[p] - max) * outputs[p][i], divided by the same sum
    // over sums[p]: the log-sum-exp merge. Parts are added in the given order. n elements, stored
    // as elements.
    void (*merge)(int32_t parts, const float *const *outputs, const float *maxima,
                  const float *sums, int32_t n, void *output);

    // out = elements of x / sqrt(mean(x^2) + epsilon) * weight, n of them.
    void (*rms_norm)(const float *x, const float *weight, float epsilon, int32_t n, void *out);
    // The same in place and in float, for the heads of queries and keys.
    void (*rms_norm_head)(float *x, const float *weight, float epsilon, int32_t n);
    // (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, in the same two forms.
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float epsilon,
                       int32_t n, void *out);
    void (*layer_norm_head)(float *x, const float *weight, const float *bias, float epsilon,
                            int32_t n);
    // Rotates (x[i], x[i + half]) by the angle with the given cosine and sine. [half] each.
    void (*rope)(float *x, const float *cosine, const float *sine, int32_t half);
    // Rotates (x[2 i], x[2 i + 1]).
    void (*rope_pairs)(float *x, const float *cosine, const float *sine, int32_t half);
    // out[0, n) = elements of x * scale; out[n, padded) = 0.
    void (*store_elements)(const float *x, float scale, int32_t n, int32_t padded, void *out);
    // Stores one token's key or value of n dimensions in place `slot` of its group; D as above.
    void (*store_key)(const float *key, int32_t n, int32_t padded, int32_t slot, void *group);
    void (*store_value)(const float *value, int32_t n, int32_t padded, int32_t slot, void *group);

    // out = x + bias; bias may be null.
    void (*copy_bias)(const float *x, const float *bias, int32_t n, float *out);
    // out += x + bias; bias may be null.
    void (*add_bias)(const float *x, const float *bias, int32_t n, float *out);
    // out += x * scale
    void (*add_scaled)(const float *x, float scale, int32_t n, float *out);
    // out[r] = sum over i of x[i] * rows[r][i], for `count` rows of n.
    void (*multiply_rows)(const float *x, const float *rows, int32_t n, int32_t count, float *out);
    // out[i] += sum over r of x[r] * rows[r][i], for n elements of `count` rows, `stride` apart.
    void (*add_rows)(const float *x, const float *rows, int64_t stride, int32_t n, int32_t count,
                     float *out);
    // x = softcap * tanh(x * scale / softcap); softcap 0: x * scale.
    void (*cap)(float *x, float scale, float softcap, int32_t n);
    // By Activation: out = elements of activation(gate + gate_bias) * (up + up_bias). If up is
    // null, it counts as 1. Biases may be null. curve: of xielu, softplus(rise) and 1/2 +
    // softplus(fall); others do not read it.
    void (*activate[6])(const float *gate, const float *up, const float *gate_bias,
                        const float *up_bias, const float *curve, int32_t n, void *out);

    // out[i] = silu(bias[i] + sum over w of inputs[w][i] * weight[w][i]); inputs: width rows of n,
    // weight: [width, n], bias may be null.
    void (*convolve)(const float *const *inputs, const float *weight, const float *bias,
                     int32_t width, int32_t n, float *out);
    // x *= sigmoid(gate)
    void (*scale_sigmoid)(const float *gate, int32_t n, float *x);
    // x *= silu(gate)
    void (*scale_silu)(const float *gate, int32_t n, float *x);
    // The same rule in two forms: token by token, and with matrix products.
    void (*delta_recurrent)(const DeltaCall &call);
    void (*delta_chunked)(const DeltaCall &call);

    // out = (a + a_bias) * (b + b_bias); biases may be null.
    void (*multiply_biased)(const float *a, const float *a_bias, const float *b,
                            const float *b_bias, int32_t n, float *out);
    // out[i] = elements of gate[i] * (bias[i] + sum over w of inputs[w][i] * weight[w][i]); inputs: width rows of
    // n, weight: [width, n], bias may be null.
    void (*convolve_gated)(const float *const *inputs, const float *weight, const float *bias,
                           const float *gate, int32_t width, int32_t n, void *out);
};

// The table for an instruction set; null if this build has none for that compute type.
const Kernels *kernels_for(Isa isa, DType element);

// The best instruction set that this processor supports and that has a table.
Isa best_isa(DType element);
// For amx, also asks the operating system to let this process use tiles.
bool isa_runs_here(Isa isa);
const char *isa_name(Isa isa);
Result<Isa> isa_from_name(const char *name);

// The tables, one file each; null if the compiler's target lacks the instruction set.
const Kernels *portable_kernels(DType element);
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();
const Kernels *avx512_bf16_kernels();
const Kernels *amx_kernels();

} // namespace batchllm::cpu
