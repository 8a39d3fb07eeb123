// gpt-oss: experts in every layer. The experts of a layer are in two tensors, possibly in MXFP4; in
// one of them, gate and up alternate. Biases everywhere; sinks; windows on every other layer.
#include "model/config.h"
#include "model/families/families.h"

namespace batchllm {
namespace {

// The experts of a layer; there are `count`.
struct Stack {
    std::string prefix;
    int32_t count;
    int64_t hidden;
    int64_t width;
};

// As rows_of_stack, with biases, [count, stored].
Weight expert_weight(const Stack &stack, const char *name, int32_t index, int64_t stored,
                     int64_t first, int64_t step, int64_t columns) {
    Weight weight = rows_of_stack({stack.prefix + name, stack.count, columns, stored}, index, first,
                                  stored / step, step);
    weight.bias = weight.values;
    weight.bias.columns = 1;
    weight.bias.name += "_bias";
    weight.bias.stored_transposed = false;
    return weight;
}

FeedForward expert(const Stack &stack, int32_t index) {
    FeedForward expert;
    expert.width = static_cast<int32_t>(stack.width);
    expert.activation = Activation::clamped_swiglu;
    const int64_t both = 2 * stack.width, hidden = stack.hidden;
    expert.gate = expert_weight(stack, "gate_up_proj", index, both, 0, 2, hidden);
    expert.up = expert_weight(stack, "gate_up_proj", index, both, 1, 2, hidden);
    expert.down = expert_weight(stack, "down_proj", index, hidden, 0, 1, stack.width);
    return expert;
}

// The limit of the activation is a constant, both in transformers and here.
Status check_limit(const JsonValue &config) {
    const auto limit = config.given("swiglu_limit");
    if (!limit) return {};
    ASSIGN_OR_RETURN(const double number, limit->number(-1e30, 1e30));
    return number == 7 ? Status() : limit->unsupported("only 7 is supported");
}

Status set_gpt_oss_experts(const JsonValue &config, int32_t width, Model *model) {
    ASSIGN_OR_RETURN(
        const ExpertCounts counts,
        read_expert_counts(config, {"num_local_experts", "num_experts"}, 128, 4, *model));
    RETURN_IF_ERROR(check_limit(config));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Layer &layer = model->layers[i];
        const std::string prefix = layer_prefix(i) + "mlp.";
        // A softmax over the chosen logits equals the softmax over all, divided by its sum over the
        // chosen ones.
        Experts &experts = layer.feed.emplace<Experts>();
        Router &router = experts.router;
        router.chosen = counts.chosen;
        router.normalised = true;
        router.weight = named_weight(prefix + "router", counts.all, model->hidden);
        add_bias(&router.weight);
        const Stack stack{prefix + "experts.", counts.all, model->hidden, width};
        for (int32_t e = 0; e < counts.all; ++e) experts.each.push_back(expert(stack, e));
    }
    return {};
}

} // namespace

Status describe_gpt_oss(const JsonValue &config, Model *model) {
    ConfigDefaults defaults;
    defaults.vocabulary = 201088;
    defaults.hidden = 2880;
    defaults.intermediate = 2880;
    defaults.layers = 36;
    defaults.heads = 64;
    defaults.kv_heads = 8;
    defaults.head_dim = 64;
    defaults.max_positions = 131072;
    defaults.epsilon = 1e-5;
    ASSIGN_OR_RETURN(const DecoderShape shape, read_shape(config, defaults, model));
    describe_decoder(shape, model);
    // The class's default rope is not a plain one, but every published file states its rope.
    if (!config.given("rope_parameters")) RETURN_IF_ERROR(config.at("rope_scaling").status());
    RopeDefaults rope;
    rope.theta = 150000;
    RETURN_IF_ERROR(set_rope(config, rope, model));
    RETURN_IF_ERROR(set_gpt_oss_experts(config, shape.intermediate, model));
    ASSIGN_OR_RETURN(const int32_t window, read_window(config, 128));
    RETURN_IF_ERROR(set_windows(
        config, window, [](size_t layer) { return layer % 2 == 0; }, model));
    RETURN_IF_ERROR(set_attention_biases(config, true, model));
    for (size_t i = 0; i < model->layers.size(); ++i) {
        Tensor &sinks = model->layers[i].attention()->sinks;
        sinks.rows = shape.heads;
        sinks.columns = 1;
        sinks.name = layer_prefix(i) + "self_attn.sinks";
    }
    return {};
}

} // namespace batchllm
