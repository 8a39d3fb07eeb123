// The rope keys of a config.json -> frequencies.
#include <algorithm>
#include <cmath>

#include "model/config.h"

namespace batchllm {
namespace {

constexpr double theta_most = 1e18;
constexpr double factor_most = 1e6;

// The value under either of two spellings of a key; an error if they disagree.
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

// The keys of one rope: those of the object, and those that may be at the top level instead.
class RopeReader {
  public:
    RopeReader(const Model &model, int32_t head_dim, const RopeDefaults &defaults)
        : head_dim_(head_dim), defaults_(defaults), max_positions_(model.max_positions) {
        config_.theta = defaults.theta;
        part_ = defaults.part;
    }

    // Reads the keys of the whole configuration, before those of the object.
    Status read_top(const JsonValue &config) {
        top_theta_ = config.given("rope_theta");
        if (top_theta_) {
            ASSIGN_OR_RETURN(config_.theta, top_theta_->number(1, theta_most));
        }
        top_original_ = config.given("original_max_position_embeddings");
        return read_part(config);
    }

    Status read_object(const JsonValue &object) {
        ASSIGN_OR_RETURN(const auto type, rope_type(object));
        const bool proportional = defaults_.proportional && type == "proportional";
        RETURN_IF_ERROR(proportional ? read_proportional(object) : read_part(object));
        if (const auto theta = object.given("rope_theta")) {
            ASSIGN_OR_RETURN(const double value, theta->number(1, theta_most));
            if (top_theta_ && value != config_.theta) {
                return theta->fail("rope_theta at the top differs");
            }
            config_.theta = value;
        }
        return proportional ? Status() : read_kind(object);
    }

    Result<Rope> rope(const JsonValue &config) {
        RETURN_IF_ERROR(check_dims(config)); // the part may be the family's default
        Rope rope;
        rope.frequencies = rope_frequencies(config_, dims());
        if (!long_factors_.empty()) {
            config_.factors = long_factors_;
            rope.long_frequencies = rope_frequencies(config_, dims());
            rope.long_scale = long_scale_ ? *long_scale_ : scale_;
            rope.long_after = config_.original_max_positions;
        }
        rope.scale = scale_;
        rope.pairs = defaults_.pairs;
        const auto finite = [](float value) { return std::isfinite(value); };
        if (!finite(rope.scale) || !finite(rope.long_scale) ||
            !std::ranges::all_of(rope.frequencies, finite) ||
            !std::ranges::all_of(rope.long_frequencies, finite)) {
            return config.fail("the rope's keys give it frequencies or a scale that are infinite");
        }
        return rope;
    }

  private:
    int32_t dims() const { return static_cast<int32_t>(head_dim_ * part_); }

    // of: the object that the error names.
    Status check_dims(const JsonValue &of) const {
        if (dims() >= 2 && dims() % 2 == 0) return {};
        return of.unsupported("the rotated part of head_dim " + std::to_string(head_dim_) +
                              " must be even");
    }

    Status read_part(const JsonValue &object) {
        const auto value = object.given("partial_rotary_factor");
        if (!value) return {};
        ASSIGN_OR_RETURN(const double part, value->number(0, 1));
        if (part != 1 && !defaults_.partial) {
            return value->unsupported("this architecture rotates whole heads");
        }
        part_ = part;
        return check_dims(*value);
    }

    // As in transformers, the top level wins, and the longest request is the default.
    Status read_original(const JsonValue &object) {
        auto original = top_original_;
        if (!original && defaults_.original_positions == 0) {
            original = object.given("original_max_position_embeddings");
        }
        config_.original_max_positions =
            defaults_.original_positions != 0 ? defaults_.original_positions : max_positions_;
        if (original) {
            ASSIGN_OR_RETURN(config_.original_max_positions, original->integer(1, 1 << 30));
        }
        return {};
    }

    Status read_factor(const JsonValue &object) {
        ASSIGN_OR_RETURN(const JsonValue factor, object.at("factor"));
        ASSIGN_OR_RETURN(config_.factor, factor.number(1, factor_most));
        return {};
    }

    Status read_kind(const JsonValue &object) {
        ASSIGN_OR_RETURN(const auto type, rope_type(object));
        if (!type || *type == "default") return {};
        for (const char *alias : defaults_.default_aliases) {
            if (*type == alias) return {};
        }
        if (*type == "longrope") return read_longrope(object);
        for (const char *alias : defaults_.longrope_aliases) {
            if (*type == alias) return read_longrope(object);
        }
        if (*type == "llama3") return read_llama3(object);
        if (*type == "yarn") return read_yarn(object);
        if (*type == "dynamic" && defaults_.alpha) {
            ASSIGN_OR_RETURN(const JsonValue given, object.at("alpha"));
            ASSIGN_OR_RETURN(const double alpha, given.number(1, theta_most));
            const double all = dims();
            config_.theta *= std::pow(alpha, all / (all - 2));
            return {};
        }
        if (*type == "linear") {
            config_.kind = RopeKind::linear;
            return read_factor(object);
        }
        const auto named = object.given("rope_type");
        return (named ? *named : *object.find("type"))
            .unsupported("only default, linear, llama3, yarn and longrope are supported");
    }

    // The part is a share of the pairs; the table contains all pairs.
    Status read_proportional(const JsonValue &object) {
        config_.kind = RopeKind::proportional;
        ASSIGN_OR_RETURN(config_.part, read_number(object, "partial_rotary_factor", 1, 0, 1));
        ASSIGN_OR_RETURN(config_.factor, read_number(object, "factor", 1, 1, factor_most));
        return {};
    }

    Status read_llama3(const JsonValue &object) {
        config_.kind = RopeKind::llama3;
        RETURN_IF_ERROR(read_factor(object));
        ASSIGN_OR_RETURN(const JsonValue low, object.at("low_freq_factor"));
        ASSIGN_OR_RETURN(config_.low_freq_factor, low.number(1e-6, factor_most));
        ASSIGN_OR_RETURN(const JsonValue high, object.at("high_freq_factor"));
        ASSIGN_OR_RETURN(config_.high_freq_factor, high.number(1e-6, factor_most));
        if (config_.high_freq_factor < config_.low_freq_factor) {
            return high.fail("must be at least low_freq_factor");
        }
        return read_original(object);
    }

    // How much scores must grow to make up for slower angles; 1 unless the factor is above 1.
    static double yarn_scale(double factor, double weight) {
        return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
    }

    Status read_yarn(const JsonValue &object) {
        config_.kind = RopeKind::yarn;
        RETURN_IF_ERROR(read_original(object));
        ASSIGN_OR_RETURN(const JsonValue factor, object.at("factor"));
        config_.factor = static_cast<double>(max_positions_) /
                         static_cast<double>(config_.original_max_positions);
        if (!factor.is_null()) RETURN_IF_ERROR(read_factor(object));
        ASSIGN_OR_RETURN(config_.beta_fast, read_number(object, "beta_fast", 32, 0, factor_most));
        ASSIGN_OR_RETURN(config_.beta_slow, read_number(object, "beta_slow", 1, 0, factor_most));
        if (config_.beta_fast == 0) config_.beta_fast = 32;
        if (config_.beta_slow == 0) config_.beta_slow = 1;
        ASSIGN_OR_RETURN(config_.truncate, read_flag(object, "truncate", true));
        ASSIGN_OR_RETURN(const double one, read_number(object, "mscale", 0, 0, factor_most));
        ASSIGN_OR_RETURN(const double all,
                         read_number(object, "mscale_all_dim", 0, 0, factor_most));
        const double inferred =
            one != 0 && all != 0 ? yarn_scale(config_.factor, one) / yarn_scale(config_.factor, all)
                                 : yarn_scale(config_.factor, 1);
        return read_scale(object, inferred);
    }

    Status read_longrope(const JsonValue &object) {
        config_.kind = RopeKind::longrope;
        RETURN_IF_ERROR(read_original(object));
        ASSIGN_OR_RETURN(config_.factors, read_factors(object, "short_factor"));
        ASSIGN_OR_RETURN(long_factors_, read_factors(object, "long_factor"));
        if (defaults_.mscales) {
            ASSIGN_OR_RETURN(const JsonValue few, object.at("short_mscale"));
            ASSIGN_OR_RETURN(const double scale, few.number(0, factor_most));
            ASSIGN_OR_RETURN(const JsonValue many, object.at("long_mscale"));
            ASSIGN_OR_RETURN(const double long_scale, many.number(0, factor_most));
            scale_ = static_cast<float>(scale);
            long_scale_ = static_cast<float>(long_scale);
            return {};
        }
        const double original = static_cast<double>(config_.original_max_positions);
        ASSIGN_OR_RETURN(const double factor,
                         read_number(object, "factor",
                                     static_cast<double>(max_positions_) / original, 0,
                                     factor_most));
        return read_scale(object,
                          factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original)));
    }

    Result<std::vector<float>> read_factors(const JsonValue &object, const char *key) {
        ASSIGN_OR_RETURN(const JsonValue value, object.at(key));
        ASSIGN_OR_RETURN(const auto list, value.elements());
        if (list.size() != static_cast<size_t>(dims() / 2)) {
            return value.fail("must have " + std::to_string(dims() / 2) +
                              " numbers, one for each pair that rotates");
        }
        std::vector<float> factors;
        for (const JsonValue &item : list) {
            ASSIGN_OR_RETURN(const double factor, item.number(1e-6, factor_most));
            factors.push_back(static_cast<float>(factor));
        }
        return factors;
    }

    Status read_scale(const JsonValue &object, double inferred) {
        ASSIGN_OR_RETURN(const double scale,
                         read_number(object, "attention_factor", inferred, 0, factor_most));
        scale_ = static_cast<float>(scale);
        return {};
    }

    int32_t head_dim_;
    const RopeDefaults &defaults_;
    int64_t max_positions_;
    RopeConfig config_;
    std::vector<float> long_factors_;
    double part_ = 1;
    float scale_ = 1;
    std::optional<float> long_scale_;
    std::optional<JsonValue> top_theta_;
    std::optional<JsonValue> top_original_;
};

// "rope_parameters" or "rope_scaling", if present.
Result<std::optional<JsonValue>> rope_object(const JsonValue &config) {
    auto object = config.given("rope_parameters");
    if (auto scaling = config.given("rope_scaling")) {
        if (object) return scaling->fail("rope_parameters is given too: remove one of the two");
        object = std::move(scaling);
    }
    return object;
}

} // namespace

Result<RopeKeys> RopeKeys::of(const JsonValue &config, std::string_view otherwise) {
    ASSIGN_OR_RETURN(JsonDocument document,
                     JsonDocument::parse(otherwise, config.file(), BATCHLLM_ERROR_INTERNAL));
    const bool given = config.given("rope_parameters") || config.given("rope_scaling");
    JsonValue value = given ? config : document.root();
    return RopeKeys(std::move(document), std::move(value));
}

Result<Rope> read_rope(const JsonValue &config, const Model &model, int32_t head_dim,
                       const RopeDefaults &defaults) {
    RopeReader reader(model, head_dim, defaults);
    RETURN_IF_ERROR(reader.read_top(config));
    ASSIGN_OR_RETURN(const auto object, rope_object(config));
    if (object) {
        ASSIGN_OR_RETURN(const auto members, object->members());
        for (const auto &[key, value] : members) {
            if (value.is_object()) {
                return value.unsupported("rope parameters by layer type are not supported");
            }
        }
        RETURN_IF_ERROR(reader.read_object(*object));
    }
    return reader.rope(config);
}

namespace {

// The head_dim of layers with a window, or of those without one; if there are none, of the first
// layer.
int32_t head_dim_of(const Model &model, bool windowed) {
    const auto found =
        std::find_if(model.layers.begin(), model.layers.end(), [&](const Layer &layer) {
            return (layer.attention()->window != 0) == windowed;
        });
    return (found == model.layers.end() ? model.layers[0] : *found).attention()->head_dim;
}

} // namespace

Result<LayerRopes> read_layer_ropes(const JsonValue &config, const Model &model, RopeDefaults full,
                                    RopeDefaults windowed, const char *windowed_theta) {
    if (windowed_theta != nullptr) {
        ASSIGN_OR_RETURN(windowed.theta,
                         read_number(config, windowed_theta, windowed.theta, 1, theta_most));
    }
    ASSIGN_OR_RETURN(full.theta, read_number(config, "rope_theta", full.theta, 1, theta_most));
    RopeReader full_reader(model, head_dim_of(model, false), full);
    RopeReader windowed_reader(model, head_dim_of(model, true), windowed);
    ASSIGN_OR_RETURN(const auto object, rope_object(config));
    if (const auto by_type = config.given("rope_parameters")) {
        RETURN_IF_ERROR(by_type->only_keys({"full_attention", "sliding_attention"}));
        if (const auto own = by_type->given("full_attention")) {
            RETURN_IF_ERROR(full_reader.read_object(*own));
        }
        if (const auto own = by_type->given("sliding_attention")) {
            RETURN_IF_ERROR(windowed_reader.read_object(*own));
        }
    } else {
        RETURN_IF_ERROR(full_reader.read_top(config));
        if (object) {
            // In the older key, transformers' classes with two ropes ignore a scaling silently.
            const auto type = object->given("type");
            if (type && !object->given("rope_type")) {
                return type->unsupported("this architecture calls it rope_type");
            }
            RETURN_IF_ERROR(full_reader.read_object(*object));
        }
    }
    LayerRopes ropes;
    ASSIGN_OR_RETURN(ropes.full, full_reader.rope(config));
    ASSIGN_OR_RETURN(ropes.windowed, windowed_reader.rope(config));
    return ropes;
}

int32_t add_rope(Model *model, Rope rope) {
    for (size_t i = 0; i < model->ropes.size(); ++i) {
        if (model->ropes[i] == rope) return static_cast<int32_t>(i);
    }
    model->ropes.push_back(std::move(rope));
    return static_cast<int32_t>(model->ropes.size()) - 1;
}

Status set_rope(const JsonValue &config, const RopeDefaults &defaults, Model *model) {
    const int32_t head_dim = model->layers[0].attention()->head_dim;
    ASSIGN_OR_RETURN(Rope rope, read_rope(config, *model, head_dim, defaults));
    const int32_t index = add_rope(model, std::move(rope));
    for_each_attention(model, [&](size_t, Attention &attention) { attention.rope = index; });
    return {};
}

void set_layer_ropes(LayerRopes ropes, Model *model) {
    const int32_t full = add_rope(model, std::move(ropes.full));
    const int32_t windowed = add_rope(model, std::move(ropes.windowed));
    for_each_attention(model, [&](size_t, Attention &attention) {
        attention.rope = attention.window != 0 ? windowed : full;
    });
}

void choose_frequencies(int64_t longest, Model *model) {
    for (Rope &rope : model->ropes) {
        if (!rope.long_frequencies.empty() && longest > rope.long_after) {
            rope.frequencies = rope.long_frequencies;
            rope.scale = rope.long_scale;
        }
    }
}

} // namespace batchllm
