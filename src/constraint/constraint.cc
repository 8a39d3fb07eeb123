#include "constraint/constraint.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "constraint/grammar_code.h"
#include "constraint/index.h"
#include "constraint/least_bytes.h"
#include "constraint/retired_graphs.h"
#include "constraint/state_graph.h"
#include "constraint/token_mask.h"
#include "text/utf8.h"

namespace batchllm {
namespace {

Status too_ambiguous() {
    return error(
        BATCHLLM_ERROR_ROW_CONSTRAINT,
        "the constraint is too ambiguous: there are too many ways to read the text so far");
}

// How many bytes at the end begin a character without completing it.
size_t cut_character(std::string_view text) {
    for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
        const char c = text[text.size() - back];
        if (utf8_continues(c)) continue;
        return static_cast<size_t>(utf8_length(c)) > back ? back : 0;
    }
    return 0;
}

} // namespace

Constraint::Constraint() = default;
Constraint::~Constraint() = default;

int64_t Constraint::masks_made() const { return masks_->made(); }
int64_t Constraint::all_cached_bytes() { return StateGraph::all_bytes(); }

Result<std::shared_ptr<const Constraint>>
Constraint::make(const Grammar &grammar, std::shared_ptr<const TokenVocabulary> vocabulary,
                 const ConstraintOptions &options) {
    std::shared_ptr<Constraint> made(new Constraint);
    Budget budget = options.budget;
    ASSIGN_OR_RETURN(GrammarCode code,
                     GrammarCode::compile(grammar, vocabulary->single_bytes(), &budget));
    made->code_ = std::make_shared<const GrammarCode>(std::move(code));
    made->least_bytes_ =
        batchllm::least_bytes(grammar) + static_cast<int64_t>(options.start_after.size());
    made->masks_ = std::make_unique<const StateMaskMaker>(*vocabulary, *made->code_);
    made->cache_bytes_ = options.cache_bytes;
    made->all_cache_bytes_ = options.all_cache_bytes;
    made->marker_ = options.start_after;
    made->vocabulary_ = std::move(vocabulary);
    made->retired_ = std::make_shared<RetiredGraphs>();
    made->graph_ = made->new_graph();
    if (!made->graph_->row(made->graph_->start()))
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "the constraint is too ambiguous: there are too many ways to begin its text");
    // The longest prefix of the marker that ends where a byte did not match (Knuth, Morris, Pratt).
    std::vector<int32_t> &back = made->marker_back_;
    back.assign(made->marker_.size(), 0);
    for (size_t i = 1; i < made->marker_.size(); ++i) {
        int32_t length = back[i - 1];
        while (length > 0 && made->marker_[at(length)] != made->marker_[i])
            length = back[at(length) - 1];
        back[i] = length + (made->marker_[at(length)] == made->marker_[i] ? 1 : 0);
    }
    made->marker_masks_.resize(made->marker_.size());
    return std::shared_ptr<const Constraint>(std::move(made));
}

std::shared_ptr<StateGraph> Constraint::new_graph() const {
    auto graph = std::make_unique<StateGraph>(code_, TokenVocabulary::kLongestOrdinary + 1,
                                              static_cast<int64_t>(vocabulary_->longest()) + 1);
    const auto retire = [retired = retired_](StateGraph *gone) {
        retired->add(std::unique_ptr<StateGraph>(gone));
    };
    return std::shared_ptr<StateGraph>(graph.release(), retire);
}

bool Constraint::full(const StateGraph &graph) const {
    int64_t limit = cache_bytes_;
    if (StateGraph::all_bytes() > all_cache_bytes_)
        limit = std::min(limit, all_cache_bytes_ / std::max<int64_t>(StateGraph::count(), 1));
    return graph.full(limit);
}

std::shared_ptr<StateGraph> Constraint::graph(uint64_t *generation) const {
    const std::lock_guard lock(mutex_);
    if (full(*graph_)) {
        graph_ = new_graph();
        generation_.fetch_add(1, std::memory_order_release);
    }
    *generation = generation_.load(std::memory_order_relaxed);
    return graph_;
}

int32_t Constraint::read_marker(int32_t read, uint8_t byte) const {
    while (read > 0 && static_cast<uint8_t>(marker_[at(read)]) != byte)
        read = marker_back_[at(read) - 1];
    return read + (static_cast<uint8_t>(marker_[at(read)]) == byte ? 1 : 0);
}

const StateMask *Constraint::marker_mask(int32_t read, StateGraph *graph) const {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<const StateMask> &known = marker_masks_[at(read)];
    if (known) return known.get();
    const TokenVocabulary &tokens = *vocabulary_;
    if (!std::exchange(marker_tokens_known_, true)) {
        for (int32_t token = 0; token < tokens.size(); ++token) {
            const size_t last = tokens.bytes(token).find(marker_.back());
            if (last != std::string_view::npos && last + 1 < tokens.bytes(token).size())
                marker_tokens_.push_back(token);
        }
    }
    auto mask = std::make_unique<StateMask>();
    mask->make_dense(tokens.words());
    for (int32_t token = 0; token < tokens.size(); ++token) {
        if (tokens.bytes(token).empty() && !tokens.is_eos(token)) continue;
        mask->words[at(token / 32)] |= uint32_t{1} << (token % 32);
        ++mask->allowed;
    }
    for (const int32_t token : marker_tokens_) {
        const std::string_view bytes = tokens.bytes(token);
        int32_t place = read;
        size_t i = 0;
        while (i < bytes.size() && at(place) < marker_.size())
            place = read_marker(place, static_cast<uint8_t>(bytes[i++]));
        if (at(place) < marker_.size()) continue;
        GraphState *state = graph->start();
        for (; i < bytes.size() && state; ++i) {
            if (!graph->row(state)) return nullptr;
            state = graph->next(state, static_cast<uint8_t>(bytes[i]));
        }
        if (state) continue;
        mask->words[at(token / 32)] &= ~(uint32_t{1} << (token % 32));
        --mask->allowed;
    }
    known = std::move(mask);
    return known.get();
}

const StateMask *Constraint::first_mask(StateGraph *graph) const {
    const StateMask *later = masks_->mask(graph, graph->start());
    if (!later) return nullptr;
    const std::lock_guard lock(mutex_);
    if (first_mask_) return first_mask_.get();
    const TokenVocabulary &tokens = *vocabulary_;
    auto mask = std::make_unique<StateMask>(*later);
    mask->make_dense(tokens.words());
    for (const auto &[token, bytes] : tokens.first_spellings()) {
        const bool usable = tokens.bytes(token).size() <= TokenTrie::kLongestToken &&
                            !tokens.is_special(token) && !tokens.is_eos(token);
        if (!usable) continue;
        GraphState *state = graph->start();
        for (size_t i = 0; i < bytes.size() && state; ++i) {
            if (!graph->row(state)) return nullptr;
            state = graph->next(state, static_cast<uint8_t>(bytes[i]));
        }
        const uint32_t bit = uint32_t{1} << (token % 32);
        uint32_t &word = mask->words[at(token / 32)];
        word = state ? word | bit : word & ~bit;
    }
    mask->allowed = 0;
    mask->only = -1;
    for (size_t word = 0; word < mask->words.size(); ++word) {
        mask->allowed += std::popcount(mask->words[word]);
        if (mask->words[word] != 0)
            mask->only = static_cast<int32_t>(32 * word) + std::countr_zero(mask->words[word]);
    }
    if (mask->allowed != 1) mask->only = -1;
    first_mask_ = std::move(mask);
    return first_mask_.get();
}

ConstraintState::ConstraintState(std::shared_ptr<const Constraint> constraint)
    : constraint_(std::move(constraint)),
      at_first_(constraint_->marker_.empty() &&
                !constraint_->vocabulary().first_spellings().empty()),
      started_(constraint_->marker_.empty()) {
    place_.graph = constraint_->graph(&place_.generation);
    place_.state = place_.graph->start();
}

// Moves into the constraint's current graph if this one is full or has been replaced.
void ConstraintState::follow_graph(Place *place) const {
    const Constraint &constraint = *constraint_;
    if (!constraint.retired_->empty()) constraint.retired_->free_some(place->graph->bytes());
    const bool current =
        place->generation == constraint.generation_.load(std::memory_order_acquire) &&
        !constraint.full(*place->graph);
    if (current) return;
    std::shared_ptr<StateGraph> graph = constraint.graph(&place->generation);
    if (graph == place->graph) return;
    place->state = graph->import(*place->graph, *place->state);
    place->graph = std::move(graph);
}

Result<AllowedTokens> ConstraintState::allowed() {
    follow_graph(&place_);
    const StateMask *mask;
    if (ended_) {
        // Nothing more may follow; tokens that end a text are harmless.
        return error(BATCHLLM_ERROR_STATE, "the constrained text has ended");
    }
    if (at_first_)
        mask = constraint_->first_mask(place_.graph.get());
    else if (started_)
        mask = constraint_->masks_->mask(place_.graph.get(), place_.state);
    else
        mask = constraint_->marker_mask(marker_read_, place_.graph.get());
    if (!mask) return too_ambiguous();
    const uint32_t *words = mask->dense()
                                ? mask->words.data()
                                : own_words_.show(mask->few, constraint_->vocabulary().words());
    return AllowedTokens{words, mask->allowed, mask->only, mask};
}

const uint32_t *ConstraintState::OwnWords::show(const std::vector<int32_t> &tokens, int32_t words) {
    words_.resize(at(words), 0);
    for (const int32_t token : shown_) words_[at(token / 32)] = 0;
    for (const int32_t token : tokens) words_[at(token / 32)] |= uint32_t{1} << (token % 32);
    shown_ = tokens;
    return words_.data();
}

// The transitions of `state`, which the text before byte `i` leads to. Checks now and then whether
// the graph is full; if so, the state is replaced by that of another graph, which *moved then
// refers to.
GraphState *const *ConstraintState::next_row(size_t i, GraphState **state, Place *moved) const {
    if (i > 0 && i % kBytesBetweenLooks == 0) {
        if (!moved->graph) *moved = place_;
        moved->state = *state;
        follow_graph(moved);
        *state = moved->state;
    }
    return (moved->graph ? moved->graph : place_.graph)->row(*state);
}

Status ConstraintState::walk(std::string_view bytes) {
    GraphState *state = place_.state;
    Place moved;
    for (size_t i = 0; i < bytes.size(); ++i) {
        GraphState *const *row = next_row(i, &state, &moved);
        if (!row) return too_ambiguous();
        state = row[constraint_->code_->class_of(static_cast<uint8_t>(bytes[i]))];
        if (!state)
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "text that the constraint refuses");
    }
    if (moved.graph) place_ = std::move(moved);
    place_.state = state;
    return {};
}

Status ConstraintState::advance(int32_t token) {
    const TokenVocabulary &tokens = constraint_->vocabulary();
    const auto refused = [&](const char *why) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the constraint does not allow token %d: %s",
                     static_cast<int>(token), why);
    };
    if (ended_) return refused("the text has ended");
    if (token < 0 || token >= tokens.size()) return refused("not in the vocabulary");
    if (started_ && tokens.is_eos(token)) {
        if (!place_.state->complete) return refused("the text is not complete");
        ended_ = true;
        return {};
    }
    if (started_ && tokens.is_special(token)) return refused("a special token");
    const std::string_view own = tokens.bytes(token);
    const std::string_view bytes = at_first_ ? tokens.first_bytes(token) : own;
    if (own.empty() && !tokens.is_eos(token)) return refused("it spells nothing");
    if (started_ && own.size() > TokenTrie::kLongestToken) return refused("it spells too much");
    const Status taken = advance_bytes(bytes);
    if (taken.code() == BATCHLLM_ERROR_INVALID_ARGUMENT) return refused("its text does not fit");
    if (taken.ok()) at_first_ = false;
    if (taken.ok() && !started_ && tokens.is_eos(token)) ended_ = true;
    return taken;
}

Status ConstraintState::advance_bytes(std::string_view bytes) {
    if (ended_) return error(BATCHLLM_ERROR_STATE, "the constrained text has ended");
    follow_graph(&place_);
    int32_t read = marker_read_;
    bool started = started_;
    size_t used = 0;
    while (!started && used < bytes.size()) {
        read = constraint_->read_marker(read, static_cast<uint8_t>(bytes[used++]));
        started = at(read) == constraint_->marker_.size();
    }
    RETURN_IF_ERROR(walk(bytes.substr(used)));
    if (!bytes.empty()) at_first_ = false;
    marker_read_ = started ? 0 : read;
    started_ = started;
    for (const char c : bytes)
        inside_character_ =
            utf8_continues(c) ? std::max(inside_character_ - 1, 0) : utf8_length(c) - 1;
    return {};
}

bool ConstraintState::complete() const { return started_ && place_.state->complete; }

bool ConstraintState::exhausted() {
    if (!complete()) return false;
    follow_graph(&place_);
    GraphState *const *row = place_.graph->row(place_.state);
    if (!row) return false; // allowed() will report it
    return std::all_of(row, row + constraint_->code_->classes(),
                       [](const GraphState *next) { return next == nullptr; });
}

Status ConstraintState::forced(std::string *text, size_t limit) {
    if (!started_ || ended_ || inside_character_ > 0) return {};
    follow_graph(&place_);
    const GrammarCode &code = *constraint_->code_;
    std::string found;
    Place moved;
    for (GraphState *state = place_.state; !state->complete && found.size() < limit;) {
        GraphState *const *row = next_row(found.size(), &state, &moved);
        if (!row) return too_ambiguous();
        int32_t only = -1;
        int32_t ways = 0;
        for (int32_t c = 0; c < code.classes() && ways < 2; ++c) {
            if (!row[c]) continue;
            ways += code.class_size(c);
            only = c;
        }
        if (ways != 1) break;
        found += static_cast<char>(code.first_byte(only));
        state = row[only];
    }
    text->append(found, 0, found.size() - cut_character(found));
    return {};
}

} // namespace batchllm
