// The decoder that most families are variations of.
#include <cmath>

#include "model/config.h"

namespace batchllm {

Weight named_weight(const std::string &prefix, int64_t rows, int64_t columns) {
    Weight weight;
    weight.values.rows = rows;
    weight.values.columns = columns;
    weight.values.name = prefix + ".weight";
    return weight;
}

void add_bias(Weight *weight) {
    std::string name = weight->values.name;
    name.resize(name.size() - std::string_view("weight").size());
    weight->bias.rows = weight->values.rows;
    weight->bias.columns = 1;
    weight->bias.name = name + "bias";
}

Norm named_norm(NormKind kind, const std::string &prefix, int64_t length, float epsilon) {
    Norm norm;
    norm.kind = kind;
    norm.weight = named_weight(prefix, length, 1).values;
    norm.epsilon = epsilon;
    return norm;
}

std::string layer_prefix(size_t layer) { return "model.layers." + std::to_string(layer) + "."; }

namespace {

Layer decoder_layer(const std::string &prefix, const DecoderShape &shape, int32_t rope,
                    int64_t hidden) {
    Layer layer;
    layer.before_attention =
        named_norm(NormKind::rms, prefix + "input_layernorm", hidden, shape.epsilon);
    layer.before_feed_forward =
        named_norm(NormKind::rms, prefix + "post_attention_layernorm", hidden, shape.epsilon);

    Attention &attention = layer.attention;
    attention.heads = shape.heads;
    attention.kv_heads = shape.kv_heads;
    attention.head_dim = shape.head_dim;
    attention.rope = rope;
    attention.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    const std::string name = prefix + "self_attn.";
    attention.q = named_weight(name + "q_proj", attention.q_size(), hidden);
    attention.k = named_weight(name + "k_proj", attention.kv_size(), hidden);
    attention.v = named_weight(name + "v_proj", attention.kv_size(), hidden);
    attention.o = named_weight(name + "o_proj", hidden, attention.q_size());

    FeedForward &feed_forward = layer.feed_forward;
    feed_forward.width = shape.intermediate;
    feed_forward.gate = named_weight(prefix + "mlp.gate_proj", shape.intermediate, hidden);
    feed_forward.up = named_weight(prefix + "mlp.up_proj", shape.intermediate, hidden);
    feed_forward.down = named_weight(prefix + "mlp.down_proj", hidden, shape.intermediate);
    return layer;
}

} // namespace

Status describe_decoder(const JsonValue &config, const DecoderShape &shape, Model *model) {
    model->embedding = named_weight("model.embed_tokens", model->vocabulary, model->hidden).values;
    model->final_norm = named_norm(NormKind::rms, "model.norm", model->hidden, shape.epsilon);
    model->head = named_weight("lm_head", model->vocabulary, model->hidden);
    ASSIGN_OR_RETURN(Rope rope, read_rope(config, *model, shape.head_dim));
    const int32_t index = add_rope(model, std::move(rope));
    for (int32_t i = 0; i < shape.layers; ++i) {
        model->layers.push_back(
            decoder_layer(layer_prefix(static_cast<size_t>(i)), shape, index, model->hidden));
    }
    return {};
}

} // namespace batchllm
