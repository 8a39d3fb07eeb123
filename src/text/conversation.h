// A conversation as JSON -> the variables of a chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/jinja/value.h"

namespace batchllm {

struct Conversation {
    jinja::Value messages;
    jinja::Value tools = jinja::Value::none();
    jinja::Value documents = jinja::Value::none();
    std::optional<bool> add_generation_prompt;
    // The fields of the last message that the model should continue; none: it begins a new message. Reasoning
    // has several names, of which the template reads one.
    std::vector<std::string> continued;
    std::string_view final_text;        // the text of that field, as given
    std::optional<JsonValue> arguments; // "chat_template_kwargs"
};

// Appended to the text that the model should continue, in order to find its end in the output.
inline constexpr std::string_view continue_mark = "CONTINUE_FINAL_MESSAGE_TAG ";

// A list of messages, or an object with "messages". with_parts: the template handles a content with
// several parts itself; otherwise the parts are joined to one text. Values belong to the heap and
// the document.
// pictures: gets the names of parts that are pictures, which become {"type": "image"}; none: the part has no
// name. Null: such parts are refused.
Result<Conversation> read_conversation(const JsonValue &root, bool with_parts,
                                       std::vector<std::optional<std::string>> *pictures,
                                       jinja::Heap *heap);

// Whether the conversation has tools, which determines the template.
bool has_tools(const JsonValue &root);

} // namespace batchllm
