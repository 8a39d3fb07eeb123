// Templates and conversations in, texts out: for tests/text/fuzz_chat.py. One JSON object per line:
//     {"template": "...", "tokens": {"bos_token": "<s>"}, "conversation": "JSON text", "prompt": true}
// and one line back: {"text": "..."} or {"error": "..."}.
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/jinja/python_text.h"

using namespace batchllm;

namespace {

Result<std::string> answer(const std::string &line) {
    ASSIGN_OR_RETURN(const JsonDocument record,
                     JsonDocument::parse(line, "record", BATCHLLM_ERROR_INVALID_ARGUMENT));
    ASSIGN_OR_RETURN(const JsonValue source, record.root().at("template"));
    ASSIGN_OR_RETURN(std::string text, source.string());
    ChatTemplate::SpecialTokens tokens;
    ASSIGN_OR_RETURN(const JsonValue given, record.root().at("tokens"));
    ASSIGN_OR_RETURN(const auto members, given.members());
    for (const auto &[key, value] : members) {
        ASSIGN_OR_RETURN(std::string token, value.string());
        tokens.emplace_back(key, std::move(token));
    }
    ASSIGN_OR_RETURN(const JsonValue said, record.root().at("conversation"));
    ASSIGN_OR_RETURN(const std::string conversation, said.string());
    ASSIGN_OR_RETURN(const JsonValue prompt, record.root().at("prompt"));
    ASSIGN_OR_RETURN(const bool prompts, prompt.boolean());
    std::string out;
    const auto made = ChatTemplate::from_source("template", std::move(text), std::move(tokens));
    RETURN_IF_ERROR(made->render(conversation, {prompts, nullptr, local_time_now()}, &out));
    return out;
}

} // namespace

int main() {
    std::string line;
    while (std::getline(std::cin, line)) {
        const Result<std::string> text = answer(line);
        std::string out = text.ok() ? "{\"text\":" : "{\"error\":";
        jinja::append_json_string(text.ok() ? *text : text.status().message(), false, &out);
        std::cout << out << "}" << std::endl;
    }
    return 0;
}
