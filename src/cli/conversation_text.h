// The keys of a row that make up a conversation -> the JSON that the library accepts for one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_view.h"

namespace batchllm::cli {

class ConversationText {
  public:
    // Takes the member if its key belongs to a conversation.
    bool take(std::string_view key, JsonView value);
    // One more variable of the template, beside those of "chat_template_kwargs". False if it is one of these.
    [[nodiscard]] bool add_variable(std::string_view name, JsonView value);

    bool has_messages() const { return has_messages_; }
    // A key that is present but has no meaning without "messages"; empty: none.
    std::string_view other_key() const { return other_key_; }
    std::string json() const;

  private:
    std::string text_ = "{"; // all members but "chat_template_kwargs"
    std::optional<JsonView> variables_;
    std::string more_variables_;
    std::string_view other_key_;
    bool has_messages_ = false;
};

} // namespace batchllm::cli
