// Generated text -> text that may be shown, cut before the first stop string.
//
// The first stop string is the one that ends first; if several end at the same byte, the longest.
// How the text is divided into pieces makes no difference. Text is held back only while it may be
// the beginning of a stop string. It is never copied, because it can be taken from the stop string
// itself. Each byte costs amortised constant time, whatever the number and length of the stop
// strings (Aho and Corasick: Efficient string matching, 1975).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace batchllm {

// The stop strings of one SamplingParams. Immutable; shared by the rows that use them, on any
// thread.
class StopStrings {
  public:
    // strings: copied; none may be empty.
    explicit StopStrings(std::span<const std::string> strings);

    bool empty() const { return strings_.empty(); }

  private:
    friend class StopScanner;
    // A prefix of some stop string: the first `depth` bytes of strings_[string].
    struct Node {
        int32_t string;
        int32_t depth;
        int32_t fallback = 0; // the longest proper suffix of it that is also such a prefix
        int32_t match = 0;    // length of the longest stop string that ends here; 0: none
        std::vector<std::pair<char, int32_t>> next; // by byte, sorted
    };
    int32_t edge(int32_t node, char byte) const; // -1: none
    int32_t advance(int32_t node, char byte) const;

    std::vector<std::string> strings_;
    std::vector<Node> nodes_;          // nodes_[0] is the empty prefix
    std::array<bool, 256> first_byte_; // bytes that begin a stop string
};

// The scanner for one sequence. It is fed the pieces of a StreamDecoder: whole characters go in and
// whole characters come out.
class StopScanner {
  public:
    // strings: borrowed.
    explicit StopScanner(const StopStrings &strings) : strings_(&strings) {}

    // Appends to *text what may be shown now. Returns true once a stop string has been found;
    // *text, over all calls, is then the text before it, and further pieces add nothing.
    bool push(std::string_view piece, std::string *text);

    // The sequence has ended for another reason. Appends what was held back.
    void finish(std::string *text);

    bool found() const { return found_; }
    // Bytes held back.
    int64_t held() const;

  private:
    const StopStrings *strings_;
    int32_t node_ = 0;
    bool found_ = false;
};

} // namespace batchllm
