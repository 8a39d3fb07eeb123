// Qwen2 and 2.5: biases on q, k and v; a window on the layers from max_window_layers on, where it is
// used at all. Qwen3: a norm on each head of q and k, biases by option.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status describe_both(const JsonValue &config, int32_t head_dim, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 151936;
    defaults.intermediate = 22016;
    defaults.kv_heads = 32;
    defaults.head_dim = head_dim;
    defaults.max_positions = 32768;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    RETURN_IF_ERROR(describe_decoder(config, shape, model));
    ASSIGN_OR_RETURN(const Activation activation,
                     read_activation(config, "hidden_act", Activation::silu));
    for (Layer &layer : model->layers) layer.feed_forward.activation = activation;

    ASSIGN_OR_RETURN(const bool used, read_flag(config, "use_sliding_window", false));
    int32_t window = 0;
    int64_t full = 28;
    if (used) {
        ASSIGN_OR_RETURN(window, read_window(config, 4096));
        if (const auto below = config.given("max_window_layers")) {
            ASSIGN_OR_RETURN(full, below->integer(0, 1 << 20));
        }
    }
    return set_windows(config, window, full, model);
}

} // namespace

Status describe_qwen2(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, 0, model));
    for (Layer &layer : model->layers) {
        Attention &attention = layer.attention;
        for (Weight *w : {&attention.q, &attention.k, &attention.v}) add_bias(w);
    }
    return {};
}

Status describe_qwen3(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_both(config, 128, model));
    ASSIGN_OR_RETURN(const bool bias, read_flag(config, "attention_bias", false));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Attention &attention = model->layers[i].attention;
        const std::string name = layer_prefix(i) + "self_attn.";
        const float epsilon = model->final_norm.epsilon;
        attention.q_norm = named_norm(NormKind::rms, name + "q_norm", attention.head_dim, epsilon);
        attention.k_norm = named_norm(NormKind::rms, name + "k_norm", attention.head_dim, epsilon);
        if (!bias) continue;
        for (Weight *w : {&attention.q, &attention.k, &attention.v, &attention.o}) add_bias(w);
    }
    return {};
}

} // namespace batchllm
