// libFuzzer: bytes to a chat template and a conversation, and to text. Nothing may crash, hang or
// take much memory; rendered text is UTF-8, and a failure leaves the output unchanged. Built as
// fuzz_tokenizer.cc says.
//
// Input: the template, a zero byte, the conversation. Without a zero byte the conversation is a fixed one.
#include <cstdint>
#include <cstdlib>
#include <string>

#include <simdjson.h>

#include "text/chat_template.h"

namespace {

const char fixed[] =
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":" a\u00e9b "},)"
    R"({"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":1.5}}}]}],)"
    R"("tools":[{"name":"f","n":[1,2,{"k":null}]}]})";

void check(bool good) {
    if (!good) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string input(reinterpret_cast<const char *>(data), size);
    const size_t zero = input.find('\0');
    const std::string conversation = zero == std::string::npos ? fixed : input.substr(zero + 1);
    const auto made =
        batchllm::ChatTemplate::from_source("input", input.substr(0, zero), {{"bos_token", "<s>"}});
    std::string text = "kept";
    const batchllm::Status status = made->render(conversation, {}, &text);
    check(text.starts_with("kept"));
    check(status.ok() || text == "kept");
    check(simdjson::validate_utf8(text.data(), text.size()));
    return 0;
}
