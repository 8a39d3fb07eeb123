// Granite 4: Mamba-2 in most layers, attention in the others, mostly without a rope; dense, or with experts beside
// a feed-forward. Its smallest models attend in all layers.
#include <algorithm>
#include <limits>

#include "model/families/families.h"
#include "model/families/granite.h"

namespace batchllm {
namespace {

constexpr int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
constexpr int32_t most_heads = 1 << 14;
constexpr int32_t most_head_dim = 1024;

// One entry a layer, true for Mamba-2: what all are without a list.
Result<std::vector<bool>> read_mamba_layers(const JsonValue &config, size_t layers) {
    std::vector<bool> mamba(layers, true);
    auto types = config.given("layer_types");
    const char *key = types ? "layer_types" : "layers_block_type";
    if (!types) types = config.given(key);
    if (types) {
        ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers, key));
        for (size_t i = 0; i < layers; ++i) {
            ASSIGN_OR_RETURN(const std::string type, list[i].string());
            mamba[i] = type == "mamba" || type == "linear_attention";
            if (!mamba[i] && type != "attention" && type != "full_attention") {
                return list[i].unsupported("only mamba and attention are supported");
            }
        }
    }
    if (std::find(mamba.begin(), mamba.end(), false) != mamba.end()) return mamba;
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "%s: \"layer_types\": a model without a layer of attention is not supported",
                 config.file().c_str());
}

Status read_step_limits(const JsonValue &config, LinearAttention *mamba) {
    const auto limits = config.given("time_step_limit");
    if (!limits) return {};
    ASSIGN_OR_RETURN(const auto both, limits->elements());
    if (both.size() != 2) return limits->fail("must be two numbers");
    ASSIGN_OR_RETURN(const double least, both[0].number(0, 1e9));
    mamba->least_step = static_cast<float>(least);
    if (both[1].not_finite() == "Infinity") {
        mamba->most_step = std::numeric_limits<float>::infinity();
        return {};
    }
    ASSIGN_OR_RETURN(const double most, both[1].number(0, 1e9));
    mamba->most_step = static_cast<float>(most);
    if (mamba->least_step <= mamba->most_step) return {};
    return limits->fail("the first must be at most the second");
}

Status read_heads(const JsonValue &config, int32_t hidden, LinearAttention *mamba) {
    const char *file = config.file().c_str();
    ASSIGN_OR_RETURN(mamba->value_heads, read_count(config, "mamba_n_heads", 128, most_heads));
    ASSIGN_OR_RETURN(mamba->key_heads, read_count(config, "mamba_n_groups", 1, most_heads));
    ASSIGN_OR_RETURN(const int32_t expand, read_count(config, "mamba_expand", 2, 64));
    const int64_t values = int64_t{expand} * hidden;
    if (values % mamba->value_heads != 0) {
        return error(code,
                     "%s: \"mamba_n_heads\" is %d: must divide mamba_expand * hidden_size, %lld",
                     file, mamba->value_heads, static_cast<long long>(values));
    }
    if (mamba->value_heads % mamba->key_heads != 0) {
        return error(code, "%s: \"mamba_n_groups\" is %d: must divide mamba_n_heads, %d", file,
                     mamba->key_heads, mamba->value_heads);
    }
    const int64_t of_head = values / mamba->value_heads;
    const auto given = config.given("mamba_d_head");
    if (given && !given->is_string()) {
        ASSIGN_OR_RETURN(const int64_t dim, given->integer(1, most_head_dim));
        if (dim != of_head) {
            return given->fail("mamba_expand * hidden_size / mamba_n_heads is " +
                               std::to_string(of_head));
        }
    } else if (given) {
        ASSIGN_OR_RETURN(const std::string word, given->string());
        if (word != "auto") return given->fail("must be a number or auto");
    }
    if (of_head > most_head_dim) {
        return error(code, "%s: \"mamba_n_heads\" is %d: heads of %lld, at most %d", file,
                     mamba->value_heads, static_cast<long long>(of_head), most_head_dim);
    }
    mamba->value_dim = static_cast<int32_t>(of_head);
    return {};
}

// The shape of a Mamba-2 layer, and whether its convolution has a bias.
struct MambaShape {
    LinearAttention layer;
    bool bias = true;
};

Result<MambaShape> read_mamba(const JsonValue &config, int32_t hidden) {
    MambaShape shape;
    LinearAttention &mamba = shape.layer;
    mamba.rule = StateRule::state_space;
    mamba.unit_length = false;
    mamba.gate_first = true;
    RETURN_IF_ERROR(read_heads(config, hidden, &mamba));
    mamba.norm_parts = mamba.key_heads;
    ASSIGN_OR_RETURN(mamba.key_dim, read_count(config, "mamba_d_state", 256, most_head_dim));
    ASSIGN_OR_RETURN(mamba.width, read_convolution_width(config, "mamba_d_conv", 4));
    RETURN_IF_ERROR(read_step_limits(config, &mamba));
    ASSIGN_OR_RETURN(shape.bias, read_flag(config, "mamba_conv_bias", true));
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "mamba_proj_bias", false));
    if (!biases) return shape;
    return config.at("mamba_proj_bias")->unsupported("only products without biases are supported");
}

// In the files a row of the input's product is z, x, B, C, dt, and the convolution is over x, B, C.
void name_tensors(const std::string &prefix, int64_t hidden, float epsilon, bool bias,
                  LinearAttention *mamba) {
    const int64_t values = mamba->values_size(), keys = mamba->keys_size();
    const int64_t channels = mamba->channels(), heads = mamba->value_heads;
    struct Slice {
        int64_t first, rows;
    };
    const Slice q{values + keys, keys}, k{values, keys}, v{0, values}; // of the convolution
    for (const Slice &slice : {q, k, v}) {
        Weight part =
            named_convolution(prefix + "conv1d", channels, slice.first, slice.rows, mamba->width);
        if (bias) {
            part.bias = named_vector(prefix + "conv1d.bias", slice.rows);
            part.bias.stored_rows = channels;
            part.bias.first_row = slice.first;
        }
        mamba->convolution.push_back(std::move(part));
    }
    const int64_t rows = mamba->input_rows();
    const auto shifted = [&](const Slice &slice) {
        return Slice{values + slice.first, slice.rows};
    };
    for (const Slice &slice :
         {shifted(q), shifted(k), shifted(v), Slice{0, values}, Slice{values + channels, heads}}) {
        mamba->input.push_back(
            fused_weight(prefix + "in_proj", rows, slice.first, slice.rows, hidden).values);
    }
    mamba->decay = named_vector(prefix + "A_log", heads);
    mamba->step_bias = named_vector(prefix + "dt_bias", heads);
    mamba->skip = named_vector(prefix + "D", heads);
    mamba->norm = named_norm(NormKind::rms, prefix + "norm", values, epsilon);
    mamba->o = named_weight(prefix + "out_proj", hidden, values);
}

Status set_mamba_layers(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const std::vector<bool> types,
                     read_mamba_layers(config, model->layers.size()));
    if (std::find(types.begin(), types.end(), true) == types.end()) return {};
    ASSIGN_OR_RETURN(const MambaShape shape, read_mamba(config, model->hidden));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "hidden_act", Activation::silu));
    if (activation != Activation::silu) {
        return config.at("hidden_act")->unsupported("only silu is supported beside mamba");
    }
    for (size_t i = 0; i < types.size(); ++i) {
        if (!types[i]) continue;
        Layer &layer = model->layers[i];
        layer.attention = {};
        layer.linear_attention = shape.layer;
        name_tensors(layer_prefix(i) + "mamba.", model->hidden, model->final_norm.epsilon,
                     shape.bias, &layer.linear_attention);
    }
    return {};
}

Status set_feed_forwards(const JsonValue &config, Model *model) {
    const auto experts = config.given("num_local_experts");
    const bool dense = experts && experts->integer(0, 0).ok();
    if (!dense) RETURN_IF_ERROR(set_granite_experts(config, model));
    ASSIGN_OR_RETURN(const int32_t width,
                     read_count(config, "shared_intermediate_size", 1024, 1 << 20));
    set_shared_feed_forward(width, model);
    return set_activation(config, "hidden_act", Activation::silu, model);
}

// "position_embedding_type": "rope", or else none.
Status set_positions(const JsonValue &config, Model *model) {
    const auto type = config.given("position_embedding_type");
    if (!type) return {};
    ASSIGN_OR_RETURN(const std::string name, type->string());
    if (name == "rope") return set_rope(config, {}, model);
    if (name == "nope") return {};
    return type->unsupported("only rope and nope are supported");
}

} // namespace

Status describe_granite_hybrid(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    if (const auto norm = config.given("normalization_function")) {
        ASSIGN_OR_RETURN(const std::string name, norm->string());
        if (name != "rmsnorm") return norm->unsupported("only rmsnorm is supported");
    }
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_positions(config, model));
    RETURN_IF_ERROR(set_multipliers(config, model));
    RETURN_IF_ERROR(set_feed_forwards(config, model));
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "attention_bias", false));
    if (biases) {
        add_qkv_biases(model);
        add_output_biases(model);
    }
    return set_mamba_layers(config, model);
}

} // namespace batchllm
