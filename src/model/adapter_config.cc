#include "model/adapter_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "constraint/regex.h"

namespace batchllm {
namespace {

constexpr int64_t most_rank = 1 << 20;
constexpr size_t most_adapter_expressions = 1024;

// They say how the adapter was trained, or repeat what the files show.
constexpr std::string_view harmless_keys[] = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode",
    "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "qalora_group_size",
    "revision", "runtime_config", "task_type",
    // Says how the base model stores W; A and B are stored the same way in either case.
    "fan_in_fan_out"};
constexpr std::string_view read_keys[] = {"alpha_pattern",     "bias",
                                          "exclude_modules",   "init_lora_weights",
                                          "layers_pattern",    "layers_to_transform",
                                          "lora_alpha",        "peft_type",
                                          "peft_version",      "r",
                                          "rank_pattern",      "target_modules",
                                          "target_parameters", "use_rslora"};

template <size_t n> bool is_in(const std::string_view (&list)[n], std::string_view key) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

// null, false, "", [], {}: what a feature that is not used has.
bool is_off(const JsonValue &value) {
    const JsonView view = value.view();
    if (view.is_null() || view.boolean() == false) return true;
    if (const auto items = view.items()) return items->empty();
    if (const auto members = view.members()) return members->size() == 0;
    return view.string() == "";
}

Status check_keys(const JsonValue &config) {
    ASSIGN_OR_RETURN(const auto members, config.members());
    for (const auto &[key, value] : members) {
        if (is_in(read_keys, key) || is_in(harmless_keys, key) || is_off(value)) continue;
        return value.unsupported("adapters with this key are not supported");
    }
    return {};
}

// The initial weights only matter if the base model was changed to go with them.
Status check_start(const JsonValue &config) {
    const auto start = config.given("init_lora_weights");
    if (!start || start->view().is_boolean()) return {};
    ASSIGN_OR_RETURN(const std::string name, start->string());
    for (const char *known : {"gaussian", "eva", "orthogonal", "mica"}) {
        if (name == known) return {};
    }
    return start->unsupported("such adapters go with a changed base model; PEFT converts them "
                              "(path_initial_model_for_weight_conversion)");
}

Status check_text(const JsonValue &config, std::string_view key, std::string_view wanted,
                  const char *what) {
    const auto value = config.given(key);
    if (!value) return {};
    ASSIGN_OR_RETURN(const std::string text, value->string());
    return text == wanted ? Status() : value->unsupported(what);
}

// For each expression: names are short, and so are their expressions.
Budget budget_of_expression() { return Budget(int64_t{1} << 14, int64_t{1} << 22); }

Result<int64_t> read_rank(const JsonValue &value) { return value.integer(1, most_rank); }
Result<double> read_alpha(const JsonValue &value) { return value.number(-1e30, 1e30); }

// Calls visit(end) for the name and for what is behind each of its dots, until it returns true.
template <typename Visit> bool any_end(const std::string &name, const Visit &visit) {
    if (visit(name)) return true;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
        if (visit(name.substr(dot + 1))) return true;
    }
    return false;
}

bool is_plain(std::string_view key) {
    return std::all_of(key.begin(), key.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '.';
    });
}

std::optional<int64_t> number_of(std::string_view text) {
    int64_t number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc() || end != text.data() + text.size() || number < 0) {
        return std::nullopt;
    }
    return number;
}

// Three numbers: a development version may have what the release has, or not yet.
std::optional<AdapterConfig::Version> release_of(std::string_view text) {
    AdapterConfig::Version version{};
    for (size_t i = 0; i < version.size(); ++i) {
        const size_t end = i + 1 < version.size() ? text.find('.') : text.size();
        if (end == std::string_view::npos) return std::nullopt;
        const auto number = number_of(text.substr(0, end));
        if (!number) return std::nullopt;
        version[i] = *number;
        text.remove_prefix(std::min(text.size(), end + 1));
    }
    return version;
}

} // namespace

bool AdapterConfig::Names::match(const std::string &name) const {
    if (all || expression.matches(name)) return true;
    return any_end(name, [&](const std::string &end) { return list.contains(end); });
}

template <typename T> const T *AdapterConfig::Patterns<T>::find(const std::string &name) const {
    const Plain *best = nullptr;
    any_end(name, [&](const std::string &end) {
        const auto found = plain.find(end);
        if (found != plain.end() && (best == nullptr || found->second.place < best->place)) {
            best = &found->second;
        }
        return false;
    });
    for (const Expression &expression : expressions) {
        if (best != nullptr && best->place < expression.place) break;
        if (expression.automaton.matches(name)) return &expression.value;
    }
    return best == nullptr ? nullptr : &best->value;
}

template <typename T>
void AdapterConfig::Patterns<T>::add_unused(const std::vector<std::string> &names,
                                            std::vector<std::string> *keys) const {
    std::unordered_set<std::string> ends;
    for (const std::string &name : names) {
        any_end(name, [&](const std::string &end) {
            ends.insert(end);
            return false;
        });
    }
    for (const auto &[key, value] : plain) {
        if (!ends.contains(key)) keys->push_back(key);
    }
    for (const Expression &expression : expressions) {
        const auto matches = [&](const std::string &name) {
            return expression.automaton.matches(name);
        };
        if (std::none_of(names.begin(), names.end(), matches)) keys->push_back(expression.key);
    }
}

// A key is an expression for the end of a name, from a dot on or the whole.
template <typename T, typename Read>
Status AdapterConfig::read_patterns(const JsonValue &config, std::string_view key, const Read &read,
                                    Patterns<T> *patterns) {
    const auto object = config.given(key);
    if (!object) return {};
    ASSIGN_OR_RETURN(const auto members, object->members());
    for (size_t place = 0; place < members.size(); ++place) {
        const auto &[name, value] = members[place];
        ASSIGN_OR_RETURN(const T number, read(value));
        if (is_plain(name)) {
            patterns->plain.try_emplace(std::string(name),
                                        typename Patterns<T>::Plain{place, number});
            continue;
        }
        if (patterns->expressions.size() == most_adapter_expressions) {
            return object->unsupported("it has too many expressions");
        }
        Budget budget = budget_of_expression();
        auto compiled = compile_regex("(.*\\.)?(" + std::string(name) + ")", {}, &budget);
        if (!compiled.ok()) {
            if (is_failure_of_process(compiled.status().code())) return compiled.status();
            return value.unsupported("its key: " + compiled.status().message());
        }
        patterns->expressions.push_back(
            {place, number, std::string(name), std::move(compiled).value()});
    }
    return {};
}

// A text is an expression; "all-linear" names all modules. An expression that is not supported
// cannot be checked: which modules are changed, the tensors say.
Status AdapterConfig::read_names(const JsonValue &config, std::string_view key, Names *names) {
    const auto value = config.given(key);
    if (!value) return {};
    if (!value->is_string()) {
        ASSIGN_OR_RETURN(const auto elements, value->elements());
        for (const JsonValue &element : elements) {
            ASSIGN_OR_RETURN(std::string name, element.string());
            names->list.insert(std::move(name));
        }
        return {};
    }
    ASSIGN_OR_RETURN(std::string text, value->string());
    std::string lower = text;
    for (char &c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    names->all = lower == "all-linear";
    if (names->all) return {};
    Budget budget = budget_of_expression();
    auto compiled = compile_regex(text, {}, &budget);
    if (compiled.ok()) {
        names->expression = std::move(compiled).value();
        return {};
    }
    if (is_failure_of_process(compiled.status().code())) return compiled.status();
    if (compiled.status().code() != BATCHLLM_ERROR_UNSUPPORTED) {
        return value->fail(compiled.status().message());
    }
    names->all = names->unread = true;
    return {};
}

Status AdapterConfig::read_layers(const JsonValue &config) {
    const auto layers = config.given("layers_to_transform");
    if (!layers) return {};
    if (layers->is_array()) {
        ASSIGN_OR_RETURN(const auto elements, layers->elements());
        for (const JsonValue &element : elements) {
            ASSIGN_OR_RETURN(const int64_t layer, element.integer(0, INT32_MAX));
            layers_.push_back(layer);
        }
    } else {
        ASSIGN_OR_RETURN(const int64_t layer, layers->integer(0, INT32_MAX));
        layers_.push_back(layer);
    }
    some_layers_ = !layers_.empty();
    const auto pattern = config.given("layers_pattern");
    if (!pattern) return {};
    if (pattern->is_string()) {
        ASSIGN_OR_RETURN(std::string name, pattern->string());
        if (!name.empty()) layers_pattern_.push_back(std::move(name));
        return {};
    }
    ASSIGN_OR_RETURN(const auto elements, pattern->elements());
    for (const JsonValue &element : elements) {
        ASSIGN_OR_RETURN(std::string name, element.string());
        layers_pattern_.push_back(std::move(name));
    }
    return {};
}

Result<AdapterConfig> AdapterConfig::parse(std::string_view text, const std::string &file) {
    ASSIGN_OR_RETURN(const JsonDocument document,
                     JsonDocument::parse_of_python(text, file, BATCHLLM_ERROR_ADAPTER_FORMAT));
    const JsonValue root = document.root();
    if (!root.is_object()) return root.fail("must be an object");
    ASSIGN_OR_RETURN(const std::string kind, root.string("peft_type"));
    if (kind != "LORA") return root.find("peft_type")->unsupported("only LORA is supported");
    RETURN_IF_ERROR(check_keys(root));
    RETURN_IF_ERROR(check_text(root, "bias", "none", "only none is supported"));
    RETURN_IF_ERROR(check_start(root));
    AdapterConfig config;
    if (const auto version = root.given("peft_version"); version && version->is_string()) {
        ASSIGN_OR_RETURN(const std::string release, version->string());
        config.peft_version_ = release_of(release);
    }
    ASSIGN_OR_RETURN(const JsonValue rank, root.at("r"));
    ASSIGN_OR_RETURN(config.rank_, read_rank(rank));
    ASSIGN_OR_RETURN(const JsonValue alpha, root.at("lora_alpha"));
    ASSIGN_OR_RETURN(config.alpha_, read_alpha(alpha));
    ASSIGN_OR_RETURN(config.by_root_, root.boolean_or("use_rslora", false));
    RETURN_IF_ERROR(read_patterns(root, "rank_pattern", read_rank, &config.ranks_));
    RETURN_IF_ERROR(read_patterns(root, "alpha_pattern", read_alpha, &config.alphas_));
    RETURN_IF_ERROR(config.read_names(root, "target_modules", &config.modules_));
    RETURN_IF_ERROR(config.read_names(root, "exclude_modules", &config.excluded_));
    RETURN_IF_ERROR(config.read_names(root, "target_parameters", &config.parameters_));
    config.excluded_.all = false;
    RETURN_IF_ERROR(config.read_layers(root));
    return config;
}

int64_t AdapterConfig::rank_of(const std::string &name) const {
    const int64_t *own = ranks_.find(name);
    return own == nullptr ? rank_ : *own;
}

double AdapterConfig::scale_of(const std::string &name) const {
    const double *own = alphas_.find(name);
    const double alpha = own == nullptr ? alpha_ : *own;
    const auto rank = static_cast<double>(rank_of(name));
    return alpha / (by_root_ ? std::sqrt(rank) : rank);
}

// The layer's number comes after the name of the list of layers.
bool AdapterConfig::in_layers(const std::string &module) const {
    std::string_view rest = module, before;
    bool outermost = true;
    while (!rest.empty()) {
        const size_t dot = rest.find('.');
        if (dot == std::string_view::npos) return false; // not within a layer
        const std::string_view part = rest.substr(0, dot);
        const bool counted = layers_pattern_.empty()
                                 ? !before.empty() && !outermost
                                 : std::find(layers_pattern_.begin(), layers_pattern_.end(),
                                             before) != layers_pattern_.end();
        if (const auto layer = number_of(part); layer && counted) {
            return std::find(layers_.begin(), layers_.end(), *layer) != layers_.end();
        }
        outermost = before.empty();
        before = part;
        rest.remove_prefix(dot + 1);
    }
    return false;
}

bool AdapterConfig::names_module(const std::string &module) const {
    if (excluded_.match(module) || !modules_.match(module)) return false;
    // An expression names layers itself.
    return !some_layers_ || modules_.list.empty() || in_layers(module);
}

bool AdapterConfig::names_parameter(const std::string &parameter) const {
    return parameters_.match(parameter);
}

std::vector<std::string>
AdapterConfig::unused_patterns(const std::vector<std::string> &names) const {
    std::vector<std::string> keys;
    ranks_.add_unused(names, &keys);
    alphas_.add_unused(names, &keys);
    std::sort(keys.begin(), keys.end());
    return keys;
}

} // namespace batchllm
