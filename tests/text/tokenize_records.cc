// tokenize_records TOKENIZER: encodes and decodes records, for tests/text/fuzz_tokenizer.py.
//
// In:  [uint32 options][uint32 bytes][text]          options: 1 add_special, 2 parse_special,
//                                                   4: the text is int32 ids, to be decoded only
// Out: [uint32 count][int32 ids][uint32 bytes][decoded][uint32 bytes][decoded without special]
// count is 2^32 - 1 for an error, and the first text is then its message. Each text is also decoded
// token by token; if the two results differ, the program stops with status 1.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace {

bool read_bytes(void *to, size_t bytes) { return std::fread(to, 1, bytes, stdin) == bytes; }

void write_text(const std::string &text) {
    const auto size = static_cast<uint32_t>(text.size());
    std::fwrite(&size, sizeof size, 1, stdout);
    if (!text.empty()) std::fwrite(text.data(), 1, text.size(), stdout);
}

bool is_whole_characters(const std::string &text) {
    return text.empty() || ((static_cast<unsigned char>(text[0]) & 0xC0) != 0x80);
}

std::string decode(const batchllm::Tokenizer &tokenizer, const std::vector<int32_t> &ids,
                   bool skip_special) {
    auto whole = tokenizer.decode(ids, skip_special);
    if (!whole.ok()) {
        std::fprintf(stderr, "decode: %s\n", whole.status().message().c_str());
        std::exit(1);
    }
    batchllm::StreamDecoder stream(tokenizer, skip_special);
    std::string joined;
    for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        if (!is_whole_characters(piece)) {
            std::fprintf(stderr, "a piece starts inside a character\n");
            std::exit(1);
        }
        joined += piece;
    }
    joined += stream.finish();
    if (joined != *whole) {
        std::fprintf(stderr, "stream: \"%s\"\nwhole:  \"%s\"\n", joined.c_str(), whole->c_str());
        std::exit(1);
    }
    return *whole;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    const auto tokenizer = batchllm::Tokenizer::load(argv[1]);
    if (!tokenizer.ok()) {
        std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
        return 1;
    }
    uint32_t header[2];
    std::string text;
    std::vector<int32_t> ids;
    while (read_bytes(header, sizeof header)) {
        text.resize(header[1]);
        if (!text.empty() && !read_bytes(text.data(), text.size())) return 1;
        ids.clear();
        const batchllm::EncodeOptions options{(header[0] & 1) != 0, (header[0] & 2) != 0};
        batchllm::Status status;
        if ((header[0] & 4) != 0) {
            ids.resize(text.size() / sizeof(int32_t));
            if (!ids.empty()) std::memcpy(ids.data(), text.data(), ids.size() * sizeof(int32_t));
        } else {
            status = (*tokenizer)->encode(text, options, &ids);
        }
        const uint32_t count = status.ok() ? static_cast<uint32_t>(ids.size()) : UINT32_MAX;
        std::fwrite(&count, sizeof count, 1, stdout);
        if (!status.ok()) {
            write_text(status.message());
            continue;
        }
        if (!ids.empty()) std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
        write_text(decode(**tokenizer, ids, false));
        write_text(decode(**tokenizer, ids, true));
    }
    return 0;
}
