#include "constraint/nfa.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "constraint/index.h"
#include "constraint/minimize.h"

namespace batchllm {
namespace {

bool is_word(int32_t byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_';
}

// What is before or after a place in the text.
enum class Side : int32_t { edge, other, word };

struct SetHash {
    size_t operator()(const std::vector<int32_t> &set) const {
        uint64_t hash = set.size();
        for (const int32_t element : set)
            hash = (hash ^ static_cast<uint64_t>(element)) * 0x9E3779B97F4A7C15U + (hash >> 29);
        return hash;
    }
};

} // namespace

int32_t Nfa::add_state() {
    edges_.emplace_back();
    return states() - 1;
}

void Nfa::add_bytes(int32_t from, uint8_t first, uint8_t last, int32_t to) {
    edges_[at(from)].bytes.push_back({first, last, to});
}

void Nfa::add_empty(int32_t from, int32_t to, Assertion assertion) {
    edges_[at(from)].empty.push_back({assertion, to});
    if (assertion != Assertion::none) assertions_ = true;
}

void Nfa::add_code_points(int32_t from, uint32_t first, uint32_t last, int32_t to) {
    // Pieces whose ends have encodings of equal length, without surrogates in between.
    constexpr uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xFFFF, 0x10FFFF};
    constexpr uint32_t starts[] = {0, 0x80, 0x800, 0xE000, 0x10000};
    constexpr int32_t more_bytes[] = {0, 1, 2, 2, 3};
    constexpr uint32_t leads[] = {0, 0xC0, 0xE0, 0xE0, 0xF0};
    // Adds paths for low .. high from `state` to target: a byte with the bits of `lead`, then
    // `more` further bytes.
    const auto add_tail = [this](auto &&self, int32_t state, uint32_t lead, int32_t more,
                                 uint32_t low, uint32_t high, int32_t target) -> void {
        const auto byte = [&](uint32_t point) {
            return static_cast<uint8_t>(lead | point >> (6 * more));
        };
        if (more == 0) {
            add_bytes(state, byte(low), byte(high), target);
            return;
        }
        const uint32_t mask = (uint32_t{1} << (6 * more)) - 1;
        const auto step = [&](uint32_t first_byte, uint32_t last_byte, uint32_t l, uint32_t h) {
            const int32_t middle = add_state();
            add_bytes(state, static_cast<uint8_t>(lead | first_byte),
                      static_cast<uint8_t>(lead | last_byte), middle);
            self(self, middle, 0x80, more - 1, l, h, target);
        };
        uint32_t a = low >> (6 * more);
        uint32_t b = high >> (6 * more);
        if (a == b) {
            step(a, a, low & mask, high & mask);
            return;
        }
        if ((low & mask) != 0) step(a, a, low & mask, mask), ++a;
        const bool last_is_whole = (high & mask) == mask;
        if (!last_is_whole) --b;
        if (a <= b) step(a, b, 0, mask);
        if (!last_is_whole) step(b + 1, b + 1, 0, high & mask);
    };
    for (int32_t i = 0; i < 5; ++i) {
        const uint32_t low = std::max(first, starts[i]);
        const uint32_t high = std::min(last, ends[i]);
        if (low <= high) add_tail(add_tail, from, leads[i], more_bytes[i], low, high, to);
    }
}

void Nfa::add_automaton(int32_t from, const Automaton &automaton, int32_t to) {
    if (automaton.empty()) return;
    const int32_t base = states();
    for (int32_t state = 0; state < automaton.states(); ++state) add_state();
    for (int32_t state = 0; state < automaton.states(); ++state) {
        if (automaton.accepting(state)) add_empty(base + state, to);
        for (int32_t byte = 0; byte < 256;) {
            const int32_t next = automaton.next(state, static_cast<uint8_t>(byte));
            int32_t end = byte + 1;
            while (end < 256 && automaton.next(state, static_cast<uint8_t>(end)) == next) ++end;
            if (next != Automaton::kDead) {
                add_bytes(base + state, static_cast<uint8_t>(byte), static_cast<uint8_t>(end - 1),
                          base + next);
            }
            byte = end;
        }
    }
    add_empty(from, base);
}

// The subset construction. A set is kept closed under edges that read nothing and assert nothing;
// those with an assertion are taken when the next byte, or the end, is known.
class NfaDeterminizer {
  public:
    NfaDeterminizer(const Nfa &nfa, const std::vector<int32_t> &accepting, Budget *budget)
        : nfa_(nfa), budget_(budget), accepting_(at(nfa.states()), 0), seen_(at(nfa.states()), 0) {
        for (const int32_t state : accepting) accepting_[at(state)] = 1;
    }

    Result<Automaton> run(int32_t start) {
        number_classes();
        RETURN_IF_ERROR(budget_->spend_states(nfa_.states()));
        RETURN_IF_ERROR(intern(closed({start}, Side::edge, Side::edge, false), Side::edge).status);
        for (size_t i = 0; i < sets_.size(); ++i) RETURN_IF_ERROR(expand(static_cast<int32_t>(i)));
        return AutomatonMaker::minimal(table_);
    }

  private:
    using Set = std::vector<int32_t>; // sorted; the last element is the side before
    struct Interned {
        Status status;
        int32_t state = 0;
    };

    void number_classes() {
        bool splits[256] = {};
        for (const Nfa::Edges &edges : nfa_.edges_) {
            for (const Nfa::ByteEdge &edge : edges.bytes) {
                splits[edge.first] = true;
                if (edge.last < 255) splits[edge.last + 1] = true;
            }
        }
        for (int32_t byte = 1; byte < 256 && nfa_.assertions_; ++byte)
            if (is_word(byte) != is_word(byte - 1)) splits[byte] = true;
        set_byte_runs(splits, &table_);
        for (int32_t byte = 255; byte >= 0; --byte)
            first_byte_[table_.class_of[byte]] = static_cast<uint8_t>(byte);
    }

    static bool holds(Nfa::Assertion assertion, Side before, Side after) {
        const bool boundary = (before == Side::word) != (after == Side::word);
        switch (assertion) {
        case Nfa::Assertion::none:
            return true;
        case Nfa::Assertion::text_start:
            return before == Side::edge;
        case Nfa::Assertion::text_end:
            return after == Side::edge;
        case Nfa::Assertion::word_boundary:
            return boundary;
        case Nfa::Assertion::no_word_boundary:
            return !boundary;
        }
        return false;
    }

    // Only states from which something can follow are kept.
    bool matters(int32_t state) const {
        const Nfa::Edges &edges = nfa_.edges_[at(state)];
        if (!edges.bytes.empty() || accepting_[at(state)]) return true;
        return std::any_of(edges.empty.begin(), edges.empty.end(), [](const Nfa::EmptyEdge &edge) {
            return edge.assertion != Nfa::Assertion::none;
        });
    }

    Set closed(Set stack, Side before, Side after, bool with_assertions) {
        Set closure;
        ++round_;
        for (const int32_t state : stack) seen_[at(state)] = round_;
        while (!stack.empty()) {
            const int32_t state = stack.back();
            stack.pop_back();
            if (matters(state)) closure.push_back(state);
            work_ += static_cast<int64_t>(nfa_.edges_[at(state)].empty.size());
            for (const Nfa::EmptyEdge &edge : nfa_.edges_[at(state)].empty) {
                if (seen_[at(edge.to)] == round_) continue;
                if (edge.assertion != Nfa::Assertion::none &&
                    !(with_assertions && holds(edge.assertion, before, after)))
                    continue;
                seen_[at(edge.to)] = round_;
                stack.push_back(edge.to);
            }
        }
        std::sort(closure.begin(), closure.end());
        return closure;
    }

    Interned intern(Set set, Side before) {
        if (set.empty()) return {{}, Automaton::kDead};
        set.push_back(-1 - static_cast<int32_t>(nfa_.assertions_ ? before : Side::edge));
        const auto known = numbers_.find(set);
        if (known != numbers_.end()) return {{}, known->second};
        const auto cost = 1 + static_cast<int64_t>(set.size()) / 8 + table_.classes / 32;
        Status status = budget_->spend_states(cost);
        if (!status.ok()) return {std::move(status), 0};
        const int32_t number = table_.add_state(accepts(set, before));
        sets_.push_back(&numbers_.emplace(std::move(set), number).first->first);
        return {{}, number};
    }

    bool accepts(const Set &set, Side before) {
        Set states(set.begin(), set.end() - 1);
        if (nfa_.assertions_) states = closed(std::move(states), before, Side::edge, true);
        return std::any_of(states.begin(), states.end(),
                           [this](int32_t state) { return accepting_[at(state)] != 0; });
    }

    Status expand(int32_t number) {
        const Set &key = *sets_[at(number)];
        const auto before = static_cast<Side>(-1 - key.back());
        const Set plain(key.begin(), key.end() - 1);
        Set by_side[3];
        for (const Side after : {Side::other, Side::word}) {
            by_side[static_cast<size_t>(after)] =
                nfa_.assertions_ ? closed(plain, before, after, true) : plain;
        }
        targets_.assign(at(table_.classes), {});
        for (const Side after : {Side::other, Side::word}) {
            if (!nfa_.assertions_ && after == Side::word) break;
            for (const int32_t state : by_side[static_cast<size_t>(after)]) {
                for (const Nfa::ByteEdge &edge : nfa_.edges_[at(state)].bytes) {
                    const int32_t last = table_.class_of[edge.last];
                    for (int32_t c = table_.class_of[edge.first]; c <= last; ++c) {
                        ++work_;
                        if (!nfa_.assertions_ ||
                            is_word(first_byte_[at(c)]) == (after == Side::word))
                            targets_[at(c)].push_back(edge.to);
                    }
                }
            }
        }
        int32_t last_target = Automaton::kDead;
        const Set *last_set = nullptr;
        for (int32_t c = 0; c < table_.classes; ++c) {
            Set &targets = targets_[at(c)];
            if (targets.empty()) continue;
            const Side side = is_word(first_byte_[at(c)]) ? Side::word : Side::other;
            // Neighbouring classes often lead to the same set.
            const bool repeats = last_set && *last_set == targets && !nfa_.assertions_;
            if (!repeats) {
                Set unique = targets;
                std::sort(unique.begin(), unique.end());
                unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
                Interned found = intern(closed(std::move(unique), side, side, false), side);
                RETURN_IF_ERROR(std::move(found.status));
                last_target = found.state;
                last_set = &targets;
            }
            table_.at(number, c) = last_target;
        }
        RETURN_IF_ERROR(budget_->spend_work(std::exchange(work_, 0) + table_.classes));
        return {};
    }

    const Nfa &nfa_;
    Budget *budget_;
    std::vector<uint8_t> accepting_;
    std::vector<int32_t> seen_; // round in which a state was last seen
    int32_t round_ = 0;
    int64_t work_ = 0;
    DfaTable table_;
    uint8_t first_byte_[256] = {}; // of a class
    std::unordered_map<Set, int32_t, SetHash> numbers_;
    std::vector<const Set *> sets_; // keys of numbers_, which never move
    std::vector<Set> targets_;      // [classes] scratch
};

Result<Automaton> Nfa::determinize(int32_t start, std::vector<int32_t> accepting,
                                   Budget *budget) const {
    return NfaDeterminizer(*this, accepting, budget).run(start);
}

} // namespace batchllm
