#include "model/config.h"

#include <algorithm>

namespace batchllm {
namespace {

constexpr int32_t most_head_dim = 1024;

} // namespace

Status read_dtype(const JsonValue &config, Model *model) {
    auto value = config.given("dtype");
    if (!value) value = config.given("torch_dtype");
    if (!value) return {};
    model->dtype_stated = true;
    ASSIGN_OR_RETURN(const std::string name, value->string());
    if (name == "float32" || name == "float") {
        model->dtype = DType::f32;
    } else if (name == "bfloat16") {
        model->dtype = DType::bf16;
    } else if (name == "float16" || name == "half") {
        model->dtype = DType::f16;
    } else {
        return value->unsupported("only float32, bfloat16 and float16 are supported");
    }
    return {};
}

namespace {

Status read_heads(const JsonValue &config, const ConfigDefaults &defaults, int32_t hidden,
                  DecoderShape *shape) {
    ASSIGN_OR_RETURN(shape->heads,
                     read_count(config, "num_attention_heads", defaults.heads, 1 << 14));
    // If absent, the class's default; if null, as many as heads.
    const bool absent = !config.find("num_key_value_heads");
    ASSIGN_OR_RETURN(shape->kv_heads,
                     read_count(config, "num_key_value_heads",
                                absent ? defaults.kv_heads.value_or(shape->heads) : shape->heads,
                                1 << 14));
    if (shape->heads % shape->kv_heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"num_key_value_heads\" is %d: must divide num_attention_heads, %d",
                     config.file().c_str(), shape->kv_heads, shape->heads);
    }
    const int32_t ratio = hidden / shape->heads;
    ASSIGN_OR_RETURN(shape->head_dim,
                     read_count(config, "head_dim",
                                defaults.head_dim != 0 ? defaults.head_dim : ratio, most_head_dim));
    if (!config.given("head_dim") && defaults.head_dim == 0 && hidden % shape->heads != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"hidden_size\" is %d: not a multiple of num_attention_heads, %d",
                     config.file().c_str(), hidden, shape->heads);
    }
    if (shape->head_dim < 2 || shape->head_dim > most_head_dim || shape->head_dim % 2 != 0) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: \"head_dim\" is %d: must be even and from 2 to %d", config.file().c_str(),
                     shape->head_dim, most_head_dim);
    }
    return {};
}

// A default outside the vocabulary does not count as a token.
Status read_special_tokens(const JsonValue &config, const ConfigDefaults &defaults, Model *model) {
    if (const auto bos = config.given("bos_token_id")) {
        ASSIGN_OR_RETURN(const int64_t token, bos->integer(0, model->vocabulary - 1));
        model->bos_token = static_cast<int32_t>(token);
    } else if (!config.find("bos_token_id") && defaults.bos.value_or(-1) < model->vocabulary) {
        model->bos_token = defaults.bos.value_or(-1);
    }
    if (const auto eos = config.given("eos_token_id")) {
        return read_tokens(*eos, model->vocabulary, &model->eos_tokens);
    }
    if (config.find("eos_token_id")) return {};
    for (const int32_t token : defaults.eos) {
        if (token < model->vocabulary) model->eos_tokens.push_back(token);
    }
    return {};
}

Result<int32_t> read_integer(const JsonValue &config, std::string_view key, int32_t otherwise,
                             int32_t least, int32_t most) {
    const auto value = config.given(key);
    if (!value) return otherwise;
    ASSIGN_OR_RETURN(const int64_t number, value->integer(least, most));
    return static_cast<int32_t>(number);
}

} // namespace

Result<int32_t> read_count(const JsonValue &config, std::string_view key, int32_t otherwise,
                           int32_t most) {
    return read_integer(config, key, otherwise, 1, most);
}

Result<int32_t> read_count_or_zero(const JsonValue &config, std::string_view key, int32_t otherwise,
                                   int32_t most) {
    return read_integer(config, key, otherwise, 0, most);
}

Result<int32_t> read_convolution_width(const JsonValue &config, std::string_view key,
                                       int32_t otherwise) {
    ASSIGN_OR_RETURN(const int32_t width,
                     read_count(config, key, otherwise, most_convolution_width));
    if (width < 2) return config.at(key)->fail("must be at least 2");
    return width;
}

Result<std::vector<JsonValue>> read_layer_types(const JsonValue &types, size_t layers,
                                                const char *key) {
    ASSIGN_OR_RETURN(auto list, types.elements());
    if (list.size() == layers) return list;
    return error(BATCHLLM_ERROR_MODEL_FORMAT,
                 "%s: \"%s\" has %zu entries: num_hidden_layers is %zu", types.file().c_str(), key,
                 list.size(), layers);
}

Result<bool> read_flag(const JsonValue &config, std::string_view key, bool otherwise) {
    return config.boolean_or(key, otherwise);
}

Status refuse_flag(const JsonValue &config, const char *key, const char *why) {
    ASSIGN_OR_RETURN(const bool on, read_flag(config, key, false));
    return on ? config.at(key)->unsupported(why) : Status();
}

Status refuse_key(const JsonValue &config, const char *key, const char *why) {
    const auto given = config.given(key);
    return given ? given->unsupported(why) : Status();
}

Result<double> read_number(const JsonValue &config, std::string_view key, double otherwise,
                           double least, double most) {
    const auto value = config.given(key);
    if (!value) return otherwise;
    return value->number(least, most);
}

Result<Activation> read_activation(const JsonValue &config, std::string_view key,
                                   Activation otherwise) {
    const auto value = config.given(key);
    if (!value) return otherwise;
    ASSIGN_OR_RETURN(const std::string name, value->string());
    if (name == "silu" || name == "swish") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_fast") {
        return Activation::gelu_tanh;
    }
    if (name == "relu2") return Activation::relu_squared;
    return value->unsupported("only silu, gelu, gelu_pytorch_tanh and relu2 are supported");
}

Status read_tokens(const JsonValue &value, int32_t vocabulary, std::vector<int32_t> *tokens) {
    std::vector<JsonValue> list{value};
    if (value.is_array()) {
        ASSIGN_OR_RETURN(list, value.elements());
    }
    for (const JsonValue &item : list) {
        ASSIGN_OR_RETURN(const int64_t token, item.integer(0, vocabulary - 1));
        if (std::find(tokens->begin(), tokens->end(), token) == tokens->end()) {
            tokens->push_back(static_cast<int32_t>(token));
        }
    }
    return {};
}

Result<DecoderShape> read_shape(const JsonValue &config, const ConfigDefaults &defaults,
                                Model *model) {
    DecoderShape shape;
    if (const auto value = config.given("per_layer_config"); value && !defaults.per_layer) {
        return value->unsupported("layers of different shapes are not supported");
    }
    RETURN_IF_ERROR(read_dtype(config, model));
    ASSIGN_OR_RETURN(model->vocabulary,
                     read_count(config, "vocab_size", defaults.vocabulary, 1 << 24));
    ASSIGN_OR_RETURN(model->hidden, read_count(config, "hidden_size", defaults.hidden, 1 << 18));
    ASSIGN_OR_RETURN(shape.intermediate,
                     read_count(config, "intermediate_size", defaults.intermediate, 1 << 20));
    ASSIGN_OR_RETURN(shape.layers, read_count(config, "num_hidden_layers", defaults.layers, 4096));
    RETURN_IF_ERROR(read_heads(config, defaults, model->hidden, &shape));
    ASSIGN_OR_RETURN(model->max_positions, read_count(config, "max_position_embeddings",
                                                      defaults.max_positions, 1 << 30));
    ASSIGN_OR_RETURN(const double epsilon,
                     read_number(config, defaults.epsilon_key, defaults.epsilon, 0, 1));
    shape.epsilon = static_cast<float>(epsilon);
    ASSIGN_OR_RETURN(model->tied, read_flag(config, "tie_word_embeddings", defaults.tied));
    RETURN_IF_ERROR(read_special_tokens(config, defaults, model));
    return shape;
}

Result<int32_t> read_window(const JsonValue &config, int32_t otherwise) {
    if (config.find("sliding_window") && !config.given("sliding_window")) return 0;
    return read_count(config, "sliding_window", otherwise, 1 << 30);
}

Status set_window(const JsonValue &config, int32_t otherwise, Model *model) {
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, otherwise));
    for_each_attention(model, [&](size_t, Attention &attention) { attention.window = window; });
    return {};
}

Result<std::vector<bool>> read_roped_layers(const JsonValue &config, size_t layers,
                                            bool may_be_empty) {
    std::vector<bool> roped;
    std::vector<JsonValue> list;
    const auto flags = config.given("no_rope_layers");
    if (flags) {
        ASSIGN_OR_RETURN(list, flags->elements());
    }
    if (!flags || (list.empty() && may_be_empty)) {
        ASSIGN_OR_RETURN(const int32_t every,
                         read_count(config, "no_rope_layer_interval", 4, 1 << 20));
        for (size_t i = 0; i < layers; ++i) {
            roped.push_back((i + 1) % static_cast<size_t>(every) != 0);
        }
        return roped;
    }
    if (list.size() != layers) {
        return flags->fail("must have one number for each of num_hidden_layers");
    }
    for (const JsonValue &item : list) {
        ASSIGN_OR_RETURN(const int64_t flag, item.integer(0, 1));
        roped.push_back(flag != 0);
    }
    return roped;
}

Status set_windows(const JsonValue &config, int32_t window,
                   const std::function<bool(size_t layer)> &otherwise, Model *model) {
    std::vector<Layer> &layers = model->layers;
    const auto types = config.given("layer_types");
    if (!types) {
        for (size_t i = 0; i < layers.size(); ++i) {
            if (otherwise(i)) layers[i].attention()->window = window;
        }
        return {};
    }
    ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers.size()));
    for (size_t i = 0; i < list.size(); ++i) {
        ASSIGN_OR_RETURN(const std::string type, list[i].string());
        if (type == "full_attention") continue;
        if (type != "sliding_attention") {
            return list[i].unsupported("only full_attention and sliding_attention are supported");
        }
        if (window == 0) return list[i].fail("the configuration has no sliding window");
        layers[i].attention()->window = window;
    }
    return {};
}

Status set_windows_but_every(const JsonValue &config, int32_t window, const char *pattern_key,
                             int32_t pattern, Model *model) {
    if (!config.given("layer_types")) {
        ASSIGN_OR_RETURN(pattern, read_count(config, pattern_key, pattern, 4096));
    }
    const auto every = static_cast<size_t>(pattern);
    return set_windows(
        config, window, [&](size_t layer) { return (layer + 1) % every != 0; }, model);
}

} // namespace batchllm
