#include "prefix/prefix_ranges.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace batchllm {
namespace {

// A token counts as this many bytes of text.
constexpr int64_t token_bytes = 4;
// How far a boundary may move to avoid cutting prefixes, as a share of a range's work.
constexpr double slack_share = 0.25;
// The engine shares no prefix of fewer than 16 tokens, so cutting one costs nothing.
constexpr int64_t least_prefix = 16 * token_bytes;

int64_t common_bytes(std::string_view a, std::string_view b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

int64_t cost_of_cutting(int64_t common) { return common < least_prefix ? 0 : common; }

// For each i the work of all rows before sampled row i, in bytes of prompt. A sampled row stands for
// rows / sampled rows, but what it shares is computed once for all of them.
std::vector<double> work_before(const std::vector<SampledPrompt> &rows,
                                const std::vector<int64_t> &common, const RangeOptions &options) {
    const double scale =
        rows.empty() ? 1 : static_cast<double>(options.rows) / static_cast<double>(rows.size());
    std::vector<double> before = {0};
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t shared = std::max(common[i], common[i + 1]);
        const double own = static_cast<double>(rows[i].length - shared) +
                           static_cast<double>(options.expected_tokens) * token_bytes;
        before.push_back(before.back() + own * scale + static_cast<double>(shared - common[i]));
    }
    return before;
}

// Of the cuts in [lowest, highest] within slack of the aim, the one where neighbours have least in
// common; without any, the nearest.
size_t best_cut(const std::vector<double> &before, const std::vector<int64_t> &common,
                size_t lowest, size_t highest, double aim, double slack) {
    size_t best = 0; // none
    size_t nearest = lowest;
    const auto distance = [&](size_t i) { return std::abs(before[i] - aim); };
    for (size_t i = lowest; i <= highest; ++i) {
        if (distance(i) < distance(nearest)) nearest = i;
        if (distance(i) > slack) {
            if (before[i] > aim) break;
            continue;
        }
        if (best == 0 || std::tuple(cost_of_cutting(common[i]), distance(i)) <
                             std::tuple(cost_of_cutting(common[best]), distance(best))) {
            best = i;
        }
    }
    return best == 0 ? nearest : best;
}

} // namespace

PrefixRanges choose_ranges(std::vector<SampledPrompt> *sample, const RangeOptions &options) {
    std::vector<SampledPrompt> &rows = *sample;
    const auto start_bytes = static_cast<size_t>(options.start_bytes);
    for (SampledPrompt &row : rows) row.start = row.start.substr(0, start_bytes);
    std::sort(rows.begin(), rows.end(), [](const SampledPrompt &a, const SampledPrompt &b) {
        return std::tie(a.start, a.place) < std::tie(b.start, b.place);
    });
    PrefixRanges ranges;
    std::vector<int64_t> common(rows.size() + 1, 0); // of rows i - 1 and i
    size_t blind = 0;
    for (size_t i = 1; i < rows.size(); ++i) {
        common[i] = common_bytes(rows[i - 1].start, rows[i].start);
        if (common[i] == options.start_bytes && rows[i].length > common[i]) ++blind;
    }
    ranges.blind = 2 * blind > rows.size();
    const auto count = static_cast<int64_t>(rows.size());
    const auto partitions = static_cast<size_t>(std::clamp<int64_t>(count, 1, options.partitions));
    const std::vector<double> before = work_before(rows, common, options);
    const double share = before.back() / static_cast<double>(partitions);
    size_t last = 0;
    for (size_t part = 1; part < partitions; ++part) {
        // Leaves a row for each of the others.
        const size_t cut = best_cut(before, common, last + 1, rows.size() - (partitions - part),
                                    static_cast<double>(part) * share, slack_share * share);
        const SampledPrompt &right = rows[cut];
        if (rows[cut - 1].start == right.start) {
            ranges.boundaries.push_back({right.start, right.place});
        } else {
            ranges.boundaries.push_back(
                {right.start.substr(0, static_cast<size_t>(common[cut]) + 1),
                 std::numeric_limits<int64_t>::min()});
        }
        last = cut;
    }
    return ranges;
}

} // namespace batchllm
