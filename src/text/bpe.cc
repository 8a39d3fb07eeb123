#include "text/bpe.h"

#include <algorithm>
#include <cstdio>

#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace batchllm {
namespace {

constexpr uint32_t kBasicCharacters = 0x10000;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81"; // U+2581, the space of SentencePiece

} // namespace

std::string byte_fallback_token(uint8_t byte) {
    char token[8];
    std::snprintf(token, sizeof token, "<0x%02X>", byte & 255U);
    return token;
}

BpeModel::BpeModel(BpeSettings settings, bool byte_level)
    : settings_(std::move(settings)), byte_level_(byte_level), merges_(settings_.merges.size()) {
    for (size_t rank = 0; rank < settings_.merges.size(); ++rank) {
        const MergePair &pair = settings_.merges[rank];
        merges_.insert(pair.left, pair.right, {static_cast<uint32_t>(rank), pair.token});
    }
    load_symbols();
    if (byte_level_ && settings_.ignore_merges) {
        for (int32_t id = 0; id < settings_.vocabulary.id_end(); ++id) {
            if (!settings_.vocabulary.contains(id)) continue;
            const auto bytes = bytes_of_token(settings_.vocabulary.token(id));
            if (bytes.has_value() && !bytes->empty()) whole_words_.insert(*bytes, id);
        }
    }
    cut_at_spaces_ = !byte_level_ && !settings_.ignore_merges && find_cuts();
}

void BpeModel::load_symbols() {
    const TokenTable &vocabulary = settings_.vocabulary;
    byte_tokens_.assign(256, -1);
    for (uint32_t byte = 0; byte < 256 && settings_.byte_fallback; ++byte) {
        byte_tokens_[byte] = vocabulary.find(byte_fallback_token(static_cast<uint8_t>(byte)));
    }
    if (byte_level_) {
        byte_symbols_.resize(256);
        for (uint32_t byte = 0; byte < 256; ++byte) {
            std::string character;
            utf8_append(byte_character(static_cast<uint8_t>(byte)), &character);
            byte_symbols_[byte] = vocabulary.find(character);
        }
        return;
    }
    basic_symbols_.assign(kBasicCharacters, -1);
    for (int32_t id = 0; id < vocabulary.id_end(); ++id) {
        if (!vocabulary.contains(id)) continue;
        const std::string_view token = vocabulary.token(id);
        if (token.empty() || static_cast<size_t>(utf8_length(token[0])) != token.size()) continue;
        int32_t length = 0;
        const uint32_t point = utf8_decode(token.data(), &length);
        if (point < kBasicCharacters) basic_symbols_[point] = id;
    }
}

// Whether a word may be cut before each U+2581 that follows another character without changing its
// tokens: no merge joins across such a place, the mark itself is in the vocabulary, so that it ends
// a run of unknown characters as the end of a word does, and no character disappears, which would
// make two marks adjacent.
bool BpeModel::find_cuts() const {
    const TokenTable &vocabulary = settings_.vocabulary;
    if (vocabulary.find(kSpaceMark) < 0) return false;
    const int32_t unknown = settings_.unknown_token;
    if (unknown < 0 && *std::min_element(byte_tokens_.begin(), byte_tokens_.end()) < 0)
        return false;
    if (unknown >= 0 && vocabulary.token(unknown).ends_with(kSpaceMark)) return false;
    return std::none_of(settings_.merges.begin(), settings_.merges.end(), [&](const auto &pair) {
        return !vocabulary.token(pair.left).ends_with(kSpaceMark) &&
               vocabulary.token(pair.right).starts_with(kSpaceMark);
    });
}

int32_t BpeModel::whole_word(std::string_view word) const {
    return byte_level_ ? whole_words_.find(word) : settings_.vocabulary.find(word);
}

// Appends the tokens of a character's bytes if the vocabulary has all of them.
bool BpeModel::append_bytes(std::string_view character, std::vector<int32_t> *symbols) const {
    const auto token_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
    if (!std::all_of(character.begin(), character.end(),
                     [&](char byte) { return token_of(byte) >= 0; })) {
        return false;
    }
    for (const char byte : character) symbols->push_back(token_of(byte));
    return true;
}

void BpeModel::encode_merging(std::string_view word, BpeScratch *scratch) const {
    std::vector<int32_t> &symbols = scratch->symbols;
    symbols.clear();
    if (settings_.ignore_merges) {
        if (const int32_t token = whole_word(word); token >= 0) {
            symbols.push_back(token);
            return;
        }
    }
    bool unknown = false; // an unknown token is pending, and may absorb what follows it
    // As in the reference, tokens of bytes do not end a run of unknown characters.
    const auto take_in = [&](int32_t token, std::string_view character) {
        if (token >= 0) {
            if (unknown) symbols.push_back(settings_.unknown_token);
            unknown = false;
            symbols.push_back(token);
        } else if (settings_.byte_fallback && append_bytes(character, &symbols)) {
        } else if (settings_.unknown_token >= 0) {
            if (unknown && !settings_.fuse_unknown) symbols.push_back(settings_.unknown_token);
            unknown = true;
        }
    };
    if (byte_level_) {
        for (const char byte : word) {
            const int32_t token = byte_symbols_[static_cast<unsigned char>(byte)];
            if (token >= 0 && !unknown) {
                symbols.push_back(token);
                continue;
            }
            std::string character;
            utf8_append(byte_character(static_cast<uint8_t>(byte)), &character);
            take_in(token, character);
        }
    } else {
        for (size_t i = 0; i < word.size();) {
            int32_t length = 0;
            const uint32_t point = utf8_decode(word.data() + i, &length);
            const std::string_view character = word.substr(i, static_cast<size_t>(length));
            take_in(point < kBasicCharacters ? basic_symbols_[point]
                                             : settings_.vocabulary.find(character),
                    character);
            i += static_cast<size_t>(length);
        }
    }
    if (unknown) symbols.push_back(settings_.unknown_token);
    merge_word(merges_, &scratch->merge, &symbols);
}

void BpeModel::encode_cached(std::string_view word, size_t readable, BpeScratch *scratch,
                             std::vector<int32_t> *tokens) const {
    if (word.size() > WordCache::kWordBytes) {
        encode_merging(word, scratch);
        tokens->insert(tokens->end(), scratch->symbols.begin(), scratch->symbols.end());
        return;
    }
    const WordCache::Key key = WordCache::key_of(word, readable);
    WordCache::Place &place = scratch->cache.place_of(key);
    if (!(place.key == key)) {
        encode_merging(word, scratch);
        const std::vector<int32_t> &symbols = scratch->symbols;
        if (symbols.size() > WordCache::kTokens) {
            tokens->insert(tokens->end(), symbols.begin(), symbols.end());
            return;
        }
        place.key = key;
        place.count = static_cast<int32_t>(symbols.size());
        std::copy(symbols.begin(), symbols.end(), place.tokens);
    }
    tokens->insert(tokens->end(), place.tokens, place.tokens + place.count);
}

void BpeModel::encode(std::string_view word, size_t readable, BpeScratch *scratch,
                      std::vector<int32_t> *tokens) const {
    if (!cut_at_spaces_) {
        encode_cached(word, readable, scratch, tokens);
        return;
    }
    while (!word.empty()) {
        size_t length = 0;
        while (word.substr(length).starts_with(kSpaceMark)) length += kSpaceMark.size();
        length = std::min(word.find(kSpaceMark, length), word.size());
        encode_cached(word.substr(0, length), readable, scratch, tokens);
        word.remove_prefix(length);
        readable -= length;
    }
}

} // namespace batchllm
