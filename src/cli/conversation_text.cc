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
    if (text_.size() > 1) text_ += ',';
    append_json(&text_, key);
    text_ += ':';
    text_ += value.text();
    return true;
}

} // namespace batchllm::cli
