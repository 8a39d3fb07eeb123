#include "text/nfc.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/unicode.h"
#include "text/unicode_tables.h"
#include "text/utf8.h"

namespace batchllm {
namespace {

// Hangul syllables are composed by arithmetic (The Unicode Standard, 3.12).
constexpr uint32_t kSyllables = 0xAC00;
constexpr uint32_t kInitials = 0x1100;
constexpr uint32_t kVowels = 0x1161;
constexpr uint32_t kFinals = 0x11A7; // one before the first
constexpr uint32_t kInitialCount = 19;
constexpr uint32_t kVowelCount = 21;
constexpr uint32_t kFinalCount = 28;
constexpr uint32_t kSyllableCount = kInitialCount * kVowelCount * kFinalCount;

struct Character {
    uint32_t point;
    uint8_t combining; // canonical combining class
};

uint8_t combining_class(uint32_t point) {
    const auto &table = unicode_tables::combining_ranges;
    const auto *range = std::upper_bound(
        std::begin(table), std::end(table), point,
        [](uint32_t value, const ValueRange &entry) { return value < entry.first; });
    if (range == std::begin(table)) return 0;
    --range;
    return static_cast<uint8_t>(point <= range->last ? range->value : 0);
}

// 0: the two do not compose.
uint32_t compose(uint32_t first, uint32_t second) {
    if (first - kInitials < kInitialCount && second - kVowels < kVowelCount) {
        return kSyllables + ((first - kInitials) * kVowelCount + (second - kVowels)) * kFinalCount;
    }
    if (first - kSyllables < kSyllableCount && (first - kSyllables) % kFinalCount == 0 &&
        second - kFinals - 1 < kFinalCount - 1) {
        return first + (second - kFinals);
    }
    // All pairs that compose, in order; made once from the table of decompositions.
    static const std::vector<Decomposition> pairs = [] {
        std::vector<Decomposition> result;
        for (const Decomposition &row : unicode_tables::decompositions) {
            if (row.composes != 0) result.push_back(row);
        }
        std::sort(result.begin(), result.end(), [](const auto &a, const auto &b) {
            return std::pair(a.first, a.second) < std::pair(b.first, b.second);
        });
        return result;
    }();
    const auto pair =
        std::lower_bound(pairs.begin(), pairs.end(), std::pair(first, second),
                         [](const Decomposition &row, const std::pair<uint32_t, uint32_t> &value) {
                             return std::pair(row.first, row.second) < value;
                         });
    return pair != pairs.end() && pair->first == first && pair->second == second ? pair->composed
                                                                                 : 0;
}

void append_decomposed(uint32_t point, std::vector<Character> *out) {
    if (point - kSyllables < kSyllableCount) {
        const uint32_t index = point - kSyllables;
        out->push_back({kInitials + index / (kVowelCount * kFinalCount), 0});
        out->push_back({kVowels + index / kFinalCount % kVowelCount, 0});
        if (index % kFinalCount != 0) out->push_back({kFinals + index % kFinalCount, 0});
        return;
    }
    const auto &table = unicode_tables::decompositions;
    const auto *row = std::lower_bound(
        std::begin(table), std::end(table), point,
        [](const Decomposition &entry, uint32_t value) { return entry.composed < value; });
    if (row == std::end(table) || row->composed != point) {
        out->push_back({point, combining_class(point)});
        return;
    }
    append_decomposed(row->first, out); // at most four levels deep
    if (row->second != 0) append_decomposed(row->second, out);
}

void order_marks(std::vector<Character> *characters) {
    auto at = characters->begin();
    while (at != characters->end()) {
        if (at->combining == 0) {
            ++at;
            continue;
        }
        const auto end = std::find_if(at, characters->end(),
                                      [](const Character &c) { return c.combining == 0; });
        std::stable_sort(at, end, [](const Character &a, const Character &b) {
            return a.combining < b.combining;
        });
        at = end;
    }
}

void compose_all(std::vector<Character> *characters) {
    size_t kept = 0;
    size_t starter = SIZE_MAX; // index of the last kept character of class 0
    for (const Character next : *characters) {
        // Only characters of a lower class may be between the starter and a character that joins
        // it.
        if (starter != SIZE_MAX &&
            (kept - 1 == starter || (*characters)[kept - 1].combining < next.combining)) {
            if (const uint32_t joined = compose((*characters)[starter].point, next.point)) {
                (*characters)[starter].point = joined;
                continue;
            }
        }
        if (next.combining == 0) starter = kept;
        (*characters)[kept++] = next;
    }
    characters->resize(kept);
}

} // namespace

bool is_nfc(std::string_view text) {
    const UnicodeClasses &classes = unicode_classes();
    const char *p = text.data();
    const char *const end = p + text.size();
    while (p < end) {
        if (static_cast<unsigned char>(*p) < 0xCC) { // below U+0300 nothing changes
            p += utf8_length(*p);
            continue;
        }
        int32_t length = 0;
        if ((classes.of(utf8_decode(p, &length)) & kNfcMaybe) != 0) return false;
        p += length;
    }
    return true;
}

void append_nfc(std::string_view text, std::string *out) {
    std::vector<Character> characters;
    characters.reserve(text.size());
    const char *p = text.data();
    const char *const end = p + text.size();
    while (p < end) {
        int32_t length = 0;
        append_decomposed(utf8_decode(p, &length), &characters);
        p += length;
    }
    order_marks(&characters);
    compose_all(&characters);
    for (const Character &character : characters) utf8_append(character.point, out);
}

} // namespace batchllm
