// Phi-3, 3.5 and 4: q, k and v in one tensor, gate and up in another; part of each head rotates;
// longrope, whose factors depend on how long rows may become.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
Status describe_phi3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 32064;
    defaults.hidden = 3072;
    defaults.intermediate = 8192;
    defaults.max_positions = 4096;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {32000};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    for_each_attention(model, [&](size_t i, Attention &attention) {
        fuse_qkv(layer_prefix(i) + "self_attn.qkv_proj", model->hidden, &attention);
    });
    fuse_gate_up(model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));

    RopeDefaults rope;
    rope.partial = true;
    rope.original_positions = 4096;
    rope.longrope_aliases = {"su", "yarn"};
    RETURN_IF_ERROR(set_rope(config, rope, model));
    return set_window(config, 0, model);
}

} // namespace batchllm
