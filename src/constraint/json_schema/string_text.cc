// Strings as JSON texts: escapes, quotation marks, and names that are left out.
#include <algorithm>
#include <span>

#include "constraint/json_schema/string.h"
#include "constraint/nfa.h"

namespace batchllm {

namespace {

constexpr size_t kMostNameBytes = 200000; // of names that are excluded from a language

// The letter of a control character's short escape, or 0.
char short_escape(int byte) {
    switch (byte) {
    case '"':
        return '"';
    case '\\':
        return '\\';
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

char hex(int digit) { return "0123456789abcdef"[digit]; }

void add_hex(Nfa *nfa, int32_t from, int first, int last, int32_t to) {
    for (int digit = first; digit <= last; ++digit) {
        const auto lower = static_cast<uint8_t>(hex(digit));
        nfa->add_bytes(from, lower, lower, to);
        if (digit > 9) {
            nfa->add_bytes(from, static_cast<uint8_t>(lower - 'a' + 'A'),
                           static_cast<uint8_t>(lower - 'a' + 'A'), to);
        }
    }
}

// One character between two states, in every spelling.
void add_any_character(Nfa *nfa, int32_t from, int32_t to) {
    nfa->add_code_points(from, 0x20, 0x21, to);
    nfa->add_code_points(from, 0x23, 0x5b, to);
    nfa->add_code_points(from, 0x5d, 0x10ffff, to);
    const int32_t escape = nfa->add_state();
    nfa->add_bytes(from, '\\', '\\', escape);
    for (const char letter : std::string_view("\"\\/bfnrt")) {
        nfa->add_bytes(escape, static_cast<uint8_t>(letter), static_cast<uint8_t>(letter), to);
    }
    const int32_t one = nfa->add_state(), two = nfa->add_state(), three = nfa->add_state();
    const int32_t four = nfa->add_state(), d = nfa->add_state();
    nfa->add_bytes(escape, 'u', 'u', one);
    add_hex(nfa, one, 0x0, 0xc, two);
    add_hex(nfa, one, 0xe, 0xf, two);
    add_hex(nfa, two, 0x0, 0xf, three);
    add_hex(nfa, three, 0x0, 0xf, four);
    add_hex(nfa, four, 0x0, 0xf, to);
    add_hex(nfa, one, 0xd, 0xd, d);
    add_hex(nfa, d, 0x0, 0x7, three);
    // A surrogate pair: d8..db and then dc..df.
    int32_t high[6];
    for (int32_t &state : high) state = nfa->add_state();
    add_hex(nfa, d, 0x8, 0xb, high[0]);
    add_hex(nfa, high[0], 0x0, 0xf, high[1]);
    add_hex(nfa, high[1], 0x0, 0xf, high[2]);
    nfa->add_bytes(high[2], '\\', '\\', high[3]);
    nfa->add_bytes(high[3], 'u', 'u', high[4]);
    add_hex(nfa, high[4], 0xd, 0xd, high[5]);
    const int32_t low = nfa->add_state();
    add_hex(nfa, high[5], 0xc, 0xf, low);
    add_hex(nfa, low, 0x0, 0xf, four);
}

Automaton made(const Result<Automaton> &automaton) { // the size is fixed, below any budget
    return automaton.ok() ? automaton.value() : Automaton();
}

} // namespace

std::string json_escaped(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const int byte = static_cast<unsigned char>(c);
        if (const char letter = short_escape(byte)) {
            out += '\\';
            out += letter;
        } else if (byte < 0x20) {
            out += "\\u00";
            out += hex(byte >> 4);
            out += hex(byte & 15);
        } else {
            out += c;
        }
    }
    return out;
}

namespace {

// The automaton of the escaped texts of a language, not yet deterministic. States of the language
// keep their numbers; states inside escapes come after them.
class EscapedNfa {
  public:
    explicit EscapedNfa(const Automaton &language) : language_(language) {
        for (int32_t state = 0; state < language.states(); ++state) nfa_.add_state();
        for (int32_t state = 0; state < language.states(); ++state) {
            add_characters(state, state);
            escapes_.push_back(add_escapes(state, state));
        }
    }
    Nfa &nfa() { return nfa_; }

    // Adds to `from` the edges that leave the language's state, except for bytes in `except`.
    void add_characters(int32_t state, int32_t from, std::string_view except = {}) {
        const auto raw = [&](int byte) {
            return byte >= 0x20 && byte != '"' && byte != '\\' &&
                   except.find(static_cast<char>(byte)) == std::string_view::npos;
        };
        for (int byte = 0x20; byte < 256;) {
            const int32_t to = language_.next(state, static_cast<uint8_t>(byte));
            int last = byte;
            while (last < 255 && raw(last + 1) == raw(byte) &&
                   language_.next(state, static_cast<uint8_t>(last + 1)) == to) {
                ++last;
            }
            if (raw(byte) && to != Automaton::kDead) {
                nfa_.add_bytes(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(last), to);
            }
            byte = last + 1;
        }
    }

    // The same for escaped characters; `except`: characters.
    int32_t add_escapes(int32_t state, int32_t from, std::string_view except = {}) {
        int32_t escape = -1;          // after the backslash
        int32_t fourth[2] = {-1, -1}; // before the last digit of \u000x, \u001x
        const auto add = [&](int32_t at, char byte, int32_t to) {
            nfa_.add_bytes(at, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), to);
        };
        for (int byte = 0; byte <= '\\'; ++byte) {
            if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
            const int32_t to = language_.next(state, static_cast<uint8_t>(byte));
            if (to == Automaton::kDead ||
                except.find(static_cast<char>(byte)) != std::string_view::npos) {
                continue;
            }
            if (escape < 0) {
                escape = nfa_.add_state();
                add(from, '\\', escape);
            }
            if (const char letter = short_escape(byte)) {
                add(escape, letter, to);
                continue;
            }
            int32_t &last = fourth[byte >> 4];
            if (last < 0) {
                const int32_t u = nfa_.add_state(), zero = nfa_.add_state(),
                              third = nfa_.add_state();
                last = nfa_.add_state();
                add(escape, 'u', u);
                add(u, '0', zero);
                add(zero, '0', third);
                add(third, hex(byte >> 4), last);
            }
            add(last, hex(byte & 15), to);
        }
        return escape;
    }
    // Adds the same escapes from another place.
    void share_escapes(int32_t state, int32_t from) {
        const int32_t escape = escapes_[static_cast<size_t>(state)];
        if (escape >= 0) nfa_.add_bytes(from, '\\', '\\', escape);
    }

    // Adds an edge for the byte from `from` to a new state.
    int32_t add_step(int32_t from, unsigned char byte) {
        int32_t to = from;
        for (const char read : json_escaped(std::string_view(reinterpret_cast<char *>(&byte), 1))) {
            const int32_t next = nfa_.add_state();
            nfa_.add_bytes(to, static_cast<uint8_t>(read), static_cast<uint8_t>(read), next);
            to = next;
        }
        return to;
    }

  private:
    const Automaton &language_;
    Nfa nfa_;
    std::vector<int32_t> escapes_; // [states of the language] -1: none
};

// Adds, from `first` on, the language without the words: a trie of the words whose every other edge
// leads to the language's own states. Adds accepting states.
void add_without(EscapedNfa *nfa, const Automaton &language, int32_t first,
                 std::vector<std::string_view> words, std::vector<int32_t> *accepting) {
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    // Words with the same first `depth` bytes, which lead to `state` of the language and `at` of the nfa.
    struct Node {
        std::span<const std::string_view> words;
        size_t depth;
        int32_t state;
        int32_t at;
    };
    std::vector<Node> waiting = {{words, 0, 0, first}};
    while (!waiting.empty()) {
        Node node = waiting.back();
        waiting.pop_back();
        if (!node.words.empty() && node.words[0].size() == node.depth) {
            node.words = node.words.subspan(1); // a word ends here
        } else if (language.accepting(node.state)) {
            accepting->push_back(node.at);
        }
        std::string branches;
        while (!node.words.empty()) {
            const char byte = node.words[0][node.depth];
            size_t count = 1;
            while (count < node.words.size() && node.words[count][node.depth] == byte) ++count;
            const auto read = static_cast<unsigned char>(byte);
            const int32_t to = language.next(node.state, read);
            if (to != Automaton::kDead) {
                branches += byte;
                waiting.push_back({node.words.subspan(0, count), node.depth + 1, to,
                                   nfa->add_step(node.at, read)});
            }
            node.words = node.words.subspan(count);
        }
        nfa->add_characters(node.state, node.at, branches);
        const bool escaped = std::any_of(branches.begin(), branches.end(), [](char byte) {
            return json_escaped(std::string_view(&byte, 1)).size() > 1;
        });
        if (escaped) {
            nfa->add_escapes(node.state, node.at, branches);
        } else {
            nfa->share_escapes(node.state, node.at);
        }
    }
}

} // namespace

Result<Automaton> json_quoted(const Automaton &language, std::string_view after,
                              const std::vector<std::string> &without, Budget *budget) {
    if (language.empty()) return language;
    size_t bytes = 0;
    for (const std::string &word : without) bytes += word.size();
    if (bytes > kMostNameBytes) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "more than %zu bytes of names together with free names", kMostNameBytes);
    }
    EscapedNfa escaped(language);
    Nfa &nfa = escaped.nfa();
    std::vector<int32_t> closing;
    for (int32_t state = 0; state < language.states(); ++state) {
        if (language.accepting(state)) closing.push_back(state);
    }
    int32_t first = 0;
    if (!without.empty()) {
        first = nfa.add_state();
        add_without(&escaped, language, first, {without.begin(), without.end()}, &closing);
    }
    const int32_t start = nfa.add_state();
    nfa.add_bytes(start, '"', '"', first);
    int32_t end = nfa.add_state();
    for (const int32_t state : closing) nfa.add_bytes(state, '"', '"', end);
    for (const char byte : after) {
        const int32_t next = nfa.add_state();
        nfa.add_bytes(end, static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), next);
        end = next;
    }
    return nfa.determinize(start, {end}, budget);
}

const Automaton &any_json_character() {
    static const Automaton character = [] {
        Nfa nfa;
        const int32_t from = nfa.add_state(), to = nfa.add_state();
        add_any_character(&nfa, from, to);
        Budget budget;
        return made(nfa.determinize(from, {to}, &budget));
    }();
    return character;
}

const Automaton &any_json_string() {
    static const Automaton string = [] {
        Nfa nfa;
        const int32_t from = nfa.add_state(), body = nfa.add_state(), to = nfa.add_state();
        nfa.add_bytes(from, '"', '"', body);
        add_any_character(&nfa, body, body);
        nfa.add_bytes(body, '"', '"', to);
        Budget budget;
        return made(nfa.determinize(from, {to}, &budget));
    }();
    return string;
}

} // namespace batchllm
