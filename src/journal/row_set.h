// A set of row numbers, one bit for each number up to the largest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace batchllm {

class RowSet {
  public:
    bool contains(int64_t row) const {
        const auto byte = static_cast<size_t>(row >> 3);
        return byte < bytes_.size() && (bytes_[byte] >> (row & 7) & 1) != 0;
    }
    // Makes room, so that inserting rows up to this one cannot fail.
    void reserve(int64_t row) {
        const auto byte = static_cast<size_t>(row >> 3);
        if (byte >= bytes_.size()) bytes_.resize(byte + byte / 2 + 1024);
    }
    // Returns false if it was already in the set.
    bool insert(int64_t row) {
        reserve(row);
        uint8_t &byte = bytes_[static_cast<size_t>(row >> 3)];
        const auto bit = static_cast<uint8_t>(1u << (row & 7));
        if ((byte & bit) != 0) return false;
        byte = static_cast<uint8_t>(byte | bit);
        return true;
    }
    void erase(int64_t row) {
        const auto byte = static_cast<size_t>(row >> 3);
        if (byte < bytes_.size()) {
            bytes_[byte] = static_cast<uint8_t>(bytes_[byte] & ~(1u << (row & 7)));
        }
    }

    // Bit row % 8, lowest first, of byte row / 8. Rows beyond the last byte are not in the set.
    std::span<const uint8_t> bytes() const { return bytes_; }

  private:
    std::vector<uint8_t> bytes_;
};

} // namespace batchllm
