// StableLM: LayerNorms, a gated feed-forward, a part of each head rotates; attention and feed-forward
// may be parallel after one norm.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {

Status describe_stablelm(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 50304;
    defaults.hidden = 2560;
    defaults.intermediate = 6912;
    defaults.kv_heads = 32;
    defaults.max_positions = 4096;
    defaults.bos = 0;
    defaults.eos = {0};
    defaults.epsilon_key = "layer_norm_eps";
    defaults.epsilon = 1e-5;
    RETURN_IF_ERROR(refuse_flag(config, "qk_layernorm", // StableLM 2 12B
                                "norms with a weight for each head are not supported"));
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    set_layer_norms(model);
    ASSIGN_OR_RETURN(const bool parallel, read_flag(config, "use_parallel_residual", false));
    if (parallel) set_parallel(model);
    ASSIGN_OR_RETURN(const bool biases, read_flag(config, "use_qkv_bias", false));
    if (biases) add_qkv_biases(model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RopeDefaults rope;
    rope.part = 0.25;
    rope.partial = true;
    return set_rope(config, rope, model);
}

} // namespace batchllm
