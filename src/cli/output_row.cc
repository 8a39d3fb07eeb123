#include "cli/output_row.h"

#include "cli/json_text.h"
#include "cli/result_keys.h"
#include "cli/result_view.h"

namespace batchllm::cli {
namespace {

void append_error(std::string *out, int64_t line, const RowError &error) {
    JsonObject object(out);
    object.field("code", std::string_view(error.code))
        .field("message", std::string_view(error.message))
        .field("line", line);
    object.close();
}

// [[{"token": 5, "logprob": -0.1}, ...], ...]: one list per token.
void append_top(std::string *out, const LogprobView &logprobs, int64_t i) {
    *out += '[';
    for (int64_t t = logprobs.offsets[i]; t < logprobs.offsets[i + 1]; ++t) {
        *out += t == logprobs.offsets[i] ? "[" : ",[";
        for (int64_t k = logprobs.top_offsets[t]; k < logprobs.top_offsets[t + 1]; ++k) {
            if (k > logprobs.top_offsets[t]) *out += ',';
            JsonObject object(out);
            object.field("token", logprobs.top_tokens[k])
                .field("logprob", logprobs.top_logprobs[k]);
            object.close();
        }
        *out += ']';
    }
    *out += ']';
}

// The two members of log-probabilities, if the row asked for them.
void append_logprobs(JsonObject *object, std::string *out, const LogprobView &logprobs, int64_t i) {
    if (!logprobs.any(i)) return;
    object->key(result_key::logprobs);
    append_json_list(out, slice(logprobs.values, logprobs.offsets, i));
    if (!logprobs.any_top(i)) return;
    object->key(result_key::top_logprobs);
    append_top(out, logprobs, i);
}

// The same of its prompt, in its first sample. A prompt of one token has them too: empty lists.
void append_prompt_logprobs(JsonObject *object, std::string *out, const RowRecord &record,
                            const batchllm_results &results, int64_t i) {
    if (record.prompt_logprobs < 0 || results.samples[i] > 0) return;
    if (results.statuses[i] != BATCHLLM_OK) return;
    const LogprobView logprobs = prompt_logprobs_of(results);
    object->key(result_key::prompt_logprobs);
    append_json_list(out, slice(logprobs.values, logprobs.offsets, i));
    if (record.prompt_logprobs == 0) return;
    object->key(result_key::prompt_top_logprobs);
    append_top(out, logprobs, i);
}

void append_scores(JsonObject *object, std::string *out, const batchllm_results &results,
                   int64_t i) {
    object->key(result_key::scores);
    append_json_list(out, slice(results.scores, results.score_offsets, i));
    object->key(result_key::score_logprobs);
    *out += '[';
    for (int64_t s = results.score_offsets[i]; s < results.score_offsets[i + 1]; ++s) {
        if (s > results.score_offsets[i]) *out += ',';
        append_json_list(out, slice(results.score_logprobs, results.score_token_offsets, s));
    }
    *out += ']';
}

// [{"label": .., "logit": .., "probability": ..}, ...], in the model's order.
void append_labels(JsonObject *object, std::string *out, const OutputOptions &options,
                   const batchllm_results &results, int64_t i) {
    object->key(result_key::labels);
    *out += '[';
    const int64_t begin = results.label_offsets[i];
    for (int64_t l = begin; l < results.label_offsets[i + 1]; ++l) {
        if (l > begin) *out += ',';
        JsonObject label(out);
        label.field("label", std::string_view(options.labels[static_cast<size_t>(l - begin)]))
            .field("logit", results.label_logits[l])
            .field("probability", results.label_probabilities[l]);
        label.close();
    }
    *out += ']';
}

// The members of one sample in the program's own form.
void append_sample(JsonObject *object, std::string *out, const OutputOptions &options, int64_t line,
                   const RowRecord &record, const batchllm_results &results, int64_t i) {
    const bool ok = results.statuses[i] == BATCHLLM_OK;
    if (ok) {
        object->field(result_key::text, text_of(results, i));
    } else {
        object->raw(result_key::text, "null");
    }
    object->key(result_key::tokens);
    append_json_list(out, slice(results.tokens, results.token_offsets, i));
    object->field(result_key::finish_reason,
                  ok ? batchllm_finish_name(results.finish_reasons[i]) : "error");
    if (!ok) {
        object->key(result_key::error);
        append_error(out, line, error_of(results, i));
    }
    append_logprobs(object, out, logprobs_of(results), i);
    append_prompt_logprobs(object, out, record, results, i);
    if (results.score_offsets[i + 1] > results.score_offsets[i]) {
        append_scores(object, out, results, i);
    }
    const auto embedding = slice(results.embeddings, results.embedding_offsets, i);
    if (!embedding.empty()) {
        object->key(result_key::embedding);
        append_json_list(out, embedding);
    }
    if (results.label_offsets[i + 1] > results.label_offsets[i]) {
        append_labels(object, out, options, results, i);
    }
}

void append_usage(JsonObject *object, std::string *out, int64_t prompt, int64_t shared,
                  int64_t completion) {
    object->key(result_key::usage);
    JsonObject usage(out);
    usage.field("prompt_tokens", prompt)
        .field("shared_tokens", shared)
        .field("completion_tokens", completion);
    usage.close();
}

void append_plain(std::string *out, const OutputOptions &options, int64_t line,
                  const RowRecord &record, const batchllm_results &results, int64_t first,
                  int64_t count) {
    JsonObject object(out);
    object.raw(result_key::id, record.id).members(record.columns);
    int64_t completion = 0;
    for (int64_t i = first; i < first + count; ++i) completion += completion_tokens(results, i);
    if (count == 1) {
        append_sample(&object, out, options, line, record, results, first);
    } else {
        object.key(result_key::samples);
        for (int64_t i = first; i < first + count; ++i) {
            *out += i == first ? '[' : ',';
            JsonObject sample(out);
            append_sample(&sample, out, options, line, record, results, i);
            sample.close();
        }
        *out += ']';
    }
    append_usage(&object, out, results.prompt_tokens[first], results.shared_tokens[first],
                 completion);
    object.close();
    *out += '\n';
}

// The frame of an answer in the OpenAI batch format; the body goes inside it.
class BatchAnswer {
  public:
    BatchAnswer(std::string *out, int64_t line, const RowRecord &record, int status_code)
        : out_(out), answer_(out) {
        const std::string number = std::to_string(line);
        answer_.field(result_key::id, std::string_view("batch_req_" + number))
            .raw(result_key::custom_id, record.id);
        answer_.members(record.columns).key(result_key::response);
        *out_ += "{\"status_code\":" + std::to_string(status_code) + ",\"request_id\":\"req_" +
                 number + "\",\"body\":";
    }
    void close(const RowError *error, int64_t line) {
        *out_ += '}';
        answer_.key(result_key::error);
        if (error != nullptr) {
            append_error(out_, line, *error);
        } else {
            *out_ += "null";
        }
        answer_.close();
        *out_ += '\n';
    }

  private:
    std::string *out_;
    JsonObject answer_;
};

// Tokens are named by id, since the bytes of a single token need not be text.
std::string token_name(int32_t token) { return "token_id:" + std::to_string(token); }

void append_completion_logprobs(std::string *out, const batchllm_results &results, int64_t i) {
    if (!logprobs_of(results).any(i)) {
        *out += "null";
        return;
    }
    JsonObject object(out);
    object.key("tokens");
    *out += '[';
    const auto tokens = slice(results.tokens, results.token_offsets, i);
    for (size_t t = 0; t < tokens.size(); ++t) {
        if (t > 0) *out += ',';
        append_json(out, std::string_view(token_name(tokens[t])));
    }
    *out += ']';
    object.key("token_logprobs");
    append_json_list(out, slice(results.logprobs, results.logprob_offsets, i));
    object.key("top_logprobs");
    if (logprobs_of(results).any_top(i)) {
        *out += '[';
        for (int64_t t = results.logprob_offsets[i]; t < results.logprob_offsets[i + 1]; ++t) {
            if (t > results.logprob_offsets[i]) *out += ',';
            JsonObject top(out);
            for (int64_t k = results.top_offsets[t]; k < results.top_offsets[t + 1]; ++k) {
                top.field(token_name(results.top_tokens[k]), results.top_logprobs[k]);
            }
            top.close();
        }
        *out += ']';
    } else {
        *out += "null";
    }
    object.close();
}

// {"token": .., "logprob": .., "bytes": null}, left open.
JsonObject open_token(std::string *out, int32_t token, float logprob) {
    JsonObject object(out);
    object.field("token", token_name(token)).field("logprob", logprob).raw("bytes", "null");
    return object;
}

void append_chat_logprobs(std::string *out, const batchllm_results &results, int64_t i) {
    if (!logprobs_of(results).any(i)) {
        *out += "null";
        return;
    }
    *out += "{\"content\":[";
    const int64_t begin = results.logprob_offsets[i];
    for (int64_t t = begin; t < results.logprob_offsets[i + 1]; ++t) {
        if (t > begin) *out += ',';
        JsonObject object = open_token(out, results.tokens[results.token_offsets[i] + t - begin],
                                       results.logprobs[t]);
        object.key("top_logprobs");
        *out += '[';
        for (int64_t k = results.top_offsets[t]; k < results.top_offsets[t + 1]; ++k) {
            if (k > results.top_offsets[t]) *out += ',';
            open_token(out, results.top_tokens[k], results.top_logprobs[k]).close();
        }
        *out += ']';
        object.close();
    }
    *out += "]}";
}

// The text of a completion, or the message of a chat.
void append_answer(JsonObject *choice, std::string *out, bool chat, const batchllm_results &results,
                   int64_t i) {
    if (!chat) {
        choice->field("text", text_of(results, i)).key("logprobs");
        append_completion_logprobs(out, results, i);
        return;
    }
    choice->key("message");
    JsonObject message(out);
    message.field("role", "assistant").field("content", text_of(results, i)).raw("refusal", "null");
    message.close();
    choice->key("logprobs");
    append_chat_logprobs(out, results, i);
}

void append_completion(std::string *out, const OutputOptions &options, int64_t line,
                       const RowRecord &record, const batchllm_results &results, int64_t first,
                       int64_t count) {
    BatchAnswer answer(out, line, record, 200);
    const std::string &model = record.model.empty() ? options.model : record.model;
    int64_t completion = 0;
    JsonObject body(out);
    const bool chat = record.format == RowFormat::chat;
    body.field("id", std::string_view((chat ? "chatcmpl-" : "cmpl-") + std::to_string(line)))
        .field("object", chat ? "chat.completion" : "text_completion")
        .field("created", options.created)
        .field("model", std::string_view(model));
    body.key("choices");
    for (int64_t i = first; i < first + count; ++i) {
        *out += i == first ? '[' : ',';
        completion += completion_tokens(results, i);
        const bool ok = results.statuses[i] == BATCHLLM_OK;
        JsonObject choice(out);
        choice.field("index", i - first);
        append_answer(&choice, out, chat, results, i);
        choice.field("finish_reason",
                     ok ? batchllm_finish_name(results.finish_reasons[i]) : "error");
        append_prompt_logprobs(&choice, out, record, results, i);
        choice.close();
    }
    *out += ']';
    const int64_t prompt = results.prompt_tokens[first];
    body.key("usage");
    JsonObject usage(out);
    usage.field("prompt_tokens", prompt)
        .field("completion_tokens", completion)
        .field("total_tokens", prompt + completion)
        .key("prompt_tokens_details");
    JsonObject details(out);
    details.field("cached_tokens", results.shared_tokens[first]);
    details.close();
    usage.close();
    body.close();
    answer.close(nullptr, line);
}

// The answer to a row of "/v1/embeddings".
void append_embedding(std::string *out, const OutputOptions &options, int64_t line,
                      const RowRecord &record, const batchllm_results &results, int64_t i) {
    BatchAnswer answer(out, line, record, 200);
    const std::string &model = record.model.empty() ? options.model : record.model;
    JsonObject body(out);
    body.field("object", "list").key("data");
    *out += "[{\"object\":\"embedding\",\"index\":0,\"embedding\":";
    const auto vector = slice(results.embeddings, results.embedding_offsets, i);
    if (record.base64) {
        append_json_base64(out, std::as_bytes(vector));
    } else {
        append_json_list(out, vector);
    }
    *out += "}]";
    body.field("model", std::string_view(model)).key("usage");
    JsonObject usage(out);
    usage.field("prompt_tokens", results.prompt_tokens[i])
        .field("total_tokens", results.prompt_tokens[i]);
    usage.close();
    body.close();
    answer.close(nullptr, line);
}

void append_plain_failure(std::string *out, int64_t line, const RowRecord &record,
                          const RowError &error, int64_t prompt_tokens) {
    JsonObject object(out);
    object.raw(result_key::id, record.id).members(record.columns);
    object.field(result_key::text, "").raw(result_key::tokens, "[]");
    object.field(result_key::finish_reason, "error").key(result_key::error);
    append_error(out, line, error);
    append_usage(&object, out, prompt_tokens, 0, 0);
    object.close();
    *out += '\n';
}

void append_batch_failure(std::string *out, int64_t line, const RowRecord &record,
                          const RowError &error) {
    BatchAnswer answer(out, line, record, 400);
    JsonObject body(out);
    body.key("error");
    JsonObject object(out);
    object.field("message", std::string_view(error.message))
        .field("type", "invalid_request_error")
        .raw("param", "null")
        .field("code", std::string_view(error.code));
    object.close();
    body.close();
    answer.close(&error, line);
}

} // namespace

void append_result(std::string *out, const OutputOptions &options, int64_t line,
                   const RowRecord &record, const batchllm_results &results, int64_t first,
                   int64_t count) {
    bool failed = true; // all samples; of others the line has what they generated
    for (int64_t i = first; i < first + count; ++i) failed &= results.statuses[i] != BATCHLLM_OK;
    const bool plain = record.format == RowFormat::plain;
    if (failed && plain) {
        append_plain_failure(out, line, record, error_of(results, first),
                             results.prompt_tokens[first]);
    } else if (failed) {
        append_batch_failure(out, line, record, error_of(results, first));
    } else if (plain) {
        append_plain(out, options, line, record, results, first, count);
    } else if (record.format == RowFormat::embeddings) {
        append_embedding(out, options, line, record, results, first);
    } else {
        append_completion(out, options, line, record, results, first, count);
    }
}

void append_failure(std::string *out, int64_t line, const RowRecord &record,
                    const RowError &error) {
    if (record.format == RowFormat::plain) {
        append_plain_failure(out, line, record, error, 0);
    } else {
        append_batch_failure(out, line, record, error);
    }
}

} // namespace batchllm::cli
