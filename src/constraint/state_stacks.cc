#include "constraint/state_graph.h"

#include <algorithm>
#include <utility>

#include "constraint/index.h"

namespace batchllm {
namespace {

void sort_once(std::vector<int32_t> *numbers) {
    std::sort(numbers->begin(), numbers->end());
    numbers->erase(std::unique(numbers->begin(), numbers->end()), numbers->end());
}

} // namespace

int32_t StateGraph::intern_stack(Stack stack) {
    const auto known = stack_numbers_.find(&stack);
    if (known != stack_numbers_.end()) return known->second;
    if (stack.size() > kMostConfigs) too_ambiguous_ = true;
    add_bytes(vector_bytes(stack.size(), sizeof(Frame), kStackBytes));
    stacks_.push_back(std::make_unique<Stack>(std::move(stack)));
    const auto number = static_cast<int32_t>(stacks_.size()) - 1;
    stack_numbers_.emplace(stacks_.back().get(), number);
    after_.push_back(nullptr);
    for (std::vector<int32_t> &near : near_) near.push_back(GrammarCode::kNone);
    return number;
}

int32_t StateGraph::push(int32_t place, int32_t count, int32_t rest) {
    return intern_stack({{place, count, rest}});
}

// Joins frames that differ only in the rest below, if those rests are already merged. Otherwise
// adds those that are not to *open, leaves the frames unchanged, and returns false.
bool StateGraph::join_frames(Stack *frames, std::vector<Stacks> *open) const {
    std::sort(frames->begin(), frames->end());
    Stack joined;
    Stacks rests;
    const size_t before = open->size();
    for (size_t i = 0; i < frames->size();) {
        const Frame &first = (*frames)[i];
        size_t end = i;
        rests.clear();
        for (; end < frames->size(); ++end) {
            const Frame &frame = (*frames)[end];
            if (frame.place != first.place || frame.count != first.count) break;
            if (rests.empty() || rests.back() != frame.rest) rests.push_back(frame.rest);
        }
        i = end;
        if (rests.size() == 1) {
            joined.push_back(first);
        } else if (const auto known = merged_.find(rests); known != merged_.end()) {
            joined.push_back({first.place, first.count, known->second});
        } else {
            open->push_back(rests);
        }
    }
    if (open->size() > before) return false;
    *frames = std::move(joined);
    return true;
}

// Works from the bottom up, as stacks may be deep. Stops when all are in merged_, or when the
// budget has run out.
void StateGraph::merge_all(std::vector<Stacks> *open) {
    while (!open->empty()) {
        if (merged_.contains(open->back())) {
            open->pop_back();
            continue;
        }
        Stack all;
        for (const int32_t stack : open->back()) {
            const Stack &frames = *stacks_[at(stack)];
            if (!spend_work(frames.size())) return;
            all.insert(all.end(), frames.begin(), frames.end());
        }
        if (!join_frames(&all, open)) continue;
        const int32_t number = intern_stack(std::move(all));
        if (too_ambiguous_) return;
        add_bytes(vector_bytes(open->back().size(), sizeof(int32_t), kMergedBytes));
        merged_.emplace(std::move(open->back()), number);
        open->pop_back();
    }
}

int32_t StateGraph::merge(Stacks stacks) {
    sort_once(&stacks);
    if (stacks.size() == 1) return stacks[0];
    std::vector<Stacks> open{stacks};
    merge_all(&open);
    return too_ambiguous_ ? stacks[0] : merged_.at(stacks);
}

void StateGraph::sort_configs(std::vector<GraphState::Config> *configs) {
    std::sort(configs->begin(), configs->end());
    size_t kept = 0;
    for (size_t i = 0; i < configs->size() && !too_ambiguous_;) {
        const GraphState::Config first = (*configs)[i];
        size_t end = i + 1;
        while (end < configs->size() && (*configs)[end].text == first.text) ++end;
        int32_t stack = first.stack;
        if (end > i + 1) {
            Stacks stacks;
            for (; i < end; ++i) stacks.push_back((*configs)[i].stack);
            stack = merge(std::move(stacks));
        }
        i = end;
        (*configs)[kept++] = {first.text, stack};
    }
    configs->resize(kept);
}

// A count that cannot be distinguished from this one within `horizon` items.
int32_t StateGraph::near_count(const Frame &frame, int64_t horizon) const {
    const GrammarCode::Operation &operation = code_->operation(frame.place);
    if (operation.kind != GrammarCode::Kind::repeat) return frame.count;
    const GrammarCode::Repeat &repeat = code_->repeat(operation);
    const bool unbounded = repeat.greatest == Automaton::kUnbounded;
    const int64_t lowest = repeat.separated && frame.count > 0 ? 1 : 0;
    if (repeat.least - frame.count > horizon) return static_cast<int32_t>(lowest);
    if (frame.count < repeat.least || unbounded) return frame.count;
    if (repeat.greatest - frame.count > horizon)
        return static_cast<int32_t>(std::max(repeat.least, lowest));
    return frame.count;
}

int32_t StateGraph::near_stack(int32_t stack, Horizon horizon) {
    std::vector<int32_t> &known = near_[horizon];
    // Works from the bottom up, as stacks may be deep. The rests of a stack have smaller numbers
    // than the stack.
    std::vector<int32_t> open{stack};
    while (!open.empty()) {
        const int32_t top = open.back();
        if (known[at(top)] != GrammarCode::kNone) {
            open.pop_back();
            continue;
        }
        const size_t before = open.size();
        for (const Frame &frame : *stacks_[at(top)])
            if (frame.rest != GrammarCode::kNone && known[at(frame.rest)] == GrammarCode::kNone)
                open.push_back(frame.rest);
        if (open.size() > before) continue;
        open.pop_back();
        Stack near = *stacks_[at(top)];
        for (Frame &frame : near) {
            frame.count = near_count(frame, horizons_[horizon]);
            if (frame.rest != GrammarCode::kNone) frame.rest = known[at(frame.rest)];
        }
        if (!spend_work(near.size())) return stack;
        std::vector<Stacks> unmerged;
        while (!join_frames(&near, &unmerged)) {
            merge_all(&unmerged);
            if (too_ambiguous_) return stack;
        }
        const int32_t number = intern_stack(std::move(near));
        if (too_ambiguous_) return stack;
        known[at(top)] = number;
        known[at(number)] = number;
    }
    return known[at(stack)];
}

int32_t StateGraph::import_stack(const StateGraph &other, int32_t stack,
                                 std::unordered_map<int32_t, int32_t> *known) {
    std::vector<int32_t> open{stack};
    known->emplace(GrammarCode::kNone, GrammarCode::kNone);
    while (!open.empty()) {
        const int32_t top = open.back();
        const size_t before = open.size();
        if (!known->contains(top)) {
            for (const Frame &frame : *other.stacks_[at(top)])
                if (!known->contains(frame.rest)) open.push_back(frame.rest);
        }
        if (open.size() > before) continue;
        open.pop_back();
        if (known->contains(top)) continue;
        Stack copy = *other.stacks_[at(top)];
        for (Frame &frame : copy) {
            frame.rest = known->at(frame.rest);
            const bool members = code_->operation(frame.place).kind == GrammarCode::Kind::members;
            if (members && frame.count > 0) frame.count = intern_seen(other.seen_[at(frame.count)]);
        }
        std::sort(copy.begin(), copy.end());
        known->emplace(top, intern_stack(std::move(copy)));
    }
    return known->at(stack);
}

} // namespace batchllm
