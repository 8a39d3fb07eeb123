#include "cli/row_parameters.h"

#include <algorithm>
#include <new>
#include <optional>

#include "cli/json_text.h"
#include "cli/row_constraint.h"

namespace batchllm::cli {

namespace {

void point_at(const std::vector<std::string> &texts, std::vector<const char *> *pointers) {
    pointers->clear();
    for (const std::string &text : texts) pointers->push_back(text.c_str());
}

} // namespace

batchllm_params view_params(const SamplingOptions &options, TextPointers *pointers) {
    point_at(options.stop_strings, &pointers->stop_strings);
    point_at(options.bad_words, &pointers->bad_words);
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = options.max_tokens;
    params.temperature = options.temperature;
    params.top_p = options.top_p;
    params.min_p = options.min_p;
    params.top_k = options.top_k;
    params.repetition_penalty = options.repetition_penalty;
    params.presence_penalty = options.presence_penalty;
    params.frequency_penalty = options.frequency_penalty;
    params.samples = options.samples;
    params.seed = options.seed;
    params.ignore_eos = options.ignore_eos ? 1 : 0;
    params.logprobs = options.logprobs;
    params.parse_special = options.parse_special ? 1 : 0;
    params.add_special = options.add_special ? 1 : 0;
    params.stop_tokens = options.stop_tokens.data();
    params.stop_token_count = static_cast<int64_t>(options.stop_tokens.size());
    params.stop_strings = pointers->stop_strings.data();
    params.stop_string_count = static_cast<int64_t>(pointers->stop_strings.size());
    params.min_tokens = options.min_tokens;
    params.prompt_logprobs = options.prompt_logprobs;
    params.bad_words = pointers->bad_words.data();
    params.bad_word_count = static_cast<int64_t>(pointers->bad_words.size());
    params.bias_tokens = options.bias_tokens.data();
    params.bias_values = options.bias_values.data();
    params.bias_count = static_cast<int64_t>(options.bias_tokens.size());
    params.task = options.task;
    params.pooling = options.pooling;
    params.normalize = options.normalize;
    params.dimensions = options.dimensions;
    params.constraint = options.constraint.get();
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

RowError ParameterReader::read_integer(std::string_view key, JsonView value, int32_t *field) {
    const std::optional<int64_t> number = value.integer();
    if (!number.has_value() && !value.is_integer()) return type_error(key, "a whole number");
    if (!number.has_value() || *number < INT32_MIN || *number > INT32_MAX) {
        return range_error(key, value);
    }
    *field = static_cast<int32_t>(*number);
    return {};
}

RowError ParameterReader::read_number(std::string_view key, JsonView value, float *field) {
    const std::optional<double> number = value.number();
    if (!value.is_number()) return type_error(key, "a number");
    if (!number.has_value()) return range_error(key, value);
    *field = static_cast<float>(*number); // beyond float's range: infinite, which the library
                                          // reports by name
    return {};
}

RowError ParameterReader::read_flag(std::string_view key, JsonView value, bool *field) {
    const std::optional<bool> flag = value.boolean();
    if (!flag.has_value()) return type_error(key, "true or false");
    *field = *flag;
    return {};
}

RowError ParameterReader::read_name(std::string_view key, JsonView value,
                                    std::span<const ParameterName> names, int32_t *field) {
    std::string wanted;
    for (const ParameterName &name : names) {
        if (value.string() == name.name) {
            *field = name.value;
            return {};
        }
        wanted += (wanted.empty()           ? ""
                   : &name == &names.back() ? " or "
                                            : ", ") +
                  in_quotes(name.name);
    }
    return type_error(key, wanted.c_str());
}

RowError ParameterReader::read_texts(std::string_view key, JsonView value,
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

RowError ParameterReader::read_bias(JsonView value) {
    const std::optional<JsonMembers> pairs = value.members();
    if (!pairs.has_value()) {
        return type_error("logit_bias", "an object of token ids and numbers");
    }
    std::vector<int32_t> tokens;
    std::vector<float> values;
    for (const auto [key, number] : *pairs) {
        const std::optional<int32_t> token = parse_token_id(key);
        const std::optional<double> bias = number.number();
        if (!token || !number.is_number()) {
            return type_error("logit_bias", "an object of token ids and numbers");
        }
        if (!bias.has_value()) return range_error("logit_bias", number);
        tokens.push_back(*token);
        values.push_back(static_cast<float>(*bias));
    }
    std::vector<int32_t> sorted = tokens;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
        return format_error("logit_bias names token " + std::to_string(*twice) + " twice");
    }
    own().bias_tokens = std::move(tokens);
    own().bias_values = std::move(values);
    return {};
}

// Only one key may set the constraint; start_after may accompany any of them.
RowError ParameterReader::read_constraint(ParameterKey name, std::string_view key, JsonView value) {
    ConstraintText &constraint = own().constraint_text;
    if (name == ParameterKey::start_after) {
        if (!value.is_string()) return type_error(key, "a string");
        constraint.start_after = std::string(*value.string());
        if (constraint.start_after.find('\0') == std::string::npos) return {};
        return parameter_error("start_after holds a zero byte");
    }
    if (!constraint_key_.empty()) {
        return format_error(in_quotes(constraint_key_) + " and " + in_quotes(key) +
                            " both say what the output must look like");
    }
    constraint_key_ = key;
    switch (name) {
    case ParameterKey::choices:
        return read_choices(value, &constraint);
    case ParameterKey::regex:
        return read_regex(value, &constraint);
    case ParameterKey::json_schema:
        return read_json_schema(value, &constraint);
    case ParameterKey::grammar:
        return read_grammar(value, &constraint);
    default:
        return read_response_format(value, &constraint, &strict_);
    }
}

RowError ParameterReader::take(ConstraintCache *constraints, Row *row) {
    row->params = defaults_;
    if (own_ == nullptr) return {};
    // A request's "strict" takes precedence over loose_schema, whatever their order.
    if (strict_.has_value()) own_->constraint_text.loose = !*strict_;
    const ConstraintText &text = own_->constraint_text;
    if (constraints != nullptr && text != defaults_->constraint_text) {
        own_->constraint = nullptr;
        if (text.kind != 0) {
            Result<SharedConstraint> made = constraints->get(text);
            if (!made.ok()) {
                // The row is not to blame: the run ends, and the next one reads the row again.
                if (made.status().code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
                return {row_error_code(BATCHLLM_ERROR_ROW_CONSTRAINT), made.status().message()};
            }
            own_->constraint = std::move(made).value();
        }
    }
    row->params = std::move(own_);
    return {};
}

RowError ParameterReader::read(std::string_view key, JsonView value, bool *known) {
    const std::optional<ParameterKey> name = find_parameter_key(key);
    *known = name.has_value();
    if (!name || value.is_null()) return {};
    SamplingOptions &options = own();
    switch (*name) {
    case ParameterKey::max_tokens:
        return read_integer(key, value, &options.max_tokens);
    case ParameterKey::temperature:
        return read_number(key, value, &options.temperature);
    case ParameterKey::top_p:
        return read_number(key, value, &options.top_p);
    case ParameterKey::min_p:
        return read_number(key, value, &options.min_p);
    case ParameterKey::top_k:
        return read_integer(key, value, &options.top_k);
    case ParameterKey::repetition_penalty:
        return read_number(key, value, &options.repetition_penalty);
    case ParameterKey::presence_penalty:
        return read_number(key, value, &options.presence_penalty);
    case ParameterKey::frequency_penalty:
        return read_number(key, value, &options.frequency_penalty);
    case ParameterKey::samples:
        return read_integer(key, value, &options.samples);
    case ParameterKey::seed: {
        const std::optional<int64_t> negative = value.integer();
        if (const auto seed = value.unsigned_integer()) {
            options.seed = *seed;
        } else if (negative.has_value()) {
            options.seed = static_cast<uint64_t>(*negative);
        } else {
            return value.is_integer() ? range_error(key, value) : type_error(key, "a whole number");
        }
        return {};
    }
    case ParameterKey::ignore_eos:
        return read_flag(key, value, &options.ignore_eos);
    case ParameterKey::parse_special:
        return read_flag(key, value, &options.parse_special);
    case ParameterKey::add_special:
        return read_flag(key, value, &options.add_special);
    case ParameterKey::logprobs:
        if (value.is_boolean()) {
            options.logprobs = *value.boolean() ? 0 : -1;
            return {};
        }
        return read_integer(key, value, &options.logprobs);
    case ParameterKey::stop:
        return read_texts(key, value, &options.stop_strings);
    case ParameterKey::bad_words:
        return read_texts(key, value, &options.bad_words);
    case ParameterKey::min_tokens:
        return read_integer(key, value, &options.min_tokens);
    case ParameterKey::prompt_logprobs:
        return read_integer(key, value, &options.prompt_logprobs);
    case ParameterKey::stop_tokens:
        return read_tokens(key, value, &options.stop_tokens);
    case ParameterKey::logit_bias:
        return read_bias(value);
    case ParameterKey::task:
        return read_name(key, value, task_names, &options.task);
    case ParameterKey::pooling:
        return read_name(key, value, pooling_names, &options.pooling);
    case ParameterKey::normalize: {
        bool on = false;
        RowError error = read_flag(key, value, &on);
        if (!failed(error)) options.normalize = on ? 1 : -1;
        return error;
    }
    case ParameterKey::dimensions:
        return read_integer(key, value, &options.dimensions);
    case ParameterKey::choices:
    case ParameterKey::regex:
    case ParameterKey::json_schema:
    case ParameterKey::grammar:
    case ParameterKey::response_format:
    case ParameterKey::start_after:
        return read_constraint(*name, key, value);
    case ParameterKey::flexible_whitespace:
        return read_flag(key, value, &options.constraint_text.flexible_whitespace);
    case ParameterKey::any_member_order:
        return read_flag(key, value, &options.constraint_text.any_member_order);
    case ParameterKey::any_numbers:
        return read_flag(key, value, &options.constraint_text.any_numbers);
    case ParameterKey::loose_schema:
        return read_flag(key, value, &options.constraint_text.loose);
    }
    return {};
}

} // namespace batchllm::cli
