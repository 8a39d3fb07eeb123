#include "constraint/state_closure.h"

#include <algorithm>
#include <utility>

#include "constraint/index.h"

namespace batchllm {
void StateGraph::Closure::expand(int32_t place, int32_t count, int32_t stack, bool fresh) {
    const Item first{place, count, stack, fresh};
    if (!add(first)) return;
    while (!open_.empty() && graph_.spend_work(1)) {
        const Item item = open_.back();
        open_.pop_back();
        visit(item);
    }
}

void StateGraph::Closure::leave(int32_t stack) {
    // The list of stacks may grow; the stack itself stays where it is.
    const Stack &frames = *graph_.stacks_[at(stack)];
    if (!graph_.spend_work(frames.size())) return;
    for (const Frame &frame : frames) expand(frame.place, frame.count, frame.rest, false);
}

// False if it was already present. Uses a list while there are few items.
bool StateGraph::Closure::add(const Item &item) {
    if (met_list_.size() < kFew) {
        if (std::find(met_list_.begin(), met_list_.end(), item) != met_list_.end()) return false;
        met_list_.push_back(item);
    } else {
        if (met_.empty())
            for (const Item &met : met_list_) met_.emplace(met, true);
        if (!met_.emplace(item, true).second) return false;
    }
    open_.push_back(item);
    return true;
}

// Enters the body; `place` comes after it.
void StateGraph::Closure::enter(int32_t body, int32_t place, int32_t count, const Item &from) {
    if (place == GrammarCode::kLeave)
        add({body, 0, from.stack, from.fresh});
    else
        add({body, 0, graph_.push(place, count, from.stack), true});
}

void StateGraph::Closure::visit(const Item &item) {
    const GrammarCode::Operation &operation = code_.operation(item.place);
    switch (operation.kind) {
    case GrammarCode::Kind::leave:
        if (!item.fresh) {
            const Stack &frames = *graph_.stacks_[at(item.stack)];
            if (!graph_.spend_work(frames.size())) return;
            for (const Frame &frame : frames) add({frame.place, frame.count, frame.rest, false});
        }
        break;
    case GrammarCode::Kind::finish:
        complete = true;
        break;
    case GrammarCode::Kind::terminal:
        visit_terminal(item, operation);
        break;
    case GrammarCode::Kind::call:
        enter(operation.argument, operation.next, 0, item);
        if (operation.empty && operation.next != GrammarCode::kLeave)
            add({operation.next, 0, item.stack, item.fresh});
        break;
    case GrammarCode::Kind::choice:
        for (const int32_t place : code_.choices(operation))
            add({place, 0, item.stack, item.fresh});
        break;
    case GrammarCode::Kind::repeat:
        visit_repeat(item, operation);
        break;
    case GrammarCode::Kind::members:
        visit_members(item, operation);
        break;
    }
}

void StateGraph::Closure::visit_terminal(const Item &item,
                                         const GrammarCode::Operation &operation) {
    const bool last = operation.next == GrammarCode::kLeave;
    if (operation.empty) add({operation.next, 0, item.stack, item.fresh});
    if (!code_.text_continues(operation.argument)) return;
    const int32_t stack = last ? item.stack : graph_.push(operation.next, 0, item.stack);
    configs.push_back({operation.argument, stack});
}

void StateGraph::Closure::visit_repeat(const Item &item, const GrammarCode::Operation &operation) {
    const GrammarCode::Repeat &repeat = code_.repeat(operation);
    const bool unbounded = repeat.greatest == Automaton::kUnbounded;
    if (item.count >= repeat.least) add({operation.next, 0, item.stack, item.fresh});
    if (!unbounded && item.count >= repeat.greatest) return;
    const int32_t body = item.count == 0 ? repeat.first : repeat.again;
    int64_t count = int64_t{item.count} + 1;
    if (unbounded) count = std::min(count, repeat.count_limit);
    if (!unbounded && count == repeat.greatest)
        enter(body, operation.next, 0, item);
    else
        enter(body, item.place, static_cast<int32_t>(count), item);
    if (item.count == 0 && repeat.empty)
        add({item.place, static_cast<int32_t>(count), item.stack, item.fresh});
}

void StateGraph::Closure::visit_members(const Item &item, const GrammarCode::Operation &operation) {
    const GrammarCode::MemberSet &set = code_.members(operation);
    const auto n = static_cast<int32_t>(set.elements.size());
    if (!graph_.spend_work(set.elements.size())) return;
    const bool unbounded = set.greatest == Automaton::kUnbounded;
    // A fresh place has count 0, which is not the number of a set of members.
    Seen seen;
    if (item.count > 0)
        seen = graph_.seen_[at(item.count)];
    else
        seen.seen.assign(set.any_order ? at(n + 63) / 64 : 1, 0);
    const auto is_seen = [&](int32_t i) {
        return set.any_order ? (seen.seen[at(i / 64)] >> (i % 64) & 1) != 0
                             : static_cast<uint64_t>(i) < seen.seen[0];
    };
    int64_t required = 0; // still to come
    int64_t available = 0;
    for (int32_t i = 0; i < n; ++i) {
        if (is_seen(i)) continue;
        ++available;
        if (set.elements[at(i)].required) ++required;
    }
    const bool rest = set.rest.first != GrammarCode::kNone;
    if (required == 0 && seen.count >= set.least) add({operation.next, 0, item.stack, item.fresh});
    // Whether a member may come here, given how many are required and available after it.
    const auto fits = [&](int64_t required_after, int64_t available_after) {
        const int64_t count = seen.count + 1;
        if (!unbounded && count + required_after > set.greatest) return false;
        return rest || count + available_after >= set.least;
    };
    const int64_t limit = std::max<int64_t>(set.least, 1);
    const auto take = [&](const GrammarCode::Member &member, Seen after) {
        after.count = seen.count + 1;
        if (unbounded) after.count = std::min(after.count, limit);
        enter(seen.count == 0 ? member.first : member.again, item.place,
              graph_.intern_seen(std::move(after)), item);
    };
    for (int32_t i = 0; i < n; ++i) {
        if (is_seen(i)) continue;
        const GrammarCode::Member &member = set.elements[at(i)];
        if (!set.any_order) --available;
        const int64_t required_after = required - (member.required ? 1 : 0);
        if (fits(required_after, set.any_order ? available - 1 : available)) {
            Seen after = seen;
            if (set.any_order)
                after.seen[at(i / 64)] |= uint64_t{1} << (i % 64);
            else
                after.seen[0] = static_cast<uint64_t>(i) + 1;
            take(member, std::move(after));
        }
        if (!set.any_order && member.required) return; // it must not be skipped
    }
    if (!rest || !fits(required, available)) return;
    Seen after = seen;
    if (!set.any_order) after.seen[0] = static_cast<uint64_t>(n);
    take(set.rest, std::move(after));
}

} // namespace batchllm
