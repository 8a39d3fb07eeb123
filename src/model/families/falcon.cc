// Falcon 7B: attention with one head of keys and values, parallel to the feed-forward after one
// LayerNorm; q, k and v in one tensor; a feed-forward of four times the width without a gate.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

Status refuse_other_falcons(const JsonValue &config) {
    struct Flag {
        const char *key;
        bool otherwise, only;
        const char *why;
    };
    for (const Flag &flag :
         {Flag{"alibi", false, false, "biases by distance (ALiBi) are not supported"},
          Flag{"new_decoder_architecture", false, false,
               "tensors with the queries, keys and values of a group of heads together are not "
               "supported"}, // Falcon 40B, 180B and 11B
          Flag{"multi_query", true, true,
               "tensors with the query, key and value of a head together are not supported"},
          Flag{"parallel_attn", true, true, "attention before the feed-forward is not supported"},
          Flag{"bias", false, false, "biases are not supported"}}) {
        ASSIGN_OR_RETURN(const bool given, read_flag(config, flag.key, flag.otherwise));
        if (given != flag.only) return config.at(flag.key)->unsupported(flag.why);
    }
    return {};
}

void name_falcon_tensors(const DecoderShape &shape, Model *model) {
    const int64_t hidden = model->hidden;
    model->embedding =
        named_weight("transformer.word_embeddings", model->vocabulary, hidden).values;
    model->final_norm = named_norm(NormKind::rms, "transformer.ln_f", hidden, shape.epsilon);
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = "transformer.h." + std::to_string(i) + ".";
        layer.before_attention =
            named_norm(NormKind::rms, prefix + "input_layernorm", hidden, shape.epsilon);
        Attention &a = *layer.attention();
        fuse_qkv(prefix + "self_attention.query_key_value", hidden, &a);
        a.o = named_weight(prefix + "self_attention.dense", hidden, a.q_size());
        FeedForward &f = *layer.feed_forward();
        f.gate = {};
        f.up = named_weight(prefix + "mlp.dense_h_to_4h", f.width, hidden);
        f.down = named_weight(prefix + "mlp.dense_4h_to_h", hidden, f.width);
    }
}

} // namespace

Status describe_falcon(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(refuse_other_falcons(config));
    ConfigDefaults defaults;
    defaults.vocabulary = 65024;
    ASSIGN_OR_RETURN(defaults.hidden, read_count(config, "n_embed", 4544, 1 << 18));
    defaults.heads = 71;
    defaults.kv_heads = 1;
    defaults.bos = 11;
    defaults.eos = {11};
    defaults.tied = true;
    defaults.epsilon_key = "layer_norm_epsilon";
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(DecoderShape shape, read_shape(config, defaults, model));
    ASSIGN_OR_RETURN(shape.intermediate,
                     read_count(config, "ffn_hidden_size", 4 * model->hidden, 1 << 20));
    describe_decoder(shape, model);
    name_falcon_tensors(shape, model);
    set_layer_norms(model);
    set_parallel(model);
    RETURN_IF_ERROR(set_activation(config, "activation", Activation::gelu, model));
    return set_rope(config, {}, model);
}

} // namespace batchllm
