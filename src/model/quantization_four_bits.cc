// "quantization_config" -> four-bit schemes.
#include <algorithm>
#include <cctype>

#include "model/quantization_keys.h"

namespace batchllm {
namespace {

constexpr int64_t most_columns = 1 << 20;

// The first of the keys that is given.
std::optional<JsonValue> first_given(const JsonValue &config,
                                     std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
        if (auto value = config.given(key)) return value;
    }
    return std::nullopt;
}

Status check_bits(const std::optional<JsonValue> &bits) {
    if (!bits) return {};
    ASSIGN_OR_RETURN(const int64_t count, bits->integer(1, 64));
    return count == 4 ? Status() : bits->unsupported("only 4 is supported");
}

// Columns per group; -1 becomes 0: all.
Result<int64_t> read_group_size(const std::optional<JsonValue> &size, int64_t otherwise) {
    if (!size) return otherwise;
    ASSIGN_OR_RETURN(const int64_t columns, size->integer(-1, most_columns));
    if (columns == 0) return size->fail("must be -1 or above 0");
    return std::max<int64_t>(columns, 0);
}

// Like one_of(), ignoring case.
Status one_of_words(const JsonValue &config, std::string_view key,
                    std::initializer_list<std::string_view> known, const std::string &what) {
    const auto value = config.given(key);
    if (!value) return {};
    ASSIGN_OR_RETURN(std::string text, value->string());
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (std::find(known.begin(), known.end(), text) != known.end()) return {};
    return value->unsupported(what);
}

// "dynamic": expressions for modules with different values. "-:" marks modules that are not quantised.
Status check_exceptions(const JsonValue &config) {
    const auto exceptions = config.given("dynamic");
    if (!exceptions || !exceptions->is_object()) return {};
    ASSIGN_OR_RETURN(const auto members, exceptions->members());
    for (const auto &[name, value] : members) {
        if (name.starts_with("-:")) continue;
        return value.unsupported("modules quantised otherwise than the rest are not supported");
    }
    return {};
}

} // namespace

Result<ScaleScheme> read_awq(const JsonValue &config) {
    RETURN_IF_ERROR(check_bits(first_given(config, {"bits", "w_bit"})));
    const auto zeros = config.given("zero_point");
    if (zeros) {
        ASSIGN_OR_RETURN(const bool yes, zeros->boolean());
        if (!yes) return zeros->unsupported("only true is supported");
    }
    for (const char *key : {"version", "format"}) {
        RETURN_IF_ERROR(one_of_words(config, key, {"gemm"}, "only gemm is supported"));
    }
    if (const auto backend = config.given("backend")) {
        ASSIGN_OR_RETURN(const std::string name, backend->string());
        if (name == "llm-awq") return backend->unsupported("its packing is not gemm's");
    }
    ScaleScheme scheme;
    scheme.four_bits = FourBitForm::awq;
    ASSIGN_OR_RETURN(scheme.group,
                     read_group_size(first_given(config, {"group_size", "q_group_size"}), 128));
    scheme.symmetric = false;
    return scheme;
}

Result<ScaleScheme> read_gptq(const JsonValue &config) {
    RETURN_IF_ERROR(check_bits(first_given(config, {"bits"})));
    for (const char *key : {"checkpoint_format", "format"}) {
        RETURN_IF_ERROR(
            one_of_words(config, key, {"gptq", "gptq_v2"}, "only gptq and gptq_v2 are supported"));
    }
    RETURN_IF_ERROR(check_exceptions(config));
    ScaleScheme scheme;
    scheme.four_bits = FourBitForm::gptq;
    ASSIGN_OR_RETURN(scheme.group, read_group_size(config.given("group_size"), 128));
    ASSIGN_OR_RETURN(scheme.any_order, config.boolean_or("desc_act", false));
    ASSIGN_OR_RETURN(scheme.symmetric, config.boolean_or("sym", true));
    if (const auto format = first_given(config, {"checkpoint_format", "format"})) {
        ASSIGN_OR_RETURN(const std::string name, format->string());
        scheme.second_version = name.ends_with("2");
    }
    return scheme;
}

Result<ScaleScheme> read_four_bit_weights(const JsonValue &weights) {
    RETURN_IF_ERROR(
        one_of(weights, "type", "int", {"int", "float"}, "only int and float are supported"));
    ASSIGN_OR_RETURN(const std::string type, text_of(weights, "type", "int"));
    const bool floats = type == "float";
    ASSIGN_OR_RETURN(const std::string strategy, text_of(weights, "strategy", "tensor"));
    const bool nvfp4 = floats && strategy == "tensor_group";
    ScaleScheme scheme;
    scheme.four_bits = nvfp4    ? FourBitForm::packed_nvfp4
                       : floats ? FourBitForm::packed_mxfp4
                                : FourBitForm::packed;
    ASSIGN_OR_RETURN(scheme.symmetric, weights.boolean_or("symmetric", true));
    if (floats && !scheme.symmetric) {
        return weights.find("symmetric")->unsupported("only true is supported");
    }
    if (const auto dynamic = weights.given("dynamic")) {
        ASSIGN_OR_RETURN(const bool yes, dynamic->boolean());
        if (yes) return dynamic->unsupported("scales of weights must be in the files");
    }
    if (strategy == "channel" && !floats) return scheme;
    RETURN_IF_ERROR(one_of(weights, "strategy", "tensor", {nvfp4 ? "tensor_group" : "group"},
                           floats ? "only group and tensor_group are supported for float of 4 bits"
                                  : "only channel and group are supported for 4 bits"));
    ASSIGN_OR_RETURN(const JsonValue size, weights.at("group_size"));
    ASSIGN_OR_RETURN(scheme.group, size.integer(1, most_columns));
    if (nvfp4 && scheme.group != 16) return size.unsupported("only 16, as NVFP4, is supported");
    if (floats && !nvfp4 && scheme.group != 32) {
        return size.unsupported("only 32, as MXFP4, is supported");
    }
    return scheme;
}

} // namespace batchllm
