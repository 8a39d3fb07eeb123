#include "constraint/state_graph.h"

#include <algorithm>
#include <utility>

#include "constraint/hash_mix.h"
#include "constraint/index.h"
#include "constraint/state_closure.h"
#include "constraint/token_mask.h"

namespace batchllm {
namespace {

constexpr int32_t kNone = GrammarCode::kNone;

std::atomic<int64_t> bytes_of_all = 0;
std::atomic<int64_t> count_of_all = 0;
constexpr int64_t kUntold = 16 << 10; // how many bytes of a graph bytes_of_all may lack

} // namespace

size_t StateGraph::StacksHash::operator()(const Stacks &stacks) const {
    uint64_t hash = stacks.size();
    for (const int32_t stack : stacks) hash = hash_mix(hash, static_cast<uint32_t>(stack));
    return hash;
}

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
    begin_work();
    const int32_t bottom = push(GrammarCode::kFinish, 0, kNone);
    Closure closure(this);
    closure.expand(code_->start(), 0, bottom, false);
    sort_configs(&closure.configs);
    start_ = intern_state(std::move(closure.configs), closure.complete);
    start_->too_ambiguous = too_ambiguous_;
}

int64_t StateGraph::mask_bytes(const StateMask &mask) {
    return vector_bytes(mask.words.size() + mask.few.capacity(), sizeof(uint32_t), 140);
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
    // Frees members of one kind from the last to the first, until enough is freed. Members with
    // pointers are freed before those that they point to.
    const auto from_back = [&](auto *members, const auto &bytes_of) {
        for (; freed < wanted && !members->empty(); members->pop_back())
            freed += bytes_of(members->back());
    };
    const auto from_map = [&](auto *members, const auto &bytes_of) {
        for (; freed < wanted && !members->empty(); members->erase(members->begin()))
            freed += bytes_of(*members->begin());
    };
    const int64_t row_bytes = vector_bytes(at(code_->classes()), sizeof(GraphState *), 0);
    from_back(&masks_, [](const auto &mask) { return mask_bytes(*mask); });
    from_back(&rows_, [&](const auto &) { return row_bytes; });
    from_map(&state_numbers_, [](const auto &) { return kStateBytes / 2; });
    from_back(&states_, [](const auto &state) {
        return vector_bytes(state->configs.size(), sizeof(GraphState::Config), kStateBytes / 2);
    });
    from_map(&merged_, [](const auto &merged) {
        return vector_bytes(merged.first.size(), sizeof(int32_t), kMergedBytes);
    });
    from_map(&stack_numbers_, [](const auto &) { return kStackBytes / 2; });
    from_back(&stacks_, [](const auto &stack) {
        return vector_bytes(stack->size(), sizeof(Frame), kStackBytes / 2);
    });
    from_map(&seen_numbers_, [](const auto &) { return kSeenBytes / 2; });
    from_back(&seen_,
              [](const Seen &seen) { return vector_bytes(seen.seen.size(), 16, kSeenBytes / 2); });
    // If less than requested was freed, nothing is left.
    add_bytes(freed < wanted ? -bytes() : -std::min(freed, bytes() - 1));
    return freed;
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
    if (!too_ambiguous_) after_[at(stack)] = state;
    return state;
}

void StateGraph::begin_work(int64_t most) {
    work_left_ = most;
    too_ambiguous_ = false;
}

bool StateGraph::spend_work(size_t count) {
    work_left_ -= static_cast<int64_t>(count);
    if (work_left_ < 0) too_ambiguous_ = true;
    return !too_ambiguous_;
}

// The state reached by a byte that takes each place of the state to its target.
GraphState *StateGraph::step(const GraphState &state, const std::vector<int32_t> &targets) {
    std::vector<GraphState::Config> configs;
    bool complete = false;
    GraphState *whole = nullptr; // the only part, if there is one
    int32_t parts = 0;
    for (size_t i = 0; i < targets.size(); ++i) {
        if (targets[i] == kNone) continue;
        const int32_t stack = state.configs[i].stack;
        if (code_->text_continues(targets[i])) {
            configs.push_back({targets[i], stack});
            ++parts;
        }
        if (!code_->text_ends(targets[i])) continue;
        whole = after(stack);
        if (!spend_work(whole->configs.size() + 1)) return whole;
        ++parts;
        complete |= whole->complete;
        configs.insert(configs.end(), whole->configs.begin(), whole->configs.end());
    }
    if (parts == 1 && whole) return whole;
    sort_configs(&configs);
    return intern_state(std::move(configs), complete);
}

GraphState *const *StateGraph::make_row(GraphState *state, int64_t *work_left) {
    if (state->too_ambiguous.load(std::memory_order_relaxed)) return nullptr;
    const std::lock_guard lock(mutex_);
    if (GraphState *const *known = state->row.load(std::memory_order_relaxed)) return known;
    const int64_t most = work_left ? std::min(*work_left, kMostWork) : kMostWork;
    begin_work(most);
    const int32_t classes = code_->classes();
    auto row = std::make_unique<GraphState *[]>(at(classes));
    const size_t n = state->configs.size();
    spend_work(n > kMostConfigs ? at(kMostWork) + 1 : n);
    // Bytes that lead every place to the same one lead to the same state.
    std::vector<int32_t> targets(n);
    std::unordered_map<std::vector<int32_t>, GraphState *, StacksHash> known;
    for (int32_t c = 0; c < classes && !too_ambiguous_; ++c) {
        bool any = false;
        for (size_t i = 0; i < n; ++i) {
            targets[i] = code_->text_next(state->configs[i].text, c);
            any |= targets[i] != kNone;
        }
        if (!any) continue;
        GraphState *&found = known[targets];
        if (!found) found = step(*state, targets);
        row[at(c)] = found;
    }
    if (work_left) *work_left -= most - work_left_;
    if (too_ambiguous_) {
        // Not set if only the caller's budget has run out.
        if (most == kMostWork) state->too_ambiguous.store(true, std::memory_order_relaxed);
        return nullptr;
    }
    add_bytes(vector_bytes(at(classes), sizeof(GraphState *), 0));
    GraphState *const *made = row.get();
    rows_.push_back(std::move(row));
    state->row.store(made, std::memory_order_release);
    return made;
}

GraphState *StateGraph::near(GraphState *state, Horizon horizon) {
    if (!code_->counts()) return state;
    if (GraphState *known = state->near[horizon].load(std::memory_order_acquire)) return known;
    const std::lock_guard lock(mutex_);
    begin_work();
    std::vector<GraphState::Config> configs = state->configs;
    for (GraphState::Config &config : configs) config.stack = near_stack(config.stack, horizon);
    GraphState *found = intern_state(std::move(configs), state->complete);
    if (too_ambiguous_) found = state;
    state->near[horizon].store(found, std::memory_order_release);
    return found;
}

GraphState *StateGraph::import(const StateGraph &other, const GraphState &state) {
    const std::scoped_lock lock(mutex_, other.mutex_);
    begin_work();
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
