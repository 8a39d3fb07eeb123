// The decoder that most families are variants of.
#include <cmath>

#include "model/config.h"

namespace batchllm {
namespace {

// `prefix`.weight -> `prefix`.bias
std::string bias_name(std::string name) {
    name.resize(name.size() - std::string_view("weight").size());
    return name + "bias";
}

} // namespace

Weight named_weight(const std::string &prefix, int64_t rows, int64_t columns) {
    Weight weight;
    weight.values.rows = rows;
    weight.values.columns = columns;
    weight.values.name = prefix + ".weight";
    return weight;
}

void add_bias(Weight *weight) {
    weight->bias.rows = weight->values.rows;
    weight->bias.columns = 1;
    weight->bias.name = bias_name(weight->values.name);
}

Weight fused_weight(const std::string &prefix, int64_t stored, int64_t first, int64_t rows,
                    int64_t columns) {
    Weight weight = named_weight(prefix, rows, columns);
    weight.values.stored_rows = stored;
    weight.values.first_row = first;
    return weight;
}

Weight rows_of_stack(const TransposedStack &stack, int32_t index, int64_t first, int64_t rows,
                     int64_t step) {
    Weight weight;
    Tensor &values = weight.values;
    values.rows = rows;
    values.columns = stack.columns;
    values.name = stack.name;
    values.stored_rows = stack.stored;
    values.first_row = index * stack.stored + first;
    values.stored_stack = stack.count;
    values.row_step = step;
    values.stored_transposed = true;
    return weight;
}

Tensor named_vector(std::string name, int64_t length) {
    Tensor vector;
    vector.name = std::move(name);
    vector.rows = length;
    vector.columns = 1;
    return vector;
}

Weight named_convolution(const std::string &prefix, int64_t channels, int64_t first, int64_t rows,
                         int64_t width) {
    Weight weight = fused_weight(prefix, 1, first, rows, width);
    weight.values.stored_stack = channels;
    return weight;
}

Norm named_norm(NormKind kind, const std::string &prefix, int64_t length, float epsilon) {
    Norm norm;
    norm.kind = kind;
    norm.weight = named_weight(prefix, length, 1).values;
    norm.epsilon = epsilon;
    return norm;
}

FeedForward named_feed_forward(const std::string &prefix, int32_t width, int64_t hidden) {
    FeedForward feed_forward;
    feed_forward.width = width;
    feed_forward.gate = named_weight(prefix + "gate_proj", width, hidden);
    feed_forward.up = named_weight(prefix + "up_proj", width, hidden);
    feed_forward.down = named_weight(prefix + "down_proj", hidden, width);
    return feed_forward;
}

std::string layer_prefix(size_t layer) { return "model.layers." + std::to_string(layer) + "."; }

namespace {

Layer decoder_layer(const std::string &prefix, const DecoderShape &shape, int64_t hidden) {
    Layer layer;
    layer.before_attention =
        named_norm(NormKind::rms, prefix + "input_layernorm", hidden, shape.epsilon);
    layer.before_feed_forward =
        named_norm(NormKind::rms, prefix + "post_attention_layernorm", hidden, shape.epsilon);

    Attention &attention = layer.mixer.emplace<Attention>();
    attention.heads = shape.heads;
    attention.kv_heads = shape.kv_heads;
    attention.head_dim = shape.head_dim;
    attention.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
    const std::string name = prefix + "self_attn.";
    attention.q = named_weight(name + "q_proj", attention.q_size(), hidden);
    attention.k = named_weight(name + "k_proj", attention.kv_size(), hidden);
    attention.v = named_weight(name + "v_proj", attention.kv_size(), hidden);
    attention.o = named_weight(name + "o_proj", hidden, attention.q_size());

    layer.feed = named_feed_forward(prefix + "mlp.", shape.intermediate, hidden);
    return layer;
}

} // namespace

void describe_decoder(const DecoderShape &shape, Model *model) {
    model->embedding = named_weight("model.embed_tokens", model->vocabulary, model->hidden).values;
    model->final_norm = named_norm(NormKind::rms, "model.norm", model->hidden, shape.epsilon);
    model->head = named_weight("lm_head", model->vocabulary, model->hidden);
    for (int32_t i = 0; i < shape.layers; ++i) {
        model->layers.push_back(
            decoder_layer(layer_prefix(static_cast<size_t>(i)), shape, model->hidden));
    }
}

void for_each_attention(Model *model,
                        const std::function<void(size_t layer, Attention &)> &change) {
    for (size_t i = 0; i < model->layers.size(); ++i) {
        if (Attention *attention = model->layers[i].attention()) change(i, *attention);
    }
}

Status set_activation(const JsonValue &config, std::string_view key, Activation otherwise,
                      Model *model) {
    ASSIGN_OR_RETURN(const Activation activation, read_activation(config, key, otherwise));
    for (Layer &layer : model->layers) {
        if (FeedForward *feed_forward = layer.feed_forward()) feed_forward->activation = activation;
        if (Experts *experts = layer.experts()) {
            for (FeedForward &expert : experts->each) expert.activation = activation;
        }
    }
    return {};
}

void add_qkv_biases(Model *model) {
    for_each_attention(model, [](size_t, Attention &attention) {
        for (Weight *w : {&attention.q, &attention.k, &attention.v}) add_bias(w);
    });
}

void add_output_biases(Model *model) {
    for_each_attention(model, [](size_t, Attention &attention) { add_bias(&attention.o); });
}

void add_feed_forward_biases(Model *model) {
    for (Layer &layer : model->layers) {
        FeedForward *feed_forward = layer.feed_forward();
        if (feed_forward == nullptr) continue;
        for (Weight *w : {&feed_forward->gate, &feed_forward->up, &feed_forward->down}) {
            if (*w) add_bias(w);
        }
    }
}

Status set_attention_biases(const JsonValue &config, bool otherwise, Model *model) {
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "attention_bias", otherwise));
    if (!biases) return {};
    add_qkv_biases(model);
    add_output_biases(model);
    return {};
}

Status set_feed_forward_biases(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "mlp_bias", false));
    if (biases) add_feed_forward_biases(model);
    return {};
}

void fuse_qkv(const std::string &prefix, int64_t hidden, Attention *attention) {
    const int64_t stored = attention->q_size() + 2 * attention->kv_size();
    int64_t first = 0;
    for (Weight *weight : {&attention->q, &attention->k, &attention->v}) {
        const int64_t rows = weight->rows();
        *weight = fused_weight(prefix, stored, first, rows, hidden);
        first += rows;
    }
}

void set_parallel(Model *model) {
    for (Layer &layer : model->layers) {
        layer.before_feed_forward = {};
        layer.parallel = true;
    }
}

void set_layer_norms(Model *model) {
    const auto change = [](Norm *norm) {
        norm->kind = NormKind::layer;
        norm->bias = norm->weight;
        norm->bias.name = bias_name(norm->weight.name);
    };
    change(&model->final_norm);
    for (Layer &layer : model->layers) {
        change(&layer.before_attention);
        change(&layer.before_feed_forward);
    }
}

void set_head_norms(Model *model) {
    for_each_attention(model, [&](size_t i, Attention &attention) {
        const std::string name = layer_prefix(i) + "self_attn.";
        const float epsilon = model->final_norm.epsilon;
        attention.q_norm = named_norm(NormKind::rms, name + "q_norm", attention.head_dim, epsilon);
        attention.k_norm = named_norm(NormKind::rms, name + "k_norm", attention.head_dim, epsilon);
    });
}

void set_whole_norms(Model *model) {
    for_each_attention(model, [&](size_t i, Attention &attention) {
        const std::string name = layer_prefix(i) + "self_attn.";
        const float epsilon = model->final_norm.epsilon;
        attention.norm_whole = true;
        attention.q_norm = named_norm(NormKind::rms, name + "q_norm", attention.q_size(), epsilon);
        attention.k_norm = named_norm(NormKind::rms, name + "k_norm", attention.kv_size(), epsilon);
    });
}

void fuse_gate_up(Model *model) {
    for (size_t i = 0; i < model->layers.size(); ++i) {
        FeedForward &feed_forward = *model->layers[i].feed_forward();
        const int64_t width = feed_forward.width;
        const std::string name = layer_prefix(i) + "mlp.gate_up_proj";
        feed_forward.gate = fused_weight(name, 2 * width, 0, width, model->hidden);
        feed_forward.up = fused_weight(name, 2 * width, width, width, model->hidden);
    }
}

void set_norms_after(Model *model) {
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const float epsilon = model->final_norm.epsilon;
        layer.before_attention = {};
        layer.after_attention = named_norm(
            NormKind::rms, layer_prefix(i) + "post_attention_layernorm", model->hidden, epsilon);
        layer.before_feed_forward = {};
        layer.after_feed_forward = named_norm(
            NormKind::rms, layer_prefix(i) + "post_feedforward_layernorm", model->hidden, epsilon);
    }
}

void set_norm_offsets(float offset, Model *model) {
    model->final_norm.offset = offset;
    for (Layer &layer : model->layers) {
        for (Norm *norm : {&layer.before_attention, &layer.after_attention,
                           &layer.before_feed_forward, &layer.after_feed_forward}) {
            norm->offset = offset;
        }
    }
    for_each_attention(model, [&](size_t, Attention &attention) {
        attention.q_norm.offset = attention.k_norm.offset = offset;
    });
}

} // namespace batchllm
