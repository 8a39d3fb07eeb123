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
    std::string text = text_;
    if (!variables_ && more_variables_.empty()) return text + "}";
    if (text.size() > 1) text += ',';
    text += "\"chat_template_kwargs\":";
    const std::string variables = variables_ ? variables_->text() : "null";
    if (more_variables_.empty() || !(variables == "null" || variables.ends_with('}'))) {
        return text + variables + "}"; // what is no object is the library's error
    }
    text += variables == "null" ? "{" : std::string_view(variables).substr(0, variables.size() - 1);
    if (variables != "null" && variables != "{}") text += ',';
    return text + more_variables_ + "}}";
}

} // namespace batchllm::cli
