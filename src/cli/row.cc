#include "cli/row.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/conversation_text.h"
#include "cli/json_text.h"
#include "cli/line_json.h"
#include "cli/row_keys.h"
#include "cli/row_parameters.h"
#include "cli/table_rows.h"

namespace batchllm::cli {

namespace {

RowError read_score(JsonView value, InputRow *row) {
    const std::optional<JsonItems> items = value.items();
    if (!items.has_value() || items->empty()) {
        return type_error("score", "a list, not empty, of strings or of lists of token ids");
    }
    row->scored = true;
    row->score_is_text = items->first()->is_string();
    for (const JsonView item : *items) {
        if (item.is_string() != row->score_is_text) {
            return type_error("score", "a list of strings, or a list of lists of token ids");
        }
        if (row->score_is_text) {
            row->score_texts.push_back(std::string(*item.string()));
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

RowError unknown_key(std::string_view key, bool in_body) {
    std::string message = "unknown key " + in_quotes(key) + (in_body ? " in \"body\"" : "");
    const std::string_view near = nearest_row_key(key);
    if (!near.empty() && near != key) message += " (did you mean " + in_quotes(near) + "?)";
    return format_error(
        message + "; keep data of your own under \"metadata\", begin its key with \"_\", " +
        (in_body ? "" : "name it in --columns, ") + "or run with --ignore-unknown-keys");
}

RowError null_error(std::string_view key) {
    return {row_error_code(BATCHLLM_ERROR_ROW_NULL), in_quotes(key) + " is null"};
}

// If the row has a conversation, it becomes the row's prompt.
RowError take_conversation(ConversationText *conversation, InputRow *row) {
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
RowError read_plain(const JsonMembers &members, const RowReaderOptions &options, InputRow *row) {
    ParameterReader parameters(options.defaults);
    ConversationText conversation;
    int prompts = 0;
    bool own_task = false;
    std::string_view null_key; // a prompt that is null
    for (const auto [key, value] : members) {
        RowError error;
        bool known = true;
        if (key == "id") continue;
        if (value.is_null() && (key == "prompt" || key == "tokens" || key == "messages")) {
            null_key = key;
        } else if (key == "prompt") {
            ++prompts;
            if (!value.is_string()) return type_error(key, "a string (token ids go in \"tokens\")");
            row->is_text = true;
            row->text = std::string(*value.string());
        } else if (key == "tokens") {
            ++prompts;
            error = read_tokens(key, value, &row->tokens);
        } else if (conversation.take(key, value)) {
            if (key == "messages") ++prompts;
        } else if (key == "images") {
            error = read_images(key, value, &row->images);
        } else if (key == "score") {
            if (!value.is_null()) error = read_score(value, row);
        } else {
            error = parameters.read(key, value, &known);
            if (key == "task") own_task = !value.is_null();
        }
        if (failed(error)) return error;
        if (!known && !options.allow(key)) return unknown_key(key, false);
    }
    if (prompts == 0 && !null_key.empty()) return null_error(null_key);
    if (prompts != 1) {
        return format_error(prompts == 0 ? "one of \"prompt\", \"tokens\", \"messages\" is missing"
                                         : "only one of \"prompt\", \"tokens\", \"messages\" may "
                                           "be given");
    }
    RowError error = take_conversation(&conversation, row);
    if (failed(error)) return error;
    if (!row->images.empty() && !row->is_text) {
        return format_error("\"images\" need a \"prompt\" or \"messages\" with places for them");
    }
    if (row->scored && !parameters.constraint_key().empty()) {
        return format_error("\"score\" and " + in_quotes(parameters.constraint_key()) +
                            " contradict each other: a scored row generates nothing");
    }
    if (row->scored && own_task && parameters.task() != Task::generate)
        return format_error("\"score\" and \"task\" contradict each other");
    return parameters.take(options, row);
}

// The prompt of a body: a string, a list of token ids, or a list with one of these.
RowError read_body_prompt(std::string_view key, JsonView value, InputRow *row) {
    if (value.is_null()) return null_error(key);
    const std::optional<JsonItems> items = value.items();
    if (items.has_value() && !items->empty() && !items->first()->is_number()) {
        if (items->size() > 1) {
            return format_error(in_quotes(key) + " holds several prompts; give each a line");
        }
        value = *items->first();
    }
    if (value.is_array()) return read_tokens(key, value, &row->tokens);
    if (!value.is_string()) return type_error(key, "a string or a list of token ids");
    row->is_text = true;
    row->text = std::string(*value.string());
    return {};
}

// Features of the OpenAI interface that would change the answer are rejected unless they are
// switched off.
RowError read_unsupported(std::string_view key, JsonView value, bool *known) {
    *known = true;
    if (key == "echo" || key == "stream") {
        if (value.is_null() || value.boolean() == false) return {};
        return parameter_error(std::string(key) + " is not supported");
    }
    if (key == "suffix") {
        if (value.is_null() || value.string() == "") return {};
        return parameter_error("suffix is not supported");
    }
    if (key == "best_of") {
        if (value.is_null() || value.integer() == 1) return {};
        return parameter_error("best_of is not supported");
    }
    *known = false;
    return {};
}

// The url of an OpenAI request determines the task, whatever the default for rows is.
void set_task(Task task, ParameterReader *parameters) {
    if (parameters->task() != task) parameters->own().task = task;
}

RowError check_generates(const ParameterReader &parameters) {
    if (parameters.task() == Task::generate) return {};
    return parameter_error("task is for rows without \"body\"; \"/v1/embeddings\" embeds");
}

// The keys of a body except "model", which every request has. read(key, value, &known) reads one of
// its request type's keys, or sets known to false.
template <typename Read>
RowError read_keys(const JsonMembers &body, const RowReaderOptions &options,
                   ParameterReader *parameters, InputRow *row, const Read &read) {
    for (const auto [key, value] : body) {
        if (key == "model") {
            if (!value.is_string()) return type_error(key, "a string");
            row->record.model = std::string(*value.string());
            continue;
        }
        bool known = true;
        const RowError error = read(key, value, &known);
        if (failed(error)) return error;
        if (!known && !is_harmless_body_key(key) && !options.allow_in_body(key)) {
            return unknown_key(key, true);
        }
    }
    parameters->read_model(options, row->record.model);
    return {};
}

// A body of "/v1/embeddings": text or tokens, or a conversation, which may have pictures.
RowError read_embeddings_body(const JsonMembers &body, const RowReaderOptions &options,
                              InputRow *row) {
    ParameterReader parameters(options.defaults);
    set_task(Task::embed, &parameters);
    ConversationText conversation;
    bool input = false;
    const auto read = [&](std::string_view key, JsonView value, bool *known) -> RowError {
        if (key == "input") {
            input = true;
            return read_body_prompt(key, value, row);
        }
        if (key == "messages" && value.is_null()) return null_error(key);
        if (conversation.take(key, value)) return {};
        if (key == "encoding_format") {
            row->record.base64 = value.string() == "base64";
            if (value.is_null() || value.string() == "float" || row->record.base64) return {};
            return parameter_error("encoding_format must be \"float\" or \"base64\"");
        }
        if (key != "task") return parameters.read(key, value, known);
        *known = false;
        return {};
    };
    const RowError error = read_keys(body, options, &parameters, row, read);
    if (failed(error)) return error;
    if (input && conversation.has_messages())
        return format_error("only one of \"input\" and \"messages\" may be given in \"body\"");
    if (!input && !conversation.has_messages())
        return format_error("\"input\" is missing in \"body\"");
    const RowError wrong = take_conversation(&conversation, row);
    return failed(wrong) ? wrong : parameters.take(options, row);
}

RowError read_body(const JsonMembers &body, const RowReaderOptions &options, InputRow *row) {
    ParameterReader parameters(options.defaults);
    set_task(Task::generate, &parameters);
    bool prompt = false;
    const auto read = [&](std::string_view key, JsonView value, bool *known) {
        if (key == "prompt") {
            prompt = true;
            return read_body_prompt(key, value, row);
        }
        const RowError error = parameters.read(key, value, known);
        return *known ? error : read_unsupported(key, value, known);
    };
    RowError error = read_keys(body, options, &parameters, row, read);
    if (failed(error)) return error;
    if (!prompt) return format_error("\"prompt\" is missing in \"body\"");
    error = check_generates(parameters);
    if (failed(error)) return error;
    return parameters.take(options, row);
}

// The keys of OpenAI's chat interface, except for the parameters that it shares with completions.
class ChatBody {
  public:
    // Sets *known to whether the key is one of them.
    RowError read(std::string_view key, JsonView value, ParameterReader *parameters, bool *known) {
        *known = true;
        if (key == "tools" && value.is_null()) return {};
        if (key == "tools") {
            tools_ = value;
            return {};
        }
        if (key == "messages" && value.is_null()) return null_error(key);
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
            const std::optional<int64_t> count = value.integer();
            if (!count.has_value()) return type_error(key, "a whole number");
            top_logprobs_ = *count;
            return {};
        }
        if (key == "tool_choice") {
            if (value.is_null()) return {};
            const std::string_view choice = value.string().value_or("");
            uses_tools_ = choice != "none";
            if (choice == "auto" || choice == "none") return {};
            return parameter_error("tool_choice is supported only as \"auto\" or \"none\"");
        }
        if (key == "parallel_tool_calls") return {};
        if (key == "reasoning_effort") {
            if (value.is_null()) return {};
            if (!value.is_string()) return type_error(key, "a string");
            reasoning_effort_ = value;
            return {};
        }
        *known = false;
        return {};
    }

    RowError finish(ParameterReader *parameters, InputRow *row) {
        if (!conversation_.has_messages())
            return format_error("\"messages\" is missing in \"body\"");
        if (uses_tools_ && tools_.has_value()) conversation_.take("tools", *tools_);
        if (reasoning_effort_ &&
            !conversation_.add_variable("reasoning_effort", *reasoning_effort_)) {
            return format_error("\"reasoning_effort\" is in \"chat_template_kwargs\" too");
        }
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
    std::optional<JsonView> tools_;
    std::optional<JsonView> reasoning_effort_; // a variable of templates, such as gpt-oss's
    bool uses_tools_ = true;
    bool limited_ = false;
    int64_t top_logprobs_ = -1;
};

RowError read_chat_body(const JsonMembers &body, const RowReaderOptions &options, InputRow *row) {
    ParameterReader parameters(options.defaults);
    set_task(Task::generate, &parameters);
    ChatBody chat;
    const auto read = [&](std::string_view key, JsonView value, bool *known) {
        RowError error = chat.read(key, value, &parameters, known);
        if (!*known) error = parameters.read(key, value, known);
        if (!*known) error = read_unsupported(key, value, known);
        return error;
    };
    RowError error = read_keys(body, options, &parameters, row, read);
    if (!failed(error)) error = chat.finish(&parameters, row);
    if (!failed(error)) error = check_generates(parameters);
    if (failed(error)) return error;
    return parameters.take(options, row);
}

// A line of the OpenAI batch format.
RowError read_batch(const JsonMembers &members, const RowReaderOptions &options, InputRow *row) {
    const std::optional<JsonView> body_value = members.find("body");
    if (!body_value.has_value()) return format_error("\"body\" is missing");
    const std::optional<JsonMembers> body = body_value->members();
    if (!body.has_value()) return type_error("body", "an object");
    const std::optional<JsonView> url_value = members.find("url");
    if (!url_value.has_value() || !url_value->is_string()) {
        return format_error("\"url\" must be \"/v1/completions\", \"/v1/chat/completions\" or "
                            "\"/v1/embeddings\"");
    }
    const std::string_view url = *url_value->string();
    if (url == "/v1/completions") row->record.format = RowFormat::completions;
    if (url == "/v1/chat/completions") row->record.format = RowFormat::chat;
    if (url == "/v1/embeddings") row->record.format = RowFormat::embeddings;
    const std::optional<JsonView> method = members.find("method");
    if (method.has_value() && method->string() != "POST") {
        return format_error("\"method\" must be \"POST\"");
    }
    for (const auto member : members) {
        if (member.key != "body" && member.key != "url" && member.key != "method" &&
            member.key != "custom_id" && !options.allow(member.key)) {
            return unknown_key(member.key, false);
        }
    }
    if (row->record.format == RowFormat::completions) return read_body(*body, options, row);
    if (row->record.format == RowFormat::chat) return read_chat_body(*body, options, row);
    if (row->record.format == RowFormat::embeddings) {
        return read_embeddings_body(*body, options, row);
    }
    return format_error("url " + in_quotes(url) +
                        " is not known: \"/v1/completions\", \"/v1/chat/completions\" or "
                        "\"/v1/embeddings\"");
}

// For a line with a number that no type can hold.
void set_own_id(const LineId &found, bool batch, InputRow *row) {
    if (batch) row->record.format = RowFormat::batch_unknown;
    const std::string &id = batch ? found.custom_id : found.id;
    row->record.id = id.empty() ? std::to_string(row->line) : id;
}

} // namespace

RowError read_images(std::string_view key, JsonView value, std::vector<std::string> *images) {
    if (value.is_null()) return {};
    if (value.is_string()) {
        images->emplace_back(*value.string());
        return {};
    }
    const std::optional<JsonItems> items = value.items();
    const char *expected = "paths or \"data:\" URLs: a list, or one of them";
    if (!items.has_value()) return type_error(key, expected);
    for (const JsonView item : *items) {
        if (!item.is_string()) return type_error(key, expected);
        images->emplace_back(*item.string());
    }
    return {};
}

bool RowReaderOptions::allow(std::string_view key) const {
    return allow_in_body(key) || std::find(columns.begin(), columns.end(), key) != columns.end();
}

bool RowReaderOptions::allow_in_body(std::string_view key) const {
    return ignore_unknown_keys || is_own_key(key);
}

bool is_batch_line(const JsonView &line) {
    return line.find("custom_id").has_value() || line.find("body").has_value();
}

InputRowReader::InputRowReader(RowReaderOptions options)
    : options_(std::move(options)), column_seen_(options_.columns.size(), 0),
      parser_(std::make_unique<LineParser>()) {}
InputRowReader::~InputRowReader() = default;

RowError InputRowReader::read(int64_t line, std::string_view text, InputRow *row) {
    *row = InputRow();
    row->line = line;
    row->record.id = "null";
    JsonView object;
    std::optional<LineId> own_id;
    RowError error = parser_->parse(text, &object, &own_id);
    const bool table = options_.table != nullptr; // the line's keys are columns
    if (own_id.has_value()) set_own_id(*own_id, own_id->batch && !table, row);
    if (failed(error)) return error;

    const bool batch = !table && is_batch_line(object);
    if (batch) row->record.format = RowFormat::batch_unknown;
    if (!own_id.has_value()) row->record.id = std::to_string(line);
    const char *id_key = batch ? "custom_id" : "id";
    if (const auto id = object.find(id_key); id.has_value() && !id->is_null()) {
        std::string as_json;
        if (!append_id(*id, &as_json)) {
            row->record.id = "null";
            return type_error(id_key, "a string or a number");
        }
        if (!own_id.has_value()) row->record.id = std::move(as_json);
    }
    any_read_ = true;
    for (size_t i = 0; i < options_.columns.size(); ++i) {
        const std::string &column = options_.columns[i];
        const std::optional<JsonView> value = object.find(column);
        if (!value.has_value()) continue;
        column_seen_[i] = 1;
        std::string &members = row->record.columns;
        if (!members.empty()) members += ',';
        append_json(&members, std::string_view(column));
        members += ':' + value->text();
    }
    const JsonMembers members = *object.members();
    error = check_keys_differ(members);
    if (failed(error)) return error;
    if (table) return options_.table->read_cells(members, options_, row);
    return batch ? read_batch(members, options_, row) : read_plain(members, options_, row);
}

std::vector<std::string> InputRowReader::missing_columns() const {
    std::vector<std::string> missing;
    for (size_t i = 0; i < column_seen_.size() && any_read_; ++i) {
        if (column_seen_[i] == 0) missing.push_back(options_.columns[i]);
    }
    return missing;
}

void InputRowReader::load_adapters(int32_t threads) {
    if (options_.adapters != nullptr) options_.adapters->load_found(threads);
}

Result<RowError> InputRowReader::check_adapter(const InputRow &row) {
    if (row.params == nullptr || row.params->adapter == nullptr) return RowError();
    const Status status = options_.adapters->load_for_row(*row.params->adapter);
    if (status.ok()) return RowError();
    if (is_failure_of_process(status.code())) return status;
    return RowError{row_error_code(status.code()), status.message()};
}

} // namespace batchllm::cli
