// A Grammar -> its code: what may come next at each place, in the form that a matcher requires.
//
// The code is for a machine with a stack. A terminal reads bytes and continues at `next`; a call
// pushes `next` and runs a body that ends in `leave`, which pops. The frames of the stack contain
// the counters and the sets of members seen so far.
//
// Invariants: some string can be completed from every place (other places are removed); no body
// reaches itself without reading a byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "constraint/automaton.h"
#include "constraint/grammar.h"

namespace batchllm {

class GrammarCode {
  public:
    static constexpr int32_t kLeave = 0; // place of the only operation that pops
    static constexpr int32_t kFinish =
        1; // place at the bottom of every stack: the text is complete
    static constexpr int32_t kNone = -1;

    enum class Kind : uint8_t { leave, finish, terminal, call, choice, repeat, members };
    struct Operation {
        Kind kind;
        bool empty = false;       // terminal, call: it can match the empty string
        int32_t next = kLeave;    // where to continue; unused by choice
        int32_t argument = kNone; // terminal: place in its text; call: place of its body; else an
                                  // index
    };
    struct Repeat {
        int32_t first = kNone; // body of the first item
        int32_t again = kNone; // body of the other items: separator, item
        bool empty = false;    // an item may be empty, and there is a separator
        int64_t least = 0;
        int64_t greatest = 0;    // Automaton::kUnbounded
        int64_t count_limit = 0; // if unbounded: counts from here on are not distinguished
        bool separated = false;
    };
    struct Member {
        int32_t first = kNone; // body if no other element precedes it
        int32_t again = kNone; // body after another element: separator, element
        bool required = false;
    };
    struct MemberSet {
        std::vector<Member> elements;
        Member rest; // first == kNone: none
        int64_t least = 0;
        int64_t greatest = 0; // Automaton::kUnbounded
        bool any_order = false;
        std::vector<int32_t> required_from; // [elements + 1] how many required ones there are from
                                            // here on
    };

    // Errors name the rule. BATCHLLM_ERROR_UNSUPPORTED for left recursion, for a grammar that
    // matches nothing, and for one that exceeds the budget. usable: the bytes that may occur in a
    // text.
    static Result<GrammarCode> compile(const Grammar &grammar, const bool (&usable)[256],
                                       Budget *budget);

    const Operation &operation(int32_t place) const {
        return operations_[static_cast<size_t>(place)];
    }
    std::span<const int32_t> choices(const Operation &operation) const {
        const auto &[first, end] = choice_ranges_[static_cast<size_t>(operation.argument)];
        return std::span(choices_).subspan(first, end - first);
    }
    const Repeat &repeat(const Operation &operation) const {
        return repeats_[static_cast<size_t>(operation.argument)];
    }
    const MemberSet &members(const Operation &operation) const {
        return member_sets_[static_cast<size_t>(operation.argument)];
    }
    int32_t start() const { return start_; }
    bool counts() const { return counts_; } // whether any repeat has a bound that must be counted

    // Bytes in one class are interchangeable everywhere in the grammar.
    int32_t classes() const { return classes_; }
    uint8_t class_of(uint8_t byte) const { return class_of_[byte]; }
    const uint8_t *class_table() const { return class_of_; }
    uint8_t first_byte(int32_t byte_class) const { return first_byte_[byte_class]; }
    int32_t class_size(int32_t byte_class) const { return class_size_[byte_class]; }

    // A place inside a terminal's text, numbered over all terminals.
    int32_t text_next(int32_t text, int32_t byte_class) const {
        const TextPlace &place = texts_[static_cast<size_t>(text)];
        if (place.lexer < 0) return place.local == byte_class ? text + 1 : kNone;
        const Lexer &lexer = lexers_[static_cast<size_t>(place.lexer)];
        const int32_t next = lexer.table[static_cast<size_t>(place.local) * lexer.width +
                                         lexer.class_map[byte_class]];
        return next < 0 ? kNone : lexer.base + next;
    }
    bool text_ends(int32_t text) const { return texts_[static_cast<size_t>(text)].ends; }
    bool text_continues(int32_t text) const { return texts_[static_cast<size_t>(text)].continues; }

  private:
    friend class GrammarCompiler;
    struct TextPlace {
        int32_t lexer = -1; // -1: a literal's byte
        int32_t local = -1; // state of the lexer; class of the literal's byte
        bool ends = false;
        bool continues = false;
    };
    struct Lexer {
        int32_t base = 0; // its first place
        size_t width = 0; // number of classes of its automaton
        std::vector<int32_t> table;
        uint8_t class_map[256] = {}; // class of the grammar -> class of the automaton
    };

    std::vector<Operation> operations_;
    std::vector<std::pair<size_t, size_t>> choice_ranges_;
    std::vector<int32_t> choices_;
    std::vector<Repeat> repeats_;
    std::vector<MemberSet> member_sets_;
    std::vector<TextPlace> texts_;
    std::vector<Lexer> lexers_;
    int32_t start_ = kNone;
    int32_t classes_ = 1;
    bool counts_ = false;
    uint8_t class_of_[256] = {};
    uint8_t first_byte_[256] = {};
    int32_t class_size_[256] = {};
};

} // namespace batchllm
