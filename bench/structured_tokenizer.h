// A tokenizer.json with a synthetic vocabulary (constraint_vocabulary.h): byte-level BPE in which
// each word that is a token is used as a whole, and other words are merged from their parts.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "constraint_vocabulary.h"
#include "text/utf8.h"

namespace batchllm {

// The character that stands for a byte in a byte-level vocabulary.
inline uint32_t byte_level_character(uint32_t byte) {
    const auto stands_for_itself = [](uint32_t b) {
        return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    };
    if (stands_for_itself(byte)) return byte;
    uint32_t others = 0;
    for (uint32_t b = 0; b < byte; ++b) others += stands_for_itself(b) ? 0 : 1;
    return 0x100 + others;
}

// The name of a token as a JSON string.
inline std::string byte_level_name(const std::string &bytes) {
    std::string name = "\"";
    for (const char c : bytes) {
        if (c == '"' || c == '\\') name += '\\';
        utf8_append(byte_level_character(static_cast<unsigned char>(c)), &name);
    }
    return name + '"';
}

// How the token is merged from two others, the first as long as possible: [left, right] as JSON; ""
// if it cannot be.
inline std::string merge_of(const std::string &token,
                            const std::unordered_set<std::string> &tokens) {
    for (size_t cut = token.size() - 1; cut > 0; --cut) {
        const std::string left = token.substr(0, cut), right = token.substr(cut);
        if (tokens.count(left) != 0 && tokens.count(right) != 0)
            return '[' + byte_level_name(left) + ',' + byte_level_name(right) + ']';
    }
    return {};
}

// The last of the ids ends a text.
inline std::string made_up_tokenizer(int32_t vocabulary) {
    const std::vector<std::string> tokens =
        VocabularyMaker::make(static_cast<size_t>(vocabulary) - 1);
    const std::unordered_set<std::string> known(tokens.begin(), tokens.end());
    std::string vocab, merges;
    for (size_t i = 0; i < tokens.size(); ++i) {
        vocab.append(i > 0 ? "," : "").append(byte_level_name(tokens[i]));
        vocab.append(":").append(std::to_string(i));
        if (tokens[i].size() == 1) continue;
        const std::string merge = merge_of(tokens[i], known);
        if (!merge.empty()) merges.append(merges.empty() ? "" : ",").append(merge);
    }
    const std::string eos = std::to_string(vocabulary - 1);
    return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":)" + eos +
           R"(,"content":"<end>","single_word":false,"lstrip":false,"rstrip":false,)"
           R"("normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":)"
           R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
           R"x("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|)x"
           R"x( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},)x"
           R"("behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,)"
           R"("trim_offsets":true,"use_regex":false}]},"post_processor":null,"decoder":)"
           R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)"
           R"("model":{"type":"BPE","dropout":null,"unk_token":null,)"
           R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)"
           R"("byte_fallback":false,"ignore_merges":true,"vocab":{)" +
           vocab + R"(},"merges":[)" + merges + "]}}";
}

} // namespace batchllm
