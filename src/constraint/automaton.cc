#include "constraint/automaton.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "constraint/index.h"
#include "constraint/minimize.h"
#include "constraint/nfa.h"

namespace batchllm {
namespace {

// The pairs of states to which a text leads. If b cannot continue, its state is kDead; if a cannot continue,
// neither does.
Result<Automaton> product(const Automaton &a, const Automaton &b, bool both, Budget *budget) {
    DfaTable table;
    bool splits[256] = {};
    for (int32_t byte = 1; byte < 256; ++byte) {
        const auto here = static_cast<uint8_t>(byte);
        const auto before = static_cast<uint8_t>(byte - 1);
        splits[byte] =
            a.class_of(here) != a.class_of(before) || b.class_of(here) != b.class_of(before);
    }
    set_byte_runs(splits, &table);
    uint8_t first_byte[256] = {};
    for (int32_t byte = 255; byte >= 0; --byte)
        first_byte[table.class_of[byte]] = static_cast<uint8_t>(byte);

    std::unordered_map<uint64_t, int32_t> numbers;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    const auto number = [&](int32_t x, int32_t y) {
        const uint64_t key = uint64_t{static_cast<uint32_t>(x)} << 32 | static_cast<uint32_t>(y);
        const auto [place, fresh] = numbers.emplace(key, table.states());
        if (fresh) {
            const bool in_b = y != Automaton::kDead && b.accepting(y);
            table.add_state(a.accepting(x) && in_b == both);
            pairs.emplace_back(x, y);
        }
        return place->second;
    };
    if (a.empty() || (both && b.empty())) return Automaton();
    number(0, b.empty() ? Automaton::kDead : 0);
    for (size_t i = 0; i < pairs.size(); ++i) {
        RETURN_IF_ERROR(budget->spend_states(1 + table.classes / 32));
        RETURN_IF_ERROR(budget->spend_work(table.classes));
        const auto [x, y] = pairs[i];
        for (int32_t c = 0; c < table.classes; ++c) {
            const int32_t x_next = a.next(x, first_byte[c]);
            const int32_t y_next = y == Automaton::kDead ? y : b.next(y, first_byte[c]);
            if (x_next == Automaton::kDead || (both && y_next == Automaton::kDead)) continue;
            const int32_t target = number(x_next, y_next);
            table.at(static_cast<int32_t>(i), c) = target;
        }
    }
    return AutomatonMaker::minimal(table);
}

} // namespace

Automaton Automaton::empty_string() { return literal({}); }

Automaton Automaton::literal(std::string_view bytes) {
    DfaTable table;
    bool splits[256] = {};
    for (const char c : bytes) {
        const auto byte = static_cast<uint8_t>(c);
        splits[byte] = true;
        if (byte < 255) splits[byte + 1] = true;
    }
    set_byte_runs(splits, &table);
    table.add_state(bytes.empty());
    for (size_t i = 0; i < bytes.size(); ++i) {
        const int32_t next = table.add_state(i + 1 == bytes.size());
        table.at(next - 1, table.class_of[static_cast<uint8_t>(bytes[i])]) = next;
    }
    return AutomatonMaker::minimal(table);
}

Result<Automaton> Automaton::strings(std::vector<std::string> strings, Budget *budget) {
    DfaTable table;
    bool splits[256] = {};
    for (const std::string &text : strings) {
        for (const char c : text) {
            const auto byte = static_cast<uint8_t>(c);
            splits[byte] = true;
            if (byte < 255) splits[byte + 1] = true;
        }
    }
    if (strings.empty()) return Automaton();
    set_byte_runs(splits, &table);
    table.add_state(false);
    for (const std::string &text : strings) {
        RETURN_IF_ERROR(budget->spend_work(static_cast<int64_t>(text.size()) + 1));
        int32_t state = 0;
        for (const char c : text) {
            const int32_t byte_class = table.class_of[static_cast<uint8_t>(c)];
            int32_t next = table.at(state, byte_class);
            if (next == kDead) {
                RETURN_IF_ERROR(budget->spend_states(1 + table.classes / 32));
                next = table.add_state(false);
                table.at(state, byte_class) = next;
            }
            state = next;
        }
        table.accepting[at(state)] = 1;
    }
    return AutomatonMaker::minimal(table);
}

Automaton Automaton::byte_range(uint8_t first, uint8_t last) {
    if (first > last) return {};
    DfaTable table;
    bool splits[256] = {};
    splits[first] = true;
    if (last < 255) splits[last + 1] = true;
    set_byte_runs(splits, &table);
    table.add_state(false);
    table.add_state(true);
    table.at(0, table.class_of[first]) = 1;
    return AutomatonMaker::minimal(table);
}

Automaton Automaton::code_points(uint32_t first, uint32_t last) {
    const std::pair<uint32_t, uint32_t> range{first, last};
    Budget budget; // one range takes a few dozen states
    return code_points({&range, 1}, &budget).value();
}

Result<Automaton> Automaton::code_points(std::span<const std::pair<uint32_t, uint32_t>> ranges,
                                         Budget *budget) {
    Nfa nfa;
    const int32_t start = nfa.add_state();
    const int32_t end = nfa.add_state();
    for (const auto &[first, last] : ranges) nfa.add_code_points(start, first, last, end);
    return nfa.determinize(start, {end}, budget);
}

const Automaton &Automaton::any_text() {
    static const Automaton made = [] {
        Budget budget;
        return repeat(code_points(0, 0x10FFFF), 0, kUnbounded, &budget).value();
    }();
    return made;
}

bool Automaton::matches(std::string_view bytes) const {
    if (empty()) return false;
    int32_t state = 0;
    for (const char c : bytes) {
        state = next(state, static_cast<uint8_t>(c));
        if (state == kDead) return false;
    }
    return accepting(state);
}

// The length of the longest path from each state to the end of a string, found backwards from the
// last states. A state on a cycle never has all its successors done.
int64_t Automaton::greatest_bytes() const {
    const int32_t n = states();
    std::vector<int32_t> open(at(n), 0); // edges to states that are not done
    std::vector<std::vector<int32_t>> from(at(n));
    for (int32_t state = 0; state < n; ++state) {
        for (int32_t c = 0; c < classes(); ++c) {
            const int32_t to = tables_->next[at(state) * at(classes()) + at(c)];
            if (to == kDead) continue;
            ++open[at(state)];
            from[at(to)].push_back(state);
        }
    }
    std::vector<int64_t> longest(at(n), 0);
    std::vector<int32_t> done;
    for (int32_t state = 0; state < n; ++state)
        if (open[at(state)] == 0) done.push_back(state);
    for (size_t i = 0; i < done.size(); ++i) {
        for (const int32_t before : from[at(done[i])]) {
            longest[at(before)] = std::max(longest[at(before)], longest[at(done[i])] + 1);
            if (--open[at(before)] == 0) done.push_back(before);
        }
    }
    return static_cast<int32_t>(done.size()) < n ? kUnbounded : longest[0];
}

bool Automaton::finite() const { return empty() || greatest_bytes() != kUnbounded; }

std::string Automaton::shortest() const {
    // Breadth first; the first path that reaches a state is the shortest.
    std::vector<std::pair<int32_t, char>> came(at(states()), {kDead, 0});
    std::vector<int32_t> queue(1, 0);
    for (size_t i = 0; i < queue.size(); ++i) {
        const int32_t state = queue[i];
        if (accepting(state)) {
            std::string text;
            for (int32_t s = state; s != 0; s = came[at(s)].first) text += came[at(s)].second;
            std::reverse(text.begin(), text.end());
            return text;
        }
        for (int32_t byte = 0; byte < 256; ++byte) {
            const int32_t to = next(state, static_cast<uint8_t>(byte));
            if (to <= 0 || came[at(to)].first != kDead) continue;
            came[at(to)] = {state, static_cast<char>(byte)};
            queue.push_back(to);
        }
    }
    return {};
}

int64_t Automaton::least_bytes() const { return static_cast<int64_t>(shortest().size()); }

Result<std::vector<std::string>> Automaton::enumerate(int64_t limit) const {
    std::vector<std::string> found;
    if (empty()) return found;
    const auto too_many = [limit] {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "more than %lld strings",
                     static_cast<long long>(limit));
    };
    if (!finite()) return too_many();
    // Depth first. Every state leads to a string, so the lengths of the strings bound the work.
    std::string text;
    std::vector<std::pair<int32_t, int32_t>> path{{0, 0}}; // state, next byte to try
    while (!path.empty()) {
        auto &[state, byte] = path.back();
        if (byte == 0 && accepting(state)) {
            if (static_cast<int64_t>(found.size()) == limit) return too_many();
            found.push_back(text);
        }
        while (byte < 256 && next(state, static_cast<uint8_t>(byte)) == kDead) ++byte;
        if (byte == 256) {
            path.pop_back();
            if (!text.empty()) text.pop_back();
            continue;
        }
        const int32_t to = next(state, static_cast<uint8_t>(byte));
        text += static_cast<char>(byte++);
        path.emplace_back(to, 0);
    }
    return found;
}

bool Automaton::operator==(const Automaton &other) const {
    if (tables_ == other.tables_) return true;
    if (empty() || other.empty() || tables_->hash != other.tables_->hash) return false;
    return std::equal(std::begin(tables_->class_of), std::end(tables_->class_of),
                      std::begin(other.tables_->class_of)) &&
           tables_->next == other.tables_->next && tables_->accepting == other.tables_->accepting;
}

uint64_t Automaton::hash() const { return empty() ? 0 : tables_->hash; }

Result<Automaton> concat(const Automaton &a, const Automaton &b, Budget *budget) {
    const Automaton parts[] = {a, b};
    return concat(parts, budget);
}

Result<Automaton> concat(std::span<const Automaton> parts, Budget *budget) {
    Nfa nfa;
    const int32_t start = nfa.add_state();
    int32_t state = start;
    for (const Automaton &part : parts) {
        const int32_t end = nfa.add_state();
        nfa.add_automaton(state, part, end);
        state = end;
    }
    return nfa.determinize(start, {state}, budget);
}

Result<Automaton> unite(const Automaton &a, const Automaton &b, Budget *budget) {
    const Automaton parts[] = {a, b};
    return unite(parts, budget);
}

Result<Automaton> unite(std::span<const Automaton> alternatives, Budget *budget) {
    Nfa nfa;
    const int32_t start = nfa.add_state();
    const int32_t end = nfa.add_state();
    for (const Automaton &alternative : alternatives) nfa.add_automaton(start, alternative, end);
    return nfa.determinize(start, {end}, budget);
}

Result<Automaton> repeat(const Automaton &a, int64_t least, int64_t greatest, Budget *budget) {
    const bool unbounded = greatest == Automaton::kUnbounded;
    if (!unbounded && greatest < least) return Automaton();
    Nfa nfa;
    const int32_t start = nfa.add_state();
    const int32_t end = nfa.add_state();
    int32_t state = start;
    const int64_t copies = unbounded ? least : greatest;
    for (int64_t i = 0; i < copies; ++i) {
        RETURN_IF_ERROR(budget->spend_states(a.states() + 1));
        if (i >= least) nfa.add_empty(state, end);
        const int32_t after = nfa.add_state();
        nfa.add_automaton(state, a, after);
        state = after;
    }
    nfa.add_empty(state, end);
    if (unbounded) {
        const int32_t again = nfa.add_state();
        nfa.add_empty(state, again);
        nfa.add_automaton(again, a, again);
        nfa.add_empty(again, end);
    }
    return nfa.determinize(start, {end}, budget);
}

Result<Automaton> intersect(const Automaton &a, const Automaton &b, Budget *budget) {
    return product(a, b, true, budget);
}

Result<Automaton> subtract(const Automaton &a, const Automaton &b, Budget *budget) {
    return product(a, b, false, budget);
}

Result<Automaton> complement(const Automaton &a, Budget *budget) {
    return subtract(Automaton::any_text(), a, budget);
}

Result<bool> included(const Automaton &a, const Automaton &b, Budget *budget) {
    ASSIGN_OR_RETURN(const Automaton rest, subtract(a, b, budget));
    return rest.empty();
}

Result<Automaton> prefixes(const Automaton &a, Budget *budget) {
    if (a.empty()) return Automaton();
    Nfa nfa;
    const int32_t start = nfa.add_state();
    const int32_t end = nfa.add_state();
    nfa.add_automaton(start, a, end);
    std::vector<int32_t> accepting;
    for (int32_t state = 0; state < nfa.states(); ++state) accepting.push_back(state);
    return nfa.determinize(start, accepting, budget);
}

} // namespace batchllm
