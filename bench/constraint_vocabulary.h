// A synthetic vocabulary like those of today's models: 128,000 byte-level pieces, the same on every
// machine.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "text/utf8.h"

namespace batchllm {

// Bytes, numbers up to 999, punctuation in the combinations of JSON and code, white space, words of
// syllables with and without a space before them in three cases, and characters of other scripts,
// some of them cut. The shares are about those of a byte-level vocabulary of that size.
class VocabularyMaker {
  public:
    static std::vector<std::string> make(size_t size) { return VocabularyMaker(size).run(); }

  private:
    explicit VocabularyMaker(size_t size) : size_(size) {}

    std::vector<std::string> run() {
        for (int32_t byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
        for (int32_t number = 0; number < 1000; ++number) {
            const std::string text = std::to_string(number);
            for (size_t zeros = 0; zeros + text.size() <= 3; ++zeros)
                add(std::string(zeros, '0') + text);
        }
        for (size_t length = 2; length <= 96; ++length) {
            add(std::string(length, ' '));
            if (length <= 32) add(std::string(length, '\t'));
            add("\n" + std::string(length, ' '));
            for (const char c : std::string("-=*#_./")) add(std::string(length, c));
        }
        while (tokens_.size() < size_ / 20) add(punctuation());
        while (tokens_.size() < size_ / 5) add(other_script());
        while (tokens_.size() < size_) add(word());
        return std::move(tokens_);
    }

    void add(std::string token) {
        if (tokens_.size() < size_ && known_.insert(token).second)
            tokens_.push_back(std::move(token));
    }
    size_t pick(size_t n) { return random_() % n; }

    std::string punctuation() {
        static const char *const marks[] = {
            "\"", "\"", ":",  ",", "{", "}", "[", "]", "(", ")", ";", "'", ".", "\n", " ", "/", "=",
            "<",  ">",  "\\", "-", "_", "#", "&", "%", "+", "*", "!", "?", "@", "$",  "|", "`"};
        std::string token = pick(3) == 0 ? " " : "";
        const size_t count = 1 + pick(4);
        for (size_t i = 0; i < count; ++i) token += marks[pick(std::size(marks))];
        if (pick(3) == 0) token += lower_word(1);
        if (pick(6) == 0) token = lower_word(1) + token;
        return token;
    }

    std::string other_script() {
        static const uint32_t starts[] = {0xE0,   0x410,  0x430,  0x3B1,  0x5D0,  0x627,  0x905,
                                          0x3042, 0x4E00, 0x4E00, 0x6000, 0xAC00, 0x1F600};
        static const uint32_t spans[] = {30, 32,   32,   24,   26,   36, 50,
                                         80, 4000, 4000, 8000, 4000, 80};
        const size_t script = pick(std::size(starts));
        std::string token = pick(4) == 0 ? " " : "";
        const size_t count = 1 + pick(script < 7 ? 6 : 3);
        for (size_t i = 0; i < count; ++i)
            utf8_append(starts[script] + static_cast<uint32_t>(pick(spans[script])), &token);
        if (pick(8) == 0) token.pop_back();
        return token;
    }

    std::string lower_word(size_t syllables) {
        static const char *const onsets[] = {"b",  "c",  "d",  "f",  "g",  "h", "l", "m",
                                             "n",  "p",  "r",  "s",  "t",  "v", "w", "st",
                                             "tr", "ch", "sh", "pl", "gr", ""};
        static const char *const vowels[] = {"a", "e", "i", "o", "u", "ea", "io", "ou", "y"};
        static const char *const codas[] = {"",  "",  "",   "n",  "r",  "s",
                                            "t", "l", "ng", "nt", "st", "d"};
        std::string text;
        for (size_t i = 0; i < syllables; ++i) {
            text += onsets[pick(std::size(onsets))];
            text += vowels[pick(std::size(vowels))];
            text += codas[pick(std::size(codas))];
        }
        return text;
    }

    std::string word() {
        std::string text = lower_word(1 + pick(4));
        const size_t form = pick(10);
        if (form < 3) text[0] = static_cast<char>(text[0] & ~0x20);
        if (form == 3)
            for (char &c : text) c = static_cast<char>(c & ~0x20);
        if (form == 4) text += '_';
        return (pick(5) < 3 ? " " : "") + text;
    }

    size_t size_;
    std::mt19937_64 random_{20261120};
    std::vector<std::string> tokens_;
    std::unordered_set<std::string> known_;
};

} // namespace batchllm
