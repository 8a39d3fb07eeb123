#include "constraint/state_graph.h"

#include <algorithm>
#include <utility>

#include "constraint/hash_mix.h"
#include "constraint/state_closure.h"
#include "constraint/token_mask.h"

namespace batchllm {
namespace {

constexpr int32_t kNone = GrammarCode::kNone;

size_t at(int32_t index) { return static_cast<size_t>(index); }

std::atomic<int64_t> bytes_of_all = 0;
std::atomic<int64_t> count_of_all = 0;
constexpr int64_t kUntold = 16 << 10; // bytes of a graph that are not in bytes_of_all, at most

// What a member takes, with what finds it.
constexpr int64_t kStackBytes = 120, kStateBytes = 160, kSeenBytes = 100, kMergedBytes = 40;
int64_t vector_bytes(size_t size, size_t of_one, int64_t around) {
    return static_cast<int64_t>(size * of_one) + around;
}
int64_t mask_bytes(const StateMask &mask) {
    return vector_bytes(mask.words.size() + mask.few.capacity(), sizeof(uint32_t), 140);
}

} // namespace

size_t StateGraph::Hash::operator()(const Stack *stack) const {
    uint64_t hash = stack->size();
    for (const Frame &frame : *stack) {
        hash = hash_mix(hash, static_cast<uint32_t>(frame.place));
        hash = hash_mix(hash, uint64_t{static_cast<uint32_t>(frame.count)} << 32 |
                                  static_cast<uint32_t>(frame.rest));
    }
    return hash;
}

size_t StateGraph::Hash::operator()(const Seen &seen) const {
    uint64_t hash = static_cast<uint64_t>(seen.count);
    for (const uint64_t word : seen.seen) hash = hash_mix(hash, word);
    return hash;
}

size_t StateGraph::Hash::operator()(const GraphState *state) const {
    uint64_t hash = state->complete ? 1 : 0;
    for (const GraphState::Config &config : state->configs)
        hash = hash_mix(hash, uint64_t{static_cast<uint32_t>(config.text)} << 32 |
                                  static_cast<uint32_t>(config.stack));
    return hash;
}

StateGraph::StateGraph(std::shared_ptr<const GrammarCode> code, int64_t short_horizon,
                       int64_t long_horizon)
    : code_(std::move(code)), horizons_{short_horizon, long_horizon} {
    ++count_of_all;
    seen_.emplace_back();
    const int32_t bottom = push(GrammarCode::kFinish, 0, kNone);
    Closure closure(this);
    closure.expand(code_->start(), 0, bottom, false);
    sort_configs(&closure.configs);
    start_ = intern_state(std::move(closure.configs), closure.complete);
}

StateGraph::~StateGraph() {
    bytes_of_all -= told_bytes_;
    --count_of_all;
}

int64_t StateGraph::all_bytes() { return bytes_of_all.load(std::memory_order_relaxed); }
int64_t StateGraph::count() { return count_of_all.load(std::memory_order_relaxed); }

void StateGraph::add_bytes(int64_t bytes) {
    const int64_t untold = (bytes_ += bytes) - told_bytes_;
    if (untold < kUntold && untold > -kUntold) return;
    bytes_of_all += untold;
    told_bytes_ += untold;
}

int64_t StateGraph::free_some(int64_t wanted) {
    const std::lock_guard lock(mutex_);
    int64_t freed = 0;
    // Members of a kind from the last to the first, until it is enough. Those that point come before those
    // that they point to.
    const auto from_back = [&](auto *members, const auto &bytes_of) {
        for (; freed < wanted && !members->empty(); members->pop_back())
            freed += bytes_of(members->back());
    };
    const auto from_map = [&](auto *members, int64_t bytes) {
        for (; freed < wanted && !members->empty(); members->erase(members->begin()))
            freed += bytes;
    };
    const int64_t row_bytes = vector_bytes(at(code_->classes()), sizeof(GraphState *), 0);
    from_back(&masks_, [](const auto &mask) { return mask_bytes(*mask); });
    from_back(&rows_, [&](const auto &) { return row_bytes; });
    from_map(&state_numbers_, kStateBytes / 2);
    from_back(&states_, [](const auto &state) {
        return vector_bytes(state->configs.size(), sizeof(GraphState::Config), kStateBytes / 2);
    });
    from_map(&merged_, kMergedBytes);
    from_map(&stack_numbers_, kStackBytes / 2);
    from_back(&stacks_, [](const auto &stack) {
        return vector_bytes(stack->size(), sizeof(Frame), kStackBytes / 2);
    });
    from_map(&seen_numbers_, kSeenBytes / 2);
    from_back(&seen_,
              [](const Seen &seen) { return vector_bytes(seen.seen.size(), 16, kSeenBytes / 2); });
    // Less than asked for: nothing is left.
    add_bytes(freed < wanted ? -bytes() : -std::min(freed, bytes() - 1));
    return freed;
}

int32_t StateGraph::intern_stack(Stack stack) {
    const auto known = stack_numbers_.find(&stack);
    if (known != stack_numbers_.end()) return known->second;
    if (stack.size() > kMostConfigs) too_ambiguous_ = true;
    add_bytes(vector_bytes(stack.size(), sizeof(Frame), kStackBytes));
    stacks_.push_back(std::make_unique<Stack>(std::move(stack)));
    const auto number = static_cast<int32_t>(stacks_.size()) - 1;
    stack_numbers_.emplace(stacks_.back().get(), number);
    after_.push_back(nullptr);
    for (std::vector<int32_t> &near : near_) near.push_back(kNone);
    return number;
}

int32_t StateGraph::push(int32_t place, int32_t count, int32_t rest) {
    return intern_stack({{place, count, rest}});
}

// The stack whose top is any of both. Frames that differ only below are merged there.
int32_t StateGraph::merge(int32_t a, int32_t b) {
    if (a == b) return a;
    if (a == kNone || b == kNone) return std::max(a, b); // below the bottom there is nothing
    if (a > b) std::swap(a, b);
    const uint64_t key = uint64_t{static_cast<uint32_t>(a)} << 32 | static_cast<uint32_t>(b);
    const auto known = merged_.find(key);
    if (known != merged_.end()) return known->second;
    const Stack &left = *stacks_[at(a)];
    const Stack &right = *stacks_[at(b)];
    Stack all;
    all.reserve(left.size() + right.size());
    std::merge(left.begin(), left.end(), right.begin(), right.end(), std::back_inserter(all));
    Stack merged;
    for (const Frame &frame : all) {
        Frame *last = merged.empty() ? nullptr : &merged.back();
        if (last && last->place == frame.place && last->count == frame.count)
            last->rest = merge(last->rest, frame.rest);
        else
            merged.push_back(frame);
    }
    const int32_t number = intern_stack(std::move(merged));
    merged_.emplace(key, number);
    add_bytes(kMergedBytes);
    return number;
}

int32_t StateGraph::intern_seen(Seen seen) {
    const auto known = seen_numbers_.find(seen);
    if (known != seen_numbers_.end()) return known->second;
    const auto number = static_cast<int32_t>(seen_.size());
    add_bytes(vector_bytes(seen.seen.size(), 16, kSeenBytes));
    seen_.push_back(seen);
    seen_numbers_.emplace(std::move(seen), number);
    return number;
}

void StateGraph::sort_configs(std::vector<GraphState::Config> *configs) {
    std::sort(configs->begin(), configs->end());
    size_t kept = 0;
    for (size_t i = 0; i < configs->size(); ++i) {
        const GraphState::Config config = (*configs)[i];
        if (kept > 0 && (*configs)[kept - 1].text == config.text) {
            int32_t &stack = (*configs)[kept - 1].stack;
            stack = merge(stack, config.stack);
        } else {
            (*configs)[kept++] = config;
        }
    }
    configs->resize(kept);
}

GraphState *StateGraph::intern_state(std::vector<GraphState::Config> configs, bool complete) {
    GraphState wanted;
    wanted.configs = std::move(configs);
    wanted.complete = complete;
    const auto known = state_numbers_.find(&wanted);
    if (known != state_numbers_.end()) return known->second;
    if (wanted.configs.size() > kMostConfigs) too_ambiguous_ = true;
    auto state = std::make_unique<GraphState>();
    add_bytes(vector_bytes(wanted.configs.size(), sizeof(GraphState::Config), kStateBytes));
    state->configs = std::move(wanted.configs);
    state->complete = complete;
    GraphState *const made = state.get();
    states_.push_back(std::move(state));
    state_numbers_.emplace(made, made);
    return made;
}

GraphState *StateGraph::after(int32_t stack) {
    if (after_[at(stack)]) return after_[at(stack)];
    Closure closure(this);
    closure.leave(stack);
    sort_configs(&closure.configs);
    GraphState *const state = intern_state(std::move(closure.configs), closure.complete);
    after_[at(stack)] = state;
    return state;
}

GraphState *const *StateGraph::make_row(GraphState *state) {
    const std::lock_guard lock(mutex_);
    if (GraphState *const *known = state->row.load(std::memory_order_relaxed)) return known;
    if (too_ambiguous_) return nullptr;
    const int32_t classes = code_->classes();
    auto row = std::make_unique<GraphState *[]>(at(classes));
    const size_t n = state->configs.size();
    // Bytes that lead every place to the same one lead to the same state.
    std::vector<int32_t> targets(n);
    std::vector<std::pair<std::vector<int32_t>, GraphState *>> known;
    for (int32_t c = 0; c < classes; ++c) {
        bool any = false;
        for (size_t i = 0; i < n; ++i) {
            targets[i] = code_->text_next(state->configs[i].text, c);
            any |= targets[i] != kNone;
        }
        if (!any) continue;
        const auto same = std::find_if(known.begin(), known.end(),
                                       [&](const auto &entry) { return entry.first == targets; });
        if (same != known.end()) {
            row[at(c)] = same->second;
            continue;
        }
        std::vector<GraphState::Config> configs;
        bool complete = false;
        GraphState *whole = nullptr; // the only part, if there is one
        int32_t parts = 0;
        for (size_t i = 0; i < n; ++i) {
            if (targets[i] == kNone) continue;
            const int32_t stack = state->configs[i].stack;
            if (code_->text_continues(targets[i])) {
                configs.push_back({targets[i], stack});
                ++parts;
            }
            if (!code_->text_ends(targets[i])) continue;
            whole = after(stack);
            ++parts;
            complete |= whole->complete;
            configs.insert(configs.end(), whole->configs.begin(), whole->configs.end());
        }
        if (parts != 1 || !whole) {
            sort_configs(&configs);
            whole = intern_state(std::move(configs), complete);
        }
        row[at(c)] = whole;
        known.emplace_back(targets, whole);
    }
    if (too_ambiguous_) return nullptr;
    add_bytes(vector_bytes(at(classes), sizeof(GraphState *), 0));
    GraphState *const *made = row.get();
    rows_.push_back(std::move(row));
    state->row.store(made, std::memory_order_release);
    return made;
}

// A count with the same way to its bounds, as far as `horizon` items go.
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
    // From the bottom up, as stacks may be deep. A stack's rests have smaller numbers.
    std::vector<int32_t> open{stack};
    while (!open.empty()) {
        const int32_t top = open.back();
        if (known[at(top)] != kNone) {
            open.pop_back();
            continue;
        }
        const size_t before = open.size();
        for (const Frame &frame : *stacks_[at(top)])
            if (frame.rest != kNone && known[at(frame.rest)] == kNone) open.push_back(frame.rest);
        if (open.size() > before) continue;
        open.pop_back();
        Stack near = *stacks_[at(top)];
        for (Frame &frame : near) {
            frame.count = near_count(frame, horizons_[horizon]);
            if (frame.rest != kNone) frame.rest = known[at(frame.rest)];
        }
        std::sort(near.begin(), near.end());
        Stack merged;
        for (const Frame &frame : near) {
            Frame *last = merged.empty() ? nullptr : &merged.back();
            if (last && last->place == frame.place && last->count == frame.count)
                last->rest = merge(last->rest, frame.rest);
            else
                merged.push_back(frame);
        }
        const int32_t number = intern_stack(std::move(merged));
        known[at(top)] = number;
        known[at(number)] = number;
    }
    return known[at(stack)];
}

GraphState *StateGraph::near(GraphState *state, Horizon horizon) {
    if (!code_->counts()) return state;
    if (GraphState *known = state->near[horizon].load(std::memory_order_acquire)) return known;
    const std::lock_guard lock(mutex_);
    std::vector<GraphState::Config> configs = state->configs;
    for (GraphState::Config &config : configs) config.stack = near_stack(config.stack, horizon);
    GraphState *const found = intern_state(std::move(configs), state->complete);
    state->near[horizon].store(found, std::memory_order_release);
    return found;
}

int32_t StateGraph::import_stack(const StateGraph &other, int32_t stack,
                                 std::unordered_map<int32_t, int32_t> *known) {
    std::vector<int32_t> open{stack};
    known->emplace(kNone, kNone);
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

GraphState *StateGraph::import(const StateGraph &other, const GraphState &state) {
    const std::scoped_lock lock(mutex_, other.mutex_);
    const int64_t before = bytes();
    std::unordered_map<int32_t, int32_t> known;
    std::vector<GraphState::Config> configs = state.configs;
    for (GraphState::Config &config : configs)
        config.stack = import_stack(other, config.stack, &known);
    GraphState *const made = intern_state(std::move(configs), state.complete);
    imported_bytes_ += bytes() - before;
    return made;
}

void StateGraph::keep(std::unique_ptr<const StateMask> mask, GraphState *state) {
    const std::lock_guard lock(mutex_);
    if (state->mask.load(std::memory_order_relaxed)) return; // another thread was first
    state->mask.store(mask.get(), std::memory_order_release);
    add_bytes(mask_bytes(*mask));
    masks_.push_back(std::move(mask));
}

} // namespace batchllm
