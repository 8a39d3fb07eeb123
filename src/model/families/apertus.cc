// Apertus: Llama with norms of each head, and a feed-forward without a gate whose activation, xIELU,
// has two trained numbers a layer.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// The rope of the class, if the configuration has none.
constexpr std::string_view apertus_rope =
    R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0,
        "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}})";

Status set_apertus_rope(const JsonValue &config, Model *model) {
    RopeDefaults defaults;
    defaults.theta = 12000000;
    if (config.given("rope_theta")) return set_rope(config, defaults, model);
    ASSIGN_OR_RETURN(const RopeKeys rope, RopeKeys::of(config, apertus_rope));
    return set_rope(rope.value(), defaults, model);
}

Status check_activation(const JsonValue &config) {
    const auto name = config.given("hidden_act");
    if (!name) return {};
    ASSIGN_OR_RETURN(const std::string text, name->string());
    return text == "xielu" ? Status() : name->unsupported("only xielu is supported");
}

} // namespace

Status describe_apertus(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 131072;
    defaults.intermediate = 14336;
    defaults.max_positions = 65536;
    defaults.epsilon = 1e-5;
    defaults.bos = 1;
    defaults.eos = {2};
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    RETURN_IF_ERROR(set_apertus_rope(config, model));
    RETURN_IF_ERROR(check_activation(config));
    set_head_norms(model);
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = layer_prefix(i);
        layer.before_attention.weight.name = prefix + "attention_layernorm.weight";
        layer.before_feed_forward.weight.name = prefix + "feedforward_layernorm.weight";
        FeedForward &f = *layer.feed_forward();
        f.gate = {};
        f.activation = Activation::xielu;
        f.rise = named_vector(prefix + "mlp.act_fn.alpha_p", 1);
        f.fall = named_vector(prefix + "mlp.act_fn.alpha_n", 1);
        // Constants, 1/2 and (nearly) 0, that the files have beside those.
        for (const char *name : {"beta", "eps"}) {
            model->passed_over.push_back(prefix + "mlp.act_fn." + name);
        }
    }
    return set_attention_biases(config, false, model);
}

} // namespace batchllm
