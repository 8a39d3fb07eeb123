// Ministral 3: Mistral with YaRN and queries that grow with their position. Mistral Small 3 and
// Ministral 3 are published as the text model of a checkpoint with a vision tower.
#include "model/families/ministral3.h"

#include "model/families/families.h"
#include "model/families/pixtral.h"

namespace batchllm {
namespace {

// The class's default if a configuration has no rope keys.
constexpr std::string_view ministral3_rope = R"({"rope_parameters": {"rope_type": "yarn",
    "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1}})";

Status describe_mistral3_text(const JsonValue &config, Model *model) {
    ASSIGN_OR_RETURN(const auto type, config.string("model_type"));
    if (type == "mistral") return describe_mistral(config, model);
    if (type == "ministral3") return describe_ministral3(config, model);
    if (type == "mistral4") return describe_mistral4(config, model);
    return config.at("model_type")
        ->unsupported("only mistral, ministral3 and mistral4 go with mistral3");
}

} // namespace

Status set_long_scale(const JsonValue &config, Model *model) {
    auto rope = config.given("rope_parameters");
    if (!rope) rope = config.given("rope_scaling");
    if (!rope) return {};
    ASSIGN_OR_RETURN(const double scale, read_number(*rope, "llama_4_scaling_beta", 0, 0, 1e6));
    ASSIGN_OR_RETURN(const int32_t period, read_count(*rope, "original_max_position_embeddings",
                                                      model->max_positions, 1 << 30));
    for_each_attention(model, [&](size_t, Attention &attention) {
        attention.long_scale = static_cast<float>(scale);
        attention.long_period = period;
    });
    return {};
}

Status describe_ministral3(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 131072;
    defaults.intermediate = 14336;
    defaults.layers = 34;
    defaults.kv_heads = 8;
    defaults.head_dim = 128;
    defaults.max_positions = 262144;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_activation(config, "hidden_act", Activation::silu, model));

    ASSIGN_OR_RETURN(const RopeKeys rope, RopeKeys::of(config, ministral3_rope));
    RETURN_IF_ERROR(set_rope(rope.value(), {}, model));
    RETURN_IF_ERROR(set_long_scale(rope.value(), model));

    return set_window(config, 0, model);
}

Status describe_mistral3(const JsonValue &config, Model *model) {
    RETURN_IF_ERROR(describe_text_part(config, describe_mistral3_text, true, model));
    set_tower(config, 10, describe_pixtral_tower, model);
    return {};
}

} // namespace batchllm
