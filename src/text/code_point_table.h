// Code point -> value, in two steps: most blocks of 128 code points equal another one and are stored once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace batchllm {

template <typename T> class CodePointTable {
  public:
    CodePointTable() = default; // may only be assigned to
    // values: those of all 0x110000 code points.
    explicit CodePointTable(const std::vector<T> &values) {
        std::map<std::vector<T>, uint16_t> seen;
        for (auto first = values.begin(); first != values.end(); first += 128) {
            std::vector<T> block(first, first + 128);
            const auto [place, is_new] =
                seen.emplace(std::move(block), static_cast<uint16_t>(seen.size()));
            if (is_new) blocks_.insert(blocks_.end(), place->first.begin(), place->first.end());
            index_.push_back(place->second);
        }
    }

    T of(uint32_t point) const { return blocks_[size_t{index_[point >> 7]} * 128 + (point & 127)]; }

  private:
    std::vector<uint16_t> index_; // [0x110000 / 128] which block holds these code points
    std::vector<T> blocks_;
};

} // namespace batchllm
