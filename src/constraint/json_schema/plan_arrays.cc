// Plans of arrays: tuples and lists, lists that contain something, lists without equal items.
#include <algorithm>
#include <map>

#include "constraint/json_schema/plan.h"

namespace batchllm {

namespace {

constexpr int64_t kMostIndex = 1000;     // of an item that is counted one by one
constexpr size_t kMostItemStates = 4000; // of an automaton of items
constexpr size_t kMostItemEdges = 20000;
constexpr int64_t kMostDistinct = 128; // values

} // namespace

Status SchemaPlanner::add_array(const ArraySet &set, std::vector<ArrayPlan> *out) {
    ArrayPlan plan;
    plan.prefix = set.prefix;
    plan.rest = set.rest;
    plan.least = set.least;
    plan.greatest = set.greatest;
    if (set.repeats) {
        RETURN_IF_ERROR(meaning_.refuse(*set.repeats, "that two items are equal can not be asked"));
    }
    if (set.unique) {
        ASSIGN_OR_RETURN(const bool kept, plan_distinct(set, &plan));
        if (!kept) {
            RETURN_IF_ERROR(meaning_.refuse(
                *set.unique, "items that are not all of a few known values, without contains"));
        }
    }
    if (!set.contains.empty() && !plan.distinct) {
        ASSIGN_OR_RETURN(const bool kept, plan_contains(set, &plan));
        if (!kept) {
            RETURN_IF_ERROR(
                meaning_.refuse(set.contains[0].origin, "too many items to count one by one"));
            plan.states.clear();
        }
    }
    if (plan.distinct) {
        out->push_back(std::move(plan));
        return Status();
    }
    if (plan.states.empty()) {
        for (const RequirementId item : plan.prefix) need(item);
        need(plan.rest);
    }
    for (const ArrayPlan::State &state : plan.states) {
        for (const ArrayPlan::Edge &edge : state.edges) need(edge.item);
    }
    out->push_back(std::move(plan));
    return Status();
}

// Whether `uniqueItems` can be enforced: because the items differ anyway, or with a separate plan.
Result<bool> SchemaPlanner::plan_distinct(const ArraySet &set, ArrayPlan *plan) {
    const int64_t prefix = static_cast<int64_t>(set.prefix.size());
    if (set.greatest != kUnbounded && set.greatest <= std::min<int64_t>(prefix + 1, 32)) {
        bool disjoint = true;
        for (int64_t i = 0; i < set.greatest && disjoint; ++i) {
            for (int64_t j = 0; j < i && disjoint; ++j) {
                disjoint = meaning_.seen_empty(meaning_.numbers().both(set.item(i), set.item(j)));
            }
        }
        if (disjoint) return true;
    }
    if (prefix > 0 || !set.contains.empty()) return false;
    if (set.rest == kAnything || set.rest == kNothing) return false;
    ASSIGN_OR_RETURN(const ValueSet *values, meaning_.set_of(set.rest));
    if (!values->arrays.empty() || !values->objects.empty()) return false;
    plan->values = *values;
    plan->values.strings.clear();
    for (const NumberSet &number : values->numbers) {
        if (!number.one()) return false;
    }
    int64_t count = static_cast<int64_t>(values->numbers.size());
    std::vector<std::string> strings;
    for (const StringSet &string : values->strings) {
        if (!string.language || !string.language->finite()) return false;
        const auto texts = string.language->enumerate(kMostDistinct);
        if (!texts.ok()) return false;
        strings.insert(strings.end(), texts->begin(), texts->end());
    }
    std::sort(strings.begin(), strings.end());
    strings.erase(std::unique(strings.begin(), strings.end()), strings.end());
    for (const std::string &text : strings) {
        plan->values.strings.push_back({Automaton::literal(text), 0, kUnbounded});
    }
    count += static_cast<int64_t>(strings.size()) + (values->null ? 1 : 0) + (values->yes ? 1 : 0) +
             (values->no ? 1 : 0);
    if (count > kMostDistinct) return false;
    plan->distinct = true;
    if (plan->greatest == kUnbounded || plan->greatest > count) plan->greatest = count;
    return true;
}

// An automaton over items. A state is the number of items so far, and how many of them each `contains` has
// matched. False if it would be too large.
Result<bool> SchemaPlanner::plan_contains(const ArraySet &set, ArrayPlan *plan) {
    SchemaNumbers &numbers = meaning_.numbers();
    int64_t last = std::max<int64_t>(1, static_cast<int64_t>(set.prefix.size()));
    for (const ArraySet::Contains &entry : set.contains) last = std::max(last, entry.from);
    last = set.greatest == kUnbounded ? std::max(last, set.least) : set.greatest;
    if (last > kMostIndex) return false;

    struct Place {
        int64_t index = 0;
        std::vector<int64_t> counts;
        auto operator<=>(const Place &) const = default;
    };
    std::map<Place, int32_t> ids;
    std::vector<const Place *> places;
    const auto enter = [&](Place place) {
        const auto [found, fresh] =
            ids.try_emplace(std::move(place), static_cast<int32_t>(places.size()));
        if (fresh) places.push_back(&found->first);
        return found->second;
    };
    enter({0, std::vector<int64_t>(set.contains.size(), 0)});
    size_t edges = 0;
    for (size_t at = 0; at < places.size(); ++at) {
        const Place here = *places[at];
        ArrayPlan::State &state = plan->states.emplace_back();
        state.accepting = here.index >= set.least;
        for (size_t i = 0; i < set.contains.size(); ++i) {
            if (here.counts[i] < set.contains[i].least) state.accepting = false;
        }
        if (set.greatest != kUnbounded && here.index >= set.greatest) continue;
        std::vector<std::pair<RequirementId, Place>> ways = {
            {set.item(here.index), {std::min(here.index + 1, last), here.counts}}};
        for (size_t i = 0; i < set.contains.size(); ++i) {
            const ArraySet::Contains &entry = set.contains[i];
            const bool counted = entry.greatest != kUnbounded;
            if (here.index < entry.from || (!counted && here.counts[i] >= entry.least)) continue;
            std::vector<std::pair<RequirementId, Place>> next;
            for (const auto &[item, place] : ways) {
                // One item matches; the other need not, or must not if matches are limited.
                next.emplace_back(counted ? numbers.both(item, negated(entry.what)) : item, place);
                if (counted && here.counts[i] >= entry.greatest) continue;
                next.emplace_back(numbers.both(item, entry.what), place);
                ++next.back().second.counts[i];
            }
            ways = std::move(next);
            if (ways.size() > 256) return false;
        }
        for (auto &[item, place] : ways) {
            if (meaning_.seen_empty(item)) continue;
            state.edges.push_back({item, enter(std::move(place))});
            if (++edges > kMostItemEdges || places.size() > kMostItemStates) return false;
        }
    }
    return true;
}

bool SchemaPlanner::possible_array(const ArrayPlan &plan) const {
    if (plan.distinct) return plan.least <= plan.greatest;
    if (plan.states.empty()) {
        if (plan.greatest != kUnbounded && plan.least > plan.greatest) return false;
        const int64_t prefix = static_cast<int64_t>(plan.prefix.size());
        for (int64_t i = 0; i < std::min(plan.least, prefix); ++i) {
            if (!possible(plan.prefix[static_cast<size_t>(i)])) return false;
        }
        return plan.least <= prefix || possible(plan.rest);
    }
    // Edges lead to later states or back to their own, so this goes from the last state to the
    // first, until nothing changes.
    std::vector<char> ends(plan.states.size(), 0);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = plan.states.size(); i > 0; --i) {
            if (ends[i - 1] != 0) continue;
            const ArrayPlan::State &state = plan.states[i - 1];
            const bool can =
                state.accepting ||
                std::any_of(state.edges.begin(), state.edges.end(), [&](const auto &edge) {
                    return ends[static_cast<size_t>(edge.to)] != 0 && possible(edge.item);
                });
            if (can) {
                ends[i - 1] = 1;
                changed = true;
            }
        }
    }
    return ends[0] != 0;
}

void SchemaPlanner::keep_possible(ArrayPlan *plan) const {
    if (plan->distinct) return;
    if (plan->states.empty()) {
        for (size_t i = 0; i < plan->prefix.size(); ++i) {
            if (possible(plan->prefix[i])) continue;
            plan->prefix.resize(i);
            plan->rest = kNothing;
        }
        if (!possible(plan->rest)) {
            const int64_t prefix = static_cast<int64_t>(plan->prefix.size());
            plan->rest = kNothing;
            if (plan->greatest == kUnbounded || plan->greatest > prefix) plan->greatest = prefix;
        }
        return;
    }
    std::vector<char> ends(plan->states.size(), 0);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = plan->states.size(); i > 0; --i) {
            ArrayPlan::State &state = plan->states[i - 1];
            bool can = state.accepting;
            for (const ArrayPlan::Edge &edge : state.edges) {
                can = can || (ends[static_cast<size_t>(edge.to)] != 0 && possible(edge.item));
            }
            if (can && ends[i - 1] == 0) {
                ends[i - 1] = 1;
                changed = true;
            }
        }
    }
    for (ArrayPlan::State &state : plan->states) {
        state.edges.erase(std::remove_if(state.edges.begin(), state.edges.end(),
                                         [&](const ArrayPlan::Edge &edge) {
                                             return !possible(edge.item) ||
                                                    ends[static_cast<size_t>(edge.to)] == 0;
                                         }),
                          state.edges.end());
    }
}

} // namespace batchllm
