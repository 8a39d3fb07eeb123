#include "cli/row.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include <simdjson.h>

#include "cli/conversation_text.h"
#include "cli/json_text.h"
#include "cli/line_id.h"
#include "cli/row_keys.h"
#include "cli/row_parameters.h"
#include "cli/table_rows.h"

namespace batchllm::cli {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

namespace {

RowError read_id(std::string_view key, element value, std::string *id) {
    id->clear();
    switch (value.type()) {
    case element_type::STRING:
        append_json(id, std::string_view(value));
        return {};
    case element_type::INT64:
        append_json(id, int64_t(value));
        return {};
    case element_type::UINT64:
        append_json(id, uint64_t(value));
        return {};
    case element_type::DOUBLE:
        append_json(id, double(value));
        return {};
    default:
        *id = "null";
        return type_error(key, "a string or a number");
    }
}

RowError read_score(element value, Row *row) {
    array items;
    if (value.get(items) != simdjson::SUCCESS || items.size() == 0) {
        return type_error("score", "a list, not empty, of strings or of lists of token ids");
    }
    row->scored = true;
    row->score_is_text = items.at(0).is_string();
    for (const element item : items) {
        if (item.is_string() != row->score_is_text) {
            return type_error("score", "a list of strings, or a list of lists of token ids");
        }
        if (row->score_is_text) {
            row->score_texts.push_back(to_string(item));
        } else {
            row->score_tokens.emplace_back();
            RowError error = read_tokens("score", item, &row->score_tokens.back());
            if (failed(error)) return error;
        }
        if (row->score_is_text ? row->score_texts.back().empty()
                               : row->score_tokens.back().empty()) {
            return {row_error_code(BATCHLLM_ERROR_ROW_EMPTY),
                    "\"score\" holds an empty continuation"};
        }
    }
    return {};
}

RowError unknown_key(std::string_view key, const char *where) {
    std::string message = "unknown key " + in_quotes(key) + where;
    const std::string_view near = nearest_row_key(key);
    if (!near.empty()) message += " (did you mean " + in_quotes(near) + "?)";
    return format_error(message + "; keep data of your own under \"metadata\", begin its key with "
                                  "\"_\", or run with --ignore-unknown-keys");
}

// Makes the conversation, if the row is one, its prompt.
RowError take_conversation(ConversationText *conversation, Row *row) {
    if (conversation->has_messages()) {
        row->is_text = true;
        row->is_chat = true;
        row->text = conversation->json();
    } else if (!conversation->other_key().empty()) {
        return format_error(in_quotes(conversation->other_key()) +
                            " is given without \"messages\"");
    }
    return {};
}

// The program's own form of row.
RowError read_plain(const object &members, const RowReaderOptions &options, Row *row) {
    ParameterReader parameters(options.defaults);
    ConversationText conversation;
    int prompts = 0;
    for (const auto [key, value] : members) {
        RowError error;
        bool known = true;
        if (key == "id") continue;
        if (key == "prompt") {
            ++prompts;
            if (!value.is_string()) return type_error(key, "a string (token ids go in \"tokens\")");
            row->is_text = true;
            row->text = to_string(value);
        } else if (key == "tokens") {
            ++prompts;
            error = read_tokens(key, value, &row->tokens);
        } else if (conversation.take(key, value)) {
            if (key == "messages") ++prompts;
        } else if (key == "score") {
            if (!value.is_null()) error = read_score(value, row);
        } else {
            error = parameters.read(key, value, &known);
        }
        if (failed(error)) return error;
        if (!known && !is_own_key(key) && !options.ignore_unknown_keys) return unknown_key(key, "");
    }
    if (prompts != 1) {
        return format_error(prompts == 0 ? "one of \"prompt\", \"tokens\", \"messages\" is missing"
                                         : "only one of \"prompt\", \"tokens\", \"messages\" may "
                                           "be given");
    }
    RowError error = take_conversation(&conversation, row);
    if (failed(error)) return error;
    return parameters.take(options.constraints, row);
}

// The prompt of a body: a string, a list of token ids, or a list of one of these.
RowError read_body_prompt(std::string_view key, element value, Row *row) {
    if (value.is_array()) {
        const array items(value);
        if (items.size() > 0 && !items.at(0).is_number()) {
            if (items.size() > 1) {
                return format_error(in_quotes(key) + " holds several prompts; give each a line");
            }
            value = items.at(0);
        }
    }
    if (value.is_array()) return read_tokens(key, value, &row->tokens);
    if (!value.is_string()) return type_error(key, "a string or a list of token ids");
    row->is_text = true;
    row->text = to_string(value);
    return {};
}

// Features of the OpenAI interface that would change the answer are refused unless switched off.
RowError read_unsupported(std::string_view key, element value, bool *known) {
    *known = true;
    if (key == "echo" || key == "stream") {
        bool on = false;
        if (value.is_null() || (value.get(on) == simdjson::SUCCESS && !on)) return {};
        return parameter_error(std::string(key) + " is not supported");
    }
    if (key == "suffix") {
        if (value.is_null() || (value.is_string() && std::string_view(value).empty())) return {};
        return parameter_error("suffix is not supported");
    }
    if (key == "best_of") {
        int64_t count = 0;
        if (value.is_null() || (value.get(count) == simdjson::SUCCESS && count == 1)) return {};
        return parameter_error("best_of is not supported");
    }
    *known = false;
    return {};
}

// A body of the OpenAI interface says by its url what is wanted, whatever the rows' default is.
void set_task(int32_t task, ParameterReader *parameters) {
    if (parameters->task() != task) parameters->own().task = task;
}

RowError check_generates(const ParameterReader &parameters) {
    if (parameters.task() == BATCHLLM_TASK_GENERATE) return {};
    return parameter_error("task is for rows without \"body\"; \"/v1/embeddings\" embeds");
}

// A body of "/v1/embeddings".
RowError read_embeddings_body(const object &body, const RowReaderOptions &options, Row *row) {
    ParameterReader parameters(options.defaults);
    set_task(BATCHLLM_TASK_EMBED, &parameters);
    bool input = false;
    for (const auto [key, value] : body) {
        RowError error;
        bool known = true;
        if (key == "model") {
            if (!value.is_string()) return type_error(key, "a string");
            row->record.model = to_string(value);
        } else if (key == "input") {
            input = true;
            error = read_body_prompt(key, value, row);
        } else if (key == "encoding_format") {
            if (value.is_null() || (value.is_string() && std::string_view(value) == "float"))
                continue;
            return parameter_error("encoding_format is supported only as \"float\"");
        } else if (key == "task") {
            known = false;
        } else {
            error = parameters.read(key, value, &known);
        }
        if (failed(error)) return error;
        if (!known && !is_harmless_body_key(key) && !is_own_key(key) &&
            !options.ignore_unknown_keys) {
            return unknown_key(key, " in \"body\"");
        }
    }
    if (!input) return format_error("\"input\" is missing in \"body\"");
    return parameters.take(options.constraints, row);
}

RowError read_body(const object &body, const RowReaderOptions &options, Row *row) {
    ParameterReader parameters(options.defaults);
    set_task(BATCHLLM_TASK_GENERATE, &parameters);
    bool prompt = false;
    for (const auto [key, value] : body) {
        RowError error;
        bool known = true;
        if (key == "model") {
            if (!value.is_string()) return type_error(key, "a string");
            row->record.model = to_string(value);
        } else if (key == "prompt") {
            prompt = true;
            error = read_body_prompt(key, value, row);
        } else {
            error = parameters.read(key, value, &known);
            if (!known) error = read_unsupported(key, value, &known);
        }
        if (failed(error)) return error;
        if (!known && !is_harmless_body_key(key) && !is_own_key(key) &&
            !options.ignore_unknown_keys) {
            return unknown_key(key, " in \"body\"");
        }
    }
    if (!prompt) return format_error("\"prompt\" is missing in \"body\"");
    RowError error = check_generates(parameters);
    if (failed(error)) return error;
    return parameters.take(options.constraints, row);
}

// What the chat form of the OpenAI interface has beyond the parameters that both forms share.
class ChatBody {
  public:
    // Sets *known to whether the key is one of these.
    RowError read(std::string_view key, element value, ParameterReader *parameters, bool *known) {
        *known = true;
        if (key == "tools" && value.is_null()) return {};
        if (key == "tools") {
            tools_ = value;
            return {};
        }
        if (conversation_.take(key, value)) return {};
        if (key == "max_tokens" || key == "max_completion_tokens") {
            if (value.is_null()) return {};
            if (std::exchange(limited_, true)) {
                return format_error("\"max_tokens\" and \"max_completion_tokens\" say the same");
            }
            return parameters->read("max_tokens", value, known);
        }
        if (key == "top_logprobs") {
            if (value.is_null()) return {};
            if (value.get(top_logprobs_) == simdjson::SUCCESS) return {};
            return type_error(key, "a whole number");
        }
        if (key == "tool_choice") {
            if (value.is_null()) return {};
            const std::string_view choice = value.is_string() ? std::string_view(value) : "";
            uses_tools_ = choice != "none";
            if (choice == "auto" || choice == "none") return {};
            return parameter_error("tool_choice is supported only as \"auto\" or \"none\"");
        }
        if (key == "parallel_tool_calls") return {};
        *known = false;
        return {};
    }

    RowError finish(ParameterReader *parameters, Row *row) {
        if (!conversation_.has_messages())
            return format_error("\"messages\" is missing in \"body\"");
        if (uses_tools_ && tools_.has_value()) conversation_.take("tools", *tools_);
        if (top_logprobs_ >= 0) {
            if (parameters->own().logprobs < 0) {
                return parameter_error("top_logprobs needs \"logprobs\": true");
            }
            parameters->own().logprobs =
                static_cast<int32_t>(std::min<int64_t>(top_logprobs_, 1000));
        }
        return take_conversation(&conversation_, row);
    }

  private:
    ConversationText conversation_;
    std::optional<element> tools_;
    bool uses_tools_ = true;
    bool limited_ = false;
    int64_t top_logprobs_ = -1;
};

RowError read_chat_body(const object &body, const RowReaderOptions &options, Row *row) {
    ParameterReader parameters(options.defaults);
    set_task(BATCHLLM_TASK_GENERATE, &parameters);
    ChatBody chat;
    for (const auto [key, value] : body) {
        RowError error;
        bool known = true;
        if (key == "model") {
            if (!value.is_string()) return type_error(key, "a string");
            row->record.model = to_string(value);
        } else {
            error = chat.read(key, value, &parameters, &known);
            if (!known) error = parameters.read(key, value, &known);
            if (!known) error = read_unsupported(key, value, &known);
        }
        if (failed(error)) return error;
        if (!known && !is_harmless_body_key(key) && !is_own_key(key) &&
            !options.ignore_unknown_keys) {
            return unknown_key(key, " in \"body\"");
        }
    }
    RowError error = chat.finish(&parameters, row);
    if (!failed(error)) error = check_generates(parameters);
    if (failed(error)) return error;
    return parameters.take(options.constraints, row);
}

// A line of the OpenAI batch format.
RowError read_batch(const object &members, const RowReaderOptions &options, Row *row) {
    element body_value, value;
    if (members["body"].get(body_value) != simdjson::SUCCESS) {
        return format_error("\"body\" is missing");
    }
    object body;
    if (body_value.get(body) != simdjson::SUCCESS) return type_error("body", "an object");
    if (members["url"].get(value) != simdjson::SUCCESS || !value.is_string()) {
        return format_error("\"url\" must be \"/v1/completions\", \"/v1/chat/completions\" or "
                            "\"/v1/embeddings\"");
    }
    const std::string_view url(value);
    if (url == "/v1/completions") row->record.format = RowFormat::completions;
    if (url == "/v1/chat/completions") row->record.format = RowFormat::chat;
    if (url == "/v1/embeddings") row->record.format = RowFormat::embeddings;
    if (members["method"].get(value) == simdjson::SUCCESS &&
        !(value.is_string() && std::string_view(value) == "POST")) {
        return format_error("\"method\" must be \"POST\"");
    }
    for (const auto member : members) {
        if (member.key != "body" && member.key != "url" && member.key != "method" &&
            member.key != "custom_id" && !is_own_key(member.key) && !options.ignore_unknown_keys) {
            return unknown_key(member.key, "");
        }
    }
    RowError error = check_keys_differ(body);
    if (failed(error)) return error;
    if (row->record.format == RowFormat::completions) return read_body(body, options, row);
    if (row->record.format == RowFormat::chat) return read_chat_body(body, options, row);
    if (row->record.format == RowFormat::embeddings) {
        return read_embeddings_body(body, options, row);
    }
    return format_error("url " + in_quotes(url) +
                        " is not known: \"/v1/completions\", \"/v1/chat/completions\" or "
                        "\"/v1/embeddings\"");
}

// Of a line that holds a number that cannot be read.
void set_id_alone(std::string_view text, Row *row) {
    const std::optional<LineId> found = find_line_id(text);
    if (!found.has_value()) return;
    if (found->batch) row->record.format = RowFormat::batch_unknown;
    const std::string &id = found->batch ? found->custom_id : found->id;
    row->record.id = id.empty() ? std::to_string(row->line) : id;
}

// A line whose keys are columns.
RowError read_table_row(const object &members, const RowReaderOptions &options, Row *row) {
    row->record.id = std::to_string(row->line);
    element id;
    if (members["id"].get(id) == simdjson::SUCCESS && !id.is_null()) {
        RowError error = read_id("id", id, &row->record.id);
        if (failed(error)) return error;
    }
    RowError error = check_keys_differ(members);
    if (failed(error)) return error;
    row->params = options.defaults;
    read_cells(members, *options.prompt, row);
    return {};
}

RowError json_error(simdjson::error_code code) {
    if (code == simdjson::UTF8_ERROR) {
        return {row_error_code(BATCHLLM_ERROR_ROW_INVALID_UTF8), "the line is not valid UTF-8"};
    }
    if (code == simdjson::NUMBER_ERROR) {
        return {"ROW_JSON", "a number in the line is malformed or too large to be read"};
    }
    return {"ROW_JSON", std::string("the line is not JSON: ") + simdjson::error_message(code)};
}

} // namespace

RowReader::RowReader(RowReaderOptions options)
    : options_(std::move(options)), parser_(std::make_unique<simdjson::dom::parser>()) {}
RowReader::~RowReader() = default;

RowError RowReader::read(int64_t line, std::string_view text, Row *row) {
    // A parser keeps memory for the longest line it has seen, at 14 times its size.
    constexpr size_t long_line = size_t{8} << 20;
    *row = Row();
    row->line = line;
    row->record.id = "null";
    std::optional<simdjson::dom::parser> own;
    simdjson::dom::parser &parser = text.size() > long_line ? own.emplace() : *parser_;

    element root;
    const simdjson::error_code code =
        parser.parse(reinterpret_cast<const uint8_t *>(text.data()), text.size(), false).get(root);
    // Not the row's fault: the run ends, and finds the row again when it goes on.
    if (code == simdjson::MEMALLOC) throw std::bad_alloc();
    if (code == simdjson::NUMBER_ERROR) set_id_alone(text, row);
    if (code != simdjson::SUCCESS) return json_error(code);
    object members;
    if (root.get(members) != simdjson::SUCCESS) return format_error("the line is not an object");

    element id;
    if (options_.prompt != nullptr) return read_table_row(members, options_, row);
    const bool batch = members["custom_id"].get(id) == simdjson::SUCCESS ||
                       members["body"].error() == simdjson::SUCCESS;
    if (batch) row->record.format = RowFormat::batch_unknown;
    row->record.id = std::to_string(line);
    const char *id_key = batch ? "custom_id" : "id";
    if (members[id_key].get(id) == simdjson::SUCCESS && !id.is_null()) {
        RowError error = read_id(id_key, id, &row->record.id);
        if (failed(error)) return error;
    }
    RowError error = check_keys_differ(members);
    if (failed(error)) return error;
    return batch ? read_batch(members, options_, row) : read_plain(members, options_, row);
}

} // namespace batchllm::cli
