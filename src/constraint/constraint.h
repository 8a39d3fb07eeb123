// A restriction on a row's output -> which tokens may come next, step by step.
//
// A Constraint is created once, from a specification and a vocabulary, and shared by any number of
// rows and threads; states and masks computed for one row serve all others. A ConstraintState is
// one row's position in it: small, copied with the row, used by one thread at a time.
//
//     ASSIGN_OR_RETURN(auto constraint, Constraint::make(specification, vocabulary));
//     ConstraintState state(constraint);
//     while (!state.ended()) {
//         ASSIGN_OR_RETURN(const AllowedTokens allowed, state.allowed());
//         RETURN_IF_ERROR(state.advance(sample(logits, allowed)));
//     }
//
// Invariants: advance() accepts exactly the tokens that allowed() returns. Tokens that end a text
// are allowed exactly where the text is complete. Every text can be completed with tokens of the
// vocabulary: a byte that is not also a token is never allowed in a text. Special tokens are never
// allowed because of their spelling. Tokens that spell nothing and end nothing are never allowed,
// with one exception: as the first token, a space that the decoder removes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "constraint/budget.h"
#include "constraint/grammar.h"
#include "constraint/token_vocabulary.h"

namespace batchllm {

class GrammarCode;
class RetiredGraphs;
class StateGraph;
class StateMaskMaker;
struct GraphState;
struct StateMask;

struct ConstraintOptions {
    // The constraint begins after this text appears in the output. Until then every token is
    // allowed, except those that complete the marker and continue with text that the constraint
    // rejects. The marker is found in the tokens' bytes, however they are split, and special tokens
    // count with their spelling. Empty: the constraint begins at once.
    std::string start_after;
    // Memory in bytes for states and masks. When it is used up, they are dropped and computed
    // again. A single mask may exceed it.
    int64_t cache_bytes = int64_t{64} << 20;
    // Memory in bytes for the states and masks of all constraints of the process. While it is used
    // up, each constraint drops its own as soon as they exceed an equal share, so all together use
    // at most twice as much.
    int64_t all_cache_bytes = int64_t{1} << 30;
    Budget budget = Budget(); // for creating it
};

// The tokens that may come next: bit t % 32 of words[t / 32] is token t's, for t below the size of
// the vocabulary; other bits are 0.
struct AllowedTokens {
    const uint32_t *words; // [TokenVocabulary::words()]; valid until the state's next call or
                           // destruction
    int32_t count;         // how many are allowed
    int32_t only;          // the allowed token, if count is 1; else -1
    const void *mask;      // identifies the mask: equal pointers mean equal tokens; valid as long
                           // as words
};

class Constraint : public std::enable_shared_from_this<Constraint> {
  public:
    // Errors: BATCHLLM_ERROR_INVALID_ARGUMENT for an invalid text, with the position;
    // BATCHLLM_ERROR_UNSUPPORTED for a constraint that cannot be enforced exactly, is too large, or
    // allows nothing that the vocabulary can spell.
    static Result<std::shared_ptr<const Constraint>>
    make(const Grammar &grammar, std::shared_ptr<const TokenVocabulary> vocabulary,
         const ConstraintOptions &options);
    ~Constraint();

    const TokenVocabulary &vocabulary() const { return *vocabulary_; }
    // The length of a shortest valid output, with the marker. As many tokens are enough for it.
    int64_t least_bytes() const { return least_bytes_; }
    const std::string &start_after() const { return marker_; }
    int64_t masks_made() const; // so far, for all states; reused masks do not count
    // Approximately how many bytes all constraints of the process have cached.
    static int64_t all_cached_bytes();

  private:
    friend class ConstraintState;
    struct MarkerMask;
    Constraint();

    bool full(const StateGraph &graph) const;
    std::shared_ptr<StateGraph> new_graph() const;
    // The graph to continue in; a new one if the old one is full. *generation distinguishes them.
    std::shared_ptr<StateGraph> graph(uint64_t *generation) const;
    // The allowed tokens after this many bytes of the marker. Null: too ambiguous.
    const StateMask *marker_mask(int32_t read, StateGraph *graph) const;
    // The allowed tokens at the start of the text, where some tokens spell less. Null: too
    // ambiguous.
    const StateMask *first_mask(StateGraph *graph) const;
    int32_t read_marker(int32_t read, uint8_t byte) const;

    std::shared_ptr<const TokenVocabulary> vocabulary_;
    std::shared_ptr<const GrammarCode> code_;
    std::unique_ptr<const StateMaskMaker> masks_;
    std::string marker_;
    std::vector<int32_t> marker_back_; // [marker] where to continue if a byte does not match
    int64_t least_bytes_ = 0;
    int64_t cache_bytes_ = 0;
    int64_t all_cache_bytes_ = 0;
    std::shared_ptr<RetiredGraphs> retired_; // shared with each graph, which goes there when
                                             // retired

    mutable std::mutex mutex_; // for everything below, except reading generation_
    mutable std::shared_ptr<StateGraph> graph_;
    mutable std::atomic<uint64_t> generation_ = 1;
    mutable std::vector<std::unique_ptr<const StateMask>> marker_masks_; // [marker]
    mutable std::unique_ptr<const StateMask> first_mask_;
    mutable std::vector<int32_t> marker_tokens_; // those that may complete the marker and continue
                                                 // past it
    mutable bool marker_tokens_known_ = false;
};

class ConstraintState {
  public:
    explicit ConstraintState(std::shared_ptr<const Constraint> constraint);

    const Constraint &constraint() const { return *constraint_; }

    // BATCHLLM_ERROR_ROW_CONSTRAINT if the constraint is too ambiguous to continue from here. Only
    // this row fails; other rows continue, even with the same constraint. advance(),
    // advance_bytes() and forced() fail in the same way.
    Result<AllowedTokens> allowed();
    // Takes one of the allowed tokens. For any other token, returns BATCHLLM_ERROR_INVALID_ARGUMENT
    // and changes nothing.
    Status advance(int32_t token);
    // Takes text instead of a token, such as that of forced(). On an error nothing changes.
    Status advance_bytes(std::string_view bytes);

    // Whether the marker has appeared; always if there is none.
    bool started() const { return started_; }
    // Whether the constraint accepts the text so far; more may be possible.
    bool complete() const;
    // Whether it does and only a token that ends the text may follow.
    bool exhausted();
    // Whether a token that ends the text has been taken.
    bool ended() const { return ended_; }
    // Appends the longest text that every continuation begins with, in whole characters and at most
    // `limit` bytes. Appends nothing if the text may end here, or inside a character. Does not
    // advance.
    Status forced(std::string *text, size_t limit = 4096);

  private:
    // Bits for masks that are stored as lists. A copied state starts without them.
    class OwnWords {
      public:
        OwnWords() = default;
        OwnWords(const OwnWords &) {}
        OwnWords(OwnWords &&) = default;
        OwnWords &operator=(const OwnWords &) { return *this; }
        OwnWords &operator=(OwnWords &&) = default;
        const uint32_t *show(const std::vector<int32_t> &tokens, int32_t words);

      private:
        std::vector<uint32_t> words_;
        std::vector<int32_t> shown_;
    };

    struct Place {
        std::shared_ptr<StateGraph> graph;
        uint64_t generation = 0;
        GraphState *state = nullptr;
    };
    // How many bytes of a text are read between two checks for a full graph.
    static constexpr size_t kBytesBetweenLooks = 16;

    void follow_graph(Place *place) const;
    GraphState *const *next_row(size_t i, GraphState **state, Place *moved) const;
    Status walk(std::string_view bytes);

    std::shared_ptr<const Constraint> constraint_;
    Place place_;
    OwnWords own_words_;
    int32_t marker_read_ = 0;      // bytes of the marker matched while searching for it
    int32_t inside_character_ = 0; // bytes missing from the text's last character
    bool at_first_ = false;        // the next token is the text's first, so it may spell less
    bool started_ = true;          // the marker has appeared, or there is no marker
    bool ended_ = false;
};

} // namespace batchllm
