// Cells -> the order of rows, and of each row's fields, in which neighbours share most.
//
// The objective is, in bytes, the leading fields that a row has in the same places and with the
// same values as the row before it. This is the prefix hit of Liu et al., "Optimizing LLM queries
// in relational data analytics workloads" (MLSys 2025), with the length of a cell instead of its
// square. Rows in the order of a prefix tree share as much as the tree does on all its levels.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "table/cells.h"

namespace batchllm {

// Called now and then, if set: true ends a search, which may then return any order.
using StopCheck = std::function<bool()>;

struct FieldOrder {
    std::vector<int32_t> rows;   // [rows] row numbers, in the order of most sharing
    std::vector<int32_t> fields; // [rows x columns] row i's columns, in its order, from i x columns

    std::span<const int32_t> of(int32_t row, size_t columns) const {
        return {fields.data() + static_cast<size_t>(row) * columns, columns};
    }
};

// Bytes that rows share with the row before them in the order, and bytes of all rows.
struct SharedBytes {
    int64_t shared = 0;
    int64_t total = 0;
    double ratio() const {
        return total == 0 ? 0 : static_cast<double>(shared) / static_cast<double>(total);
    }
};

SharedBytes shared_bytes(std::span<const CellColumn> columns, const FieldOrder &order);

// Rows and fields as they are.
FieldOrder given_order(size_t rows, size_t columns);

// Every row's fields in one order, and the rows sorted by them.
FieldOrder fixed_order(std::span<const CellColumn> columns, std::span<const int32_t> fields);

// The fields in the one order for all rows in which they share most, of three: as given; by what the
// repeated values of each field share by themselves; and greedily, each time the field that shares
// most among the rows that have all previous fields in common. The last detects fields that
// determine one another.
std::vector<int32_t> best_fixed_fields(std::span<const CellColumn> columns);

// Greedy group recursion. At each step the rows that have value v in field c become a group, c their
// next field. The pair (v, c) is chosen that maximises
//     (length of v + lengths of what else those rows have in common) x (rows with v - 1)
// where values that only some of them have in common count in proportion. This is repeated among the remaining rows and,
// with the remaining fields, in each group. Common values are measured, so functional dependencies
// count without being declared. Groups of a few rows are solved exactly. O(rows x fields^2) for up
// to 16 fields; with more, the 16 that share most are placed in this way, and the rest follow in an
// order that is the same for all rows.
FieldOrder greedy_order(std::span<const CellColumn> columns, const StopCheck &stop = {});

// The optimum, by dynamic programming over subsets of rows. At most exact_rows rows and
// exact_columns columns.
constexpr int32_t exact_rows = 12;
constexpr size_t exact_columns = 8;
FieldOrder exact_order(std::span<const CellColumn> columns);

// The optimum of a small table, else the best of the greedy order, a fixed order and the given one.
FieldOrder best_order(std::span<const CellColumn> columns, const StopCheck &stop = {});

} // namespace batchllm
