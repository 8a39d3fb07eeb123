#include "table/field_order.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "table/field_order_search.h"

namespace batchllm {

std::vector<int32_t> FieldPlacement::take(std::span<const int32_t> rest) {
    std::vector<int32_t> last_row_with(columns_, -1);
    for (size_t row = 0; row < placed_.size(); ++row) {
        int32_t *fields = fields_.data() + row * columns_;
        size_t count = static_cast<size_t>(placed_[row]);
        for (size_t i = 0; i < count; ++i) {
            last_row_with[static_cast<size_t>(fields[i])] = static_cast<int32_t>(row);
        }
        for (const int32_t column : rest) {
            if (last_row_with[static_cast<size_t>(column)] == static_cast<int32_t>(row)) continue;
            fields[count++] = column;
        }
    }
    return std::move(fields_);
}

std::vector<int32_t> by_repetition(std::span<const CellColumn> columns) {
    std::vector<int64_t> repeated;
    for (const CellColumn &column : columns) {
        int64_t bytes = 0;
        for (const int32_t code : column.codes) bytes += column.lengths[static_cast<size_t>(code)];
        for (const int64_t length : column.lengths) bytes -= length;
        repeated.push_back(bytes);
    }
    std::vector<int32_t> order(columns.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return repeated[static_cast<size_t>(a)] > repeated[static_cast<size_t>(b)];
    });
    return order;
}

void sort_rows(std::span<const CellColumn> columns, std::span<const int32_t> keys,
               std::span<int32_t> rows) {
    if (rows.size() < 1024) {
        std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
            for (const int32_t key : keys) {
                const std::vector<int32_t> &codes = columns[static_cast<size_t>(key)].codes;
                const int32_t x = codes[static_cast<size_t>(a)];
                const int32_t y = codes[static_cast<size_t>(b)];
                if (x != y) return x < y;
            }
            return false;
        });
        return;
    }
    // A counting sort by each column, the last one first.
    std::vector<int32_t> sorted(rows.size());
    for (size_t k = keys.size(); k-- > 0;) {
        const CellColumn &column = columns[static_cast<size_t>(keys[k])];
        std::vector<size_t> next(static_cast<size_t>(column.values()) + 1, 0);
        for (const int32_t row : rows) {
            ++next[static_cast<size_t>(column.codes[static_cast<size_t>(row)]) + 1];
        }
        std::partial_sum(next.begin(), next.end(), next.begin());
        for (const int32_t row : rows) {
            const int32_t code = column.codes[static_cast<size_t>(row)];
            sorted[next[static_cast<size_t>(code)]++] = row;
        }
        std::copy(sorted.begin(), sorted.end(), rows.begin());
    }
}

SharedBytes shared_bytes(std::span<const CellColumn> columns, const FieldOrder &order) {
    SharedBytes bytes;
    for (size_t i = 0; i < order.rows.size(); ++i) {
        const int32_t row = order.rows[i];
        for (const CellColumn &column : columns) bytes.total += column.length(row);
        if (i == 0) continue;
        const int32_t before = order.rows[i - 1];
        const std::span<const int32_t> ours = order.of(row, columns.size());
        const std::span<const int32_t> theirs = order.of(before, columns.size());
        for (size_t k = 0; k < columns.size() && ours[k] == theirs[k]; ++k) {
            const CellColumn &column = columns[static_cast<size_t>(ours[k])];
            if (column.codes[static_cast<size_t>(row)] !=
                column.codes[static_cast<size_t>(before)]) {
                break;
            }
            bytes.shared += column.length(row);
        }
    }
    return bytes;
}

FieldOrder given_order(size_t rows, size_t columns) {
    FieldOrder order;
    order.rows.resize(rows);
    std::iota(order.rows.begin(), order.rows.end(), 0);
    order.fields.resize(rows * columns);
    for (size_t i = 0; i < order.fields.size(); ++i) {
        order.fields[i] = static_cast<int32_t>(i % columns);
    }
    return order;
}

FieldOrder fixed_order(std::span<const CellColumn> columns, std::span<const int32_t> fields) {
    FieldOrder order = given_order(columns.empty() ? 0 : columns[0].codes.size(), columns.size());
    for (size_t i = 0; i < order.fields.size(); ++i) order.fields[i] = fields[i % columns.size()];
    sort_rows(columns, fields, order.rows);
    return order;
}

namespace {

// Bytes shared if the field comes next in groups of rows that have all previous fields in common.
// Replaces the groups by those that it divides them into.
int64_t split_groups(const CellColumn &column, std::vector<int32_t> *groups) {
    std::unordered_map<uint64_t, int32_t> numbers;
    int64_t shared = 0;
    for (size_t row = 0; row < groups->size(); ++row) {
        int32_t &group = (*groups)[row];
        const auto code = static_cast<uint32_t>(column.codes[row]);
        const uint64_t name = uint64_t{static_cast<uint32_t>(group)} << 32 | code;
        const auto [at, added] = numbers.emplace(name, static_cast<int32_t>(numbers.size()));
        if (!added) shared += column.lengths[code];
        group = at->second;
    }
    return shared;
}

std::vector<int32_t> one_by_one(std::span<const CellColumn> columns) {
    std::vector<int32_t> order, left(columns.size());
    std::iota(left.begin(), left.end(), 0);
    std::vector<int32_t> groups(columns.empty() ? 0 : columns[0].codes.size(), 0);
    while (!left.empty()) {
        int64_t most = -1;
        size_t best = 0;
        std::vector<int32_t> best_groups;
        for (size_t i = 0; i < left.size(); ++i) {
            std::vector<int32_t> finer = groups;
            const int64_t shared = split_groups(columns[static_cast<size_t>(left[i])], &finer);
            if (shared <= most) continue;
            most = shared;
            best = i;
            best_groups = std::move(finer);
        }
        groups = std::move(best_groups);
        order.push_back(left[best]);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
    }
    return order;
}

} // namespace

std::vector<int32_t> best_fixed_fields(std::span<const CellColumn> columns) {
    std::vector<int32_t> best(columns.size());
    std::iota(best.begin(), best.end(), 0);
    int64_t most = shared_bytes(columns, fixed_order(columns, best)).shared;
    for (std::vector<int32_t> &fields : std::vector{by_repetition(columns), one_by_one(columns)}) {
        const int64_t shared = shared_bytes(columns, fixed_order(columns, fields)).shared;
        if (shared <= most) continue;
        most = shared;
        best = std::move(fields);
    }
    return best;
}

FieldOrder best_order(std::span<const CellColumn> columns, const StopCheck &stop) {
    const size_t rows = columns.empty() ? 0 : columns[0].codes.size();
    if (rows <= static_cast<size_t>(exact_rows) && columns.size() <= exact_columns) {
        return exact_order(columns);
    }
    std::vector<int32_t> fields(columns.size());
    std::iota(fields.begin(), fields.end(), 0);
    FieldOrder best = fixed_order(columns, fields);
    int64_t most = shared_bytes(columns, best).shared;
    const auto consider = [&](FieldOrder order) {
        const int64_t shared = shared_bytes(columns, order).shared;
        if (shared <= most) return;
        most = shared;
        best = std::move(order);
    };
    if (stop && stop()) return best;
    consider(fixed_order(columns, by_repetition(columns)));
    consider(greedy_order(columns, stop));
    return best;
}

} // namespace batchllm
