#include "cli/row_parameters.h"

#include <algorithm>
#include <new>
#include <optional>
#include <span>

#include "cli/json_text.h"
#include "cli/row_constraint.h"

namespace batchllm::cli {

batchllm_params view_params(const SamplingOptions &options, ParameterViews *views) {
    batchllm_params params = view_parameters(options, views);
    params.constraint = options.constraint.get();
    if (options.adapter != nullptr) params.adapter = options.adapter->handle.get();
    return params;
}

std::string row_error_code(int32_t status) {
    std::string name = batchllm_status_name(status);
    const std::string prefix = "BATCHLLM_ERROR_";
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
    return name;
}

RowError format_error(std::string message) { return {"ROW_FORMAT", std::move(message)}; }

RowError parameter_error(std::string message) {
    return {row_error_code(BATCHLLM_ERROR_ROW_INVALID_PARAMETER), std::move(message)};
}

RowError type_error(std::string_view key, const char *wanted) {
    return format_error(in_quotes(key) + " must be " + wanted);
}

namespace {

// A number, as it is written, that no type or parameter can hold.
RowError range_error(std::string_view key, JsonView number) {
    return parameter_error(std::string(key) + " " + printable(*number.number_text()) +
                           " is out of range");
}

} // namespace

RowError read_tokens(std::string_view key, JsonView value, std::vector<int32_t> *tokens) {
    const std::optional<JsonItems> items = value.items();
    if (!items.has_value()) return type_error(key, "a list of token ids");
    tokens->clear();
    tokens->reserve(items->size());
    for (const JsonView item : *items) {
        const std::optional<int64_t> token = item.integer();
        if (!token.has_value() && !item.is_integer()) {
            return type_error(key, "a list of whole numbers");
        }
        if (!token.has_value() || *token < INT32_MIN || *token > INT32_MAX) {
            return {row_error_code(BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN),
                    in_quotes(key) + " holds an id that no vocabulary has"};
        }
        tokens->push_back(static_cast<int32_t>(*token));
    }
    return {};
}

namespace {

// The value of a key, for each kind of parameter.
RowError read_value(kinds::Whole, std::string_view key, JsonView value, int32_t *field) {
    const std::optional<int64_t> number = value.integer();
    if (!number.has_value() && !value.is_integer()) return type_error(key, "a whole number");
    if (!number.has_value() || *number < INT32_MIN || *number > INT32_MAX) {
        return range_error(key, value);
    }
    *field = static_cast<int32_t>(*number);
    return {};
}

RowError read_value(kinds::Number, std::string_view key, JsonView value, float *field) {
    const std::optional<double> number = value.number();
    if (!value.is_number()) return type_error(key, "a number");
    if (!number.has_value()) return range_error(key, value);
    *field = static_cast<float>(*number); // beyond float's range: infinite, which the library
                                          // reports by name
    return {};
}

RowError read_value(kinds::Flag, std::string_view key, JsonView value, bool *field) {
    const std::optional<bool> flag = value.boolean();
    if (!flag.has_value()) return type_error(key, "true or false");
    *field = *flag;
    return {};
}

RowError read_value(kinds::Choice, std::string_view key, JsonView value, int32_t *field) {
    bool on = false;
    RowError error = read_value(kinds::Flag(), key, value, &on);
    if (!failed(error)) *field = on ? 1 : -1;
    return error;
}

RowError read_value(kinds::Seed, std::string_view key, JsonView value, uint64_t *field) {
    const std::optional<int64_t> negative = value.integer();
    if (const auto seed = value.unsigned_integer()) {
        *field = *seed;
    } else if (negative.has_value()) {
        *field = static_cast<uint64_t>(*negative);
    } else {
        return value.is_integer() ? range_error(key, value) : type_error(key, "a whole number");
    }
    return {};
}

RowError read_value(kinds::Likeliest, std::string_view key, JsonView value, int32_t *field) {
    if (!value.is_boolean()) return read_value(kinds::Whole(), key, value, field);
    *field = *value.boolean() ? 0 : -1;
    return {};
}

template <typename Kind>
requires requires { names_of(Kind()); }
RowError read_value(Kind kind, std::string_view key, JsonView value, typename Kind::Type *field) {
    const std::span<const ParameterName> names = names_of(kind);
    std::string wanted;
    for (const ParameterName &name : names) {
        if (value.string() == name.name) {
            *field = static_cast<typename Kind::Type>(name.value);
            return {};
        }
        wanted += (wanted.empty()           ? ""
                   : &name == &names.back() ? " or "
                                            : ", ") +
                  in_quotes(name.name);
    }
    return type_error(key, wanted.c_str());
}

RowError read_value(kinds::Tokens, std::string_view key, JsonView value,
                    std::vector<int32_t> *field) {
    return read_tokens(key, value, field);
}

RowError read_value(kinds::Texts, std::string_view key, JsonView value,
                    std::vector<std::string> *field) {
    constexpr const char *wanted = "a string or a list of strings";
    std::vector<std::string> texts;
    if (value.is_string()) {
        texts.push_back(std::string(*value.string()));
    } else if (const std::optional<JsonItems> items = value.items()) {
        for (const JsonView item : *items) {
            if (!item.is_string()) return type_error(key, wanted);
            texts.push_back(std::string(*item.string()));
        }
    } else {
        return type_error(key, wanted);
    }
    for (const std::string &text : texts) {
        if (text.empty()) return parameter_error(std::string(key) + " holds an empty string");
        if (text.find('\0') != std::string::npos) {
            return parameter_error(std::string(key) + " holds a string with a zero byte");
        }
    }
    *field = std::move(texts);
    return {};
}

RowError read_value(kinds::Biases, std::string_view name, JsonView value,
                    std::vector<std::pair<int32_t, float>> *field) {
    const std::optional<JsonMembers> pairs = value.members();
    if (!pairs.has_value()) return type_error(name, "an object of token ids and numbers");
    std::vector<std::pair<int32_t, float>> biases;
    std::vector<int32_t> sorted;
    for (const auto [key, number] : *pairs) {
        const std::optional<int32_t> token = parse_token_id(key);
        const std::optional<double> bias = number.number();
        if (!token || !number.is_number()) {
            return type_error(name, "an object of token ids and numbers");
        }
        if (!bias.has_value()) return range_error(name, number);
        biases.emplace_back(*token, static_cast<float>(*bias));
        sorted.push_back(*token);
    }
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
        return format_error(std::string(name) + " names token " + std::to_string(*twice) +
                            " twice");
    }
    *field = std::move(biases);
    return {};
}

} // namespace

// Only one key may set the constraint; the last five here may accompany any of them.
RowError ParameterReader::read_constraint(ConstraintKey name, std::string_view key,
                                          JsonView value) {
    ConstraintText &constraint = own().constraint_text;
    if (name < ConstraintKey::start_after) {
        if (!constraint_key_.empty()) {
            return format_error(in_quotes(constraint_key_) + " and " + in_quotes(key) +
                                " both say what the output must look like");
        }
        constraint_key_ = key;
    }
    switch (name) {
    case ConstraintKey::choices:
        return read_choices(value, &constraint);
    case ConstraintKey::regex:
        return read_regex(value, &constraint);
    case ConstraintKey::json_schema:
        return read_json_schema(value, &constraint);
    case ConstraintKey::grammar:
        return read_grammar(value, &constraint);
    case ConstraintKey::response_format:
        return read_response_format(value, &constraint, &strict_);
    case ConstraintKey::start_after:
        if (!value.is_string()) return type_error(key, "a string");
        constraint.start_after = std::string(*value.string());
        if (constraint.start_after.find('\0') == std::string::npos) return {};
        return parameter_error("start_after holds a zero byte");
    case ConstraintKey::flexible_whitespace:
        return read_value(kinds::Flag(), key, value, &constraint.flexible_whitespace);
    case ConstraintKey::any_member_order:
        return read_value(kinds::Flag(), key, value, &constraint.any_member_order);
    case ConstraintKey::any_numbers:
        return read_value(kinds::Flag(), key, value, &constraint.any_numbers);
    case ConstraintKey::loose_schema:
        return read_value(kinds::Flag(), key, value, &constraint.loose);
    }
    return {};
}

void ParameterReader::read_model(const RowReaderOptions &options, const std::string &model) {
    if (adapter_.has_value() || options.adapters == nullptr) return;
    if (options.adapters->knows(model)) {
        adapter_ = model;
    } else {
        options.adapters->count_other_model(model);
    }
}

RowError ParameterReader::read_adapter(std::string_view key, JsonView value) {
    if (value.is_null()) return {};
    if (!value.is_string()) return type_error(key, "the name of an adapter");
    adapter_ = std::string(*value.string());
    return {};
}

RowError ParameterReader::find_adapter(const RowReaderOptions &options) {
    if (adapter_->empty()) {
        own().adapter = nullptr;
        return {};
    }
    const Result<SharedAdapter> found =
        options.adapters == nullptr
            ? error(BATCHLLM_ERROR_ROW_ADAPTER, "there are no adapters here")
            : options.adapters->find(*adapter_);
    if (!found.ok()) {
        return {row_error_code(BATCHLLM_ERROR_ROW_ADAPTER), found.status().message()};
    }
    own().adapter = *found;
    return {};
}

// Creates the row's own constraint, if there is a cache to create it with.
RowError ParameterReader::make_constraint(ConstraintCache *constraints) {
    // A request's "strict" takes precedence over loose_schema, whatever their order.
    if (strict_.has_value()) own_->constraint_text.loose = !*strict_;
    const ConstraintText &text = own_->constraint_text;
    if (constraints == nullptr || text == defaults_->constraint_text) return {};
    own_->constraint = nullptr;
    if (text.kind == 0) return {};
    Result<SharedConstraint> made = constraints->get(text);
    if (!made.ok()) {
        // The row is not to blame: the run ends, and the next one reads the row again.
        if (made.status().code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
        return {row_error_code(BATCHLLM_ERROR_ROW_CONSTRAINT), made.status().message()};
    }
    own_->constraint = std::move(made).value();
    return {};
}

RowError ParameterReader::take(const RowReaderOptions &options, InputRow *row) {
    row->params = defaults_;
    if (adapter_.has_value()) {
        RowError error = find_adapter(options);
        if (failed(error)) return error;
    }
    if (own_ == nullptr) return {};
    RowError error = make_constraint(options.constraints);
    row->params = std::move(own_); // even then: what is wrong with its adapter comes first
    return error;
}

RowError ParameterReader::read(std::string_view key, JsonView value, bool *known) {
    *known = true;
    if (key == "adapter") return read_adapter(key, value);
    if (const std::optional<ConstraintKey> name = find_constraint_key(key)) {
        return value.is_null() ? RowError() : read_constraint(*name, key, value);
    }
    RowError error;
    const std::string_view usual = usual_key(key);
    *known = !each_parameter([&](const auto &parameter) {
        if (usual != parameter.key) return true;
        if (!value.is_null()) {
            using Kind = KindOf<decltype(parameter)>;
            error = read_value(Kind(), key, value, &(own().*parameter.field));
        }
        return false;
    });
    return error;
}

} // namespace batchllm::cli
