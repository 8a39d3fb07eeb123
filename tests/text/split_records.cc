// Splits texts as pre-tokenizers do, for tests/text/fuzz_split.py.
//
// In:  [uint32 bytes][a "pre_tokenizer" as JSON], then until a record of no bytes [uint32 bytes][text]; and so on
// Out: [uint32 bytes][why the pre-tokenizer is refused, or nothing], then for each text [uint32 count][uint32 bytes of
//      each piece]
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "text/tokenizer_parts.h"

namespace {

bool read_text(std::string *text) {
    uint32_t size;
    if (std::fread(&size, sizeof size, 1, stdin) != 1) return false;
    text->resize(size);
    return std::fread(text->data(), 1, size, stdin) == size;
}

void write_number(size_t value) {
    const auto number = static_cast<uint32_t>(value);
    std::fwrite(&number, sizeof number, 1, stdout);
}

batchllm::Status read(const std::string &json, batchllm::TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const auto document, batchllm::JsonDocument::parse(json, "stdin", 1));
    return batchllm::read_pre_tokenizer(document.root(), spec);
}

} // namespace

int main() {
    std::string text;
    while (read_text(&text)) {
        batchllm::TokenizerSpec spec;
        const batchllm::Status status = read(text, &spec);
        write_number(status.message().size());
        std::fwrite(status.message().data(), 1, status.message().size(), stdout);
        const batchllm::PreTokenizer steps(spec.pre_tokenizer);
        while (read_text(&text) && !text.empty()) {
            std::vector<size_t> sizes;
            if (status.ok()) {
                steps.apply(text, text.size(), true,
                            [&](std::string_view piece, size_t) { sizes.push_back(piece.size()); });
            }
            write_number(sizes.size());
            for (const size_t size : sizes) write_number(size);
        }
    }
    return 0;
}
