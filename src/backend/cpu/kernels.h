// The CPU backend's own vector code behind one table of functions: attention over KV pages, and what
// stands between the matrix products. One table for each instruction set and compute type; all
// tables compute the same within rounding, and the portable ones run anywhere.
//
// "Element" is the compute type: float in f32 mode, bfloat16 (as uint16_t) in bf16 mode. P, the
// packing, is 1 for float and 2 for bfloat16: the number of neighbours along the summed dimension
// that one multiply-add takes together.
//
// The keys and values of 16 tokens of one KV head form a key group and a value group, in the layout
// in which the kernels read them, head_dim padded with zeros to a multiple of 16 (D):
//   keys   [D / P][16 tokens][P]     dimension-major, so that one vector holds 16 tokens
//   values [16 / P tokens][D][P]     token-major, so that one vector holds 16 dimensions
// Both are 16 * D elements. A table's own: for AVX-512's bfloat16 instruction, which adds the product of the
// second of a pair before that of the first, the later of two tokens stands first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace batchllm::cpu {

// amx: avx512_bf16 with attention's products by AMX's tiles.
enum class Isa : uint8_t { portable, avx2, avx512, avx512_bf16, amx };
inline constexpr Isa kAllIsas[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16,
                                   Isa::amx};

constexpr int32_t kGroupTokens = 16;
constexpr int32_t kLanes = 16;

constexpr int32_t padded_head_dim(int32_t head_dim) {
    return (head_dim + kLanes - 1) / kLanes * kLanes;
}

// Query rows of one KV head against a range of one context node's positions. A row is one query
// head of one token. Node positions count from the node's first token.
struct AttentionCall {
    const void *queries = nullptr; // [rows, D] elements, scaled by log2(e) / sqrt(head_dim)
    int32_t rows = 0;
    int32_t head_dim = 0; // D
    // Group g of the node's keys is key_groups[g]; only those of [key_begin, key_end) are read.
    const void *const *key_groups = nullptr;
    const void *const *value_groups = nullptr;
    int32_t key_begin = 0; // a multiple of kGroupTokens
    int32_t key_end = 0;
    // [rows] row r sees the positions [visible_begin[r], visible_end[r]) of [key_begin, key_end).
    const int32_t *visible_begin = nullptr;
    const int32_t *visible_end = nullptr;
    // Out: softmax parts, base 2. A row that sees nothing has maximum -inf, sum 0, output 0.
    float *maximum = nullptr; // [rows]
    float *sum = nullptr;     // [rows] of 2^(score - maximum); in order: [rows, kGroupTokens]
    float *output = nullptr;  // [rows, D] sum of 2^(score - maximum) * value
    float *scratch = nullptr; // [attention_scratch_floats()], this thread's, 64-byte aligned
    // Scores become softcap * tanh(score / softcap), in base 2 as they are; 0: they stay.
    float softcap = 0;
};

// Positions of one pass: keys and values of a pass stay in the processor's cache for all rows.
constexpr int32_t kPassKeys = 256;
constexpr int32_t kTileRows = 32; // at most, of any table
constexpr int64_t attention_scratch_floats() { return int64_t{2} * kTileRows * kPassKeys; }

// The rule of linear attention (model.h) for one value head, over consecutive tokens of one context node: results
// in place of the values. queries and keys are as the rule takes them, normed and scaled.
struct DeltaCall {
    int32_t tokens = 0;
    int32_t key_dim = 0;
    int32_t value_dim = 0;          // D is it, padded to a multiple of kLanes
    const float *queries = nullptr; // token t's at queries + t * token_stride, [key_dim]
    const float *keys = nullptr;    // likewise
    float *values = nullptr;        // likewise, [value_dim]
    int64_t token_stride = 0;
    const float *log_decay = nullptr; // token t's at log_decay + t * gate_stride, at most 0
    const float *rate = nullptr;      // likewise: of the values (and the removal) in the state
    int64_t gate_stride = 0;
    const float *from = nullptr; // [key_dim, D] the state before the first token; null: zeros
    float *state = nullptr;      // [key_dim, D] out: the state behind the last; may be `from`
    bool removes = true;         // the delta rule; false: the state-space rule
    float skip = 0;              // of the values in the results
    float *scratch = nullptr; // chunked: [delta_scratch_floats()], this thread's, 64-byte aligned
};

// Tokens of one pass of the chunked form.
constexpr int32_t kDeltaChunk = 32;
constexpr int64_t delta_scratch_floats(int32_t key_dim, int32_t value_dim) {
    return int64_t{kDeltaChunk} *
           (key_dim + 2 * kDeltaChunk + 2 * padded_head_dim(value_dim) + 2); // 2: a double
}

struct Kernels {
    const char *name;
    DType element;

    void (*attention)(const AttentionCall &call);
    // The same, going on from what maximum, sum and output hold, and in an order that is the same wherever
    // positions are cut between calls and passes: one after the other in `output`, and in a row's 16
    // sums those of each place in a group. A maximum is a whole number, so that going over to a
    // greater one is exact (but for weights less than 2^-126 of the largest).
    void (*attention_in_order)(const AttentionCall &call);
    // output[i] = sum over parts of 2^(maximum[p] - max) * outputs[p][i], over the same sum of
    // sums: the log-sum-exp merge. Parts in the given order. n elements, written as elements.
    void (*merge)(int32_t parts, const float *const *outputs, const float *maxima,
                  const float *sums, int32_t n, void *output);

    // out = elements of x / sqrt(mean(x^2) + epsilon) * weight, n of them.
    void (*rms_norm)(const float *x, const float *weight, float epsilon, int32_t n, void *out);
    // The same in place, in float: for the heads of queries and keys.
    void (*rms_norm_head)(float *x, const float *weight, float epsilon, int32_t n);
    // (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, in the same two forms.
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float epsilon,
                       int32_t n, void *out);
    void (*layer_norm_head)(float *x, const float *weight, const float *bias, float epsilon,
                            int32_t n);
    // Rotates (x[i], x[i + half]) by the angle whose cosine and sine are given. [half] each.
    void (*rope)(float *x, const float *cosine, const float *sine, int32_t half);
    // Rotates (x[2 i], x[2 i + 1]).
    void (*rope_pairs)(float *x, const float *cosine, const float *sine, int32_t half);
    // out[0, n) = elements of x * scale; out[n, padded) = 0.
    void (*store_elements)(const float *x, float scale, int32_t n, int32_t padded, void *out);
    // Puts one token's key or value of n dimensions into place `slot` of its group; D as above.
    void (*store_key)(const float *key, int32_t n, int32_t padded, int32_t slot, void *group);
    void (*store_value)(const float *value, int32_t n, int32_t padded, int32_t slot, void *group);

    // out = x + bias; bias may be null.
    void (*copy_bias)(const float *x, const float *bias, int32_t n, float *out);
    // out += x + bias; bias may be null.
    void (*add_bias)(const float *x, const float *bias, int32_t n, float *out);
    // out += x * scale
    void (*add_scaled)(const float *x, float scale, int32_t n, float *out);
    // x = softcap * tanh(x * scale / softcap); softcap 0: x * scale.
    void (*cap)(float *x, float scale, float softcap, int32_t n);
    // By Activation: out = elements of activation(gate + gate_bias) * (up + up_bias), where up may be null:
    // 1 in its place. Biases may be null.
    void (*activate[5])(const float *gate, const float *up, const float *gate_bias,
                        const float *up_bias, int32_t n, void *out);

    // out[i] = silu(bias[i] + sum over w of inputs[w][i] * weight[w][i]); inputs: width rows of n,
    // weight: [width, n], bias may be null.
    void (*convolve)(const float *const *inputs, const float *weight, const float *bias,
                     int32_t width, int32_t n, float *out);
    // x *= sigmoid(gate)
    void (*scale_sigmoid)(const float *gate, int32_t n, float *x);
    // x *= silu(gate)
    void (*scale_silu)(const float *gate, int32_t n, float *x);
    // The same rule in two forms: token by token, and by products of matrices.
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

// The table for an instruction set, or null when this build has none for that compute type.
const Kernels *kernels_for(Isa isa, DType element);

// The best instruction set that this processor runs and for which there is a table.
Isa best_isa(DType element);
// Asked for amx, it asks the operating system to let this process use tiles.
bool isa_runs_here(Isa isa);
const char *isa_name(Isa isa);
Result<Isa> isa_from_name(const char *name);

// The tables, one file each; null where the compiler's target does not have the instruction set.
const Kernels *portable_kernels(DType element);
const Kernels *avx2_kernels();
const Kernels *avx512_kernels();
const Kernels *avx512_bf16_kernels();
const Kernels *amx_kernels();

} // namespace batchllm::cpu
