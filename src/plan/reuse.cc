// The previous plan's groups -> groups of those rows that are still there.
#include <algorithm>
#include <tuple>

#include "plan/draft.h"

namespace batchllm {
namespace {

struct Identity {
    uint64_t fingerprint;
    int32_t length;
    uint32_t row;

    auto key() const { return std::tuple(fingerprint, length); }
    bool operator<(const Identity &other) const {
        return std::tuple(fingerprint, length, row) <
               std::tuple(other.fingerprint, other.length, other.row);
    }
};

std::vector<Identity> sorted_identities(std::span<const uint64_t> fingerprints,
                                        std::span<const int32_t> lengths) {
    std::vector<Identity> identities(lengths.size());
    for (size_t i = 0; i < lengths.size(); ++i) {
        identities[i] = {fingerprints[i], lengths[i], static_cast<uint32_t>(i)};
    }
    std::sort(identities.begin(), identities.end());
    return identities;
}

} // namespace

std::vector<int64_t> match_rows(const Plan &previous, std::span<const uint64_t> fingerprints,
                                std::span<const int32_t> lengths) {
    const std::vector<Identity> before = sorted_identities(previous.fingerprints, previous.lengths);
    const std::vector<Identity> now = sorted_identities(fingerprints, lengths);
    std::vector<int64_t> matches(lengths.size(), -1);
    for (size_t i = 0, k = 0; i < now.size() && k < before.size();) {
        if (now[i].key() < before[k].key()) {
            ++i;
        } else if (before[k].key() < now[i].key()) {
            ++k;
        } else {
            matches[now[i++].row] = before[k++].row;
        }
    }
    return matches;
}

std::vector<bool> rows_alone(const Plan &plan) {
    std::vector<bool> alone(plan.rows.size());
    for (const PlanGroup &group : plan.groups) {
        if (group.prefix >= 0) continue;
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            alone[static_cast<size_t>(plan.rows[static_cast<size_t>(i)])] = true;
        }
    }
    return alone;
}

void keep_groups(const Plan &previous, std::span<const int64_t> previous_rows,
                 std::span<const TokenRow> rows, PlanDraft &draft) {
    std::vector<uint32_t> row_now(previous.rows.size(), UINT32_MAX);
    for (size_t i = 0; i < rows.size(); ++i) {
        if (previous_rows[i] >= 0)
            row_now[static_cast<size_t>(previous_rows[i])] = static_cast<uint32_t>(i);
    }
    std::vector<uint32_t> members;
    for (const PlanGroup &group : previous.groups) {
        if (group.prefix < 0) continue;
        const int32_t length = previous.prefixes[static_cast<size_t>(group.prefix)].length;
        members.clear();
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const auto before = static_cast<size_t>(previous.rows[static_cast<size_t>(i)]);
            const uint32_t row = row_now[before];
            if (row == UINT32_MAX || rows[row].shareable < length) continue;
            // A fingerprint may be forged, and two rows may have the same one by chance.
            if (!members.empty() && !same_prefix(rows[row], rows[members[0]], length)) continue;
            members.push_back(row);
        }
        if (members.size() < 2) continue;
        for (const uint32_t row : members) {
            draft.group_of[row] = static_cast<uint32_t>(draft.prefixes.size());
        }
        draft.prefixes.push_back({members[0], length, -1});
    }
}

} // namespace batchllm
