#include "text/unicode.h"

#include <algorithm>
#include <map>
#include <vector>

#include "text/unicode_tables.h"

namespace batchllm {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

// Marks characters that NFC changes on their own, reorders, or joins to the previous one.
void mark_nfc_maybe(std::vector<uint16_t> *classes) {
    for (const ClassRange &range : unicode_tables::combining_ranges) {
        for (uint32_t point = range.first; point <= range.last; ++point) {
            (*classes)[point] |= kNfcMaybe;
        }
    }
    for (const Decomposition &row : unicode_tables::decompositions) {
        if (row.composes == 0) (*classes)[row.composed] |= kNfcMaybe;
        if (row.composes != 0) (*classes)[row.second] |= kNfcMaybe;
    }
    for (uint32_t jamo = 0x1161; jamo <= 0x1175; ++jamo) (*classes)[jamo] |= kNfcMaybe; // vowels
    for (uint32_t jamo = 0x11A8; jamo <= 0x11C2; ++jamo) (*classes)[jamo] |= kNfcMaybe; // finals
}

} // namespace

UnicodeClasses::UnicodeClasses() {
    std::vector<uint16_t> classes(kCodePoints, 0);
    for (const ClassRange &range : unicode_tables::class_ranges) {
        std::fill(classes.begin() + range.first, classes.begin() + range.last + 1, range.value);
    }
    classes['\r'] |= kNewline;
    classes['\n'] |= kNewline;
    mark_nfc_maybe(&classes);
    std::copy_n(classes.begin(), ascii_.size(), ascii_.begin());
    std::map<std::vector<uint16_t>, uint16_t> seen;
    for (uint32_t first = 0; first < kCodePoints; first += 128) {
        const std::vector<uint16_t> block(classes.begin() + first, classes.begin() + first + 128);
        const auto [place, is_new] = seen.emplace(block, static_cast<uint16_t>(seen.size()));
        if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
        index_.push_back(place->second);
    }
}

const UnicodeClasses &unicode_classes() {
    static const UnicodeClasses classes;
    return classes;
}

} // namespace batchllm
