// The vocabulary: spelling -> id and id -> spelling. Ids need not be dense; each id has one
// spelling and each spelling one id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace batchllm {

class TokenTable {
  public:
    // False if the spelling or the id is already present. id >= 0.
    bool insert(std::string_view token, int32_t id);

    int32_t find(std::string_view token) const; // -1: none
    bool contains(int32_t id) const {
        return id >= 0 && id < id_end() && tokens_[static_cast<size_t>(id)].offset >= 0;
    }
    std::string_view token(int32_t id) const {
        const Entry &entry = tokens_[static_cast<size_t>(id)];
        return {text_.data() + entry.offset, static_cast<size_t>(entry.length)};
    }
    int32_t id_end() const { return static_cast<int32_t>(tokens_.size()); } // largest id + 1
    int64_t size() const { return count_; }
    size_t longest() const { return longest_; } // bytes in the longest token

  private:
    struct Entry {
        int64_t offset = -1; // into text_; -1: no such id
        int64_t length = 0;
    };
    size_t slot_of(std::string_view token) const;
    void grow();

    std::string text_;
    std::vector<Entry> tokens_;  // [id]
    std::vector<int32_t> slots_; // open addressing, power of two, -1: free
    int64_t count_ = 0;
    size_t longest_ = 0;
};

} // namespace batchllm
