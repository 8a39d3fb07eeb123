// Normalized text -> words: the "pre_tokenizer" of tokenizer.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex/matcher.h"
#include "text/split.h"

namespace batchllm {

struct PreTokenizerStep {
    enum class Kind : uint8_t {
        split,        // into the words that a pattern matches
        prefix_space, // a space before each piece that does not start with one
        metaspace,    // spaces become marks; a mark before the piece; a cut before each mark
        split_at,     // at each occurrence of a string; `behavior` says what becomes of it
        split_at_any, // the same at all that a regular expression matches
    };
    enum class Prepend : uint8_t { always, first, never };
    enum class Behavior : uint8_t { removed, isolated, with_previous, with_next, contiguous };
    Kind kind;
    SplitPattern pattern = SplitPattern::gpt2;
    std::string mark = {}; // one character
    Prepend prepend = Prepend::always;
    bool cut = true;
    std::string separator = {}; // of split_at, not empty; of split_at_any, the expression
    std::shared_ptr<const RegexMatcher> matcher = {}; // of split_at_any
    Behavior behavior = Behavior::isolated;
    bool invert = false; // treats the text between separators as the separator, and vice versa
};

// The begin and end of the next word of split_at and split_at_any in `piece`, from byte `from` on. Both are the size
// of the piece if there are no more words.
struct SplitPlace {
    size_t begin;
    size_t end;
};
SplitPlace next_split_at(const PreTokenizerStep &step, std::string_view piece, size_t from);

class PreTokenizer {
  public:
    explicit PreTokenizer(std::vector<PreTokenizerStep> steps = {}) : steps_(std::move(steps)) {}

    const std::vector<PreTokenizerStep> &steps() const { return steps_; }

    // Calls take(word, readable) for the words of a piece of text (not empty), in order. readable:
    // how many bytes may be read from the start of the piece (or the word). at_start: the piece
    // starts where the raw text does. A word is valid only during the call.
    template <typename Take>
    void apply(std::string_view piece, size_t readable, bool at_start, const Take &take) const {
        run(0, piece, readable, at_start, take);
    }

  private:
    template <typename Take> void run(size_t step, std::string_view piece, size_t readable,
                                      bool at_start, const Take &take) const;

    static void add_marks(const PreTokenizerStep &step, std::string_view piece, bool at_start,
                          std::string *out);

    std::vector<PreTokenizerStep> steps_;
    const UnicodeClasses &classes_ = unicode_classes();
};

template <typename Take> void PreTokenizer::run(size_t step, std::string_view piece,
                                                size_t readable, bool at_start,
                                                const Take &take) const {
    if (step == steps_.size()) {
        take(piece, readable);
        return;
    }
    const PreTokenizerStep &now = steps_[step];
    std::string changed;
    switch (now.kind) {
    case PreTokenizerStep::Kind::split:
        for (const char *p = piece.data(), *end = p + piece.size(); p < end;) {
            const char *word_end = next_word(now.pattern, classes_, p, end);
            run(step + 1, {p, static_cast<size_t>(word_end - p)},
                readable - static_cast<size_t>(p - piece.data()), at_start, take);
            at_start = false;
            p = word_end;
        }
        return;
    case PreTokenizerStep::Kind::split_at:
    case PreTokenizerStep::Kind::split_at_any:
        for (SplitPlace place = next_split_at(now, piece, 0); place.begin < piece.size();
             place = next_split_at(now, piece, place.end)) {
            run(step + 1, piece.substr(place.begin, place.end - place.begin),
                readable - place.begin, at_start && place.begin == 0, take);
        }
        return;
    case PreTokenizerStep::Kind::prefix_space:
        if (!piece.starts_with(' ')) {
            changed.reserve(piece.size() + 1);
            changed.push_back(' ');
            changed.append(piece);
            piece = changed;
            readable = piece.size();
        }
        run(step + 1, piece, readable, at_start, take);
        return;
    case PreTokenizerStep::Kind::metaspace:
        add_marks(now, piece, at_start, &changed);
        piece = changed;
        while (!piece.empty()) {
            size_t length = piece.size();
            if (now.cut) length = std::min(piece.find(now.mark, 1), length);
            run(step + 1, piece.substr(0, length), piece.size(), at_start, take);
            at_start = false;
            piece.remove_prefix(length);
        }
        return;
    }
}

} // namespace batchllm
