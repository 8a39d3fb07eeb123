#include "constraint/json_schema/string.h"

#include <algorithm>
#include <deque>

#include "constraint/nfa.h"

namespace batchllm {

namespace {

constexpr int64_t kMostCountedStates = 100000;
constexpr int64_t kMostNameLength = 4096;

bool continues(int byte) { return (byte & 0xc0) == 0x80; }

// The number of code points in the shortest text of the language, which must not be empty.
int64_t least_code_points(const Automaton &language) {
    std::vector<int64_t> distance(static_cast<size_t>(language.states()), -1);
    std::deque<int32_t> waiting = {0};
    distance[0] = 0;
    while (!waiting.empty()) {
        const int32_t from = waiting.front();
        waiting.pop_front();
        const int64_t so_far = distance[static_cast<size_t>(from)];
        if (language.accepting(from)) return so_far;
        for (int byte = 0; byte < 256; ++byte) {
            const int32_t to = language.next(from, static_cast<uint8_t>(byte));
            if (to == Automaton::kDead || distance[static_cast<size_t>(to)] >= 0) continue;
            // Only a character's first byte counts.
            const int64_t step = continues(byte) ? 0 : 1;
            distance[static_cast<size_t>(to)] = so_far + step;
            if (step == 0) {
                waiting.push_front(to);
            } else {
                waiting.push_back(to);
            }
        }
    }
    return 0;
}

// The texts of the language with a number of code points in this range.
Result<Automaton> of_length(const Automaton &language, int64_t least, int64_t greatest,
                            Budget *budget) {
    if (language.empty()) return language;
    const int64_t most_bytes = language.greatest_bytes();
    if (most_bytes != kUnbounded && (greatest == kUnbounded || most_bytes <= greatest)) {
        greatest = kUnbounded;
    }
    if (least > 0 && least_code_points(language) >= least) least = 0;
    if (least == 0 && greatest == kUnbounded) return language;
    const int64_t most = greatest == kUnbounded ? least : greatest;
    if (most > kMostCountedStates / language.states()) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "a length of %lld together with a language of %d states",
                     static_cast<long long>(most), language.states());
    }
    // States are those of the language times the number of characters so far.
    Nfa nfa;
    std::vector<int32_t> seen(static_cast<size_t>(language.states() * (most + 1)), -1);
    std::vector<std::pair<int32_t, int64_t>> waiting;
    std::vector<int32_t> accepting;
    const auto enter = [&](int32_t state, int64_t count) {
        int32_t &place = seen[static_cast<size_t>(state * (most + 1) + count)];
        if (place < 0) {
            place = nfa.add_state();
            if (language.accepting(state) && count >= least) accepting.push_back(place);
            waiting.emplace_back(state, count);
        }
        return place;
    };
    const int32_t start = enter(0, 0);
    while (!waiting.empty()) {
        const auto [state, count] = waiting.back();
        waiting.pop_back();
        const int32_t from = seen[static_cast<size_t>(state * (most + 1) + count)];
        for (int byte = 0; byte < 256;) {
            const int32_t to = language.next(state, static_cast<uint8_t>(byte));
            int last = byte;
            while (last < 255 && continues(last + 1) == continues(byte) &&
                   language.next(state, static_cast<uint8_t>(last + 1)) == to) {
                ++last;
            }
            int64_t next = count + (continues(byte) ? 0 : 1);
            if (greatest == kUnbounded) next = std::min(next, least);
            if (to != Automaton::kDead && (greatest == kUnbounded || next <= greatest)) {
                nfa.add_bytes(from, static_cast<uint8_t>(byte), static_cast<uint8_t>(last),
                              enter(to, next));
            }
            byte = last + 1;
        }
    }
    return nfa.determinize(start, std::move(accepting), budget);
}

} // namespace

Result<StringSet> intersect(const StringSet &a, const StringSet &b, Budget *budget) {
    if (!a.language && !b.language) {
        return StringSet{std::nullopt, std::max(a.least, b.least),
                         Automaton::smaller_bound(a.greatest, b.greatest)};
    }
    if (a.language && b.language) {
        ASSIGN_OR_RETURN(Automaton both, intersect(*a.language, *b.language, budget));
        return StringSet{std::move(both), 0, kUnbounded};
    }
    const StringSet &language = a.language ? a : b;
    const StringSet &length = a.language ? b : a;
    ASSIGN_OR_RETURN(Automaton both,
                     of_length(*language.language, length.least, length.greatest, budget));
    return StringSet{std::move(both), 0, kUnbounded};
}

Result<std::vector<StringSet>> complement(const StringSet &set, Budget *budget) {
    std::vector<StringSet> out;
    if (set.language) {
        ASSIGN_OR_RETURN(Automaton others, complement(*set.language, budget));
        out.push_back({std::move(others), 0, kUnbounded});
        return out;
    }
    if (set.least > 0) out.push_back({std::nullopt, 0, set.least - 1});
    if (set.greatest != kUnbounded) out.push_back({std::nullopt, set.greatest + 1, kUnbounded});
    return out;
}

Result<Automaton> language_of(const StringSet &set, Budget *budget) {
    if (set.language) return *set.language;
    if (std::max(set.least, set.greatest) > kMostNameLength) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "names as long as %lld",
                     static_cast<long long>(std::max(set.least, set.greatest)));
    }
    return of_length(Automaton::any_text(), set.least, set.greatest, budget);
}

} // namespace batchllm
