// A growing text of tokens -> where the end of another text has occurred in it before.
//
// Hash chains, as in LZ77 (Ziv and Lempel, 1977): a table has the latest position behind each group
// of `least_match` tokens, and each position the one before it with the same hash. Adding a token is
// O(1), and so is looking one up, since only the latest positions are compared. Once the text has
// `most` tokens, its older half is forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace batchllm {

class DraftText {
  public:
    static constexpr int32_t least_match = 3;
    static constexpr int32_t longest_match = 32;
    // Between texts that do not continue each other.
    static constexpr int32_t separator = -1;

    // most: at least two.
    explicit DraftText(size_t most) : most_(most) {}

    void append(int32_t token);
    void append(std::span<const int32_t> tokens) {
        for (const int32_t token : tokens) append(token);
    }

    // Positions count from the first token that was ever appended.
    int64_t begin() const { return begin_; }
    int64_t end() const { return begin_ + static_cast<int64_t>(tokens_.size()); }
    int32_t at(int64_t position) const { return tokens_[static_cast<size_t>(position - begin_)]; }
    // The last tokens, as many as a match can have.
    std::span<const int32_t> tail() const;

    struct Match {
        int64_t next = -1; // position of the token behind it; -1: there is none
        int32_t length = 0;
    };
    // The longest end of `recent` that occurs before the text's end; of equal ones the latest.
    // recent may be this text's own tail().
    Match find(std::span<const int32_t> recent) const;

  private:
    void index(size_t next);
    void forget_half();
    void rehash(size_t buckets);

    size_t most_;
    int64_t begin_ = 0;
    std::vector<int32_t> tokens_;
    // Indices of the token behind a group of least_match tokens; -1: none. A group is indexed once
    // that token is there.
    std::vector<int32_t> latest_; // [buckets], a power of two
    std::vector<int32_t> before_; // [tokens]
};

} // namespace batchllm
