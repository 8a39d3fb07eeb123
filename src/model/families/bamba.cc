// Bamba: Mamba-2 in most layers, attention in the others, with a rope on half of each head; dense.

#include "model/families/families.h"
#include "model/families/mamba.h"

namespace batchllm {
namespace {

// One entry per layer, true for Mamba-2.
Result<std::vector<bool>> read_bamba_layers(const JsonValue &config, size_t layers) {
    std::vector<bool> mamba(layers, true);
    ASSIGN_OR_RETURN(const JsonValue indices, config.at("attn_layer_indices"));
    ASSIGN_OR_RETURN(const auto list, indices.elements());
    for (const JsonValue &item : list) {
        ASSIGN_OR_RETURN(const int64_t layer, item.integer(0, static_cast<int64_t>(layers) - 1));
        mamba[static_cast<size_t>(layer)] = false;
    }
    if (!list.empty()) return mamba;
    return indices.unsupported("a model without a layer of attention is not supported");
}

// transformers rotates half of a head whatever the top-level key says; "rope_parameters" may
// override it.
Status set_half_rope(const JsonValue &config, Model *model) {
    const auto part = config.given("partial_rotary_factor");
    if (part && !part->number(0.5, 0.5).ok()) {
        return part->unsupported("only 0.5 is supported outside of rope_parameters");
    }
    RopeDefaults rope;
    rope.part = 0.5;
    rope.partial = true;
    return set_rope(config, rope, model);
}

} // namespace

Status describe_bamba(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128000;
    defaults.intermediate = 14336;
    defaults.kv_heads = 8;
    defaults.max_positions = 262144;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_half_rope(config, model));
    set_bamba_names(shape, model);
    RETURN_IF_ERROR(set_feed_forward_biases(config, model));
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    ASSIGN_OR_RETURN(const std::vector<bool> types,
                     read_bamba_layers(config, model->layers.size()));
    return set_mamba_layers(config, types, model);
}

} // namespace batchllm
