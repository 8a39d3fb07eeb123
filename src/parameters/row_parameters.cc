#include "parameters/row_parameters.h"

#include <cstring>
#include <type_traits>

#include "base/printable.h"

namespace batchllm {
namespace {

constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;

// The most items that a list may have: enough for any vocabulary, too few to exhaust memory.
constexpr int64_t list_limit = 1 << 24;

template <typename P> Status check_value(const P &parameter, const typename P::Type &value) {
    if (parameter.valid(value)) return {};
    std::string name = parameter.name;
    if (name != parameter.key) name += std::string(" (") + parameter.key + ")";
    if constexpr (std::is_floating_point_v<typename P::Type>) {
        return error(code, "%s is %g: must be %s", name.c_str(), static_cast<double>(value),
                     parameter.range);
    } else {
        return error(code, "%s is %lld: must be %s", name.c_str(), static_cast<long long>(value),
                     parameter.range);
    }
}

Status check_conflicts(const RowParameters &row) {
#define CONFLICT(when, ...)                                                                        \
    if (when) return error(code, __VA_ARGS__);
#include "parameters/row_parameters.inc"
    return {};
}

// A value that has no effect is not read, but a vector's form is an error of rows that have no
// vector.
template <typename P>
Status read_value(const P &parameter, const batchllm_params &params, RowParameters *out) {
    const auto value = static_cast<typename P::Type>(params.*parameter.c_field);
    const auto task = static_cast<Task>(params.task);
    if (has_effect(parameter.rows, task)) {
        RETURN_IF_ERROR(check_value(parameter, value));
        out->*parameter.field = value;
    } else if (task == Task::classify && parameter.rows == RowsWith::embedded &&
               value != parameter.initial) {
        return error(code, "%s is for embedded rows", parameter.name);
    }
    return {};
}

Status check_token(const char *field, int64_t index, int32_t token, int32_t vocabulary) {
    if (token >= 0 && token < vocabulary) return {};
    return error(code, "%s[%lld] is %d: must be a token from 0 to %d", field,
                 static_cast<long long>(index), token, vocabulary - 1);
}

Status read_items(kinds::Tokens, const char *name, const batchllm_params &, const int32_t *items,
                  int64_t count, int32_t vocabulary, std::vector<int32_t> *out) {
    for (int64_t i = 0; i < count; ++i) {
        RETURN_IF_ERROR(check_token(name, i, items[i], vocabulary));
        out->push_back(items[i]);
    }
    return {};
}

Status read_items(kinds::Texts, const char *name, const batchllm_params &, const char *const *items,
                  int64_t count, int32_t, std::vector<std::string> *out) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) {
        const auto index = static_cast<long long>(i);
        const char *const text = items[i];
        if (text == nullptr) return error(code, "%s[%lld] is NULL", name, index);
        const size_t length = std::strlen(text);
        if (length == 0) return error(code, "%s[%lld] is empty", name, index);
        if (!is_utf8({text, length})) {
            return error(code, "%s[%lld] is not valid UTF-8", name, index);
        }
        if (length > static_cast<size_t>(stop_bytes_limit - bytes)) {
            return error(code, "%s take more than %lld bytes", name,
                         static_cast<long long>(stop_bytes_limit));
        }
        bytes += static_cast<int64_t>(length);
        out->emplace_back(text, length);
    }
    return {};
}

Status read_items(kinds::Biases, const char *name, const batchllm_params &params,
                  const int32_t *items, int64_t count, int32_t vocabulary,
                  std::vector<std::pair<int32_t, float>> *out) {
    if (count > 0 && params.bias_values == nullptr) return error(code, "bias_values is NULL");
    for (int64_t i = 0; i < count; ++i) {
        RETURN_IF_ERROR(check_token(name, i, items[i], vocabulary));
        const float value = params.bias_values[i];
        if (!(value < HUGE_VALF)) {
            return error(code,
                         "bias_values[%lld] (logit_bias of token %d) is %g: must be a number or "
                         "-infinity",
                         static_cast<long long>(i), items[i], static_cast<double>(value));
        }
        out->emplace_back(items[i], value);
    }
    return {};
}

template <typename P> Status read_list(const P &list, const batchllm_params &params,
                                       int32_t vocabulary, RowParameters *out) {
    if (!has_effect(list.rows, static_cast<Task>(params.task))) return {};
    const int64_t count = params.*list.count;
    if (count < 0 || count > list_limit) {
        return error(code, "%s is %lld: must be from 0 to %lld", list.count_name,
                     static_cast<long long>(count), static_cast<long long>(list_limit));
    }
    if (count > 0 && params.*list.items == nullptr) {
        return error(code, "%s is NULL", list.items_name);
    }
    return read_items(typename P::Kind(), list.items_name, params, params.*list.items, count,
                      vocabulary, &(out->*list.field));
}

const int32_t *view_items(const std::vector<int32_t> &tokens, kinds::Tokens::View *,
                          batchllm_params *) {
    return tokens.data();
}

const char *const *view_items(const std::vector<std::string> &texts, kinds::Texts::View *view,
                              batchllm_params *) {
    view->clear();
    for (const std::string &text : texts) view->push_back(text.c_str());
    return view->data();
}

const int32_t *view_items(const std::vector<std::pair<int32_t, float>> &biases,
                          kinds::Biases::View *view, batchllm_params *params) {
    view->tokens.clear();
    view->values.clear();
    for (const auto &[token, value] : biases) {
        view->tokens.push_back(token);
        view->values.push_back(value);
    }
    params->bias_values = view->values.data();
    return view->tokens.data();
}

} // namespace

batchllm_params default_params() {
    batchllm_params params{};
    params.struct_size = sizeof params;
    each_parameter([&](const auto &parameter) {
        if constexpr (!is_list<decltype(parameter)>) {
            auto &field = params.*parameter.c_field;
            field = static_cast<std::decay_t<decltype(field)>>(parameter.initial);
        }
        return true;
    });
    return params;
}

Result<RowParameters> read_parameters(const batchllm_params &params, int32_t vocabulary) {
    RowParameters out;
    Status status;
    each_parameter([&](const auto &parameter) {
        if constexpr (is_list<decltype(parameter)>) {
            status = read_list(parameter, params, vocabulary, &out);
        } else {
            status = read_value(parameter, params, &out);
        }
        return status.ok();
    });
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(check_conflicts(out));
    return out;
}

batchllm_params view_parameters(const RowParameters &row, ParameterViews *views) {
    batchllm_params params = default_params();
    each_parameter([&](const auto &parameter) {
        const auto &value = row.*parameter.field;
        if constexpr (is_list<decltype(parameter)>) {
            params.*parameter.items = view_items(value, &(views->*parameter.view), &params);
            params.*parameter.count = static_cast<int64_t>(value.size());
        } else {
            auto &field = params.*parameter.c_field;
            field = static_cast<std::decay_t<decltype(field)>>(value);
        }
        return true;
    });
    return params;
}

bool same_greedy_answer(const RowParameters &a, const RowParameters &b) {
    return each_parameter([&](const auto &parameter) {
        return parameter.affects != Affects::answer || a.*parameter.field == b.*parameter.field;
    });
}

} // namespace batchllm
