// Helpers that the families share for reading a config.json. A missing key has the default of that
// family's configuration class in transformers. A key that would change the model's output and is
// not supported is an error that names it; other keys are ignored, as in transformers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm {

// Defaults of a family's configuration class.
struct ConfigDefaults {
    int32_t vocabulary = 32000;
    int32_t hidden = 4096;
    int32_t intermediate = 11008;
    int32_t layers = 32;
    int32_t heads = 32;
    std::optional<int32_t> kv_heads = std::nullopt; // absent: as many as heads
    int32_t head_dim = 0;                           // 0: hidden / heads
    int32_t max_positions = 2048;
    std::optional<int32_t> bos = std::nullopt;
    std::vector<int32_t> eos = {};
    bool tied = false;
    const char *epsilon_key = "rms_norm_eps";
    double epsilon = 1e-6;
    bool per_layer = false; // "per_layer_config" is known
};

// The numbers that determine a decoder's shape, other than those in Model itself.
struct DecoderShape {
    int32_t intermediate = 0;
    int32_t layers = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    float epsilon = 0;
};

// An integer from 1 to most (read_count) or from 0 to most. Here and below, `otherwise` is the value
// if the key is absent or null.
Result<int32_t> read_count(const JsonValue &config, std::string_view key, int32_t otherwise,
                           int32_t most);
Result<int32_t> read_count_or_zero(const JsonValue &config, std::string_view key, int32_t otherwise,
                                   int32_t most);
// For a convolution whose inputs are kept as a state.
Result<int32_t> read_convolution_width(const JsonValue &config, std::string_view key,
                                       int32_t otherwise);
// The entries of "layer_types", or of the list with another name: one per layer.
Result<std::vector<JsonValue>> read_layer_types(const JsonValue &types, size_t layers,
                                                const char *key = "layer_types");
// Of a key that has two names, as published and as other files have it: the first if it is given.
inline const char *known_key(const JsonValue &config, const char *name, const char *other) {
    return config.given(name) ? name : other;
}
Result<bool> read_flag(const JsonValue &config, std::string_view key, bool otherwise);
// UNSUPPORTED for this reason if the flag is given and on.
Status refuse_flag(const JsonValue &config, const char *key, const char *why);
// The same if the key is given and not null.
Status refuse_key(const JsonValue &config, const char *key, const char *why);
Result<double> read_number(const JsonValue &config, std::string_view key, double otherwise,
                           double least, double most);
// "silu", "gelu_pytorch_tanh" and the like.
Result<Activation> read_activation(const JsonValue &config, std::string_view key,
                                   Activation otherwise);

// Reads vocab_size, hidden_size, ..., dtype and special tokens into the model, and returns the
// rest.
Result<DecoderShape> read_shape(const JsonValue &config, const ConfigDefaults &defaults,
                                Model *model);

// "dtype" or "torch_dtype", if one of them is given.
Status read_dtype(const JsonValue &config, Model *model);
// A token id or a list of them, each less than vocabulary.
Status read_tokens(const JsonValue &value, int32_t vocabulary, std::vector<int32_t> *tokens);

// "sliding_window", or 0 if it is null; `otherwise` if it is absent.
Result<int32_t> read_window(const JsonValue &config, int32_t otherwise);
// Sets it on all layers, for families without "layer_types".
Status set_window(const JsonValue &config, int32_t otherwise, Model *model);
// Sets the window of the layers that are sliding_attention in "layer_types" or, without that key,
// of those that `otherwise` selects. A window of 0: none.
Status set_windows(const JsonValue &config, int32_t window,
                   const std::function<bool(size_t layer)> &otherwise, Model *model);
// The same for families where pattern_key is a number N and every N-th layer has full attention.
Status set_windows_but_every(const JsonValue &config, int32_t window, const char *pattern_key,
                             int32_t pattern, Model *model);

// Which layers have a rope: those with 1 in "no_rope_layers" (sic), else all but every N-th, where N is
// "no_rope_layer_interval". may_be_empty: an empty list counts as none.
Result<std::vector<bool>> read_roped_layers(const JsonValue &config, size_t layers,
                                            bool may_be_empty);

// What has a rope's keys: the configuration, or a class's own if it has none.
class RopeKeys {
  public:
    // otherwise: JSON with "rope_parameters", for a configuration with neither that key nor
    // "rope_scaling".
    static Result<RopeKeys> of(const JsonValue &config, std::string_view otherwise);
    const JsonValue &value() const { return value_; }

  private:
    RopeKeys(JsonDocument otherwise, JsonValue value)
        : otherwise_(std::move(otherwise)), value_(std::move(value)) {}

    JsonDocument otherwise_;
    JsonValue value_; // may be in it
};

// The keys of a rope in a family, and their defaults.
struct RopeDefaults {
    double theta = 10000;
    double part = 1;           // share of a head that rotates
    bool partial = false;      // "partial_rotary_factor" is known
    bool proportional = false; // the rope type "proportional" is known
    bool alpha = false;        // the rope type "dynamic" with "alpha" is known: another base
    bool pairs = false;
    bool mscales = false; // longrope's scale is "short_mscale" or "long_mscale"
    // "original_max_position_embeddings" if the top level has none; 0: that of the object, else the
    // longest request.
    int64_t original_positions = 0;
    std::vector<const char *> default_aliases = {};  // rope types that mean the default here
    std::vector<const char *> longrope_aliases = {}; // rope types that mean longrope here
};

// The rope of all layers, from keys at the top ("rope_theta", "rope_scaling") or in one object
// ("rope_parameters").
Result<Rope> read_rope(const JsonValue &config, const Model &model, int32_t head_dim,
                       const RopeDefaults &defaults);
// The rope's index in the model's list. Appends it if it is not there.
int32_t add_rope(Model *model, Rope rope);
Status set_rope(const JsonValue &config, const RopeDefaults &defaults, Model *model);

// One rope for layers without a window and one for those with a window: "rope_parameters" by layer
// type, or the keys at the top level. There, "rope_scaling" applies to full attention, and the base
// for the other layers has its own key (null: none). Call after the windows are set.
struct LayerRopes {
    Rope full, windowed;
};
Result<LayerRopes> read_layer_ropes(const JsonValue &config, const Model &model, RopeDefaults full,
                                    RopeDefaults windowed, const char *windowed_theta);
void set_layer_ropes(LayerRopes ropes, Model *model);

// Tensors with the names that most families use: the weight `prefix`.weight, [rows, columns].
Weight named_weight(const std::string &prefix, int64_t rows, int64_t columns);
void add_bias(Weight *weight); // `prefix`.bias
// Rows [first, first + rows) of the weight `prefix`.weight, [stored, columns].
Weight fused_weight(const std::string &prefix, int64_t stored, int64_t first, int64_t rows,
                    int64_t columns);
// Rows first, first + step, ... of matrix `index` of the tensor `name`, [count, columns, stored].
struct TransposedStack {
    std::string name;
    int32_t count;
    int64_t columns;
    int64_t stored;
};
Weight rows_of_stack(const TransposedStack &stack, int32_t index, int64_t first, int64_t rows,
                     int64_t step = 1);
// A vector whose name does not end in ".weight".
Tensor named_vector(std::string name, int64_t length);
// Rows [first, first + rows) of a depthwise convolution, stored as `prefix`.weight [channels, 1,
// width].
Weight named_convolution(const std::string &prefix, int64_t channels, int64_t first, int64_t rows,
                         int64_t width);
Norm named_norm(NormKind kind, const std::string &prefix, int64_t length, float epsilon);

// A Llama-like decoder: "model.layers.N.self_attn.q_proj" and so on, norms before attention and
// feed-forward, silu, no biases, no window, no rope. Families change whatever differs.
void describe_decoder(const DecoderShape &shape, Model *model);
std::string layer_prefix(size_t layer); // "model.layers.N."

// The layers that attend: in such a decoder all, until a family replaces some.
void for_each_attention(Model *model, const std::function<void(size_t layer, Attention &)> &change);

// Replaces what a layer feeds by experts with the names that most families use: the router is
// `prefix`gate, and expert E has `prefix`experts.E. plus the names of gate, up and down. `router`
// says how they are chosen.
struct ExpertsShape {
    int32_t count = 0;
    int32_t width = 0;
    const char *gate = "gate_proj"; // null: experts have no gate
    const char *up = "up_proj";
    const char *down = "down_proj";
};
void set_experts(const std::string &prefix, const ExpertsShape &shape, Router router,
                 int64_t hidden, Layer *layer);
// Gives the router of such a layer the vector `name` as its correction.
void set_correction(const std::string &name, Layer *layer);
// Puts a shared expert beside them, whose result has no gate and no norm.
SharedExperts &add_shared_expert(FeedForward shared, Layer *layer);
// Such experts beside a shared one of `shared` times their width, "`prefix`shared_experts.", with the
// vector `prefix` + `correction` as their router's correction (null: none).
void set_experts_beside_shared(const std::string &prefix, const ExpertsShape &shape, Router router,
                               const char *correction, int32_t shared, int64_t hidden,
                               Layer *layer);
// How many experts a layer has, and how many each token goes through.
struct ExpertCounts {
    int32_t all = 0;
    int32_t chosen = 0;
};
// Reads the first of these keys that is present. Call after the layers are made.
Result<ExpertCounts> read_expert_counts(const JsonValue &config,
                                        std::initializer_list<std::string_view> keys, int32_t all,
                                        int32_t chosen, const Model &model,
                                        const char *chosen_key = "num_experts_per_tok");
// What that checks, for families that read them otherwise.
Status check_experts(const JsonValue &config, std::initializer_list<std::string_view> keys,
                     const ExpertCounts &counts, const Model &model, const char *chosen_key);
// Reads a router's groups of experts ("n_group", "topk_group"), whose defaults it has.
Status read_groups(const JsonValue &config, const ExpertCounts &counts, Router *router,
                   const char *groups_key = "n_group");
// Which layers have experts: those that "mlp_layer_types" calls sparse or, without that key, all from
// "first_k_dense_replace" on, which is 1 if absent.
Result<std::vector<bool>> read_layers_with_experts(const JsonValue &config, size_t layers);
// A sigmoid router without groups, whose weights sum to one times a scale under this key.
Result<Router> read_sigmoid_router(const JsonValue &config, const ExpertCounts &counts,
                                   std::string_view scale_key, double otherwise);
// A sigmoid router with such groups and a scale ("routed_scaling_factor"), as in several families;
// `otherwise`: the defaults.
Result<Router> read_grouped_router(const JsonValue &config, const ExpertCounts &counts,
                                   Router otherwise);
// The experts of DeepSeek V3 and those after it: such a router with a correction, and shared experts;
// the first layers are dense. The numbers are defaults.
struct GroupedExperts {
    ExpertCounts counts;
    int32_t width = 0;
    int32_t shared = 1; // experts
    int32_t dense = 0;  // layers
    Router router;
    RouterKind kind = RouterKind::sigmoid; // softmax: without a correction
};
Status set_grouped_experts(const JsonValue &config, const GroupedExperts &defaults, Model *model);
// The same with a router that has been read; without a correction unless it is a sigmoid router.
Status set_experts_and_shared(const JsonValue &config, const GroupedExperts &defaults,
                              const ExpertCounts &counts, const Router &router, Model *model);
// A feed-forward with a gate: `prefix`gate_proj, up_proj, down_proj.
FeedForward named_feed_forward(const std::string &prefix, int32_t width, int64_t hidden);

// Changes that several families make to all layers of such a decoder.
Status set_activation(const JsonValue &config, std::string_view key, Activation otherwise,
                      Model *model);
void add_qkv_biases(Model *model);
void add_output_biases(Model *model); // for attention
void add_feed_forward_biases(Model *model);
// Adds biases if "attention_bias" (for q, k, v and the output) or "mlp_bias" says so.
Status set_attention_biases(const JsonValue &config, bool otherwise, Model *model);
Status set_feed_forward_biases(const JsonValue &config, Model *model);
void set_head_norms(Model *model);  // "q_norm" and "k_norm", one per head
void set_whole_norms(Model *model); // the same, over all heads together
// "gate_up_proj" instead of "gate_proj" and "up_proj", gate first.
void fuse_gate_up(Model *model);
// Norms after attention and feed-forward instead of before: "post_attention_layernorm" and
// "post_feedforward_layernorm".
void set_norms_after(Model *model);
// Queries, keys and values of a layer as rows, one after another, of the tensor `prefix`.weight.
void fuse_qkv(const std::string &prefix, int64_t hidden, Attention *attention);
// Attention and feed-forward side by side, after the norm that was before attention.
void set_parallel(Model *model);
// LayerNorms with biases, `prefix`.bias, before attention and feed-forward and at the end.
void set_layer_norms(Model *model);
// Makes the norms x / sqrt(..) * (offset + weight).
void set_norm_offsets(float offset, Model *model);

// The model that "text_config" describes, in a checkpoint that also has a vision tower. `describe`
// reads that object; if a key is also at the top level, the top level wins. `tied`: the default at
// the top level.
Status describe_text_part(const JsonValue &config,
                          Status (*describe)(const JsonValue &config, Model *model), bool tied,
                          Model *model);

// The names of the text model's tensors in such a checkpoint, both as published and as transformers
// 5 saves them. Tensors of the tower and of its projector are skipped.
void pass_over_vision(Model *model);
// Skips tensors whose names begin with `part`, or with "model." followed by it.
void pass_over(const std::string &part, Model *model);

} // namespace batchllm
