// Groups -> the order in which they are scheduled.
//
// BatchLLM, Eq. 4: groups that decode many tokens per prompt token go first, so that their decoding
// fills the steps in which later groups prefill. A group's ratio is the expected decode tokens of its
// rows, divided by the prompt tokens that are computed for it (its prefix once).
//
// Groups whose rows have an adapter run one after another, at the place that the ratio of all of them
// gives them, so that the adapter is needed for as short a time as possible.
#include <algorithm>
#include <unordered_map>

#include "plan/draft.h"

namespace batchllm {
namespace {

// A group of the draft, or a single row.
struct Candidate {
    double ratio;
    uint32_t first_row;
    uint32_t group; // or no_group
    // The ratio of all groups below its common prefix; its own if it has none.
    double top_ratio = ratio;
    uint32_t top_row = first_row;
    // The ratio of all groups with its salt; those of its top if it has none.
    double salt_ratio = ratio;
    uint32_t salt_row = first_row;
};

struct Total {
    int64_t decode = 0;
    int64_t prompt = 0;
    uint32_t rows = 0;
    uint32_t first_row = 0;

    double ratio() const {
        return static_cast<double>(decode) / static_cast<double>(std::max<int64_t>(prompt, 1));
    }
};

class Emitter {
  public:
    Emitter(std::span<const PlanPrefix> prefixes, Plan &plan)
        : prefixes_(prefixes), plan_(plan), number_(prefixes.size(), -1) {}

    // The number in the plan of a prefix of the draft. Adds its parents first.
    int32_t emit(int32_t prefix, uint32_t first_row) {
        const auto i = static_cast<size_t>(prefix);
        if (number_[i] < 0) {
            PlanPrefix copy = prefixes_[i];
            copy.row = first_row;
            if (copy.parent >= 0) copy.parent = emit(copy.parent, first_row);
            number_[i] = static_cast<int32_t>(plan_.prefixes.size());
            plan_.prefixes.push_back(copy);
        }
        return number_[i];
    }

  private:
    std::span<const PlanPrefix> prefixes_;
    Plan &plan_;
    std::vector<int32_t> number_;
};

// Groups below a common prefix that was chosen because it pays run one after another. Otherwise, if
// memory is short, the common prefix would have to be computed again for a later group.
void keep_common_prefixes_together(const PlanDraft &draft, const std::vector<Total> &totals,
                                   std::vector<Candidate> *candidates) {
    const auto top_of = [&](uint32_t group) {
        const int32_t parent = draft.prefixes[group].parent;
        return parent < 0 ? static_cast<size_t>(group) : static_cast<size_t>(parent);
    };
    std::vector<Total> tops(draft.prefixes.size());
    for (const Candidate &candidate : *candidates) {
        if (candidate.group == no_group) continue;
        const Total &group = totals[candidate.group];
        const size_t of = top_of(candidate.group);
        Total &top = tops[of];
        const int32_t common = draft.prefixes[of].length;
        if (top.rows == 0) top.prompt = common, top.first_row = group.first_row;
        top.rows += group.rows;
        top.decode += group.decode;
        top.prompt += group.prompt - common;
        top.first_row = std::min(top.first_row, group.first_row);
    }
    for (Candidate &candidate : *candidates) {
        if (candidate.group == no_group) continue;
        const Total &top = tops[top_of(candidate.group)];
        candidate.top_ratio = top.ratio();
        candidate.top_row = top.first_row;
    }
}

// Rows with the same salt, but none, run one after another.
void keep_salts_together(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                         const std::vector<Total> &totals, std::vector<Candidate> *candidates) {
    std::unordered_map<uint64_t, Total> of_salts;
    for (const Candidate &candidate : *candidates) {
        const TokenRow &row = rows[candidate.first_row];
        if (row.salt == 0) continue;
        const Total own{decode_length(decode_lengths, candidate.first_row), row.length, 1};
        const Total &total = candidate.group == no_group ? own : totals[candidate.group];
        Total &all = of_salts[row.salt];
        all.first_row =
            all.rows == 0 ? candidate.first_row : std::min(all.first_row, candidate.first_row);
        all.rows += total.rows;
        all.decode += total.decode;
        all.prompt += total.prompt;
    }
    for (Candidate &candidate : *candidates) {
        candidate.salt_ratio = candidate.top_ratio;
        candidate.salt_row = candidate.top_row;
        const auto found = of_salts.find(rows[candidate.first_row].salt);
        if (found == of_salts.end()) continue;
        candidate.salt_ratio = found->second.ratio();
        candidate.salt_row = found->second.first_row;
    }
}

} // namespace

void put_in_order(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                  const PlanDraft &draft, Plan &plan) {
    const auto decode = [&](size_t row) { return decode_length(decode_lengths, row); };
    const bool arrival = plan.options.order == BATCHLLM_ORDER_ARRIVAL;

    std::vector<Total> totals(draft.prefixes.size()); // common prefixes have no rows of their own
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < rows.size(); ++i) {
        if (draft.group_of[i] == no_group) {
            const double ratio = Total{decode(i), rows[i].length}.ratio();
            candidates.push_back({arrival ? 0 : ratio, static_cast<uint32_t>(i), no_group});
            continue;
        }
        Total &total = totals[draft.group_of[i]];
        const int32_t shared = draft.prefixes[draft.group_of[i]].length;
        if (total.rows++ == 0) total.first_row = static_cast<uint32_t>(i), total.prompt = shared;
        total.decode += decode(i);
        total.prompt += rows[i].length - shared;
    }
    for (size_t group = 0; group < totals.size(); ++group) {
        if (totals[group].rows == 0) continue;
        candidates.push_back({arrival ? 0 : totals[group].ratio(), totals[group].first_row,
                              static_cast<uint32_t>(group)});
    }
    if (plan.options.levels == levels_auto && !arrival) {
        keep_common_prefixes_together(draft, totals, &candidates);
    }
    if (!arrival) keep_salts_together(rows, decode_lengths, totals, &candidates);
    std::sort(candidates.begin(), candidates.end(), [](const Candidate &a, const Candidate &b) {
        if (a.salt_ratio != b.salt_ratio) return a.salt_ratio > b.salt_ratio;
        if (a.salt_row != b.salt_row) return a.salt_row < b.salt_row;
        if (a.top_ratio != b.top_ratio) return a.top_ratio > b.top_ratio;
        if (a.top_row != b.top_row) return a.top_row < b.top_row;
        return a.ratio != b.ratio ? a.ratio > b.ratio : a.first_row < b.first_row;
    });

    Emitter emitter(draft.prefixes, plan);
    plan.prefixes.reserve(draft.prefixes.size());
    plan.groups.reserve(candidates.size());
    plan.rows.resize(rows.size());
    std::vector<int64_t> next_place(totals.size());
    int64_t place = 0;
    for (const Candidate &candidate : candidates) {
        if (candidate.group == no_group) {
            plan.rows[static_cast<size_t>(place)] = candidate.first_row;
            plan.groups.push_back({-1, place, place + 1});
            ++place;
            continue;
        }
        const int64_t end = place + totals[candidate.group].rows;
        const int32_t prefix =
            emitter.emit(static_cast<int32_t>(candidate.group), candidate.first_row);
        plan.groups.push_back({prefix, place, end});
        next_place[candidate.group] = place;
        place = end;
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        if (draft.group_of[i] == no_group) continue;
        plan.rows[static_cast<size_t>(next_place[draft.group_of[i]]++)] = static_cast<int64_t>(i);
    }
    if (arrival || decode_lengths.empty()) return;
    for (const PlanGroup &group : plan.groups) {
        std::sort(plan.rows.begin() + group.row_begin, plan.rows.begin() + group.row_end,
                  [&](int64_t a, int64_t b) {
                      const int32_t x = decode(static_cast<size_t>(a)),
                                    y = decode(static_cast<size_t>(b));
                      return x != y ? x > y : a < b;
                  });
    }
}

} // namespace batchllm
