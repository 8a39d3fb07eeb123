// What rows have in common that their plan does not share.
//
// A sample of rows is cut into overlapping runs, each as long as the shortest prefix. A run is
// common if most rows of the sample have it, or a good part of them, wherever it is in a row. The
// part of a row that common runs cover, beyond what is shared already, could be shared if it came
// first.
#include <algorithm>
#include <cstdio>

#include "plan/plan.h"

namespace batchllm {
namespace {

constexpr size_t least_rows = 32;  // smaller jobs get no advice
constexpr size_t most_rows = 128;  // in the sample
constexpr int32_t most_end = 1024; // tokens examined at the beginning of a row, and at its end
constexpr int32_t run_tokens = 16;
constexpr int64_t least_common = 32; // mean per row
constexpr double least_gain = 0.1;   // as a share of all prompt tokens
constexpr double most_rows_share = 0.9;
constexpr double some_rows_share = 0.1;
// An early difference begins at most this far after the shared part, and at least this much of the
// row follows it.
constexpr int64_t most_early = 40;
constexpr int64_t least_behind = 4;

// Runs -> how many rows have each. Open addressing; a run is identified by its hash.
class RunCounts {
  public:
    explicit RunCounts(size_t runs) {
        size_t size = 64;
        while (size < runs * 2) size *= 2;
        slots_.resize(size);
    }
    void add(uint64_t hash, int32_t row) {
        Slot &slot = find(hash);
        slot.hash = hash;
        slot.rows += slot.last_row != row;
        slot.last_row = row;
    }
    int32_t rows_with(uint64_t hash) { return find(hash).rows; }

  private:
    struct Slot {
        uint64_t hash = 0; // 0: free
        int32_t rows = 0;
        int32_t last_row = -1;
    };
    Slot &find(uint64_t hash) {
        size_t at = hash & (slots_.size() - 1);
        while (slots_[at].hash != 0 && slots_[at].hash != hash) at = (at + 1) & (slots_.size() - 1);
        return slots_[at];
    }
    std::vector<Slot> slots_;
};

uint64_t mixed(uint64_t x) {
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
    x *= 0x81dadef4bc2dd44du;
    return (x ^ x >> 33) | 1;
}

// Calls use(begin, hash) for each run of the row's beginning and end.
template <typename Use> void for_each_run(const TokenRow &row, Use use) {
    constexpr uint64_t base = 0x9e3779b97f4a7c15u;
    uint64_t last_factor = 1; // base^(run_tokens - 1)
    for (int32_t i = 1; i < run_tokens; ++i) last_factor *= base;
    const auto stretch = [&](int32_t begin, int32_t end) {
        uint64_t hash = 0;
        for (int32_t i = begin; i < end; ++i) {
            if (i - begin >= run_tokens) {
                hash -= (static_cast<uint64_t>(row.tokens[i - run_tokens]) + 1) * last_factor;
            }
            hash = hash * base + static_cast<uint64_t>(row.tokens[i]) + 1;
            if (i - begin >= run_tokens - 1) use(i - run_tokens + 1, mixed(hash));
        }
    };
    if (row.length <= 2 * most_end) {
        stretch(0, row.length);
    } else {
        stretch(0, most_end);
        stretch(row.length - most_end, row.length);
    }
}

struct SampledRow {
    int64_t row;
    int32_t shared; // tokens that it shares, or has in common with the start of another row of the
                    // sample
};

std::vector<SampledRow> take_sample(std::span<const TokenRow> rows, const Plan &plan) {
    std::vector<SampledRow> sample;
    const size_t count = std::min(most_rows, rows.size());
    for (size_t i = 0; i < count; ++i) {
        // One from each stretch of rows, but not always the first: rows may repeat in a pattern.
        const size_t begin = i * rows.size() / count;
        const size_t end = (i + 1) * rows.size() / count;
        const size_t row = begin + mixed(i + 1) % (end - begin);
        if (rows[row].length > 0) sample.push_back({static_cast<int64_t>(row), 0});
    }
    std::sort(sample.begin(), sample.end(), [&](const SampledRow &a, const SampledRow &b) {
        const TokenRow &x = rows[static_cast<size_t>(a.row)];
        const TokenRow &y = rows[static_cast<size_t>(b.row)];
        return std::lexicographical_compare(x.tokens, x.tokens + x.length, y.tokens,
                                            y.tokens + y.length);
    });
    for (size_t i = 1; i < sample.size(); ++i) {
        const TokenRow &x = rows[static_cast<size_t>(sample[i - 1].row)];
        const TokenRow &y = rows[static_cast<size_t>(sample[i].row)];
        const int32_t *end = x.tokens + std::min(x.length, y.length);
        const auto equal =
            static_cast<int32_t>(std::mismatch(x.tokens, end, y.tokens).first - x.tokens);
        sample[i - 1].shared = std::max(sample[i - 1].shared, equal);
        sample[i].shared = std::max(sample[i].shared, equal);
    }
    std::sort(sample.begin(), sample.end(),
              [](const SampledRow &a, const SampledRow &b) { return a.row < b.row; });
    for (const PlanGroup &group : plan.groups) {
        if (group.prefix < 0) continue;
        const int32_t length = plan.prefixes[static_cast<size_t>(group.prefix)].length;
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const int64_t row = plan.rows[static_cast<size_t>(i)];
            const auto found = std::lower_bound(
                sample.begin(), sample.end(), row,
                [](const SampledRow &a, int64_t number) { return a.row < number; });
            if (found == sample.end() || found->row != row) continue;
            found->shared = std::max(found->shared, length);
        }
    }
    return sample;
}

struct Found {
    int64_t common = 0; // tokens, over all rows of the sample
    int64_t row = -1;   // the one with the longest stretch
    int64_t begin = 0;
    int64_t end = 0;
    int64_t early_rows = 0; // rows whose first stretch begins early and that differ again after it
};

// The tokens after the shared part that are covered by runs that at least this many rows have.
Found find_common(std::span<const TokenRow> rows, const std::vector<SampledRow> &sample,
                  RunCounts *counts, int32_t threshold) {
    Found found;
    for (const SampledRow &sampled : sample) {
        const TokenRow &row = rows[static_cast<size_t>(sampled.row)];
        int64_t begin = -1, end = sampled.shared; // the current stretch
        int64_t first_begin = -1, longest = 0, last_end = 0;
        const auto close = [&] {
            if (begin < 0) return;
            found.common += end - begin;
            longest = std::max(longest, end - begin);
            if (first_begin < 0) first_begin = begin;
            last_end = end;
            if (end - begin <= found.end - found.begin) return;
            found.row = sampled.row;
            found.begin = begin;
            found.end = end;
        };
        for_each_run(row, [&](int32_t at, uint64_t hash) {
            if (at < sampled.shared || counts->rows_with(hash) < threshold) return;
            if (begin < 0 || at > end) {
                close();
                begin = at;
            }
            end = at + run_tokens;
        });
        close();
        found.early_rows += first_begin >= 0 && first_begin - sampled.shared <= most_early &&
                            row.length - last_end >= least_behind && longest > row.length / 4;
    }
    return found;
}

} // namespace

PlanAdvice advise(std::span<const TokenRow> rows, const Plan &plan) {
    PlanAdvice advice;
    const double saving = plan.saving_ratio();
    if (rows.size() < least_rows || plan.options.enlarge == BATCHLLM_ENLARGE_NONE ||
        saving > 1 - least_gain) {
        return advice;
    }
    const std::vector<SampledRow> sample = take_sample(rows, plan);
    // Rows with different salts share nothing, however they begin.
    const auto salted = [&](const SampledRow &sampled) {
        return rows[static_cast<size_t>(sampled.row)].salt != 0;
    };
    if (sample.size() < least_rows || std::any_of(sample.begin(), sample.end(), salted)) {
        return advice;
    }
    int64_t total = 0, runs = 0;
    for (const SampledRow &sampled : sample) {
        const int32_t length = rows[static_cast<size_t>(sampled.row)].length;
        total += length;
        runs += std::min(length, 2 * most_end);
    }
    RunCounts counts(static_cast<size_t>(runs));
    for (size_t i = 0; i < sample.size(); ++i) {
        for_each_run(rows[static_cast<size_t>(sample[i].row)],
                     [&](int32_t, uint64_t hash) { counts.add(hash, static_cast<int32_t>(i)); });
    }
    const auto threshold = [&](double share) {
        return std::max(8, static_cast<int32_t>(share * static_cast<double>(sample.size())));
    };
    // Anything that nearly all rows have can be moved to the front without breaking up what is
    // shared now.
    Found found = find_common(rows, sample, &counts, threshold(most_rows_share));
    double possible = saving + static_cast<double>(found.common) / static_cast<double>(total);
    const Found some = find_common(rows, sample, &counts, threshold(some_rows_share));
    const double possible_of_some = static_cast<double>(some.common) / static_cast<double>(total);
    if (possible_of_some > possible) {
        found = some;
        possible = possible_of_some;
    }
    const auto looked_at = static_cast<int64_t>(sample.size());
    if (possible - saving < least_gain || found.common < least_common * looked_at) return advice;
    advice.kind = 2 * found.early_rows > looked_at ? BATCHLLM_ADVICE_EARLY_DIFFERENCE
                                                   : BATCHLLM_ADVICE_COMMON_FIRST;
    advice.rows = looked_at;
    advice.common_tokens = found.common / looked_at;
    advice.row = found.row;
    advice.begin = found.begin;
    advice.end = found.end;
    advice.saving_ratio = saving;
    advice.possible_ratio = std::min(possible, 1.0);
    return advice;
}

std::string PlanAdvice::text(const std::string &row_name) const {
    if (kind == BATCHLLM_ADVICE_NONE) return {};
    char figures[96];
    std::snprintf(figures, sizeof figures,
                  "%.1f %% of the prompt tokens are saved, and about %.0f %% could be",
                  100 * saving_ratio, 100 * possible_ratio);
    const std::string example =
        "tokens " + std::to_string(begin) + " to " + std::to_string(end) + " of " + row_name;
    const std::string common = std::to_string(common_tokens);
    if (kind == BATCHLLM_ADVICE_EARLY_DIFFERENCE) {
        return std::string(figures) +
               ": rows differ near their beginning (a time or an id?) before about " + common +
               " tokens that they have in common (" + example +
               "). Put what differs after what rows have in common.";
    }
    return std::string(figures) + ": rows have about " + common +
           " tokens in common after text in which they differ (" + example +
           "). Put what rows have in common first, and what differs last.";
}

} // namespace batchllm
