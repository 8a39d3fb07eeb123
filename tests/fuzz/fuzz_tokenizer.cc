// libFuzzer: bytes to a tokenizer.json, and text to tokens and back. Nothing may crash; what decodes
// must be UTF-8, and a stream must equal the whole.
//
//     CXX=clang++ CC=clang meson setup build-fuzz -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false
//     ninja -C build-fuzz tests/fuzz_tokenizer
//     build-fuzz/tests/fuzz_tokenizer -max_total_time=60 CORPUS tests/text/*/
//
// Input: the file, a zero byte, the text. Without a zero byte the file is a fixed one.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <simdjson.h>

#include "text/tokenizer.h"

namespace {

const char kFixed[] =
    R"({"added_tokens":[{"id":8,"content":"<s>","single_word":false,"lstrip":true,"rstrip":true,)"
    R"("normalized":false,"special":true},{"id":9,"content":"  ","single_word":true,"lstrip":false,)"
    R"("rstrip":false,"normalized":true,"special":false}],"normalizer":{"type":"NFC"},)"
    R"("pre_tokenizer":{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true},)"
    R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},)"
    R"({"type":"Replace","pattern":{"String":"__"},"content":" "},)"
    R"({"type":"Strip","content":" ","start":1,"stop":2}]},)"
    R"("model":{"type":"BPE","unk_token":"?","fuse_unk":true,"byte_fallback":true,)"
    R"("vocab":{"?":0,"_":1,"a":2,"_a":3,"<0xC3>":4,"<0xA9>":5,"aa":6,"<0xE2>":7},)"
    R"("merges":[["_","a"],["a","a"]]}})";

void check(bool good) {
    if (!good) std::abort();
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string input(reinterpret_cast<const char *>(data), size);
    const size_t zero = input.find('\0');
    const std::string json = zero == std::string::npos ? kFixed : input.substr(0, zero);
    const std::string text = zero == std::string::npos ? input : input.substr(zero + 1);
    const auto tokenizer = batchllm::Tokenizer::parse("input", json);
    if (!tokenizer.ok()) {
        check(tokenizer.status().message().starts_with("input: "));
        return 0;
    }
    for (const bool option : {false, true}) {
        std::vector<int32_t> ids;
        const auto status = (*tokenizer)->encode(text, {option, option}, &ids);
        check(status.ok() == simdjson::validate_utf8(text.data(), text.size()));
        const auto decoded = (*tokenizer)->decode(ids, option);
        check(decoded.ok() && simdjson::validate_utf8(decoded->data(), decoded->size()));
        batchllm::StreamDecoder stream(**tokenizer, option);
        std::string joined;
        for (const int32_t id : ids) {
            const std::string piece = stream.push(id);
            check(simdjson::validate_utf8(piece.data(), piece.size()));
            joined += piece;
        }
        check(joined + stream.finish() == *decoded);
    }
    return 0;
}
