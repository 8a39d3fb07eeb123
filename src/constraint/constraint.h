// A restriction on a row's output -> which tokens may come next, step by step.
//
// A Constraint is made once, from a specification and a vocabulary, and shared by any number of rows
// and threads; states and masks that one row computes serve all others. A ConstraintState is one row's
// place in it: small, copied with the row, used by one thread at a time.
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
// vocabulary: a byte without a token of its own is never allowed in a text. Special tokens are
// never allowed by their spelling. Tokens that spell nothing and end nothing are never allowed,
// except, as the first token, a space that the decoder removes.
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
    // The constraint begins after this text appears in the output. Before that every token is
    // allowed, except those that complete the marker and continue with text that the constraint
    // refuses. The marker is found in the tokens' bytes, wherever they are split, and special
    // tokens count by their spelling. Empty: it begins at once.
    std::string start_after;
    // Memory in bytes for states and masks. When it is used up they are dropped and made again; a
    // single mask may exceed it.
    int64_t cache_bytes = int64_t{64} << 20;
    // Memory in bytes for the states and masks of all constraints of the process. While it is used
    // up, each constraint drops its own as soon as they exceed an equal share, so all together take
    // at most twice as much.
    int64_t all_cache_bytes = int64_t{1} << 30;
    Budget budget = Budget(); // for making it
};

// The tokens that may come next: bit t % 32 of words[t / 32] is token t's, for t below the
// vocabulary's size; other bits are 0.
struct AllowedTokens {
    const uint32_t *words; // [TokenVocabulary::words()]; valid until the state's next call or end
    int32_t count;         // how many are allowed
    int32_t only;          // the allowed token, if count is 1; else -1
    const void *mask;      // equal only if the tokens are equal; valid as long as words
};

class Constraint : public std::enable_shared_from_this<Constraint> {
  public:
    // Errors: BATCHLLM_ERROR_INVALID_ARGUMENT for an invalid text, with the place;
    // BATCHLLM_ERROR_UNSUPPORTED for a constraint that cannot be enforced exactly, is too large, or
    // allows nothing that the vocabulary can spell.
    static Result<std::shared_ptr<const Constraint>>
    make(const Grammar &grammar, std::shared_ptr<const TokenVocabulary> vocabulary,
         const ConstraintOptions &options);
    ~Constraint();

    const TokenVocabulary &vocabulary() const { return *vocabulary_; }
    int64_t masks_made() const; // so far, for all states; masks that are reused do not count
    // About how many bytes all constraints of the process have cached.
    static int64_t all_cached_bytes();

  private:
    friend class ConstraintState;
    struct MarkerMask;
    Constraint();

    bool full(const StateGraph &graph) const;
    std::shared_ptr<StateGraph> new_graph() const;
    // The graph to continue in; a new one once that is full. *generation tells them apart.
    std::shared_ptr<StateGraph> graph(uint64_t *generation) const;
    // Allowed tokens when this many bytes of the marker have just been read. Null: too ambiguous.
    const StateMask *marker_mask(int32_t read, StateGraph *graph) const;
    // Allowed tokens at the beginning of the text, where some spell less. Null: too ambiguous.
    const StateMask *first_mask(StateGraph *graph) const;
    int32_t read_marker(int32_t read, uint8_t byte) const;

    std::shared_ptr<const TokenVocabulary> vocabulary_;
    std::shared_ptr<const GrammarCode> code_;
    std::unique_ptr<const StateMaskMaker> masks_;
    std::string marker_;
    std::vector<int32_t> marker_back_; // [marker] where to continue if a byte does not match
    int64_t cache_bytes_ = 0;
    int64_t all_cache_bytes_ = 0;
    std::shared_ptr<RetiredGraphs> retired_; // each graph has it too, and goes there when retired

    mutable std::mutex mutex_; // for everything below, except reading generation_
    mutable std::shared_ptr<StateGraph> graph_;
    mutable std::atomic<uint64_t> generation_ = 1;
    mutable std::vector<std::unique_ptr<const StateMask>> marker_masks_; // [marker]
    mutable std::unique_ptr<const StateMask> first_mask_;
    mutable std::vector<int32_t> marker_tokens_; // those that may complete the marker and continue
    mutable bool marker_tokens_known_ = false;
};

class ConstraintState {
  public:
    explicit ConstraintState(std::shared_ptr<const Constraint> constraint);

    const Constraint &constraint() const { return *constraint_; }

    // BATCHLLM_ERROR_ROW_CONSTRAINT if the constraint is too ambiguous to continue from here. Only
    // this row fails; others continue, even with the same constraint. advance(), advance_bytes() and
    // forced() fail in the same way.
    Result<AllowedTokens> allowed();
    // Takes one of the allowed tokens. Any other is BATCHLLM_ERROR_INVALID_ARGUMENT and changes nothing.
    Status advance(int32_t token);
    // Takes text instead, such as forced(). On an error nothing changes.
    Status advance_bytes(std::string_view bytes);

    // Whether the constraint accepts the text so far; more may be possible.
    bool complete() const;
    // Whether it does, and only a token that ends the text may follow.
    bool exhausted();
    // Whether a token that ends the text was taken.
    bool ended() const { return ended_; }
    // Appends the longest text with which every continuation begins, in whole characters and at
    // most `limit` bytes; nothing if the text may also end here, or inside a character. Does not
    // advance.
    Status forced(std::string *text, size_t limit = 4096);

  private:
    // Bits for masks that are kept as lists. A copy of a state starts without them.
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
    // Bytes of a text that are read between two checks for a full graph.
    static constexpr size_t kBytesBetweenLooks = 16;

    void follow_graph(Place *place) const;
    GraphState *const *next_row(size_t i, GraphState **state, Place *moved) const;
    Status walk(std::string_view bytes);

    std::shared_ptr<const Constraint> constraint_;
    Place place_;
    OwnWords own_words_;
    int32_t marker_read_ = 0;      // bytes of the marker, while it is being looked for
    int32_t inside_character_ = 0; // bytes that are missing from the text's last character
    bool at_first_ = false;        // the next token is the text's first, and may spell less there
    bool started_ = true;          // the marker has appeared, or there is none
    bool ended_ = false;
};

} // namespace batchllm
