// batchllm_params -> SamplingParams: only the fields that the caller's struct has, with ranges
// checked.
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/printable.h"
#include "constraint/handle.h"
#include "sample/sampling.h"

namespace batchllm {
namespace {

constexpr int32_t code = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;

// The most items that a list may have: enough for any vocabulary, too few to exhaust memory.
constexpr int64_t list_limit = 1 << 24;

Status out_of_range(const char *field, double value, const char *range) {
    return error(code, "%s is %g: must be %s", field, value, range);
}

Status out_of_range(const char *field, int32_t value, const char *range) {
    return error(code, "%s is %d: must be %s", field, value, range);
}

Status check_list(const char *field, const char *count_field, const void *items, int64_t count) {
    if (count < 0 || count > list_limit) {
        return error(code, "%s is %lld: must be from 0 to %lld", count_field,
                     static_cast<long long>(count), static_cast<long long>(list_limit));
    }
    if (count > 0 && items == nullptr) return error(code, "%s is NULL", field);
    return {};
}

Status check_token(const char *field, int64_t index, int32_t token, int32_t vocabulary) {
    if (token >= 0 && token < vocabulary) return {};
    return error(code, "%s[%lld] is %d: must be a token from 0 to %d", field,
                 static_cast<long long>(index), token, vocabulary - 1);
}

// Comparisons are written so that NaN fails them.
Status check_ranges(const SamplingParams &out) {
    constexpr double infinity = HUGE_VAL;
    if (out.max_tokens < 1) return out_of_range("max_tokens", out.max_tokens, "at least 1");
    if (!(out.temperature >= 0 && out.temperature < infinity)) {
        return out_of_range("temperature", out.temperature, "0 or a positive number");
    }
    if (!(out.top_p > 0 && out.top_p <= 1)) {
        return out_of_range("top_p", out.top_p, "above 0 and at most 1");
    }
    if (!(out.min_p >= 0 && out.min_p < 1)) {
        return out_of_range("min_p", out.min_p, "at least 0 and below 1");
    }
    if (out.top_k < 0) return out_of_range("top_k", out.top_k, "0 or -1 (off), or at least 1");
    if (!(out.repetition_penalty > 0 && out.repetition_penalty < infinity)) {
        return out_of_range("repetition_penalty", out.repetition_penalty, "a positive number");
    }
    if (!(out.presence_penalty >= -2 && out.presence_penalty <= 2)) {
        return out_of_range("presence_penalty", out.presence_penalty, "from -2 to 2");
    }
    if (!(out.frequency_penalty >= -2 && out.frequency_penalty <= 2)) {
        return out_of_range("frequency_penalty", out.frequency_penalty, "from -2 to 2");
    }
    if (out.samples < 1 || out.samples > samples_limit) {
        return out_of_range("samples (n)", out.samples, "from 1 to 65536");
    }
    if (out.logprobs < -1 || out.logprobs > 20) {
        return out_of_range("logprobs", out.logprobs, "from -1 (none) to 20");
    }
    if (out.prompt_logprobs < -1 || out.prompt_logprobs > 20) {
        return out_of_range("prompt_logprobs", out.prompt_logprobs, "from -1 (none) to 20");
    }
    if (out.min_tokens < 0) return out_of_range("min_tokens", out.min_tokens, "at least 0");
    if (out.min_tokens > out.max_tokens) {
        return error(code, "min_tokens is %d: it must be at most max_tokens, %d", out.min_tokens,
                     out.max_tokens);
    }
    return {};
}

// A list of texts: stop strings, bad words.
Status read_texts(const char *field, const char *count_field, const char *const *texts,
                  int64_t count, std::vector<std::string> *out) {
    RETURN_IF_ERROR(check_list(field, count_field, texts, count));
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; ++i) {
        const auto index = static_cast<long long>(i);
        const char *const text = texts[i];
        if (text == nullptr) return error(code, "%s[%lld] is NULL", field, index);
        const size_t length = std::strlen(text);
        if (length == 0) return error(code, "%s[%lld] is empty", field, index);
        if (!is_utf8({text, length})) {
            return error(code, "%s[%lld] is not valid UTF-8", field, index);
        }
        if (length > static_cast<size_t>(stop_bytes_limit - bytes)) {
            return error(code, "%s take more than %lld bytes", field,
                         static_cast<long long>(stop_bytes_limit));
        }
        bytes += static_cast<int64_t>(length);
        out->emplace_back(text, length);
    }
    return {};
}

Status read_bias(const batchllm_params &params, int32_t vocabulary, SamplingParams *out) {
    RETURN_IF_ERROR(check_list("bias_tokens", "bias_count", params.bias_tokens, params.bias_count));
    if (params.bias_count > 0 && params.bias_values == nullptr) {
        return error(code, "bias_values is NULL");
    }
    for (int64_t i = 0; i < params.bias_count; ++i) {
        RETURN_IF_ERROR(check_token("bias_tokens", i, params.bias_tokens[i], vocabulary));
        const float value = params.bias_values[i];
        if (!(value < HUGE_VALF)) {
            return error(code,
                         "bias_values[%lld] (logit_bias of token %d) is %g: must be a number or "
                         "-infinity",
                         static_cast<long long>(i), params.bias_tokens[i],
                         static_cast<double>(value));
        }
        out->bias.emplace_back(params.bias_tokens[i], value);
    }
    return {};
}

} // namespace

Result<SamplingParams> read_params(const batchllm_params &params, int32_t vocabulary) {
    SamplingParams out;
    const size_t size = params.struct_size;
    if (size < sizeof params.struct_size + sizeof params.max_tokens) {
        return error(code, "struct_size is %zu: batchllm_params_init was not called", size);
    }
// A field counts only if the caller's struct contains all of it.
#define BATCHLLM_HAS_FIELD(field) (offsetof(batchllm_params, field) + sizeof params.field <= size)
#define BATCHLLM_READ_FIELD(field)                                                                 \
    if (BATCHLLM_HAS_FIELD(field)) out.field = params.field
    BATCHLLM_READ_FIELD(max_tokens);
    BATCHLLM_READ_FIELD(temperature);
    BATCHLLM_READ_FIELD(top_p);
    BATCHLLM_READ_FIELD(min_p);
    BATCHLLM_READ_FIELD(top_k);
    BATCHLLM_READ_FIELD(repetition_penalty);
    BATCHLLM_READ_FIELD(presence_penalty);
    BATCHLLM_READ_FIELD(frequency_penalty);
    BATCHLLM_READ_FIELD(samples);
    BATCHLLM_READ_FIELD(seed);
    BATCHLLM_READ_FIELD(logprobs);
    BATCHLLM_READ_FIELD(min_tokens);
    BATCHLLM_READ_FIELD(prompt_logprobs);
    if (out.top_k == -1) out.top_k = 0;
    if (BATCHLLM_HAS_FIELD(ignore_eos)) out.ignore_eos = params.ignore_eos != 0;
    if (BATCHLLM_HAS_FIELD(parse_special)) out.parse_special = params.parse_special != 0;
    if (BATCHLLM_HAS_FIELD(add_special)) out.add_special = params.add_special != 0;
    RETURN_IF_ERROR(check_ranges(out));

    // A list whose count lies beyond the struct is absent.
    if (BATCHLLM_HAS_FIELD(stop_token_count)) {
        RETURN_IF_ERROR(check_list("stop_tokens", "stop_token_count", params.stop_tokens,
                                   params.stop_token_count));
        for (int64_t i = 0; i < params.stop_token_count; ++i) {
            RETURN_IF_ERROR(check_token("stop_tokens", i, params.stop_tokens[i], vocabulary));
            out.stop_tokens.push_back(params.stop_tokens[i]);
        }
    }
    if (BATCHLLM_HAS_FIELD(stop_string_count)) {
        RETURN_IF_ERROR(read_texts("stop_strings", "stop_string_count", params.stop_strings,
                                   params.stop_string_count, &out.stop_strings));
    }
    if (BATCHLLM_HAS_FIELD(bad_word_count)) {
        RETURN_IF_ERROR(read_texts("bad_words", "bad_word_count", params.bad_words,
                                   params.bad_word_count, &out.bad_words));
    }
    if (BATCHLLM_HAS_FIELD(constraint) && params.constraint != nullptr) {
        out.constraint = params.constraint->constraint;
    }
    if (BATCHLLM_HAS_FIELD(bias_count)) RETURN_IF_ERROR(read_bias(params, vocabulary, &out));
#undef BATCHLLM_READ_FIELD
#undef BATCHLLM_HAS_FIELD
    return out;
}

} // namespace batchllm
