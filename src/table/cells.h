// Columns of text -> numbers: equal cells of a column have the same number, so text need not be
// read again to find what rows have in common.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace batchllm {

// A column as the caller holds it, borrowed.
struct TableColumn {
    std::string name;
    const char *text = nullptr;
    const int64_t *offsets = nullptr;  // [rows + 1] bytes
    const uint8_t *validity = nullptr; // a bit a row, lowest first; null: every cell has a value

    bool is_null(int64_t row) const {
        return validity != nullptr && (validity[row / 8] >> (row % 8) & 1) == 0;
    }
    std::string_view operator[](int64_t row) const {
        // The offsets of an empty cell need not lie within the text.
        if (offsets[row + 1] == offsets[row]) return "";
        return {text + offsets[row], static_cast<size_t>(offsets[row + 1] - offsets[row])};
    }
};

// One field of the rows that are put in order.
struct CellColumn {
    std::vector<int32_t> codes;   // [rows] from 0, as the values first appear
    std::vector<int64_t> lengths; // [values] bytes in a prompt, with the text of the value's line

    int32_t values() const { return static_cast<int32_t>(lengths.size()); }
    int64_t length(int32_t row) const {
        return lengths[static_cast<size_t>(codes[static_cast<size_t>(row)])];
    }
};

// rows: the column's rows that take part, fewer than 2^31. line_bytes: added to each value's length.
CellColumn encode_cells(const TableColumn &column, std::span<const int64_t> rows,
                        int64_t line_bytes);

} // namespace batchllm
