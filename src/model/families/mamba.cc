#include "model/families/mamba.h"

#include <algorithm>
#include <limits>

namespace batchllm {
namespace {

constexpr double most_limit = 3e38; // per step: files may have 1e30 for infinity

Status read_heads(const JsonValue &config, int32_t hidden, std::optional<int32_t> given_values,
                  Mamba2 *mamba) {
    const char *file = config.file().c_str();
    ASSIGN_OR_RETURN(mamba->value_heads,
                     read_count(config, "mamba_n_heads", 128, most_mamba_heads));
    ASSIGN_OR_RETURN(mamba->key_heads, read_count(config, "mamba_n_groups", 1, most_mamba_heads));
    ASSIGN_OR_RETURN(const int32_t expand, read_count(config, "mamba_expand", 2, 64));
    const int64_t values = given_values ? *given_values : int64_t{expand} * hidden;
    const std::string product = given_values ? "mamba_d_ssm" : "mamba_expand * hidden_size";
    if (values % mamba->value_heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"mamba_n_heads\" is %d: must divide %s, %lld", file, mamba->value_heads,
                     product.c_str(), static_cast<long long>(values));
    }
    if (mamba->value_heads % mamba->key_heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"mamba_n_groups\" is %d: must divide mamba_n_heads, %d", file,
                     mamba->key_heads, mamba->value_heads);
    }
    const int64_t of_head = values / mamba->value_heads;
    const auto given = config.given("mamba_d_head");
    if (given && !given->is_string()) {
        ASSIGN_OR_RETURN(const int64_t dim, given->integer(1, most_mamba_head_dim));
        if (dim != of_head) {
            return given->fail(product + " / mamba_n_heads is " + std::to_string(of_head));
        }
    } else if (given) {
        ASSIGN_OR_RETURN(const std::string word, given->string());
        if (word != "auto") return given->fail("must be a number or auto");
    }
    if (of_head > most_mamba_head_dim) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"mamba_n_heads\" is %d: heads of %lld, at most %d", file,
                     mamba->value_heads, static_cast<long long>(of_head), most_mamba_head_dim);
    }
    mamba->value_dim = static_cast<int32_t>(of_head);
    return {};
}

} // namespace

Status read_step_limits(const JsonValue &config, std::string_view key, Mamba2 *mamba) {
    const auto limits = config.given(key);
    if (!limits) return {};
    ASSIGN_OR_RETURN(const auto both, limits->elements());
    if (both.size() != 2) return limits->fail("must be two numbers");
    ASSIGN_OR_RETURN(const double least, both[0].number(0, most_limit));
    mamba->least_step = static_cast<float>(least);
    if (both[1].not_finite() == "Infinity") {
        mamba->most_step = std::numeric_limits<float>::infinity();
        return {};
    }
    ASSIGN_OR_RETURN(const double most, both[1].number(0, most_limit));
    mamba->most_step = static_cast<float>(most);
    if (mamba->least_step <= mamba->most_step) return {};
    return limits->fail("the first must be at most the second");
}

// In the files, the rows of the input projection are z, x, B, C, dt, and the convolution covers x,
// B, C.
Mamba2 named_mamba(const MambaShape &shape, const std::string &prefix, int64_t hidden,
                   float epsilon) {
    Mamba2 mamba = shape.layer;
    const int64_t values = mamba.values_size(), keys = mamba.keys_size();
    const int64_t channels = mamba.channels(), heads = mamba.value_heads;
    struct Slice {
        int64_t first, rows;
    };
    const Slice q{values + keys, keys}, k{values, keys}, v{0, values}; // in the convolution
    for (const Slice &slice : {q, k, v}) {
        Weight part =
            named_convolution(prefix + "conv1d", channels, slice.first, slice.rows, mamba.width);
        if (shape.bias) {
            part.bias = named_vector(prefix + "conv1d.bias", slice.rows);
            part.bias.stored_rows = channels;
            part.bias.first_row = slice.first;
        }
        mamba.convolution.push_back(std::move(part));
    }
    const int64_t rows = mamba.input_rows();
    const auto shifted = [&](const Slice &slice) {
        return Slice{values + slice.first, slice.rows};
    };
    for (const Slice &slice :
         {shifted(q), shifted(k), shifted(v), Slice{0, values}, Slice{values + channels, heads}}) {
        mamba.input.push_back(
            fused_weight(prefix + "in_proj", rows, slice.first, slice.rows, hidden).values);
    }
    mamba.decay = named_vector(prefix + "A_log", heads);
    mamba.step_bias = named_vector(prefix + "dt_bias", heads);
    mamba.skip = named_vector(prefix + "D", heads);
    mamba.norm = named_norm(NormKind::rms, prefix + "norm", values, epsilon);
    mamba.o = named_weight(prefix + "out_proj", hidden, values);
    return mamba;
}

Result<MambaShape> read_mamba(const JsonValue &config, int32_t hidden,
                              std::optional<int32_t> values) {
    MambaShape shape;
    Mamba2 &mamba = shape.layer;
    RETURN_IF_ERROR(read_heads(config, hidden, values, &mamba));
    mamba.norm_parts = mamba.key_heads;
    ASSIGN_OR_RETURN(mamba.key_dim, read_count(config, "mamba_d_state", 256, most_mamba_head_dim));
    ASSIGN_OR_RETURN(mamba.width, read_convolution_width(config, "mamba_d_conv", 4));
    RETURN_IF_ERROR(read_step_limits(config, "time_step_limit", &mamba));
    ASSIGN_OR_RETURN(shape.bias, read_flag(config, "mamba_conv_bias", true));
    RETURN_IF_ERROR(
        refuse_flag(config, "mamba_proj_bias", "only products without biases are supported"));
    return shape;
}

void set_bamba_names(const DecoderShape &shape, Model *model) {
    model->final_norm.weight.name = "model.final_layernorm.weight";
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        layer.before_feed_forward.weight.name = layer_prefix(i) + "pre_ff_layernorm.weight";
        layer.feed = named_feed_forward(layer_prefix(i) + "feed_forward.", shape.intermediate,
                                        model->hidden);
    }
}

Status set_mamba_layers(const JsonValue &config, const std::vector<bool> &types, Model *model) {
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
        layer.mixer = named_mamba(shape, layer_prefix(i) + "mamba.", model->hidden,
                                  model->final_norm.epsilon);
    }
    return {};
}

} // namespace batchllm
