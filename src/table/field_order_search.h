// The tools that the searches for an order share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table/field_order.h"

namespace batchllm {

// Each row's fields, placed one after the other.
class FieldPlacement {
  public:
    FieldPlacement(size_t rows, size_t columns)
        : columns_(columns), fields_(rows * columns), placed_(rows, 0) {}

    // Column `column` is the row's next field.
    void place(int32_t row, int32_t column) {
        const size_t at = static_cast<size_t>(row);
        fields_[at * columns_ + static_cast<size_t>(placed_[at]++)] = column;
    }

    // How many fields the row has; and removing all but the first `count` of them.
    size_t placed(int32_t row) const {
        return static_cast<size_t>(placed_[static_cast<size_t>(row)]);
    }
    void cut(int32_t row, size_t count) {
        placed_[static_cast<size_t>(row)] = static_cast<int32_t>(count);
    }

    // All rows' fields; those that were not placed follow in the order of `rest`, which has all columns.
    std::vector<int32_t> take(std::span<const int32_t> rest);

  private:
    size_t columns_;
    std::vector<int32_t> fields_;
    std::vector<int32_t> placed_; // [rows]
};

// Columns by how many bytes their repeated values would share alone, most first.
std::vector<int32_t> by_repetition(std::span<const CellColumn> columns);

// Sorts rows by their values in these columns, the first one first. Equal rows keep their order.
void sort_rows(std::span<const CellColumn> columns, std::span<const int32_t> keys,
               std::span<int32_t> rows);

// Puts `rows` in the order that shares most when the columns in `left` may come next in any order,
// and places the fields that are shared. At most exact_rows rows and exact_columns columns. Returns
// the bytes shared.
int64_t place_exactly(std::span<const CellColumn> columns, std::span<const int32_t> left,
                      std::span<int32_t> rows, FieldPlacement *placement);

} // namespace batchllm
