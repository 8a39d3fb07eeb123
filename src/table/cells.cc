#include "table/cells.h"

#include <chrono>
#include <unistd.h>

#include <xxhash.h>

namespace batchllm {
namespace {

// A new seed for each table, so that nobody can make cells collide on purpose. Not std::random_device, which in a
// library that libstdc++ is linked into needs glibc 2.36.
uint64_t random_seed() {
    uint64_t seed = 0;
    if (::getentropy(&seed, sizeof seed) == 0) return seed;
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Values by hash, in an open-addressing table that grows; values are compared in full. The numbers
// do not depend on the hashes.
class ValueNumbers {
  public:
    explicit ValueNumbers(const TableColumn &column) : column_(column), slots_(64) {}

    // The number of the value in row `row`; *added: whether it is new.
    int32_t number_of(int64_t row, bool *added) {
        const std::string_view value = column_[row];
        const uint64_t hash = XXH3_64bits_withSeed(value.data(), value.size(), seed_);
        if (first_rows_.size() * 2 >= slots_.size()) grow();
        for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
            Slot &slot = slots_[at];
            *added = slot.number < 0;
            if (*added) {
                slot = {hash, static_cast<int32_t>(first_rows_.size())};
                first_rows_.push_back(row);
                return slot.number;
            }
            if (slot.hash == hash &&
                column_[first_rows_[static_cast<size_t>(slot.number)]] == value) {
                return slot.number;
            }
        }
    }

  private:
    struct Slot {
        uint64_t hash = 0;
        int32_t number = -1;
    };

    void grow() {
        std::vector<Slot> larger(slots_.size() * 2);
        for (const Slot &slot : slots_) {
            if (slot.number < 0) continue;
            size_t at = slot.hash & (larger.size() - 1);
            while (larger[at].number >= 0) at = (at + 1) & (larger.size() - 1);
            larger[at] = slot;
        }
        slots_ = std::move(larger);
    }

    const TableColumn &column_;
    const uint64_t seed_ = random_seed();
    std::vector<Slot> slots_;         // size is a power of two, at most half full
    std::vector<int64_t> first_rows_; // [values]
};

} // namespace

CellColumn encode_cells(const TableColumn &column, std::span<const int64_t> rows,
                        int64_t line_bytes) {
    CellColumn cells;
    cells.codes.reserve(rows.size());
    ValueNumbers numbers(column);
    for (const int64_t row : rows) {
        bool added = false;
        cells.codes.push_back(numbers.number_of(row, &added));
        if (!added) continue;
        cells.lengths.push_back(static_cast<int64_t>(column[row].size()) + line_bytes);
    }
    return cells;
}

} // namespace batchllm
