// A state -> which tokens may come next.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "constraint/state_graph.h"
#include "constraint/token_vocabulary.h"

namespace batchllm {

// A few tokens are stored as a list, more as bits: most states of a grammar allow only a few
// tokens, and allocating all the bits costs more than finding these.
struct StateMask {
    static constexpr size_t kFew = 128;

    std::vector<int32_t> few;       // the tokens, if words is empty
    std::vector<int32_t> long_ones; // those in TokenVocabulary::long_tokens()
    // [vocabulary's words] bit t % 32 of word t / 32: token t is allowed
    std::vector<uint32_t> words;
    int32_t allowed = 0; // how many are allowed
    int32_t only = -1;   // the allowed token, if it is the only one

    bool dense() const { return !words.empty(); }
    // Converts the list to this many words of bits.
    void make_dense(int32_t word_count);
    bool operator==(const StateMask &) const = default;
};

// Immutable except for a counter; any number of threads may use one.
class StateMaskMaker {
  public:
    // Both must outlive it.
    StateMaskMaker(const TokenVocabulary &vocabulary, const GrammarCode &code);

    // A mask that takes more work than this (as counted by StateGraph) is not built: a second or
    // two and a few hundred MiB. What was found until then stays in the graph.
    static constexpr int64_t kMostWork = 4 * StateGraph::kMostWork;

    // The state's mask, built now unless it exists; owned by the graph. Null if the grammar is too
    // ambiguous at this place.
    const StateMask *mask(StateGraph *graph, GraphState *state) const;

    int64_t made() const { return made_.load(std::memory_order_relaxed); } // masks so far

  private:
    // A graph and the work that is left for one mask.
    struct Steps {
        StateGraph *graph;
        int64_t work_left = kMostWork;

        GraphState *const *row(GraphState *state) { return graph->row(state, &work_left); }
    };
    // How many characters of a class may follow.
    struct Reach {
        int32_t characters = 0;   // this many characters in a row, any of the class
        bool none_beyond = false; // no longer string of the class may follow
        bool failed = false;      // too ambiguous
    };
    // What character_step() may find instead of a state.
    enum Mark : size_t {
        kDead,   // no character of the class may follow
        kMixed,  // some may follow, some may not
        kMany,   // all may follow, and lead to more than one state
        kFailed, // too ambiguous
        kMarks
    };
    GraphState *mark(Mark which) const { return &marks_[which]; }

    Reach reach(Steps *steps, GraphState *state, size_t slice) const;
    Reach reach_through_many(Steps *steps, GraphState *state, size_t slice, int32_t most) const;
    GraphState *character_step(Steps *steps, GraphState *state, size_t slice) const;
    const StateMask *with_long_tokens(Steps *steps, GraphState *state, const StateMask &near) const;
    const StateMask *kept(StateGraph *graph, GraphState *state,
                          std::unique_ptr<StateMask> made) const;
    void allow(StateMask *mask, int32_t token) const;
    static void forbid(StateMask *mask, int32_t token);
    bool plainly_whole(Steps *steps, GraphState *state, size_t slice) const;
    bool walk_slice(Steps *steps, GraphState *state, size_t slice_number, StateMask *mask) const;
    bool fill(Steps *steps, GraphState *state, StateMask *mask) const;
    void put(StateMask *mask, int32_t token) const;
    void put(std::vector<int32_t> *list, int32_t token) const;
    // Adds every token of the trie that may come next to the sink. False: too ambiguous.
    template <typename Sink>
    bool walk(Steps *steps, GraphState *state, const TokenTrie &trie, Sink *sink) const;

    const TokenVocabulary &vocabulary_;
    const GrammarCode &code_;
    // [slices] one byte for each set of bytes that are in one class of both the code and the slice.
    std::vector<std::vector<uint8_t>> sample_bytes_;
    mutable std::atomic<int64_t> made_ = 0;
    std::unique_ptr<GraphState[]> marks_; // [kMarks] identified only by their addresses
};

} // namespace batchllm
