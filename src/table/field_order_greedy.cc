#include <algorithm>
#include <queue>

#include "table/field_order_search.h"

namespace batchllm {
namespace {

// How many columns are placed row by row; the time grows with their square.
constexpr size_t most_placed = 16;
// Groups that are solved exactly: limits for the rows, and for rows and columns together.
constexpr size_t most_exact_rows = 8;
constexpr size_t most_exact = 12;
// Every trust is tried in groups of at most this many rows, in tables of at most this many cells.
constexpr size_t most_tried_rows = 64;
constexpr size_t most_tried_cells = size_t{1} << 20;

// The weight, in quarters, of values that only some members of a group share. No single figure is
// best: with much trust, a large, loosely related group is taken before a small, closely related
// one.
constexpr int32_t trusts[] = {2, 0, 4};

class GroupRecursion {
  public:
    GroupRecursion(std::span<const CellColumn> columns, const StopCheck &stop)
        : columns_(columns), stop_(stop),
          order_(given_order(columns[0].codes.size(), columns.size())),
          placement_(order_.rows.size(), columns.size()), ranked_(by_repetition(columns)),
          taken_(order_.rows.size(), 0) {
        for (const CellColumn &column : columns) {
            seen_.emplace_back(static_cast<size_t>(column.values()), 0);
            counts_.emplace_back(static_cast<size_t>(column.values()), 0);
            next_.emplace_back(static_cast<size_t>(column.values()), 0);
        }
    }

    FieldOrder run() {
        const size_t placed = std::min(most_placed, ranked_.size());
        const auto split = ranked_.begin() + static_cast<std::ptrdiff_t>(placed);
        rest_.assign(split, ranked_.end());
        const std::vector<int32_t> left(ranked_.begin(), split);
        if (order_.rows.size() * placed <= most_tried_cells) {
            try_trusts(order_.rows, left);
        } else {
            solve(order_.rows, left, trusts[0], true);
        }
        order_.fields = placement_.take(ranked_);
        return std::move(order_);
    }

  private:
    // A value that several rows of a set have.
    struct Candidate {
        int64_t score;
        int32_t column;
        int32_t code;
        int32_t rows;   // that had it left when the score was computed
        int32_t listed; // that had it at first
        size_t first;   // the first of them in the list

        bool operator<(const Candidate &other) const {
            if (score != other.score) return score < other.score;
            if (column != other.column) return column > other.column;
            return code > other.code;
        }
        std::span<const int32_t> members(const std::vector<int32_t> &list) const {
            return {list.data() + first, static_cast<size_t>(listed)};
        }
    };

    struct Group {
        int32_t column;
        size_t begin, end; // in the arranged rows
    };

    int32_t code(int32_t column, int32_t row) const {
        return columns_[static_cast<size_t>(column)].codes[static_cast<size_t>(row)];
    }
    int64_t length(int32_t column, int32_t row) const {
        return columns_[static_cast<size_t>(column)].length(row);
    }
    int32_t &count(int32_t column, int32_t value) {
        return counts_[static_cast<size_t>(column)][static_cast<size_t>(value)];
    }
    size_t &next(int32_t column, int32_t value) {
        return next_[static_cast<size_t>(column)][static_cast<size_t>(value)];
    }

    // Tries every trust and keeps the result that shares most. Returns the bytes shared.
    int64_t try_trusts(std::span<int32_t> rows, const std::vector<int32_t> &left) {
        const std::vector<int32_t> given(rows.begin(), rows.end());
        const size_t depth = placement_.placed(given.front());
        const auto solve_with = [&](int32_t trust) {
            std::copy(given.begin(), given.end(), rows.begin());
            for (const int32_t row : given) placement_.cut(row, depth);
            return solve(rows, left, trust, rows.size() > most_tried_rows);
        };
        int32_t best = trusts[0];
        int64_t most = -1;
        for (const int32_t trust : trusts) {
            const int64_t shared = solve_with(trust);
            if (shared <= most) continue;
            most = shared;
            best = trust;
        }
        return best == *std::rbegin(trusts) ? most : solve_with(best);
    }

    // rows: a range of the order that has shared all its fields so far. left: the columns that
    // follow. tries: whether to try other trusts in small groups below. Returns the bytes shared.
    int64_t solve(std::span<int32_t> rows, std::vector<int32_t> left, int32_t trust, bool tries) {
        if (rows.size() < 2 || stopped(rows.size() * left.size())) return 0;
        int64_t shared = 0;
        std::erase_if(left, [&](int32_t column) {
            if (!place_if_equal(column, rows)) return false;
            shared += length(column, rows.front()) * static_cast<int64_t>(rows.size() - 1);
            return true;
        });
        if (left.empty()) {
            if (!rest_.empty()) sort_rows(columns_, rest_, rows);
            return shared;
        }
        if (rows.size() == 2) return shared; // they have nothing else in common
        if (rows.size() <= most_exact_rows) {
            std::erase_if(left, [&](int32_t column) { return !repeats(column, rows); });
            if (left.empty()) return shared;
            if (rows.size() + left.size() <= most_exact) {
                return shared + place_exactly(columns_, left, rows, &placement_);
            }
        }
        if (tries && rows.size() <= most_tried_rows) return shared + try_trusts(rows, left);
        const std::vector<Group> groups = form_groups(rows, left, trust);
        for (const Group &group : groups) {
            const std::span<int32_t> members = rows.subspan(group.begin, group.end - group.begin);
            for (const int32_t row : members) placement_.place(row, group.column);
            shared +=
                length(group.column, members.front()) * static_cast<int64_t>(members.size() - 1);
            std::vector<int32_t> fewer = left;
            std::erase(fewer, group.column);
            shared += solve(members, std::move(fewer), trust, tries);
        }
        return shared;
    }

    // Whether two of a few rows have the same value.
    bool repeats(int32_t column, std::span<const int32_t> rows) const {
        for (size_t i = 1; i < rows.size(); ++i) {
            for (size_t j = 0; j < i; ++j) {
                if (code(column, rows[i]) == code(column, rows[j])) return true;
            }
        }
        return false;
    }

    bool place_if_equal(int32_t column, std::span<const int32_t> rows) {
        const int32_t value = code(column, rows.front());
        const auto differs = [&](int32_t row) { return code(column, row) != value; };
        // Most columns differ between any two rows, so comparing the ends first decides fastest.
        if (differs(rows.back()) || std::any_of(rows.begin(), rows.end(), differs)) return false;
        for (const int32_t row : rows) placement_.place(row, column);
        return true;
    }

    // Arranges the rows into groups, highest score first, followed by ungrouped rows.
    std::vector<Group> form_groups(std::span<int32_t> rows, const std::vector<int32_t> &left,
                                   int32_t trust) {
        std::vector<int32_t> with_value; // rows by column and value
        std::priority_queue<Candidate> queue;
        list_values(rows, left, trust, &with_value, &queue);
        std::vector<Group> groups;
        std::vector<int32_t> arranged;
        arranged.reserve(rows.size());
        while (!queue.empty() && !stopped(1)) {
            Candidate best = queue.top();
            queue.pop();
            const int32_t now = count(best.column, best.code);
            if (now < 2) continue;
            const std::span<const int32_t> members = best.members(with_value);
            if (now != best.rows) {
                best.rows = now;
                best.score = score(best, now, members, left, trust);
                queue.push(best);
                continue;
            }
            const size_t begin = arranged.size();
            for (const int32_t row : members) {
                if (taken_[static_cast<size_t>(row)] != 0) continue;
                taken_[static_cast<size_t>(row)] = 1;
                arranged.push_back(row);
                for (const int32_t column : left) --count(column, code(column, row));
            }
            groups.push_back({best.column, begin, arranged.size()});
        }
        for (const int32_t row : rows) {
            for (const int32_t column : left) {
                count(column, code(column, row)) = 0;
                next(column, code(column, row)) = 0;
            }
            if (taken_[static_cast<size_t>(row)] == 0) arranged.push_back(row);
            taken_[static_cast<size_t>(row)] = 0;
        }
        std::copy(arranged.begin(), arranged.end(), rows.begin());
        return groups;
    }

    // Counts the values of the rows, lists the rows of each value that several have, and scores
    // those values.
    void list_values(std::span<const int32_t> rows, const std::vector<int32_t> &left, int32_t trust,
                     std::vector<int32_t> *with_value, std::priority_queue<Candidate> *queue) {
        std::vector<Candidate> candidates;
        for (const int32_t column : left) {
            for (const int32_t row : rows) {
                if (++count(column, code(column, row)) != 2) continue;
                candidates.push_back({0, column, code(column, row), 0, 0, 0});
            }
        }
        size_t listed = 0;
        for (Candidate &candidate : candidates) {
            candidate.rows = candidate.listed = count(candidate.column, candidate.code);
            candidate.first = listed;
            // Counted from 1; 0 means that only a single row has the value.
            next(candidate.column, candidate.code) = listed + 1;
            listed += static_cast<size_t>(candidate.listed);
        }
        with_value->resize(listed);
        for (const int32_t column : left) {
            for (const int32_t row : rows) {
                size_t &place = next(column, code(column, row));
                if (place > 0) (*with_value)[place++ - 1] = row;
            }
        }
        for (Candidate &candidate : candidates) {
            candidate.score =
                score(candidate, candidate.rows, candidate.members(*with_value), left, trust);
        }
        *queue = std::priority_queue<Candidate>(std::less<Candidate>(), std::move(candidates));
    }

    // members: rows with the value; `now` of them have not been taken.
    int64_t score(const Candidate &candidate, int32_t now, std::span<const int32_t> members,
                  const std::vector<int32_t> &left, int32_t trust) {
        if (stopped(members.size() * left.size())) return 0;
        const auto is_left = [&](int32_t row) { return taken_[static_cast<size_t>(row)] == 0; };
        const int32_t any = *std::find_if(members.begin(), members.end(), is_left);
        int64_t bytes = length(candidate.column, any) * (now - 1);
        for (const int32_t column : left) {
            if (column == candidate.column) continue;
            if (trust == 0) {
                const int32_t value = code(column, any);
                const bool equal = std::all_of(members.begin(), members.end(), [&](int32_t row) {
                    return !is_left(row) || code(column, row) == value;
                });
                if (equal) bytes += length(column, any) * (now - 1);
                continue;
            }
            std::vector<int32_t> &seen = seen_[static_cast<size_t>(column)];
            int64_t repeated = 0;
            int32_t values = 0;
            for (const int32_t row : members) {
                if (!is_left(row)) continue;
                const bool again = seen[static_cast<size_t>(code(column, row))]++ > 0;
                if (again) repeated += length(column, row);
                values += !again;
            }
            for (const int32_t row : members) seen[static_cast<size_t>(code(column, row))] = 0;
            bytes += values == 1 ? repeated : repeated * trust / 4;
        }
        return bytes;
    }

    // cells: how many have been examined since the last call.
    bool stopped(size_t cells) {
        constexpr size_t asked_after = size_t{1} << 20;
        asked_ += cells;
        if (asked_ < asked_after || stopped_ || !stop_) return stopped_;
        asked_ = 0;
        return stopped_ = stop_();
    }

    std::span<const CellColumn> columns_;
    const StopCheck &stop_;
    size_t asked_ = 0;
    bool stopped_ = false;
    FieldOrder order_;
    FieldPlacement placement_;
    std::vector<int32_t> ranked_; // all columns, those that share most first
    std::vector<int32_t> rest_;   // those not placed row by row
    std::vector<char> taken_;     // [rows] whether a group of the current set has the row
    // [columns][values] for the current set, else 0.
    std::vector<std::vector<int32_t>> counts_; // rows that have not been taken
    std::vector<std::vector<int32_t>> seen_;   // while computing a score
    std::vector<std::vector<size_t>> next_;    // the value's next index in the list of rows
};

} // namespace

FieldOrder greedy_order(std::span<const CellColumn> columns, const StopCheck &stop) {
    if (columns.empty() || columns[0].codes.empty()) return given_order(0, columns.size());
    return GroupRecursion(columns, stop).run();
}

} // namespace batchllm
