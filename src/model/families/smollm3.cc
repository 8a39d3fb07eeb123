// SmolLM3: the plain decoder, but every fourth layer has no rope.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// Which layers have a rope: 1 in "no_rope_layers" (sic), else all but every N-th.
Result<std::vector<bool>> read_roped(const JsonValue &config, size_t layers) {
    std::vector<bool> roped;
    const auto flags = config.given("no_rope_layers");
    if (!flags) {
        ASSIGN_OR_RETURN(const int32_t every,
                         read_count(config, "no_rope_layer_interval", 4, 1 << 20));
        for (size_t i = 0; i < layers; ++i) {
            roped.push_back((i + 1) % static_cast<size_t>(every) != 0);
        }
        return roped;
    }
    ASSIGN_OR_RETURN(const auto list, flags->elements());
    if (list.size() != layers) {
        return flags->fail("must have one number for each of num_hidden_layers");
    }
    for (const JsonValue &item : list) {
        ASSIGN_OR_RETURN(const int64_t flag, item.integer(0, 1));
        roped.push_back(flag != 0);
    }
    return roped;
}

} // namespace

Status describe_smollm3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128256;
    defaults.hidden = 2048;
    defaults.layers = 36;
    defaults.heads = 16;
    defaults.kv_heads = 4;
    defaults.max_positions = 32768;
    defaults.bos = 128000;
    defaults.eos = {128001};
    defaults.tied = true;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));

    RopeDefaults rope;
    rope.theta = 2e6;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    ASSIGN_OR_RETURN(const auto roped, read_roped(config, model->layers.size()));
    for (size_t i = 0; i < roped.size(); ++i) {
        if (!roped[i]) model->layers[i].attention()->rope = -1;
    }

    ASSIGN_OR_RETURN(const bool used, read_flag(config, "use_sliding_window", false));
    int32_t window = 0;
    if (used) {
        ASSIGN_OR_RETURN(window, read_window(config, 0));
    }
    RETURN_IF_ERROR(set_windows(
        config, window, [&](size_t layer) { return !roped[layer]; }, model));

    RETURN_IF_ERROR(set_attention_biases(config, false, model));
    return set_feed_forward_biases(config, model);
}

} // namespace batchllm
