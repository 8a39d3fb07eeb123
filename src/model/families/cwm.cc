// Code World Model: Llama with a window on all layers but the first of every four.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// The class's default if a configuration has no rope keys.
constexpr std::string_view cwm_rope = R"({"rope_parameters": {"rope_type": "llama3",
    "rope_theta": 1000000.0, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192}})";

} // namespace

Status describe_cwm(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 128256;
    defaults.hidden = 6144;
    defaults.intermediate = 21504;
    defaults.layers = 64;
    defaults.heads = 48;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    defaults.bos = 128000;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    if (!config.given("eos_token_id")) { // null too
        for (const int32_t token : {128001, 128008, 128009}) {
            if (token < model->vocabulary) model->eos_tokens.push_back(token);
        }
    }
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));
    RETURN_IF_ERROR(set_feed_forward_biases(config, model));

    ASSIGN_OR_RETURN(const RopeKeys rope, RopeKeys::of(config, cwm_rope));
    RETURN_IF_ERROR(set_rope(rope.value(), {}, model));

    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 8192));
    return set_windows(
        config, window, [](size_t layer) { return layer % 4 != 0; }, model);
}

} // namespace batchllm
