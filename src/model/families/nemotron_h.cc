// Nemotron-H, Nemotron Nano 2 and Nemotron 3 Nano: each layer has one norm, followed by either
// Mamba-2, attention without a rope, a feed-forward without a gate, or experts without gates.
#include <algorithm>
#include <utility>

#include "model/families/families.h"
#include "model/families/mamba.h"

namespace batchllm {
namespace {

constexpr size_t most_layers = 4096;
constexpr int32_t most_width = 1 << 20;

enum class NemotronLayer : uint8_t { mamba, attention, feed_forward, experts };
using NemotronLayers = std::vector<NemotronLayer>;

bool has(const NemotronLayers &kinds, NemotronLayer kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// One letter per layer, as published.
Result<NemotronLayers> read_pattern(const JsonValue &pattern) {
    ASSIGN_OR_RETURN(const std::string letters, pattern.string());
    constexpr std::string_view known = "M*-E"; // by NemotronLayer
    NemotronLayers kinds;
    for (const char letter : letters) {
        const size_t kind = known.find(letter);
        if (kind == std::string_view::npos) {
            return pattern.unsupported("only layers M, *, - and E are supported");
        }
        kinds.push_back(static_cast<NemotronLayer>(kind));
    }
    return kinds;
}

// One name per layer, in the older or the newer spelling.
Result<NemotronLayers> read_names(const JsonValue &types) {
    ASSIGN_OR_RETURN(const auto list, types.elements());
    NemotronLayers kinds;
    for (const JsonValue &item : list) {
        ASSIGN_OR_RETURN(const std::string name, item.string());
        if (name == "mamba" || name == "linear_attention") {
            kinds.push_back(NemotronLayer::mamba);
        } else if (name == "attention" || name == "full_attention") {
            kinds.push_back(NemotronLayer::attention);
        } else if (name == "mlp") {
            kinds.push_back(NemotronLayer::feed_forward);
        } else if (name == "moe") {
            kinds.push_back(NemotronLayer::experts);
        } else {
            return item.unsupported("only mamba, attention, mlp and moe are supported");
        }
    }
    return kinds;
}

Result<NemotronLayers> read_kinds(const JsonValue &config) {
    for (const char *key : {"layers_block_type", "layer_types", "hybrid_override_pattern"}) {
        const auto given = config.given(key);
        if (!given) continue;
        ASSIGN_OR_RETURN(NemotronLayers kinds,
                         given->is_string() ? read_pattern(*given) : read_names(*given));
        if (kinds.empty() || kinds.size() > most_layers) {
            return given->fail("must have from 1 to " + std::to_string(most_layers) + " layers");
        }
        if (has(kinds, NemotronLayer::attention)) return kinds;
        return given->unsupported("a model without a layer of attention is not supported");
    }
    return NemotronLayers{NemotronLayer::mamba, NemotronLayer::experts, NemotronLayer::attention,
                          NemotronLayer::feed_forward};
}

// Every token's step is limited only by time_step_limit. (transformers 5.17 uses time_step_min as a
// limit in prompts, and no limit for tokens that it generates with a cache.)
Result<MambaShape> read_mixer(const JsonValue &config) {
    MambaShape shape;
    Mamba2 &mamba = shape.layer;
    // Of keys with two names transformers prefers Bamba's.
    const char *groups = known_key(config, "mamba_n_groups", "n_groups");
    ASSIGN_OR_RETURN(mamba.value_heads,
                     read_count(config, "mamba_num_heads", 128, most_mamba_heads));
    ASSIGN_OR_RETURN(mamba.value_dim,
                     read_count(config, "mamba_head_dim", 64, most_mamba_head_dim));
    ASSIGN_OR_RETURN(mamba.key_heads, read_count(config, groups, 8, most_mamba_heads));
    ASSIGN_OR_RETURN(mamba.key_dim, read_count(config, "ssm_state_size", 128, most_mamba_head_dim));
    if (mamba.value_heads % mamba.key_heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"%s\" is %d: must divide mamba_num_heads, %d", config.file().c_str(),
                     groups, mamba.key_heads, mamba.value_heads);
    }
    mamba.norm_parts = mamba.key_heads;
    ASSIGN_OR_RETURN(mamba.width, read_convolution_width(
                                      config, known_key(config, "mamba_d_conv", "conv_kernel"), 4));
    RETURN_IF_ERROR(
        read_step_limits(config, known_key(config, "mamba_dt_limit", "time_step_limit"), &mamba));
    ASSIGN_OR_RETURN(
        shape.bias, read_flag(config, known_key(config, "mamba_conv_bias", "use_conv_bias"), true));
    RETURN_IF_ERROR(refuse_flag(config, "use_bias", "only products without biases are supported"));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "mamba_hidden_act", Activation::silu));
    if (activation == Activation::silu) return shape;
    return config.at("mamba_hidden_act")->unsupported("only silu is supported");
}

FeedForward ungated(const std::string &prefix, int32_t width, int64_t hidden, bool biases) {
    FeedForward feed_forward = named_feed_forward(prefix, width, hidden);
    feed_forward.gate = {};
    if (biases) {
        add_bias(&feed_forward.up);
        add_bias(&feed_forward.down);
    }
    return feed_forward;
}

// What all layers with experts share.
struct LayerExperts {
    Router router;
    ExpertsShape shape;
    int32_t shared = 0; // the shared expert's width
};

Result<LayerExperts> read_experts(const JsonValue &config, const Model &model) {
    LayerExperts read;
    if (const auto latent = config.given("moe_latent_size")) {
        return latent->unsupported("experts of a projection of their input are not supported");
    }
    if (const auto count = config.given("n_shared_experts"); count && !count->integer(1, 1).ok()) {
        return count->unsupported("only one shared expert is supported");
    }
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"n_routed_experts", "num_local_experts"}, 8, 2, model));
    read.router.normalised = true;
    ASSIGN_OR_RETURN(read.router, read_grouped_router(config, counts, read.router));
    read.shape.count = counts.all;
    read.shape.gate = nullptr;
    ASSIGN_OR_RETURN(read.shape.width,
                     read_count(config, "moe_intermediate_size", 7688, most_width));
    ASSIGN_OR_RETURN(read.shared,
                     read_count(config, "moe_shared_expert_intermediate_size", 7688, most_width));
    return read;
}

// Attention with this family's tensor names.
Attention attention_of(const std::string &prefix, Attention attention) {
    attention.q.values.name = prefix + "q_proj.weight";
    attention.k.values.name = prefix + "k_proj.weight";
    attention.v.values.name = prefix + "v_proj.weight";
    attention.o.values.name = prefix + "o_proj.weight";
    return attention;
}

Status set_layers(const JsonValue &config, const NemotronLayers &kinds, int32_t width,
                  Model *model) {
    MambaShape mamba;
    if (has(kinds, NemotronLayer::mamba)) {
        ASSIGN_OR_RETURN(mamba, read_mixer(config));
    }
    LayerExperts experts;
    if (has(kinds, NemotronLayer::experts)) {
        ASSIGN_OR_RETURN(experts, read_experts(config, *model));
    }
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "mlp_bias", false));
    const int64_t hidden = model->hidden;
    for (size_t i = 0; i < kinds.size(); ++i) {
        Layer &layer = model->layers[i];
        const Layer plain = std::exchange(layer, {});
        const std::string prefix = layer_prefix(i) + "mixer.";
        const bool mixes = kinds[i] == NemotronLayer::mamba || kinds[i] == NemotronLayer::attention;
        Norm &norm = mixes ? layer.before_attention : layer.before_feed_forward;
        norm = plain.before_attention;
        norm.weight.name = layer_prefix(i) + "norm.weight";
        switch (kinds[i]) {
        case NemotronLayer::mamba:
            layer.mixer = named_mamba(mamba, prefix, hidden, norm.epsilon);
            break;
        case NemotronLayer::attention:
            layer.mixer = attention_of(prefix, *plain.attention());
            break;
        case NemotronLayer::feed_forward:
            layer.feed = ungated(prefix, width, hidden, biases);
            break;
        case NemotronLayer::experts:
            set_experts(prefix, experts.shape, experts.router, hidden, &layer);
            set_correction(prefix + "gate.e_score_correction_bias", &layer);
            add_shared_expert(ungated(prefix + "shared_experts.", experts.shared, hidden, biases),
                              &layer);
            break;
        }
    }
    return set_activation(config, "mlp_hidden_act", Activation::relu_squared, model);
}

} // namespace

Status describe_nemotron_h(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const NemotronLayers kinds, read_kinds(config));
    ConfigDefaults defaults;
    defaults.vocabulary = 131072;
    defaults.intermediate = 21504;
    defaults.layers = static_cast<int32_t>(kinds.size());
    defaults.kv_heads = 8;
    // The key of the first models.
    ASSIGN_OR_RETURN(defaults.head_dim, read_count(config, "attention_head_dim", 128, 1024));
    defaults.max_positions = 4096;
    defaults.bos = 1;
    defaults.eos = {2};
    defaults.epsilon_key = "layer_norm_epsilon";
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    if (shape.layers != defaults.layers) {
        return config.at("num_hidden_layers")
            ->fail("the pattern has " + std::to_string(kinds.size()) + " layers");
    }
    if (const auto window = config.given("sliding_window")) {
        return window->unsupported("windows are not supported");
    }
    describe_decoder(shape, model);
    model->embedding.name = "model.embeddings.weight";
    model->final_norm.weight.name = "model.norm_f.weight";
    RETURN_IF_ERROR(set_layers(config, kinds, shape.intermediate, model));
    model->renamed = {{"backbone.", "model."}};
    model->passed_over.push_back("mtp."); // predicts further tokens
    return {};
}

} // namespace batchllm
