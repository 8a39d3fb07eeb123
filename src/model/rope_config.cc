// The rope keys of a config.json -> frequencies.
#include "model/config.h"

namespace batchllm {
namespace {

constexpr double theta_most = 1e18;
constexpr double factor_most = 1e6;

// The value of one of two spellings of the same thing; an error when they disagree.
Result<std::optional<std::string>> rope_type(const JsonValue &rope) {
    std::optional<std::string> found;
    for (const char *key : {"rope_type", "type"}) {
        const auto value = rope.given(key);
        if (!value) continue;
        ASSIGN_OR_RETURN(std::string name, value->string());
        if (found && *found != name) {
            return value->fail("but rope_type is \"" + printable(*found) + "\"");
        }
        found = std::move(name);
    }
    return found;
}

Status refuse_partial_rotary(const JsonValue &object) {
    if (const auto value = object.given("partial_rotary_factor")) {
        ASSIGN_OR_RETURN(const double factor, value->number(0, 1));
        if (factor != 1) return value->unsupported("rotating a part of a head is not supported");
    }
    return {};
}

// Of an object with a rope_type: what its kind wants.
Status read_kind(const JsonValue &config, const JsonValue &object, int32_t max_positions,
                 RopeConfig *rope) {
    ASSIGN_OR_RETURN(const auto type, rope_type(object));
    if (!type || *type == "default") return {};
    if (*type != "linear" && *type != "llama3") {
        const auto named = object.given("rope_type");
        return (named ? *named : *object.find("type"))
            .unsupported("only default, linear and llama3 are supported");
    }
    ASSIGN_OR_RETURN(const JsonValue factor, object.at("factor"));
    ASSIGN_OR_RETURN(rope->factor, factor.number(1, factor_most));
    if (*type == "linear") {
        rope->kind = RopeKind::linear;
        return {};
    }
    rope->kind = RopeKind::llama3;
    ASSIGN_OR_RETURN(const JsonValue low, object.at("low_freq_factor"));
    ASSIGN_OR_RETURN(rope->low_freq_factor, low.number(1e-6, factor_most));
    ASSIGN_OR_RETURN(const JsonValue high, object.at("high_freq_factor"));
    ASSIGN_OR_RETURN(rope->high_freq_factor, high.number(1e-6, factor_most));
    if (rope->high_freq_factor <= rope->low_freq_factor) {
        return high.fail("must be greater than low_freq_factor");
    }
    // transformers lets the one at the top win, and falls back on the longest request.
    auto original = config.given("original_max_position_embeddings");
    if (!original) original = object.given("original_max_position_embeddings");
    rope->original_max_positions = max_positions;
    if (original) {
        ASSIGN_OR_RETURN(rope->original_max_positions, original->integer(1, 1 << 30));
    }
    return {};
}

} // namespace

Result<Rope> read_rope(const JsonValue &config, const Model &model, int32_t head_dim) {
    RopeConfig rope;
    RETURN_IF_ERROR(refuse_partial_rotary(config));
    const auto top_theta = config.given("rope_theta");
    if (top_theta) {
        ASSIGN_OR_RETURN(rope.theta, top_theta->number(1, theta_most));
    }
    auto object = config.given("rope_parameters");
    if (auto scaling = config.given("rope_scaling")) {
        if (object) return scaling->fail("rope_parameters is there too: which of them counts?");
        object = std::move(scaling);
    }
    if (object) {
        ASSIGN_OR_RETURN(const auto members, object->members());
        for (const auto &[key, value] : members) {
            if (value.is_object()) {
                return value.unsupported("rope parameters by layer type are not supported");
            }
        }
        RETURN_IF_ERROR(refuse_partial_rotary(*object));
        if (const auto theta = object->given("rope_theta")) {
            ASSIGN_OR_RETURN(const double value, theta->number(1, theta_most));
            if (top_theta && value != rope.theta) {
                return theta->fail("rope_theta at the top differs");
            }
            rope.theta = value;
        }
        RETURN_IF_ERROR(read_kind(config, *object, model.max_positions, &rope));
    }
    return Rope{rope_frequencies(rope, head_dim), 1, false};
}

int32_t add_rope(Model *model, Rope rope) {
    for (size_t i = 0; i < model->ropes.size(); ++i) {
        if (model->ropes[i] == rope) return static_cast<int32_t>(i);
    }
    model->ropes.push_back(std::move(rope));
    return static_cast<int32_t>(model->ropes.size()) - 1;
}

} // namespace batchllm
