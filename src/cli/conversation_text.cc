#include "cli/conversation_text.h"

#include <algorithm>
#include <array>

#include "cli/json_text.h"

namespace batchllm::cli {

bool ConversationText::take(std::string_view key, JsonView value) {
    constexpr std::array<std::string_view, 6> keys = {"messages",
                                                      "tools",
                                                      "documents",
                                                      "add_generation_prompt",
                                                      "continue_final_message",
                                                      "chat_template_kwargs"};
    const auto known = std::find(keys.begin(), keys.end(), key);
    if (known == keys.end()) return false;
    if (key == "messages") {
        has_messages_ = true;
    } else {
        other_key_ = *known;
    }
    if (key == "chat_template_kwargs") {
        variables_ = value;
        return true;
    }
    if (text_.size() > 1) text_ += ',';
    append_json(&text_, key);
    text_ += ':';
    text_ += value.text();
    return true;
}

bool ConversationText::add_variable(std::string_view name, JsonView value) {
    if (variables_ && variables_->find(name)) return false;
    if (!more_variables_.empty()) more_variables_ += ',';
    append_json(&more_variables_, name);
    more_variables_ += ':';
    more_variables_ += value.text();
    return true;
}

std::string ConversationText::json() const {
    const bool given = variables_ && !variables_->is_null();
    if (!given && more_variables_.empty()) return text_ + "}";
    std::string variables = given ? variables_->text() : "{}";
    if (!more_variables_.empty() && variables.ends_with('}')) { // else the library says what it is
        variables.pop_back();
        variables.append(variables.size() > 1 ? "," : "").append(more_variables_).append("}");
    }
    return text_ + (text_.size() > 1 ? "," : "") + "\"chat_template_kwargs\":" + variables + "}";
}

} // namespace batchllm::cli
