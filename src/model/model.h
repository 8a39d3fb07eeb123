// A model as data: an embedding, a list of layers, an output. Backends walk the description and do not
// know architectures by name; families/ makes it from a config.json, with one file per family.
//
// A description names its tensors and gives their shapes; load_model() finds them in the files and adds
// type and bytes, as views into mapped files: nothing is read until a backend copies or packs it.
//
// A layer, of the residual stream x, where a norm that is none passes its input on:
//     a = after_attention(attention(before_attention(x)))
//     f = after_feed_forward(feed_forward(before_feed_forward(x + a)))     x + residual_scale * a
//     parallel: f = ... of before_attention(x) itself, and x + residual_scale * (a + f)
// where a layer with linear attention or a short convolution has that in place of attention, and one without any
// of these, or without a feed-forward, leaves x as it is at that step;
//     then, where the model has layer inputs, x + after_input(input block(x)), and x * scalar
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"
#include "model/rope.h"

namespace batchllm {

struct FourBits; // model/four_bits.h
class Quantization;

// For a quantised tensor: an element's value is the stored value times the scale of its block.
// Blocks begin at the first row of the tensor in the file; those at its edges may be cut.
struct Scales {
    const float *data = nullptr; // [ceil(stored rows / block_rows), per_row], of Model::scales
    int64_t block_rows = 0;      // 0: none
    int64_t block_columns = 0;
    int64_t per_row = 0; // ceil(columns / block_columns)

    explicit operator bool() const { return block_rows > 0; }
};

// A matrix [rows, columns], row-major, or a vector: rows = length, columns = 1. It may be some of the
// rows of the tensor in the file. data may have any alignment, because the format allows any
// offset. A model's tensors may have different types. Read elements with read_rows().
struct Tensor {
    DType dtype = DType::f32;
    const std::byte *data = nullptr; // null until it is loaded
    int64_t rows = 0;
    int64_t columns = 0;
    std::string name;        // in the checkpoint
    int64_t stored_rows = 0; // of the tensor in the file, these being [first_row, first_row + rows)
    int64_t first_row = 0;
    // Above 0: the tensor in the file is [stored_stack, stored_rows, columns], first_row counts through.
    int64_t stored_stack = 0;
    // These rows are so far apart in the file: gate and up by turns.
    int64_t row_step = 1;
    // The tensor in the file is [.., columns, stored_rows].
    bool stored_transposed = false;
    Scales scales = {};                                  // of type e4m3 alone, and then always
    std::shared_ptr<const FourBits> four_bits = nullptr; // of type u4 alone, in place of data

    explicit operator bool() const { return rows > 0; } // the model has it
    // Its elements stand in the file as they are, row after row: data can be copied.
    bool as_stored() const {
        return dtype != DType::e4m3 && dtype != DType::u4 && row_step == 1 && !stored_transposed;
    }
    int64_t bytes() const {
        return rows * columns * dtype_bytes(dtype) / (dtype == DType::u4 ? 2 : 1);
    }
};

// A matrix of a linear layer: y = x W^T + bias.
struct Weight {
    Tensor values; // [rows, columns]: outputs, inputs
    Tensor bias;   // [rows], or none

    explicit operator bool() const { return bool(values); }
    int64_t rows() const { return values.rows; }
    int64_t columns() const { return values.columns; }
};

enum class NormKind : uint8_t {
    none,
    rms,   // x / sqrt(mean(x^2) + epsilon) * (weight + offset)
    layer, // (x - mean(x)) / sqrt(variance(x) + epsilon) * (weight + offset) + bias
};

struct Norm {
    NormKind kind = NormKind::none;
    Tensor weight; // [length], or none: ones
    Tensor bias;   // [length], or none
    float offset = 0;
    float epsilon = 1e-6F;

    explicit operator bool() const { return kind != NormKind::none; }
};

struct Attention {
    int32_t heads = 0;
    int32_t kv_heads = 0; // divides heads
    int32_t head_dim = 0; // even
    int32_t window = 0;   // positions a token sees, itself included; 0: all
    int32_t rope = -1;    // index into Model::ropes; -1: none
    double scale = 0;     // of the scores
    float softcap = 0;    // scores become softcap * tanh(score / softcap); 0: as they are
    // Queries of position p are also multiplied by 1 + long_scale * ln(1 + floor(p / long_period)),
    // after the rope; long_scale 0: they are not.
    float long_scale = 0;
    int32_t long_period = 1;
    Weight q;                // [heads * head_dim, hidden], or as `gated` says
    Weight k, v;             // [kv_heads * head_dim, hidden]
    Weight o;                // [hidden, heads * head_dim]
    Norm q_norm, k_norm;     // before the rope: of each head, [head_dim], or of all together
    bool norm_whole = false; // q_norm is [heads * head_dim], k_norm [kv_heads * head_dim]
    // q is [heads, 2, head_dim] by hidden: of each head its query and then a gate. The head's result is
    // multiplied by sigmoid(gate).
    bool gated = false;
    Norm v_norm;  // of each head of the values, [head_dim]
    Tensor sinks; // [heads] one more score a head, whose value is 0; or none

    // [kv_heads] What a backend that keeps keys and values in e4m3 divides them by, as the checkpoint
    // has it; empty: it has none.
    std::vector<float> k_scales, v_scales;

    // An earlier layer, with the same window and the same shape of heads, whose keys and values
    // this one attends to: it then has no k, v, k_norm and v_norm and stores nothing. -1: it has
    // its own.
    int32_t kv_layer = -1;

    // Where its keys and values are: set by place_keys_and_values().
    int32_t kv_group = 0; // index into Model::kv_groups
    int32_t kv_plane = 0; // of the group

    int32_t gqa_ratio() const { return heads / kv_heads; }
    int64_t q_size() const { return int64_t{heads} * head_dim; }
    int64_t kv_size() const { return int64_t{kv_heads} * head_dim; }
};

// Tokens that a convolution sees whose inputs are kept as a state, the newest included: from 2 to this many.
inline constexpr int32_t most_convolution_width = 64;

enum class StateRule : uint8_t {
    delta,       // the gated delta rule (arXiv 2412.06464)
    state_space, // of Mamba-2 (arXiv 2405.21060): the same without the removal
};

// A mixer that remembers earlier tokens in a state of fixed size instead of keys and values: a gated delta net,
// or a Mamba-2 layer, which calls q, k, v and a C, B, x and dt. With q, k, v, z, b, a of a token from its input,
// q, k and v having gone through a causal convolution and silu, and then, if unit_length, q and k over their
// length, q also over sqrt(key_dim): of each value head, with step = softplus(a + step_bias) within limits
//     S = exp(-exp(decay) * step) * S
//     delta:       S = S + sigmoid(b) * k (v - S^T k)^T          S [key_dim, value_dim]
//     state_space: S = S + step * k v^T
//     result: y = S^T q + skip * v
// and of all heads through o: norm(y) * silu(z), or if gate_first norm(y * silu(z)).
// The state of a layer is S of all value heads and the last width - 1 inputs of the convolution.
struct LinearAttention {
    StateRule rule = StateRule::delta;
    int32_t key_heads = 0;   // as many of queries
    int32_t value_heads = 0; // a multiple: consecutive ones have a key head's query and key
    int32_t key_dim = 0;     // of a head
    int32_t value_dim = 0;
    int32_t width = 0; // of the convolution
    bool unit_length = true;
    float least_step = 0; // the limits
    float most_step = std::numeric_limits<float>::infinity();
    bool gate_first = false;
    // 0: the norm is of each head; else of so many equal parts of all heads together.
    int32_t norm_parts = 0;
    // Parts of one matrix [input_rows(), hidden]: q, k, v, z, b (of the delta rule alone), a of all heads, one after
    // the other.
    std::vector<Tensor> input;
    // Parts of [channels(), width], the newest token's last, and of [channels()]; or no bias.
    std::vector<Weight> convolution;
    Tensor decay, step_bias; // [value_heads]
    Tensor skip;             // [value_heads], or none: 0
    Norm norm;               // RMSNorm: [value_dim], or with norm_parts [values_size()]
    Weight o;                // [hidden, value_heads * value_dim]

    explicit operator bool() const { return value_heads > 0; }
    int64_t keys_size() const { return int64_t{key_heads} * key_dim; }
    int64_t values_size() const { return int64_t{value_heads} * value_dim; }
    int64_t channels() const { return 2 * keys_size() + values_size(); } // of the convolution
    // Numbers that gate the rule: b and a of each head,
    // or with the state-space rule only a.
    int64_t gates() const { return (rule == StateRule::delta ? 2 : 1) * int64_t{value_heads}; }
    int64_t input_rows() const { return channels() + values_size() + gates(); }
    // Numbers of a request's state.
    int64_t state_size() const { return values_size() * key_dim + (width - 1) * channels(); }
};

// A gated short convolution (LFM2). With B, C and x of a token from its input, and p = B * x, the elements'
// products, of each channel
//     s = bias + sum over w of filter[w] * p of the token width - 1 - w tokens earlier
//     result: C * s, of all channels through o
// The state of a layer is p of the last width - 1 tokens.
struct ShortConvolution {
    int32_t width = 0;
    Weight b, c, x; // [channels, hidden]
    Weight filter;  // [channels, width], the newest token's last; its bias: [channels], or none
    Weight o;       // [hidden, channels]

    explicit operator bool() const { return width > 0; }
    int64_t channels() const { return x.rows(); }
    // Numbers of a request's state.
    int64_t state_size() const { return (width - 1) * channels(); }
};

enum class Activation : uint8_t {
    silu,
    gelu,      // x * normal distribution function of x
    gelu_tanh, // its approximation by tanh
    // In place of activation(gate) * up: g * sigmoid(1.702 g) * (u + 1), with g the gate, at most 7, and u
    // up, from -7 to 7.
    clamped_swiglu,
    relu_squared, // max(x, 0)^2
};

// down(activation(gate(x)) * up(x)); without a gate down(activation(up(x))).
struct FeedForward {
    int32_t width = 0;
    Activation activation = Activation::silu;
    Weight gate; // [width, hidden], or none
    Weight up;   // [width, hidden]
    Weight down; // [hidden, width]
};

enum class RouterKind : uint8_t {
    softmax, // of all experts' logits
    sigmoid, // of each
};

// A token's logits -> its experts and their weights. The score of an expert is the softmax or
// sigmoid of its logit. The `chosen` experts with the highest score plus correction are chosen, the
// first ones among equals. An expert's weight is its score (if normalised, divided by epsilon plus
// the sum of the chosen ones' scores) times scale. With groups, which are equal consecutive parts of
// the experts, only experts of the chosen_groups groups whose two best experts have the highest sum
// may be chosen.
struct Router {
    RouterKind kind = RouterKind::softmax;
    Weight weight;     // [experts, hidden]
    Tensor correction; // [experts], or none
    int32_t chosen = 0;
    int32_t groups = 1;
    int32_t chosen_groups = 1;
    bool normalised = false;
    float epsilon = 0;
    float scale = 1;
};

// Feed-forwards of one shape. A token's result is the weighted sum of those that its router chooses.
struct Experts {
    Router router;
    std::vector<FeedForward> each;

    explicit operator bool() const { return !each.empty(); }
};

// What a layer makes of its part p of the LayerInputs: down(activation(gate(x)) * p).
struct InputBlock {
    Activation activation = Activation::silu;
    Weight gate; // [LayerInputs::width, hidden]
    Weight down; // [hidden, LayerInputs::width]
};

// The feed-forward of a layer with experts is their result plus, if there is one, that of
// feed_forward, the shared expert, times sigmoid(shared_gate(x)).
struct Layer {
    Norm before_attention, after_attention;
    Norm before_feed_forward, after_feed_forward;
    Attention
        attention; // none (no heads) where one of the next two stands in its place, or nothing
    LinearAttention linear_attention; // or none
    ShortConvolution convolution;     // or none
    FeedForward feed_forward;         // none (width 0): experts alone, or nothing
    Experts experts;                  // or none
    Weight shared_gate;               // [1, hidden], or none: 1
    bool parallel = false;            // before_feed_forward is not used
    float residual_scale = 1;
    InputBlock input; // where the model has layer inputs
    Norm after_input;
    Tensor scalar; // [1], or none: 1

    bool attends() const { return attention.kv_heads > 0; }
    // Whether it mixes tokens, and whether it has a feed-forward: at least one of the two.
    bool mixes() const { return attends() || linear_attention || convolution; }
    bool feeds() const { return feed_forward.width > 0 || experts; }
};

// A second embedding of every token, of which each layer has a part of its own. With x the residual
// stream before the first layer, the parts of all layers stand one after the other in
//     scale * (embedding_scale * embedding[token] + norm(projection_scale * projection(x)))
struct LayerInputs {
    int32_t width = 0; // of a part; 0: the model has none
    Tensor embedding;  // [vocabulary, layers * width]
    float embedding_scale = 1;
    Weight projection; // [layers * width, hidden], without a bias
    float projection_scale = 1;
    Norm norm; // of each part, [width]: RMSNorm
    float scale = 1;

    explicit operator bool() const { return width > 0; }
};

// Layers whose keys and values are kept and freed together: their pages are taken and released as
// one, through the group's own page tables. The layers have the same window and the same shape of
// heads, and a group has as many layers as a page has planes. So pages of all groups have the same
// size, and any page serves any group.
struct KvGroup {
    int32_t window = 0;          // of its layers; 0: all positions are kept
    std::vector<int32_t> layers; // that have keys and values of their own
};

// What a classifier's logits become probabilities by.
enum class LabelKind : uint8_t {
    one_of,  // softmax over all
    several, // sigmoid of each
    value,   // as they are: regression
};

struct Model {
    std::string directory;
    DType dtype = DType::f32; // as the configuration states it, else (load_model) the embedding's
    bool dtype_stated = false;
    int32_t vocabulary = 0;
    int32_t hidden = 0;
    int32_t max_positions = 0;
    std::vector<int32_t> eos_tokens; // generation_config.json's, else config.json's
    int32_t bos_token = -1;

    Tensor embedding; // [vocabulary, hidden]
    float embedding_scale = 1;
    LayerInputs layer_inputs;
    std::vector<Rope> ropes;
    std::vector<Layer> layers;
    std::vector<KvGroup> kv_groups;
    Norm final_norm;
    Weight head; // [vocabulary, hidden]; when tied the embedding's own bytes; or none: no text
    bool tied = false;        // of the description: head is the embedding
    float logits_scale = 1;   // of the head's results, then
    float logits_softcap = 0; // as Attention::softcap
    Weight classifier;        // [labels, hidden], of the last token's hidden state; or none
    std::vector<std::string> labels;
    LabelKind label_kind = LabelKind::one_of;

    // Names in the files that begin with `from` are read as if they began with `to`. Tensors whose
    // names, before or after that, begin with one of passed_over are not used by this model.
    struct Renamed {
        std::string from, to;
    };
    std::vector<Renamed> renamed;
    std::vector<std::string> passed_over;

    std::shared_ptr<const Quantization> quantization; // of the files; null: they have none
    std::vector<std::vector<float>> scales;           // of all quantised tensors
    std::vector<MappedFile> files;                    // stay mapped while the model lives

    int64_t weight_bytes() const;
    int32_t kv_planes() const;               // of a page: layers of the largest group
    std::vector<int32_t> kv_windows() const; // [kv_groups]
    int64_t state_size() const;              // numbers of a request's state, all layers; 0: none
};

// Every tensor of the description, in a fixed order; the head's only when it is not the embedding.
void for_each_tensor(const Model &model, const std::function<void(const Tensor &)> &visit);
void for_each_tensor(Model *model, const std::function<void(Tensor *)> &visit);

// Rows [begin, begin + count) as elements of a type, f32 or bf16, with their scales, however they are stored.
void read_rows(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out);
// One row as floats.
void read_row(const Tensor &tensor, int64_t row, float *out);

// Sets kv_groups and the layers' places in them. A model whose layers are all of one kind has one
// group. Otherwise the number of planes is chosen to minimise the memory of a long request, with at
// most 16 groups.
void place_keys_and_values(Model *model);

// Ropes that depend on the length of rows take the frequencies for rows of up to `longest`
// positions, for all rows alike.
void choose_frequencies(int64_t longest, Model *model);

// config.json and generation_config.json alone: the description, no tensor's bytes.
Result<Model> describe_model(const std::string &model_dir);
// The text of a config.json; file: named in errors.
Result<Model> describe_config(const std::string &text, const std::string &file);

// Reads config.json, generation_config.json, model.safetensors or model.safetensors.index.json with
// its shards, and checks every tensor's type and shape against the description. Read-only from then on.
Result<std::unique_ptr<Model>> load_model(const std::string &model_dir);

} // namespace batchllm
