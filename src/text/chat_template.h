// Conversations as JSON -> the text that the model was trained on, using the model's own template
// (docs/chat.md).
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace batchllm {

// The names of a conversation's pictures, in the order of its parts; none: the row has it itself.
using ConversationPictures = std::vector<std::optional<std::string>>;

// How a template's text is tokenized: it already contains all its special tokens.
inline constexpr EncodeOptions chat_encode_options = {.add_special = false, .parse_special = true};

// Immutable once loaded: any number of threads may render.
class ChatTemplate {
  public:
    // From a model directory, or the directory of a tokenizer.json. Fails only if the files cannot
    // be read. Invalid contents, or a missing template, become an error of every conversation.
    static Result<std::unique_ptr<const ChatTemplate>> load(const std::string &path);
    // From a template's text; name: its name in errors.
    using SpecialTokens = std::vector<std::pair<std::string, std::string>>;
    static std::unique_ptr<const ChatTemplate>
    from_source(const std::string &name, std::string source, SpecialTokens tokens);

    struct Options {
        bool add_generation_prompt = true; // unless the conversation sets it
        // The tokenizer whose special tokens the conversation's own text must not contain, or null.
        const Tokenizer *refusing = nullptr;
        std::tm now{}; // local time
        // Gets the pictures, of which each is {"type": "image"} to the template. Null: they are refused.
        ConversationPictures *pictures = nullptr;
    };

    // Appends the text of a conversation: a list of messages, or an object with "messages". Fails
    // with ROW_TEMPLATE or ROW_INVALID_UTF8 and appends nothing.
    Status render(std::string_view conversation, const Options &options, std::string *out) const;

    // Whether conversations can be rendered, and if not, why.
    const Status &status() const { return problem_; }

  private:
    struct Named {
        std::string name; // "default", "tool_use", ...
        std::string file; // for errors
        std::string source;
        jinja::Template compiled;
    };

    Status read_files(const std::string &directory);
    Status read_config(const std::string &directory, bool with_templates);
    Status read_template(const JsonValue &value, const std::string &file);
    Status add(std::string name, std::string file, std::string source);
    Status read_special_tokens(const JsonValue &config);
    Result<const Named *> choose(bool tools) const;

    std::vector<Named> templates_;
    SpecialTokens special_tokens_; // "bos_token" -> its text
    Status problem_;
};

// Local time, taken once for all conversations of a call, so that a date in a template is the same
// for all of them.
std::tm local_time_now();

} // namespace batchllm
