// config.json and generation_config.json -> ModelConfig. A key that is absent has the default of
// transformers' configuration class of that architecture. What would change the model's output and
// is not computed here is refused by name; other keys are ignored, as transformers ignores them.
#include <algorithm>
#include <array>
#include <optional>

#include "base/json.h"
#include "model/model.h"

namespace batchllm {
namespace {

constexpr size_t file_limit = 64U << 20U;
constexpr int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;

struct Family {
    const char *model_type;
    const char *class_name; // in "architectures"
    Architecture architecture;
    int32_t vocabulary;
    int32_t intermediate;
    std::optional<int32_t> kv_heads; // nothing: as many as heads
    int32_t head_dim;                // 0: hidden / heads
    int32_t max_positions;
    std::optional<int32_t> bos;
    std::optional<int32_t> eos;
};

constexpr std::array<Family, 4> families = {{
    {"llama", "LlamaForCausalLM", Architecture::llama, 32000, 11008, std::nullopt, 0, 2048, 1, 2},
    {"mistral", "MistralForCausalLM", Architecture::mistral, 32000, 14336, 8, 0, 131072, 1, 2},
    {"qwen2", "Qwen2ForCausalLM", Architecture::qwen2, 151936, 22016, 32, 0, 32768, std::nullopt,
     std::nullopt},
    {"qwen3", "Qwen3ForCausalLM", Architecture::qwen3, 151936, 22016, 32, 128, 32768, std::nullopt,
     std::nullopt},
}};

Status unsupported(const JsonValue &value, const std::string &problem) {
    return Status(BATCHLLM_ERROR_UNSUPPORTED, value.fail(problem).message());
}

// A member that is there and not null.
std::optional<JsonValue> given(const JsonValue &object, std::string_view key) {
    auto value = object.find(key);
    if (value && value->is_null()) value.reset();
    return value;
}

Result<int32_t> count(const JsonValue &root, std::string_view key, int32_t otherwise,
                      int32_t most) {
    const auto value = given(root, key);
    if (!value) return otherwise;
    ASSIGN_OR_RETURN(const int64_t number, value->integer(1, most));
    return static_cast<int32_t>(number);
}

Result<bool> flag(const JsonValue &root, std::string_view key, bool otherwise) {
    const auto value = given(root, key);
    if (!value) return otherwise;
    return value->boolean();
}

Result<const Family *> find_family(const JsonValue &root) {
    ASSIGN_OR_RETURN(const JsonValue type, root.at("model_type"));
    ASSIGN_OR_RETURN(const std::string name, type.string());
    const auto *const family =
        std::find_if(families.begin(), families.end(),
                     [&](const Family &known) { return name == known.model_type; });
    if (family == families.end()) {
        return unsupported(type, "this version runs llama, mistral, qwen2 and qwen3");
    }
    if (const auto classes = given(root, "architectures")) {
        ASSIGN_OR_RETURN(const auto list, classes->elements());
        for (const JsonValue &item : list) {
            ASSIGN_OR_RETURN(const std::string class_name, item.string());
            if (class_name != family->class_name) {
                return unsupported(item, std::string("only ") + family->class_name +
                                             " goes with model_type " + family->model_type);
            }
        }
        if (list.empty()) return classes->fail("must name a class");
    }
    return &*family;
}

Status refuse_unsupported(const JsonValue &root) {
    if (const auto value = given(root, "quantization_config")) {
        return unsupported(*value, "quantized weights are not supported");
    }
    if (const auto value = given(root, "per_layer_config")) {
        return unsupported(*value, "layers of different shapes are not supported");
    }
    if (const auto value = given(root, "is_encoder_decoder")) {
        ASSIGN_OR_RETURN(const bool yes, value->boolean());
        if (yes) return unsupported(*value, "only decoders are supported");
    }
    if (const auto value = given(root, "hidden_act")) {
        ASSIGN_OR_RETURN(const std::string name, value->string());
        if (name != "silu") return unsupported(*value, "only silu is supported");
    }
    return {};
}

Status read_dtype(const JsonValue &root, ModelConfig *config) {
    auto value = given(root, "dtype");
    if (!value) value = given(root, "torch_dtype");
    config->dtype_stated = value.has_value();
    if (!value) return {};
    ASSIGN_OR_RETURN(const std::string name, value->string());
    if (name == "float32" || name == "float") {
        config->dtype = DType::f32;
    } else if (name == "bfloat16") {
        config->dtype = DType::bf16;
    } else if (name == "float16" || name == "half") {
        config->dtype = DType::f16;
    } else {
        return unsupported(*value, "only float32, bfloat16 and float16 are supported");
    }
    return {};
}

Status read_shape(const JsonValue &root, const Family &family, ModelConfig *config) {
    ASSIGN_OR_RETURN(config->vocabulary, count(root, "vocab_size", family.vocabulary, 1 << 24));
    ASSIGN_OR_RETURN(config->hidden, count(root, "hidden_size", 4096, 1 << 18));
    ASSIGN_OR_RETURN(config->intermediate,
                     count(root, "intermediate_size", family.intermediate, 1 << 20));
    ASSIGN_OR_RETURN(config->layers, count(root, "num_hidden_layers", 32, 4096));
    ASSIGN_OR_RETURN(config->heads, count(root, "num_attention_heads", 32, 1 << 14));
    // Absent is the class's default; null is as many as heads.
    const bool absent = !root.find("num_key_value_heads");
    ASSIGN_OR_RETURN(config->kv_heads,
                     count(root, "num_key_value_heads",
                           absent ? family.kv_heads.value_or(config->heads) : config->heads,
                           1 << 14));
    if (config->heads % config->kv_heads != 0) {
        return error(code, "%s: \"num_key_value_heads\" is %d: must divide num_attention_heads, %d",
                     root.file().c_str(), config->kv_heads, config->heads);
    }
    const int32_t ratio = config->hidden / config->heads;
    ASSIGN_OR_RETURN(config->head_dim,
                     count(root, "head_dim", family.head_dim != 0 ? family.head_dim : ratio, 1024));
    if (!given(root, "head_dim") && family.head_dim == 0 && config->hidden % config->heads != 0) {
        return error(code, "%s: \"hidden_size\" is %d: not a multiple of num_attention_heads, %d",
                     root.file().c_str(), config->hidden, config->heads);
    }
    if (config->head_dim < 2 || config->head_dim % 2 != 0 || config->head_dim > 1024) {
        return error(code, "%s: \"head_dim\" is %d: must be even and from 2 to 1024",
                     root.file().c_str(), config->head_dim);
    }
    ASSIGN_OR_RETURN(config->max_positions,
                     count(root, "max_position_embeddings", family.max_positions, 1 << 30));
    if (const auto epsilon = given(root, "rms_norm_eps")) {
        ASSIGN_OR_RETURN(config->norm_epsilon, epsilon->number(0, 1));
    } else {
        config->norm_epsilon = 1e-6;
    }
    ASSIGN_OR_RETURN(config->tied_embeddings, flag(root, "tie_word_embeddings", false));
    return {};
}

// Which projections have a bias, and whether heads are normed. Keys that the family's class does
// not know are ignored here; a checkpoint that has the tensors all the same fails on those.
Status read_biases(const JsonValue &root, ModelConfig *config) {
    switch (config->architecture) {
    case Architecture::llama: {
        ASSIGN_OR_RETURN(config->attention_bias, flag(root, "attention_bias", false));
        config->attention_output_bias = config->attention_bias;
        ASSIGN_OR_RETURN(config->mlp_bias, flag(root, "mlp_bias", false));
        break;
    }
    case Architecture::mistral:
        break;
    case Architecture::qwen2:
        config->attention_bias = true;
        break;
    case Architecture::qwen3: {
        ASSIGN_OR_RETURN(config->attention_bias, flag(root, "attention_bias", false));
        config->attention_output_bias = config->attention_bias;
        config->qk_norm = true;
        break;
    }
    }
    return {};
}

// "layer_types" says of each layer whether it sees everything or the window. Layers that see
// everything must come first.
Status read_layer_types(const JsonValue &types, ModelConfig *config) {
    ASSIGN_OR_RETURN(const auto list, types.elements());
    if (list.size() != static_cast<size_t>(config->layers)) {
        return error(code, "%s: \"layer_types\" has %zu entries: num_hidden_layers is %d",
                     types.file().c_str(), list.size(), config->layers);
    }
    int32_t full = 0;
    for (size_t i = 0; i < list.size(); ++i) {
        ASSIGN_OR_RETURN(const std::string type, list[i].string());
        if (type == "full_attention") {
            if (full != static_cast<int32_t>(i)) {
                return unsupported(list[i],
                                   "full attention above a sliding layer is not supported");
            }
            ++full;
        } else if (type != "sliding_attention") {
            return unsupported(list[i], "only full_attention and sliding_attention are supported");
        } else if (config->sliding_window == 0) {
            return list[i].fail("the configuration has no sliding window");
        }
    }
    config->full_attention_layers = config->sliding_window == 0 ? 0 : full;
    return {};
}

Status read_window(const JsonValue &root, ModelConfig *config) {
    constexpr int32_t window_default = 4096;
    constexpr int32_t window_most = 1 << 30;
    const bool is_null = root.find("sliding_window") && !given(root, "sliding_window");
    const auto types = given(root, "layer_types");
    switch (config->architecture) {
    case Architecture::llama:
        break;
    case Architecture::mistral: {
        if (is_null) break;
        ASSIGN_OR_RETURN(config->sliding_window,
                         count(root, "sliding_window", window_default, window_most));
        break;
    }
    case Architecture::qwen2:
    case Architecture::qwen3: {
        ASSIGN_OR_RETURN(const bool used, flag(root, "use_sliding_window", false));
        if (!used || is_null) break;
        ASSIGN_OR_RETURN(config->sliding_window,
                         count(root, "sliding_window", window_default, window_most));
        const auto below = given(root, "max_window_layers");
        int64_t full = 28;
        if (below) {
            ASSIGN_OR_RETURN(full, below->integer(0, 1 << 20));
        }
        config->full_attention_layers =
            static_cast<int32_t>(std::min<int64_t>(full, config->layers));
        break;
    }
    }
    if (types) RETURN_IF_ERROR(read_layer_types(*types, config));
    // A window that no layer has, or that no position can exceed.
    if (config->full_attention_layers == config->layers) config->sliding_window = 0;
    if (config->sliding_window == 0) config->full_attention_layers = 0;
    return {};
}

// The value of one of two spellings of the same thing; an error when they disagree.
Result<std::optional<std::string>> rope_type(const JsonValue &rope) {
    std::optional<std::string> found;
    for (const char *key : {"rope_type", "type"}) {
        const auto value = given(rope, key);
        if (!value) continue;
        ASSIGN_OR_RETURN(std::string name, value->string());
        if (found && *found != name) {
            return value->fail("but rope_type is \"" + printable(*found) + "\"");
        }
        found = std::move(name);
    }
    return found;
}

Status refuse_partial_rotary(const JsonValue &object) {
    if (const auto value = given(object, "partial_rotary_factor")) {
        ASSIGN_OR_RETURN(const double factor, value->number(0, 1));
        if (factor != 1) return unsupported(*value, "rotating a part of a head is not supported");
    }
    return {};
}

// Rope keys stand at the top ("rope_theta", "rope_scaling") or in one object ("rope_parameters").
Status read_rope(const JsonValue &root, ModelConfig *config) {
    constexpr double theta_most = 1e18;
    constexpr double factor_most = 1e6;
    RopeConfig &rope = config->rope;
    RETURN_IF_ERROR(refuse_partial_rotary(root));
    const auto top_theta = given(root, "rope_theta");
    if (top_theta) {
        ASSIGN_OR_RETURN(rope.theta, top_theta->number(1, theta_most));
    }
    auto object = given(root, "rope_parameters");
    if (auto scaling = given(root, "rope_scaling")) {
        if (object) return scaling->fail("rope_parameters is there too: which of them counts?");
        object = std::move(scaling);
    }
    if (!object) return {};
    ASSIGN_OR_RETURN(const auto members, object->members());
    for (const auto &[key, value] : members) {
        if (value.is_object()) {
            return unsupported(value, "rope parameters by layer type are not supported");
        }
    }
    RETURN_IF_ERROR(refuse_partial_rotary(*object));
    if (const auto theta = given(*object, "rope_theta")) {
        ASSIGN_OR_RETURN(const double value, theta->number(1, theta_most));
        if (top_theta && value != rope.theta) return theta->fail("rope_theta at the top differs");
        rope.theta = value;
    }
    ASSIGN_OR_RETURN(const auto type, rope_type(*object));
    if (!type || *type == "default") return {};
    if (*type != "linear" && *type != "llama3") {
        const auto named = given(*object, "rope_type");
        return unsupported(named ? *named : *object->find("type"),
                           "only default, linear and llama3 are supported");
    }
    ASSIGN_OR_RETURN(const JsonValue factor, object->at("factor"));
    ASSIGN_OR_RETURN(rope.factor, factor.number(1, factor_most));
    if (*type == "linear") {
        rope.kind = RopeKind::linear;
        return {};
    }
    rope.kind = RopeKind::llama3;
    ASSIGN_OR_RETURN(const JsonValue low, object->at("low_freq_factor"));
    ASSIGN_OR_RETURN(rope.low_freq_factor, low.number(1e-6, factor_most));
    ASSIGN_OR_RETURN(const JsonValue high, object->at("high_freq_factor"));
    ASSIGN_OR_RETURN(rope.high_freq_factor, high.number(1e-6, factor_most));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
        return high.fail("must be greater than low_freq_factor");
    }
    // transformers lets the one at the top win, and falls back on the longest request.
    auto original = given(root, "original_max_position_embeddings");
    if (!original) original = given(*object, "original_max_position_embeddings");
    rope.original_max_positions = config->max_positions;
    if (original) {
        ASSIGN_OR_RETURN(rope.original_max_positions, original->integer(1, 1 << 30));
    }
    return {};
}

// A number or a list of them. Each must be a token.
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

Status read_special_tokens(const JsonValue &root, const Family &family,
                           const std::string &model_dir, ModelConfig *config) {
    // A default that the vocabulary does not hold is nobody's token.
    if (const auto bos = given(root, "bos_token_id")) {
        ASSIGN_OR_RETURN(const int64_t token, bos->integer(0, config->vocabulary - 1));
        config->bos_token = static_cast<int32_t>(token);
    } else if (!root.find("bos_token_id") && family.bos.value_or(-1) < config->vocabulary) {
        config->bos_token = family.bos.value_or(-1);
    }
    const std::string path = model_dir + "/generation_config.json";
    ASSIGN_OR_RETURN(const bool given_apart, file_exists(path));
    if (given_apart) {
        ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::load(path, file_limit, code));
        if (!document.root().is_object()) return document.root().fail("must be an object");
        if (const auto eos = given(document.root(), "eos_token_id")) {
            return read_tokens(*eos, config->vocabulary, &config->eos_tokens);
        }
    }
    if (const auto eos = given(root, "eos_token_id")) {
        return read_tokens(*eos, config->vocabulary, &config->eos_tokens);
    }
    if (!root.find("eos_token_id") && family.eos && *family.eos < config->vocabulary) {
        config->eos_tokens = {*family.eos};
    }
    return {};
}

} // namespace

Result<ModelConfig> load_config(const std::string &model_dir) {
    const std::string path = model_dir + "/config.json";
    ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::load(path, file_limit, code));
    const JsonValue root = document.root();
    if (!root.is_object()) return root.fail("must be an object");
    ASSIGN_OR_RETURN(const Family *const family, find_family(root));
    RETURN_IF_ERROR(refuse_unsupported(root));
    ModelConfig config;
    config.architecture = family->architecture;
    RETURN_IF_ERROR(read_dtype(root, &config));
    RETURN_IF_ERROR(read_shape(root, *family, &config));
    RETURN_IF_ERROR(read_biases(root, &config));
    RETURN_IF_ERROR(read_window(root, &config));
    RETURN_IF_ERROR(read_rope(root, &config));
    RETURN_IF_ERROR(read_special_tokens(root, *family, model_dir, &config));
    return config;
}

} // namespace batchllm
