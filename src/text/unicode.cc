#include "text/unicode.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "text/unicode_tables.h"

namespace batchllm {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

uint16_t class_of(std::string_view category) {
    switch (category[0]) {
    case 'L':
        if (category[1] == 'u' || category[1] == 't') return kLetter | kWord | kUpper;
        return category[1] == 'l' ? kLetter | kWord | kLower : kLetter | kWord;
    case 'M':
        return kMark | kWord;
    case 'N':
        return category[1] == 'o' ? kNumber | kNumeric : kNumber | kNumeric | kWord;
    case 'P':
        return category[1] == 'c' ? kWord : 0;
    case 'Z':
        return kSpace;
    default:
        return 0;
    }
}

// Bits that do not follow from the category: ranges of code points that have them too.
constexpr ValueRange kOtherBits[] = {
    {0x09, 0x0D, kSpace},         {0x85, 0x85, kSpace},      {0x200C, 0x200D, kWord}, // joiners
    {0x24B6, 0x24E9, kWord}, // alphabetic: circled and squared Latin letters
    {0x1F130, 0x1F149, kWord},    {0x1F150, 0x1F169, kWord}, {0x1F170, 0x1F189, kWord},
    {0x11DE0, 0x11DE9, kNumeric}, // numbers since Unicode 17, which the reference's Digits splits
    {0x16FF4, 0x16FF6, kNumeric},
};

// Marks characters that NFC changes on their own, reorders, or joins to the previous one.
void mark_nfc_maybe(std::vector<uint16_t> *classes) {
    for (const ValueRange &range : unicode_tables::combining_ranges) {
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

std::string_view unicode_category(uint32_t point) {
    const auto *const after = std::upper_bound(
        std::begin(unicode_tables::category_runs), std::end(unicode_tables::category_runs), point,
        [](uint32_t value, const CategoryRun &run) { return value < run.first; });
    const CategoryRun &run = *std::prev(after);
    const bool second = run.categories[2] != 0 && (point - run.first) % 2 == 1;
    return {run.categories + (second ? 2 : 0), 2};
}

void for_each_category(const std::function<void(uint32_t, uint32_t, std::string_view)> &each) {
    for (auto run = std::begin(unicode_tables::category_runs);
         run != std::end(unicode_tables::category_runs); ++run) {
        const bool last = std::next(run) == std::end(unicode_tables::category_runs);
        const uint32_t end = last ? kCodePoints : std::next(run)->first;
        const uint32_t step = run->categories[2] == 0 ? end - run->first : 1;
        for (uint32_t point = run->first; point < end; point += step) {
            each(point, point + step - 1, unicode_category(point));
        }
    }
}

void for_each_script(const std::function<void(uint32_t, uint32_t, std::string_view)> &each) {
    for (const ScriptRange &range : unicode_tables::script_ranges) {
        each(range.first, range.last, range.script);
    }
}

UnicodeClasses::UnicodeClasses() {
    std::vector<uint16_t> classes(kCodePoints, 0);
    for_each_category([&](uint32_t first, uint32_t last, std::string_view category) {
        std::fill(classes.begin() + first, classes.begin() + last + 1, class_of(category));
    });
    for (const ValueRange &range : kOtherBits) {
        for (uint32_t point = range.first; point <= range.last; ++point) {
            classes[point] |= range.value;
        }
    }
    classes['\r'] |= kNewline;
    classes['\n'] |= kNewline;
    mark_nfc_maybe(&classes);
    std::copy_n(classes.begin(), ascii_.size(), ascii_.begin());
    table_ = CodePointTable(classes);
}

const UnicodeClasses &unicode_classes() {
    static const UnicodeClasses classes;
    return classes;
}

} // namespace batchllm
