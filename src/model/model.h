// A model as data: an embedding, a list of layers, an output. Backends walk the description and do not know
// architectures by name; families/ builds it from a config.json, with one file per family.
//
// A description names its tensors and gives their shapes. load_model() finds them in the files and adds type and
// bytes, as views of mapped files: nothing is read until a backend copies or packs it.
//
// A layer, for the residual stream x (an absent norm passes its input on):
//     a = after_attention(attention(before_attention(x)))
//     f = after_feed_forward(feed_forward(before_feed_forward(x + a)))     x + residual_scale * a
//     parallel: f = ... of before_attention(x) itself, and x + residual_scale * (a + f)
// where attention stands for the layer's mixer, which may be another, and feed_forward for what it feeds. A layer without
// one of the two leaves x unchanged at that step. A layer that is `beside` another mixes what that one mixed, so that
// two mixers are side by side.
//     then, if the model has layer inputs, x + after_input(input block(x)), and x * scalar
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"
#include "model/kinds.h"
#include "model/rope.h"

namespace batchllm {

struct FourBits; // model/four_bits.h
struct Tower;    // model/tower.h
class Quantization;

// For a quantised tensor: the value of an element is the stored value times the scale of its block. Blocks begin at
// the first row of the tensor in the file; those at the edges may be cut off.
struct Scales {
    const float *data = nullptr; // [ceil(stored rows / block_rows), per_row], in ModelBytes
    int64_t block_rows = 0;      // 0: none
    int64_t block_columns = 0;
    int64_t per_row = 0; // ceil(columns / block_columns)

    explicit operator bool() const { return block_rows > 0; }
};

// A matrix [rows, columns], row-major, or a vector: rows = length, columns = 1. It may be only some rows of the
// tensor in the file. data may have any alignment, because the format allows any offset. The tensors of a model may
// have different types. Read elements with read_rows().
struct Tensor {
    DType dtype = DType::f32;
    const std::byte *data = nullptr; // null until loaded
    int64_t rows = 0;
    int64_t columns = 0;
    std::string name; // in the checkpoint
    int64_t stored_rows =
        0; // rows of the tensor in the file; these are [first_row, first_row + rows)
    int64_t first_row = 0;
    // Above 0: the tensor in the file is [stored_stack, stored_rows, columns]; first_row counts over all.
    int64_t stored_stack = 0;
    // The distance between these rows in the file: 2 if gate and up alternate.
    int64_t row_step = 1;
    // Above 0: columns of the tensor in the file; these are [first_column, first_column + columns).
    int64_t stored_columns = 0;
    int64_t first_column = 0;
    // The tensor in the file is [.., columns, stored_rows].
    bool stored_transposed = false;
    // The tensor in the file is [rows, ..], and all its other dimensions are the columns.
    bool stored_flat = false;
    // Of the elements in the file: multipliers that models have beside their matrices.
    float factor = 1;
    Scales scales = {};                                  // if and only if the type is e4m3
    std::shared_ptr<const FourBits> four_bits = nullptr; // only for type u4, instead of data

    explicit operator bool() const { return rows > 0; } // whether the model has it
    // Its elements are in the file unchanged, row after row, so data can be copied.
    bool as_stored() const {
        return dtype != DType::e4m3 && dtype != DType::u4 && row_step == 1 && stored_columns == 0 &&
               !stored_transposed && factor == 1;
    }
    // Columns in the file.
    int64_t row_length() const { return stored_columns > 0 ? stored_columns : columns; }
    int64_t bytes() const {
        return rows * columns * dtype_bytes(dtype) / (dtype == DType::u4 ? 2 : 1);
    }
};

// A matrix of a linear layer: y = x W^T + bias.
struct Weight {
    Tensor values; // [rows, columns]: outputs x inputs
    Tensor bias;   // [rows], or none

    explicit operator bool() const { return bool(values); }
    int64_t rows() const { return values.rows; }
    int64_t columns() const { return values.columns; }
};

struct Norm {
    NormKind kind = NormKind::none;
    Tensor weight; // [length], or absent: ones
    Tensor bias;   // [length], or absent; only of NormKind::layer
    float offset = 0;
    float epsilon = 1e-6F;

    explicit operator bool() const { return kind != NormKind::none; }
};

// Multi-head latent attention (DeepSeek V2, arXiv 2405.04434) in its absorbed form: attention with one KV head, whose
// values are the first `rank` elements of its keys. With y = down(x), a token's key is
//     [norm(y[0, rank)), y[rank, rank + turned) turned]
// and that is all that it keeps. A head of `up` is [K, V], [plain, rank] and [value_dim, rank]. Its query [plain + turned],
// of Attention::q, becomes [K^T q's plain part, its other part turned], and its result is V times what attention makes of
// the values.
struct Latent {
    int32_t rank = 0; // 0: none
    int32_t plain = 0, turned = 0, value_dim = 0;
    // [q_rank, hidden], or absent. Attention::q is then of q_norm(q_down(x)), and [.., q_rank].
    Weight q_down;
    Norm q_norm;
    Weight down; // [rank + turned, hidden]
    Norm norm;   // [rank]
    Weight up;   // [heads * (plain + value_dim), rank], without a bias

    explicit operator bool() const { return rank > 0; }
    int32_t query_dim() const { return plain + turned; }
};

struct Attention {
    int32_t heads = 0;
    int32_t kv_heads = 0; // a divisor of heads
    int32_t head_dim = 0; // even
    int32_t window = 0;   // positions that a token sees, including its own; 0: all
    // Positions are in chunks of `window`, and a token sees those of its own chunk up to its own: never more than a
    // window would show it.
    bool chunked = false;
    int32_t rope = -1; // index into Model::ropes; -1: none
    double scale = 0;  // of the scores
    float softcap = 0; // scores become softcap * tanh(score / softcap); 0: unchanged
    // Queries at position p are also multiplied by 1 + long_scale * ln(1 + floor((p + long_shift) / long_period)), after
    // the rope; not if long_scale is 0.
    float long_scale = 0;
    int32_t long_period = 1;
    int32_t long_shift = 0;
    Weight q;                 // [heads * head_dim, hidden], or see `gated`
    Weight k, v;              // [kv_heads * head_dim, hidden]
    Weight o;                 // [hidden, heads * head_dim]
    Norm q_norm, k_norm;      // before the rope: per head, [head_dim], or over all heads
    bool norm_whole = false;  // q_norm is [heads * head_dim], k_norm [kv_heads * head_dim]
    bool norm_turned = false; // q_norm and k_norm are after the rope; not with norm_whole
    // The heads' results are multiplied by sigmoid(their gates). `gate` is [heads * head_dim, hidden], or absent: then q
    // is [heads, 2, head_dim] by hidden, for each head its query, then its gate.
    bool gated = false;
    Weight gate;
    Norm v_norm; // per head of the values, [head_dim]
    // Then kv_heads is 1 and head_dim is rank + turned; q is [heads * query_dim(), ..], o [hidden, heads * value_dim], and of
    // what is above only window, rope (of the turned part), scale and long_scale count.
    Latent latent;
    Tensor sinks; // [heads] an extra score per head, with value 0; or absent

    // [kv_heads] A backend that stores keys and values in e4m3 divides them by these scales from the checkpoint;
    // empty: it has none.
    std::vector<float> k_scales, v_scales;

    // An earlier layer, with the same window and head shape, whose keys and values this one attends to. It then has
    // no k, v, k_norm and v_norm of its own and stores nothing. -1: it has its own.
    int32_t kv_layer = -1;

    // Where its keys and values are; set by place_keys_and_values().
    int32_t kv_group = 0; // index into Model::kv_groups
    int32_t kv_plane = 0; // in the group

    int32_t gqa_ratio() const { return heads / kv_heads; }
    int64_t q_size() const { return int64_t{heads} * head_dim; }
    int64_t kv_size() const { return int64_t{kv_heads} * head_dim; }
    // Numbers that a token keeps.
    int64_t kept_size() const { return latent ? kv_size() : 2 * kv_size(); }
    // Of attention's values.
    int32_t value_dim() const { return latent ? latent.rank : head_dim; }
    // The matrix of the queries that is multiplied by the layer's input.
    const Weight &first_q() const { return latent.q_down ? latent.q_down : q; }
    // Columns of o.
    int64_t result_size() const { return heads * int64_t{latent ? latent.value_dim : head_dim}; }
};

// Limit for the number of tokens that a stateful convolution sees, including the newest; at least 2.
inline constexpr int32_t most_convolution_width = 64;

// What delta nets and Mamba-2 share. They keep earlier tokens in a state of fixed size instead of keys and values.
// (Mamba-2's papers call q, k, v and a C, B, x and dt.) A token's q, k, v, z and its gates a and b come from its input;
// q, k and v go through a causal convolution and silu. Then, for each value head, with its step,
//     S = exp(-exp(decay) * step) * S
//     S = S + what the rule adds          S [key_dim, value_dim]
//     result: y = S^T q
// and for all heads, through o, a gated norm of y. The state of a layer is S of all value heads and the last width - 1
// inputs of the convolution.
struct LinearAttention {
    int32_t key_heads = 0;   // also the number of query heads
    int32_t value_heads = 0; // a multiple: consecutive ones share a key head's query and key
    int32_t key_dim = 0;     // per head
    int32_t value_dim = 0;
    int32_t width = 0; // of the convolution
    // Above 0: z and a are made of this many numbers each, by a second matrix.
    int32_t gate_rank = 0;
    // Parts of one matrix [input_rows(), hidden]: q, k, v, z, b (only of delta nets), a of all heads, one after another;
    // for z and a what they are made of.
    std::vector<Tensor> input;
    // Parts of [channels(), width], the newest token's weight last, with biases [channels()], or none.
    std::vector<Weight> convolution;
    Tensor decay, step_bias; // [value_heads]
    Norm norm;               // RMSNorm: of what length, the mixers say
    Weight o;                // [hidden, value_heads * value_dim]

    int64_t keys_size() const { return int64_t{key_heads} * key_dim; }
    int64_t values_size() const { return int64_t{value_heads} * value_dim; }
    int64_t channels() const { return 2 * keys_size() + values_size(); } // of the convolution
    int64_t gates() const { return gates_of_head_ * int64_t{value_heads}; }
    int64_t input_rows() const {
        return channels() + (gate_rank > 0 ? 2 * gate_rank : values_size()) + gates();
    }
    int64_t matrices_size() const { return values_size() * key_dim; } // numbers in S, of all heads
    // Numbers in a request's state.
    int64_t state_size() const { return matrices_size() + (width - 1) * channels(); }

  protected:
    explicit LinearAttention(int32_t gates_of_head) : gates_of_head_(gates_of_head) {}

  private:
    int32_t gates_of_head_; // b and a, or one of them
};

// A gated delta net (arXiv 2412.06464). q and k are divided by their length, and q also by sqrt(key_dim);
// step = softplus(a + step_bias); the rule adds sigmoid(b) * k (v - S^T k)^T; the result is norm(y) * silu(z), with a norm
// per head: [value_dim].
struct DeltaNet : LinearAttention {
    DeltaNet() : LinearAttention(2) {}
};

// Kimi's delta net (arXiv 2510.26692): a gated delta net with a step for each key channel of a head, so that the rows of S
// decay differently. a is [value_heads, key_dim], like step_bias; z gates by its sigmoid: norm(y) * sigmoid(z).
struct ChannelDeltaNet : LinearAttention {
    ChannelDeltaNet() : LinearAttention(1) {}

    Weight a; // [value_heads * key_dim, gate_rank]
    Weight z; // [value_heads * value_dim, gate_rank]
};

// Mamba-2 (arXiv 2405.21060). step = softplus(a + step_bias) within limits; the rule adds step * k v^T; skip * v is added to
// y; the result is norm(y * silu(z)), or norm(y) * silu(z) with norm_first, with a norm over each of norm_parts equal parts
// of all heads together, or none: its weight is [values_size()].
struct Mamba2 : LinearAttention {
    Mamba2() : LinearAttention(1) {}

    float least_step = 0; // limits of step
    float most_step = std::numeric_limits<float>::infinity();
    int32_t norm_parts = 1;
    bool norm_first = false;
    int32_t norm_ranks = 1; // of a part of a model: how many consecutive ranks share one of those
    Tensor skip;            // [value_heads], or absent: 0
};

// A gated short convolution (LFM2). A token's B, C and x come from its input; p = B * x, elementwise. For each
// channel
//     s = bias + sum over w of filter[w] * p of the token width - 1 - w tokens earlier
//     result: C * s, of all channels through o
// The state of a layer is p of the last width - 1 tokens.
struct ShortConvolution {
    int32_t width = 0;
    Weight b, c, x; // [channels, hidden]
    Weight filter; // [channels, width], the newest token's weight last; bias: [channels], or absent
    Weight o;      // [hidden, channels]

    int64_t channels() const { return x.rows(); }
    // Numbers in a request's state.
    int64_t state_size() const { return (width - 1) * channels(); }
};

// down(activation(gate(x)) * up(x)); without a gate down(activation(up(x))).
struct FeedForward {
    int32_t width = 0;
    Activation activation = Activation::silu;
    Weight gate;       // [width, hidden], or absent
    Weight up;         // [width, hidden]
    Weight down;       // [hidden, width]
    Tensor rise, fall; // [1] of xielu
};

// A token's logits -> its experts and their weights. The score of an expert is the softmax or sigmoid of its logit.
// The `chosen` experts with the highest score plus correction are chosen; ties: the first ones. An expert's weight is
// its score (if normalised, divided by epsilon plus the sum of the chosen experts' scores) times scale, times its
// expert_scale. Groups are equal, consecutive parts of the experts: only experts in the chosen_groups groups whose
// group_best (one or two) best experts have the highest sum may be chosen.
struct Router {
    RouterKind kind = RouterKind::softmax;
    Norm norm;              // only if Experts::before is there
    Weight weight;          // [experts, hidden]
    float logits_scale = 1; // factor of the results of `weight`, before its bias
    Tensor correction;      // [experts], or absent
    Tensor expert_scale;    // [experts], or absent: 1
    int32_t chosen = 0;
    int32_t groups = 1;
    int32_t chosen_groups = 1;
    int32_t group_best = 2;
    bool normalised = false;
    float epsilon = 0;
    float scale = 1;
    bool weighs_input =
        false;        // the weights are factors of the experts' inputs, not of their results
    float jitter = 0; // of a sparse mixer, which has none of what is above but its weight
};

// Feed-forwards of one shape. A token's result is after(the weighted sum over those that its router chooses). The
// router and the experts have the same input as the layer's feed_forward. If `before` is there, the router's input is
// router.norm(x) instead, and theirs before(x), where x is the residual stream.
struct Experts {
    Router router;
    std::vector<FeedForward> each; // at least one
    Norm before;                   // not in a parallel layer
    Norm after;
};

// Experts and a feed-forward that every token goes through beside them, the shared expert. The result is that of the
// experts plus after(feed_forward(x) * sigmoid(gate(x))).
struct SharedExperts {
    Experts experts;
    FeedForward shared;
    Weight gate; // [1, hidden], or absent: 1
    Norm after;
};

// What a layer computes from its part p of the LayerInputs: down(activation(gate(x)) * p).
struct InputBlock {
    Activation activation = Activation::silu;
    Weight gate; // [LayerInputs::width, hidden]
    Weight down; // [hidden, LayerInputs::width]
};

// How a layer mixes tokens, and what it feeds them to: one way each, or none. What differs by the way is a visitor of all
// of them (base/visit.h), which does not compile without one; what only concerns one way asks for it.
struct NoMixer {};
using Mixer = std::variant<NoMixer, Attention, DeltaNet, ChannelDeltaNet, Mamba2, ShortConvolution>;
struct NoFeed {};
using Feed = std::variant<NoFeed, FeedForward, Experts, SharedExperts>;

struct Layer {
    Norm before_attention, after_attention; // of whatever mixes
    Norm before_feed_forward, after_feed_forward;
    Mixer mixer; // at least one of the two is there
    Feed feed;
    bool parallel = false; // before_feed_forward is not used
    // What it mixes is the normed input of the layer before it, which has a mixer alone; before_attention is not used.
    bool beside = false;
    float residual_scale = 1;
    InputBlock input; // if the model has layer inputs
    Norm after_input;
    Tensor scalar; // [1], or absent: 1

    bool mixes() const { return !std::holds_alternative<NoMixer>(mixer); }
    bool feeds() const { return !std::holds_alternative<NoFeed>(feed); }

    // Each is null if the layer has none.
    const Attention *attention() const { return std::get_if<Attention>(&mixer); }
    const LinearAttention *linear_attention() const; // a delta net's or Mamba-2's
    const FeedForward *feed_forward() const;         // of all tokens: alone or shared
    const Experts *experts() const;                  // alone, or beside a shared one
    const SharedExperts *shared() const { return std::get_if<SharedExperts>(&feed); }
    Attention *attention() { return std::get_if<Attention>(&mixer); }
    FeedForward *feed_forward() {
        return const_cast<FeedForward *>(std::as_const(*this).feed_forward());
    }
    Experts *experts() { return const_cast<Experts *>(std::as_const(*this).experts()); }

    // Numbers in a request's state; 0: it has none.
    int64_t state_size() const;
};

// A second embedding of every token, with a part for each layer. With x the residual stream before the first layer,
// the parts of all layers, one after another, are
//     scale * (embedding_scale * embedding[token] + norm(projection_scale * projection(x)))
struct LayerInputs {
    int32_t width = 0; // of a part; 0: the model has none
    Tensor embedding;  // [vocabulary, layers * width]
    float embedding_scale = 1;
    Weight projection; // [layers * width, hidden], without bias
    float projection_scale = 1;
    Norm norm; // per part, [width]: RMSNorm
    float scale = 1;

    explicit operator bool() const { return width > 0; }
};

// Layers whose keys and values are kept and freed together: their pages are taken and released as one, through the
// group's own page tables. The layers have the same window and head shape, and a group has as many layers as a page
// has planes. So pages of all groups have the same size, and any page can serve any group.
struct KvGroup {
    int32_t window = 0;          // of its layers; 0: all positions are kept
    std::vector<int32_t> layers; // those with keys and values of their own
};

// What turns a classifier's logits into probabilities.
enum class LabelKind : uint8_t {
    one_of,  // softmax over all
    several, // sigmoid of each
    value,   // unchanged: regression
};

// What the tensors of a model refer to, and those of its parts.
struct ModelBytes {
    std::unordered_map<std::string, std::vector<float>> scales; // of quantised tensors, by name
    std::vector<MappedFile> files;
};

struct Model {
    std::string directory;
    DType dtype =
        DType::f32; // as the configuration states it; otherwise (load_model) that of the embedding
    bool dtype_stated = false;
    int32_t vocabulary = 0;
    int32_t hidden = 0;
    int32_t max_positions = 0;
    std::vector<int32_t> eos_tokens; // from generation_config.json, else from config.json
    int32_t bos_token = -1;

    Tensor embedding; // [vocabulary, hidden]
    float embedding_scale = 1;
    LayerInputs layer_inputs;
    std::vector<Rope> ropes;
    std::vector<Layer> layers;
    std::vector<KvGroup> kv_groups;
    Norm final_norm;
    Weight head;       // [vocabulary, hidden]; if tied, the embedding's bytes; or absent: no text
    bool tied = false; // in the description: head is the embedding
    float logits_scale = 1;   // factor of the head's results, applied first
    float logits_softcap = 0; // as Attention::softcap
    Weight classifier;        // [labels, hidden], for the last token's hidden state; or absent
    std::vector<std::string> labels;
    LabelKind label_kind = LabelKind::one_of;

    // Of a part of a model (model/parts.h): which it is, of how many. Its head has the logits of the tokens
    // from head_begin on.
    int32_t rank = 0, ranks = 1;
    int32_t head_begin = 0;

    // What turns a picture into embeddings; null: the model reads text alone, or pictures in a way that is not known here:
    // then no_tower says what is not. picture_token: the id at whose places the embeddings stand.
    std::shared_ptr<Tower> tower;
    std::string no_tower;
    int32_t picture_token = -1;
    // Tokens of one picture attend to each other, also to later ones (Gemma 3). So they have to be in
    // one batch, and a prefix cannot end among them.
    bool pictures_see_themselves = false;

    // Names in the files that begin with `from` are read as if they began with `to`. Tensors whose names, before or
    // after renaming, begin with one of passed_over are not used by this model.
    struct Renamed {
        std::string from, to;
    };
    std::vector<Renamed> renamed;
    std::vector<std::string> passed_over;

    std::shared_ptr<const Quantization> quantization; // of the files; null: none
    std::shared_ptr<const ModelBytes> bytes;          // null until loaded

    int64_t weight_bytes() const;
    int32_t kv_planes() const;               // per page: layers of the largest group
    std::vector<int32_t> kv_windows() const; // [kv_groups]
    int64_t state_size() const; // numbers in a request's state, over all layers; 0: none
    bool has_experts() const;   // in any layer
};

// Visits every tensor of the text model in a fixed order; the head only if it is not the embedding. Those of a tower: model/tower.h.
void for_each_tensor(const Model &model, const std::function<void(const Tensor &)> &visit);
void for_each_tensor(Model *model, const std::function<void(Tensor *)> &visit);

// Rows [begin, begin + count) as elements of type f32 or bf16, with scales applied, however they are stored.
void read_rows(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out);
// One row as floats.
void read_row(const Tensor &tensor, int64_t row, float *out);

// Some rows or columns of a tensor, in the same bytes. Columns of a type with four bits begin at a multiple of 8.
Tensor rows_of(const Tensor &tensor, int64_t first, int64_t count);
Tensor columns_of(const Tensor &tensor, int64_t first, int64_t count);

// Sets kv_groups and the layers' places in them. A model with only one kind of layer has one group. Otherwise the
// number of planes is chosen to minimise the memory of a long request, with at most 16 groups.
void place_keys_and_values(Model *model);

// Ropes that depend on the length of rows get the frequencies for rows of up to `longest` positions, the same for all
// rows.
void choose_frequencies(int64_t longest, Model *model);

// Reads only config.json and generation_config.json: the description without any tensor's bytes.
Result<Model> describe_model(const std::string &model_dir);
// The text of a config.json; file: its name, for errors.
Result<Model> describe_config(const std::string &text, const std::string &file);

// Reads config.json, generation_config.json, model.safetensors or model.safetensors.index.json with its shards, and
// checks every tensor's type and shape against the description. Read-only afterwards.
Result<std::unique_ptr<Model>> load_model(const std::string &model_dir);

} // namespace batchllm
