// A grammar's code -> the states that a text leads to, built when they are first reached.
//
// A state is a set of places in terminals, each with a stack of what follows. Stacks share their
// tails, and the stacks of one place are merged into one whose top is a set of frames, so the
// grammar bounds the number of places in a state, however ambiguous it is. Equal stacks and equal
// states exist only once, so a state's transitions and token mask are computed only once.
//
// The bound on frames may be as large as the numbers in a grammar. So the work for one row of
// transitions is counted, and a state that needs too much gets no row: only texts that reach it
// fail.
//
// Any number of threads may read and extend one graph. A finished row of transitions is read
// without a lock; a new one is built under the graph's lock. States live as long as the graph.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "constraint/grammar_code.h"

namespace batchllm {

struct StateMask; // token_mask.h

struct GraphState {
    // A place in a terminal, and the stack of what follows the terminal.
    struct Config {
        int32_t text;
        int32_t stack;
        bool operator==(const Config &) const = default;
        auto operator<=>(const Config &) const = default;
    };

    std::vector<Config> configs;             // sorted, one per place
    bool complete = false;                   // the text so far is in the language
    std::atomic<bool> too_ambiguous = false; // building its row was attempted and failed
    // [classes of the code] the next state; null: none. Null until first needed.
    std::atomic<GraphState *const *> row = nullptr;
    std::atomic<const StateMask *> mask = nullptr; // set by StateMaskMaker
    // [horizons] the state with the same continuations up to a length; null until first needed.
    std::atomic<GraphState *> near[2] = {};
    // [slices] what StateMaskMaker knows about advancing by one character of a class.
    static constexpr size_t kMostSlices = 4;
    std::atomic<GraphState *> character_step[kMostSlices] = {};
};

class StateGraph {
  public:
    enum Horizon : size_t { kShort, kLong };

    // near() does not distinguish counts whose bounds are farther away than a horizon, in bytes.
    StateGraph(std::shared_ptr<const GrammarCode> code, int64_t short_horizon,
               int64_t long_horizon);
    ~StateGraph();
    StateGraph(const StateGraph &) = delete;
    StateGraph &operator=(const StateGraph &) = delete;

    const GrammarCode &code() const { return *code_; }
    GraphState *start() const { return start_; }

    // [classes] Null if the state is too ambiguous to continue from (kMostConfigs, kMostWork);
    // other states are unaffected. With `work_left`, also null if too little is left; the work done
    // is subtracted from it.
    GraphState *const *row(GraphState *state, int64_t *work_left = nullptr) {
        GraphState *const *known = state->row.load(std::memory_order_acquire);
        return known ? known : make_row(state, work_left);
    }
    GraphState *next(GraphState *state, uint8_t byte) {
        GraphState *const *known = row(state);
        return known ? known[code_->class_of(byte)] : nullptr;
    }
    // A state that accepts the same strings up to the horizon's number of bytes.
    GraphState *near(GraphState *state, Horizon horizon);
    // The equivalent, in this graph, of a state in another graph of the same code.
    GraphState *import(const StateGraph &other, const GraphState &state);

    // Approximate memory in bytes, including masks.
    int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
    // The same for all graphs of the process, up to a few KiB for each.
    static int64_t all_bytes();
    static int64_t count(); // of the process

    // Frees about this many bytes and returns how many; 0 if nothing is left. Afterwards only this
    // function and bytes() may be called.
    int64_t free_some(int64_t bytes);
    // Whether it is time for a new graph. Imported states are needed and do not count; otherwise a
    // state larger than the limit would be moved at every step.
    bool full(int64_t limit) const {
        return bytes() > limit + 2 * imported_bytes_.load(std::memory_order_relaxed);
    }
    // Stores the mask in the state, unless another thread already has.
    void keep(std::unique_ptr<const StateMask> mask, GraphState *state);

    // A state or a stack with more members than this is refused: see row().
    static constexpr size_t kMostConfigs = 20'000;
    // A row of transitions that takes more work than this is refused too. It counts places and
    // frames examined, a few million per second.
    static constexpr int64_t kMostWork = 1'000'000;

  private:
    struct Frame {
        int32_t place; // of the code
        int32_t count; // of a repeat; for a member set, the number of its state
        int32_t rest;  // stack below
        bool operator==(const Frame &) const = default;
        auto operator<=>(const Frame &) const = default;
    };
    using Stack = std::vector<Frame>; // sorted, one for each place and count
    // Which members have been seen. In declared order: elements before seen[0] are past.
    struct Seen {
        std::vector<uint64_t> seen;
        int64_t count = 0; // counted up to the minimum or 1 if there is no maximum
        bool operator==(const Seen &) const = default;
    };
    struct Hash {
        size_t operator()(const Stack *stack) const;
        size_t operator()(const Seen &seen) const;
        size_t operator()(const GraphState *state) const;
    };
    struct Equal {
        bool operator()(const Stack *a, const Stack *b) const { return *a == *b; }
        bool operator()(const GraphState *a, const GraphState *b) const {
            return a->complete == b->complete && a->configs == b->configs;
        }
    };
    class Closure;
    using Stacks = std::vector<int32_t>; // sorted, distinct
    struct StacksHash {
        size_t operator()(const Stacks &stacks) const;
    };

    // The bytes that each uses, including its entry in the table that finds it.
    static constexpr int64_t kStackBytes = 120, kStateBytes = 160, kSeenBytes = 100,
                             kMergedBytes = 80;
    static int64_t vector_bytes(size_t size, size_t of_one, int64_t around) {
        return static_cast<int64_t>(size * of_one) + around;
    }
    static int64_t mask_bytes(const StateMask &mask);
    void add_bytes(int64_t bytes);
    // Anything built after too_ambiguous_ is set is incomplete and must be neither used nor stored.
    void begin_work(int64_t most = kMostWork);
    bool spend_work(size_t count); // false: too_ambiguous_ is set
    GraphState *const *make_row(GraphState *state, int64_t *work_left);
    GraphState *step(const GraphState &state, const std::vector<int32_t> &targets);
    GraphState *intern_state(std::vector<GraphState::Config> configs, bool complete);
    int32_t intern_stack(Stack stack);
    int32_t push(int32_t place, int32_t count, int32_t rest);
    int32_t merge(Stacks stacks); // the stack whose top is the union of theirs
    void merge_all(std::vector<Stacks> *open);
    bool join_frames(Stack *frames, std::vector<Stacks> *open) const;
    int32_t intern_seen(Seen seen);
    GraphState *after(int32_t stack); // the terminal above the stack has ended
    void sort_configs(std::vector<GraphState::Config> *configs);
    int32_t near_stack(int32_t stack, Horizon horizon);
    int32_t near_count(const Frame &frame, int64_t horizon) const;
    int32_t import_stack(const StateGraph &other, int32_t stack,
                         std::unordered_map<int32_t, int32_t> *known);

    std::shared_ptr<const GrammarCode> code_;
    int64_t horizons_[2];
    mutable std::mutex mutex_; // for everything below
    std::vector<std::unique_ptr<Stack>> stacks_;
    std::vector<GraphState *> after_; // [stacks] null: not known yet
    std::vector<int32_t> near_[2];    // [stacks] -1: not known yet
    std::unordered_map<const Stack *, int32_t, Hash, Equal> stack_numbers_;
    std::unordered_map<Stacks, int32_t, StacksHash> merged_;
    std::vector<Seen> seen_;
    std::unordered_map<Seen, int32_t, Hash> seen_numbers_;
    std::vector<std::unique_ptr<GraphState>> states_;
    std::unordered_map<const GraphState *, GraphState *, Hash, Equal> state_numbers_;
    std::vector<std::unique_ptr<GraphState *[]>> rows_;
    std::vector<std::unique_ptr<const StateMask>> masks_;
    std::atomic<int64_t> bytes_ = 0;
    int64_t told_bytes_ = 0; // the part of bytes_ that all_bytes() counts
    std::atomic<int64_t> imported_bytes_ = 0;
    int64_t work_left_ = 0;
    bool too_ambiguous_ = false; // since begin_work()
    GraphState *start_ = nullptr;
};

} // namespace batchllm
