// Seed-OSS: the plain decoder with biases on q, k and v.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_seed_oss(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 155136;
    defaults.intermediate = 27648;
    defaults.layers = 64;
    defaults.heads = 80;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 524288;
    defaults.bos = 0;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_rope(config, {}, model));
    ASSIGN_OR_RETURN(const bool qkv_bias, read_flag(config, "attention_bias", true));
    if (qkv_bias) add_qkv_biases(model);
    ASSIGN_OR_RETURN(const bool output_bias, read_flag(config, "attention_out_bias", false));
    if (output_bias) add_output_biases(model);
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
