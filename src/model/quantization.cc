#include "model/quantization.h"

#include "constraint/regex.h"
#include "model/quantization_keys.h"

namespace batchllm {
namespace {

constexpr int64_t most_block = 1 << 20;
constexpr size_t most_expressions = 4096;

// The budget for all expressions of a file: names are short, and so are their expressions.
Budget budget_of_file() { return Budget(int64_t{1} << 16, int64_t{1} << 24); }

Status refused(const Status &status, const JsonValue &item) {
    if (is_failure_of_process(status.code())) return status;
    return item.unsupported(status.message());
}

// An expression that matches at the start of a name, like Python's re.match.
Result<Automaton> beginning(const std::string &expression, const JsonValue &item, Budget *budget) {
    auto compiled = compile_regex("(?:" + expression + ")(?s:.*)", {}, budget);
    if (!compiled.ok()) return refused(compiled.status(), item);
    return std::move(compiled).value();
}

Result<Automaton> wildcard(const std::string &pattern, const JsonValue &item, Budget *budget) {
    std::string expression;
    for (const char c : pattern) {
        if (c == '*' || c == '?') {
            expression += c == '*' ? ".*" : ".";
        } else if (c == '[') {
            return item.unsupported("of wildcards only * and ? are supported");
        } else {
            if (std::string_view("\\.^$|()]{}+-").find(c) != std::string_view::npos) {
                expression += '\\';
            }
            expression += c;
        }
    }
    auto compiled = compile_regex(expression, {}, budget);
    if (!compiled.ok()) return refused(compiled.status(), item);
    return std::move(compiled).value();
}

} // namespace

Result<std::string> text_of(const JsonValue &object, std::string_view key,
                            const std::string &otherwise) {
    const auto value = object.given(key);
    if (!value) return otherwise;
    return value->string();
}

Status one_of(const JsonValue &object, std::string_view key, const std::string &otherwise,
              std::initializer_list<std::string_view> known, const std::string &what) {
    ASSIGN_OR_RETURN(const std::string text, text_of(object, key, otherwise));
    if (std::find(known.begin(), known.end(), text) != known.end()) return {};
    const auto value = object.given(key);
    if (!value) return object.unsupported(std::string(key) + " is not given: " + what);
    return value->unsupported(what);
}

namespace {

// Checks that weights, or their inputs, are eight-bit floating-point numbers.
Status check_float8(const JsonValue &arguments) {
    if (const auto bits = arguments.given("num_bits")) {
        ASSIGN_OR_RETURN(const int64_t count, bits->integer(1, 64));
        if (count != 8) return bits->unsupported("only 8 is supported");
    }
    RETURN_IF_ERROR(
        one_of(arguments, "type", "int", {"float"}, "only float, as e4m3, is supported"));
    ASSIGN_OR_RETURN(const bool symmetric, arguments.boolean_or("symmetric", true));
    if (!symmetric) return arguments.find("symmetric")->unsupported("only true is supported");
    return {};
}

Result<ScaleScheme> read_block(const JsonValue &size, ScaleKind kind) {
    ASSIGN_OR_RETURN(const auto list, size.elements());
    if (list.size() != 2) return size.fail("must be the rows and the columns of a block");
    ScaleScheme scheme{kind};
    ASSIGN_OR_RETURN(scheme.block_rows, list[0].integer(1, most_block));
    ASSIGN_OR_RETURN(scheme.block_columns, list[1].integer(1, most_block));
    return scheme;
}

Result<ScaleScheme> read_weights(const JsonValue &weights) {
    if (const auto bits = weights.given("num_bits")) {
        ASSIGN_OR_RETURN(const int64_t count, bits->integer(1, 64));
        if (count == 4) return read_four_bit_weights(weights);
    }
    RETURN_IF_ERROR(check_float8(weights));
    RETURN_IF_ERROR(one_of(weights, "strategy", "tensor", {"tensor", "channel", "block"},
                           "only tensor, channel and block are supported"));
    if (const auto dynamic = weights.given("dynamic")) {
        ASSIGN_OR_RETURN(const bool yes, dynamic->boolean());
        if (yes) return dynamic->unsupported("scales of weights must be in the files");
    }
    if (const auto order = weights.given("actorder")) {
        return order->unsupported("weights out of order are not supported");
    }
    ASSIGN_OR_RETURN(const std::string strategy, text_of(weights, "strategy", "tensor"));
    if (strategy == "tensor") return ScaleScheme{ScaleKind::tensor};
    if (strategy == "channel") return ScaleScheme{ScaleKind::channel};
    ASSIGN_OR_RETURN(const JsonValue size, weights.at("block_structure"));
    return read_block(size, ScaleKind::block);
}

// Presets by name: their lists are targets.
std::optional<ScaleScheme> preset(std::string_view name) {
    if (name == "FP8") return ScaleScheme{ScaleKind::tensor};
    if (name == "FP8_DYNAMIC") return ScaleScheme{ScaleKind::channel};
    if (name == "FP8_BLOCK") return ScaleScheme{ScaleKind::block, 128, 128};
    if (name != "W4A16" && name != "W4A16_ASYM") return std::nullopt;
    ScaleScheme scheme;
    scheme.four_bits = FourBitForm::packed;
    scheme.group = 128;
    scheme.symmetric = name == "W4A16";
    return scheme;
}

constexpr const char *formats_known =
    "only float-quantized, naive-quantized, pack-quantized, mxfp4-pack-quantized and "
    "nvfp4-pack-quantized are supported";

// "format" of all groups or of one: the weights of a scheme must be in that scheme's format.
Status check_format(const JsonValue &object, const ScaleScheme *scheme) {
    const auto format = object.given("format");
    if (!format) return {};
    ASSIGN_OR_RETURN(const std::string name, format->string());
    const bool eight = name == "float-quantized" || name == "naive-quantized";
    const bool four = name == "pack-quantized", mxfp4 = name == "mxfp4-pack-quantized";
    const bool nvfp4 = name == "nvfp4-pack-quantized";
    if (!eight && !four && !mxfp4 && !nvfp4) return format->unsupported(formats_known);
    if (scheme == nullptr) return {};
    const FourBitForm form = scheme->four_bits;
    if (eight == (form == FourBitForm::none) && four == (form == FourBitForm::packed) &&
        mxfp4 == (form == FourBitForm::packed_mxfp4) &&
        nvfp4 == (form == FourBitForm::packed_nvfp4)) {
        return {};
    }
    return format->unsupported("weights of another type and num_bits are not supported in it");
}

} // namespace

Result<ModuleNames> ModuleNames::read(const JsonValue &list, Kind kind, Budget *budget) {
    ModuleNames names;
    names.parts_ = kind == Kind::parts;
    ASSIGN_OR_RETURN(const auto items, list.elements());
    for (const JsonValue &item : items) {
        ASSIGN_OR_RETURN(const std::string text, item.string());
        const bool expression = kind == Kind::compressed && text.starts_with("re:");
        const bool wild = kind == Kind::wildcards && text.find_first_of("*?[") != std::string::npos;
        if (kind == Kind::compressed && text == "Linear") {
            names.all_linear_ = true;
        } else if (expression || wild) {
            if (names.expressions_.size() == most_expressions) {
                return list.unsupported("more than 4096 expressions");
            }
            ASSIGN_OR_RETURN(Automaton compiled, expression
                                                     ? beginning(text.substr(3), item, budget)
                                                     : wildcard(text, item, budget));
            names.expressions_.push_back(std::move(compiled));
        } else {
            names.names_.insert(text);
        }
    }
    return names;
}

Result<Quantization::Group> Quantization::read_group(std::string_view name, const JsonValue &value,
                                                     Budget *budget) {
    Group group;
    if (value.is_array()) {
        const auto scheme = preset(name);
        if (!scheme) {
            return value.unsupported("of presets only FP8, FP8_DYNAMIC, FP8_BLOCK, W4A16 and "
                                     "W4A16_ASYM are supported");
        }
        group.scheme = *scheme;
        ASSIGN_OR_RETURN(group.targets,
                         ModuleNames::read(value, ModuleNames::Kind::compressed, budget));
        return group;
    }
    if (!value.is_object()) return value.fail("must be an object, or a preset's targets");
    RETURN_IF_ERROR(check_format(value, nullptr));
    ASSIGN_OR_RETURN(const JsonValue targets, value.at("targets"));
    ASSIGN_OR_RETURN(group.targets,
                     ModuleNames::read(targets, ModuleNames::Kind::compressed, budget));
    const auto weights = value.given("weights");
    if (!weights)
        return value.unsupported("a group without \"weights\" is not supported; modules that are "
                                 "not quantised stand under \"ignore\"");
    ASSIGN_OR_RETURN(group.scheme, read_weights(*weights));
    RETURN_IF_ERROR(check_format(value, &group.scheme));
    // With NVFP4 they may have four bits too, which are not rounded to here.
    const bool nvfp4 = group.scheme.four_bits == FourBitForm::packed_nvfp4;
    if (const auto inputs = value.given("input_activations"); inputs && !nvfp4) {
        RETURN_IF_ERROR(check_float8(*inputs));
    }
    if (const auto outputs = value.given("output_activations")) {
        return outputs->unsupported("quantised results are not supported");
    }
    return group;
}

Status Quantization::read_compressed(const JsonValue &config, Budget *budget) {
    ASSIGN_OR_RETURN(const std::string format, text_of(config, "format", "mixed-precision"));
    const bool mixed = format == "mixed-precision";
    if (!mixed) RETURN_IF_ERROR(check_format(config, nullptr));
    if (const auto sparsity = config.given("sparsity_config")) {
        RETURN_IF_ERROR(one_of(*sparsity, "format", "dense", {"dense"}, "only dense is supported"));
    }
    if (const auto transforms = config.given("transform_config")) {
        ASSIGN_OR_RETURN(const auto members, transforms->members());
        if (!members.empty()) return transforms->unsupported("transforms are not supported");
    }
    ASSIGN_OR_RETURN(const JsonValue groups, config.at("config_groups"));
    ASSIGN_OR_RETURN(const auto members, groups.members());
    for (const auto &[name, value] : members) {
        ASSIGN_OR_RETURN(Group group, read_group(name, value, budget));
        const bool own = value.is_object() && value.given("format");
        if (!mixed && !own) RETURN_IF_ERROR(check_format(config, &group.scheme));
        groups_.push_back(std::move(group));
    }
    if (groups_.empty()) return groups.fail("names no group");
    if (const auto kv = config.given("kv_cache_scheme")) {
        kv_in_e4m3_ = check_float8(*kv).ok();
    }
    const auto ignore = config.given("ignore");
    if (!ignore) return {};
    ASSIGN_OR_RETURN(ignored_, ModuleNames::read(*ignore, ModuleNames::Kind::compressed, budget));
    return {};
}

Status Quantization::read_fp8(const JsonValue &config, Budget *budget) {
    RETURN_IF_ERROR(one_of(config, "fmt", "e4m3", {"e4m3"}, "only e4m3 is supported"));
    RETURN_IF_ERROR(one_of(config, "activation_scheme", "dynamic", {"static", "dynamic"},
                           "only static and dynamic are supported"));
    // If absent: blocks (the default of its class) or one scale per tensor, since older writers
    // omit the key.
    all_ = ScaleScheme{ScaleKind::block_or_tensor, 128, 128};
    if (const auto size = config.find("weight_block_size")) {
        all_ = ScaleScheme{ScaleKind::tensor};
        if (!size->is_null()) {
            ASSIGN_OR_RETURN(all_, read_block(*size, ScaleKind::block));
        }
    }
    auto left_out = config.given("modules_to_not_convert");
    if (!left_out) left_out = config.given("ignored_layers");
    if (!left_out) return {};
    ASSIGN_OR_RETURN(ignored_, ModuleNames::read(*left_out, ModuleNames::Kind::parts, budget));
    return {};
}

Status Quantization::read_modelopt_keys(const JsonValue &config, const char *excluded,
                                        Budget *budget) {
    if (config.given("kv_cache_quant_algo")) {
        ASSIGN_OR_RETURN(const std::string kv, text_of(config, "kv_cache_quant_algo", ""));
        kv_in_e4m3_ = kv == "FP8";
        absent_kv_scale_ = kv_in_e4m3_ ? 1 : 0;
    }
    ASSIGN_OR_RETURN(const JsonValue value, config.at("quant_algo"));
    if (value.is_null()) return {}; // only keys and values are quantised, or nothing
    ASSIGN_OR_RETURN(const std::string algorithm, value.string());
    if (algorithm == "FP8") {
        all_ = ScaleScheme{ScaleKind::tensor};
    } else if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
        all_ = ScaleScheme{ScaleKind::channel};
    } else if (algorithm == "FP8_PB_WO") {
        all_ = ScaleScheme{ScaleKind::block, 128, 128};
    } else if (algorithm == "NVFP4") {
        ScaleScheme &scheme = all_.emplace();
        scheme.four_bits = FourBitForm::nvfp4;
        scheme.group = 16;
        if (const auto size = config.given("group_size")) {
            ASSIGN_OR_RETURN(const int64_t columns, size->integer(1, most_block));
            if (columns != 16) return size->unsupported("only 16 is supported");
        }
    } else {
        return value.unsupported(
            "only FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO and NVFP4 are supported");
    }
    if (config.given("kv_cache_quant_algo")) {
        RETURN_IF_ERROR(one_of(config, "kv_cache_quant_algo", "", {"FP8", "none", "None"},
                               "only FP8 is supported"));
    }
    const auto list = config.given(excluded);
    if (!list) return {};
    ASSIGN_OR_RETURN(ignored_, ModuleNames::read(*list, ModuleNames::Kind::wildcards, budget));
    return {};
}

Result<std::shared_ptr<const Quantization>> Quantization::read(const JsonValue &config) {
    if (!config.is_object()) return config.fail("must be an object");
    const auto method = config.given("quant_method");
    if (!method) return config.unsupported("it names no quant_method");
    ASSIGN_OR_RETURN(const std::string name, method->string());
    auto read = std::make_shared<Quantization>();
    Budget budget = budget_of_file();
    if (name == "compressed-tensors") {
        RETURN_IF_ERROR(read->read_compressed(config, &budget));
    } else if (name == "fp8") {
        RETURN_IF_ERROR(read->read_fp8(config, &budget));
    } else if (name == "modelopt") {
        // Older files have the content of hf_quant_config.json here.
        if (config.given("quantization")) return read_modelopt(config);
        RETURN_IF_ERROR(read->read_modelopt_keys(config, "ignore", &budget));
    } else if (name == "awq") {
        ASSIGN_OR_RETURN(read->all_, read_awq(config));
    } else if (name == "gptq") {
        ASSIGN_OR_RETURN(read->all_, read_gptq(config));
    } else if (name == "mxfp4") {
        ScaleScheme &scheme = read->all_.emplace();
        scheme.four_bits = FourBitForm::mxfp4_experts;
        scheme.group = 32;
    } else {
        return method->unsupported(
            "only compressed-tensors, fp8, modelopt, awq, gptq and mxfp4 are supported");
    }
    return std::shared_ptr<const Quantization>(std::move(read));
}

Result<std::shared_ptr<const Quantization>> Quantization::read_modelopt(const JsonValue &file) {
    if (!file.is_object()) return file.fail("must be an object");
    ASSIGN_OR_RETURN(const JsonValue config, file.at("quantization"));
    if (!config.is_object()) return config.fail("must be an object");
    auto read = std::make_shared<Quantization>();
    Budget budget = budget_of_file();
    RETURN_IF_ERROR(read->read_modelopt_keys(config, "exclude_modules", &budget));
    return std::shared_ptr<const Quantization>(std::move(read));
}

} // namespace batchllm
