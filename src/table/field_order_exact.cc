// The optimum for a few rows: a set of rows is divided into groups that share their next field, and
// each group is a smaller problem with one field less.
//
//     most(S, F) = max of   most(S - {r}, F)                                        r alone
//                           (|T| - 1) length(c, r) + most(T, F - {c}) + most(S - T, F)
// for the first row r of S, over the columns c of F and the sets T of at least two rows of S that
// include r and have r's value in c. A column that is equal in all of S comes first: placed before
// what two rows share, it costs them nothing. A column that no two rows of S share is never chosen.
#include <bit>

#include "table/field_order_search.h"

namespace batchllm {
namespace {

class SubsetSearch {
  public:
    SubsetSearch(std::span<const CellColumn> columns, std::span<const int32_t> left,
                 std::span<const int32_t> rows)
        : rows_(rows.size()), left_(left.size()), memo_(size_t{1} << (rows.size() + left.size())) {
        equal_.resize(rows_ * left_);
        lengths_.resize(rows_ * left_);
        for (size_t k = 0; k < left_; ++k) {
            const CellColumn &column = columns[static_cast<size_t>(left[k])];
            for (size_t r = 0; r < rows_; ++r) {
                const int32_t code = column.codes[static_cast<size_t>(rows[r])];
                lengths_[r * left_ + k] = column.lengths[static_cast<size_t>(code)];
                uint32_t same = 0;
                for (size_t other = 0; other < rows_; ++other) {
                    if (column.codes[static_cast<size_t>(rows[other])] == code) same |= 1u << other;
                }
                equal_[r * left_ + k] = same;
            }
        }
    }

    struct Choice {
        int64_t most = -1; // -1: not known yet
        uint32_t group = 0;
        int32_t column = -1; // in `left`, or -1: the first row is alone
    };

    const Choice &solve(uint32_t rows, uint32_t columns) {
        Choice &known = memo_[static_cast<size_t>(rows) << left_ | columns];
        if (known.most >= 0) return known;
        const uint32_t first = rows & (~rows + 1);
        if (rows == first || columns == 0) return known = Choice{0, first, -1};
        const uint32_t useful = shared_columns(rows, columns);
        if (useful != columns) return known = solve(rows, useful);
        for (uint32_t c = columns; c != 0; c &= c - 1) {
            const int32_t column = std::countr_zero(c);
            if ((equal_[place(rows, column)] & rows) != rows) continue;
            const int64_t shared = (std::popcount(rows) - 1) * lengths_[place(rows, column)];
            const int64_t below = solve(rows, columns & ~(1u << column)).most;
            return known = Choice{shared + below, rows, column};
        }
        Choice best{solve(rows & (rows - 1), columns).most, first, -1};
        for (uint32_t c = columns; c != 0; c &= c - 1) {
            consider(rows, columns, std::countr_zero(c), &best);
        }
        return known = best;
    }

  private:
    // The index of the first of these rows in this column.
    size_t place(uint32_t rows, int32_t column) const {
        return static_cast<size_t>(std::countr_zero(rows)) * left_ + static_cast<size_t>(column);
    }

    // The columns in which two of the rows have the same value.
    uint32_t shared_columns(uint32_t rows, uint32_t columns) const {
        uint32_t shared = 0;
        for (uint32_t r = rows; r != 0; r &= r - 1) {
            for (uint32_t c = columns & ~shared; c != 0; c &= c - 1) {
                const uint32_t others = equal_[place(r, std::countr_zero(c))] & rows;
                if ((others & (others - 1)) != 0) shared |= c & (~c + 1);
            }
        }
        return shared;
    }

    void consider(uint32_t rows, uint32_t columns, int32_t column, Choice *best) {
        const uint32_t first = rows & (~rows + 1);
        const size_t at = place(rows, column);
        const uint32_t others = equal_[at] & rows & ~first;
        const uint32_t fewer = columns & ~(1u << column);
        for (uint32_t joined = others; joined != 0; joined = (joined - 1) & others) {
            const uint32_t group = joined | first;
            const int64_t shared = std::popcount(joined) * lengths_[at] + solve(group, fewer).most +
                                   solve(rows & ~group, columns).most;
            if (shared > best->most) *best = {shared, group, column};
        }
    }

    size_t rows_;
    size_t left_;
    std::vector<uint32_t> equal_;  // [rows, left] rows with the same value
    std::vector<int64_t> lengths_; // [rows, left]
    std::vector<Choice> memo_;     // [2^rows, 2^left]
};

} // namespace

int64_t place_exactly(std::span<const CellColumn> columns, std::span<const int32_t> left,
                      std::span<int32_t> rows, FieldPlacement *placement) {
    struct Part {
        uint32_t rows;
        uint32_t columns;
    };
    SubsetSearch search(columns, left, rows);
    const std::vector<int32_t> given(rows.begin(), rows.end());
    std::vector<Part> open = {{(1u << rows.size()) - 1, (1u << left.size()) - 1}};
    size_t next = 0;
    while (!open.empty()) {
        const Part part = open.back();
        open.pop_back();
        if (part.rows == 0) continue;
        const SubsetSearch::Choice choice = search.solve(part.rows, part.columns);
        open.push_back({part.rows & ~choice.group, part.columns});
        if (choice.column < 0) {
            rows[next++] = given[static_cast<size_t>(std::countr_zero(choice.group))];
            continue;
        }
        for (uint32_t r = choice.group; r != 0; r &= r - 1) {
            placement->place(given[static_cast<size_t>(std::countr_zero(r))],
                             left[static_cast<size_t>(choice.column)]);
        }
        open.push_back({choice.group, part.columns & ~(1u << choice.column)});
    }
    return search.solve((1u << rows.size()) - 1, (1u << left.size()) - 1).most;
}

FieldOrder exact_order(std::span<const CellColumn> columns) {
    FieldOrder order = given_order(columns.empty() ? 0 : columns[0].codes.size(), columns.size());
    if (columns.empty()) return order;
    const std::vector<int32_t> all(
        order.fields.begin(), order.fields.begin() + static_cast<std::ptrdiff_t>(
                                                         order.rows.empty() ? 0 : columns.size()));
    FieldPlacement placement(order.rows.size(), columns.size());
    place_exactly(columns, all, order.rows, &placement);
    order.fields = placement.take(all);
    return order;
}

} // namespace batchllm
