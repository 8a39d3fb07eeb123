// Granite 4: Mamba-2 in most layers, attention in the others, usually without a rope; dense, or
// with experts beside a feed-forward. Its smallest models have attention in all layers.
#include <algorithm>

#include "model/families/families.h"
#include "model/families/granite.h"
#include "model/families/mamba.h"

namespace batchllm {
namespace {

// One entry per layer, true for Mamba-2, which all layers are if there is no list.
Result<std::vector<bool>> read_granite_layers(const JsonValue &config, size_t layers) {
    std::vector<bool> mamba(layers, true);
    const char *key = config.given("layers_block_type") && !config.given("layer_types")
                          ? "layers_block_type"
                          : "layer_types";
    if (const auto types = config.given(key)) {
        ASSIGN_OR_RETURN(const auto list, read_layer_types(*types, layers, key));
        for (size_t i = 0; i < layers; ++i) {
            ASSIGN_OR_RETURN(const std::string type, list[i].string());
            mamba[i] = type == "mamba" || type == "linear_attention";
            if (!mamba[i] && type != "attention" && type != "full_attention") {
                return list[i].unsupported("only mamba and attention are supported");
            }
        }
    }
    if (std::find(mamba.begin(), mamba.end(), false) != mamba.end()) return mamba;
    return error(BATCHLLM_ERROR_UNSUPPORTED,
                 "%s: \"%s\": a model without a layer of attention is not supported",
                 config.file().c_str(), key);
}

Status set_feed_forwards(const JsonValue &config, Model *model) {
    const auto experts = config.given("num_local_experts");
    const bool dense = experts && experts->integer(0, 0).ok();
    if (!dense) RETURN_IF_ERROR(set_granite_experts(config, model));
    ASSIGN_OR_RETURN(const int32_t width,
                     read_count(config, "shared_intermediate_size", 1024, 1 << 20));
    set_shared_feed_forward(width, model);
    return set_activation(config, "hidden_act", Activation::silu, model);
}

// "position_embedding_type": "rope"; otherwise there is none.
Status set_positions(const JsonValue &config, Model *model) {
    const auto type = config.given("position_embedding_type");
    if (!type) return {};
    ASSIGN_OR_RETURN(const std::string name, type->string());
    if (name == "rope") return set_rope(config, {}, model);
    if (name == "nope") return {};
    return type->unsupported("only rope and nope are supported");
}

} // namespace

Status describe_granite_hybrid(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    if (const auto norm = config.given("normalization_function")) {
        ASSIGN_OR_RETURN(const std::string name, norm->string());
        if (name != "rmsnorm") return norm->unsupported("only rmsnorm is supported");
    }
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_positions(config, model));
    RETURN_IF_ERROR(set_multipliers(config, model));
    RETURN_IF_ERROR(set_feed_forwards(config, model));
    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    ASSIGN_OR_RETURN(const std::vector<bool> types,
                     read_granite_layers(config, model->layers.size()));
    return set_mamba_layers(config, types, model);
}

} // namespace batchllm
