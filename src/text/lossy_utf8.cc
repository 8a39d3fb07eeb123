#include "text/lossy_utf8.h"

#include <algorithm>

#include "text/utf8.h"

namespace batchllm {
namespace {

// How many bytes a character that starts with lead has; 0: no character starts with it.
size_t length_of(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) return 3;
    return lead < 0xF5 ? 4 : 0;
}

// Whether byte may come second after lead: no overlong form, no surrogate, nothing past U+10FFFF.
bool second_fits(unsigned char lead, unsigned char byte) {
    switch (lead) {
    case 0xE0:
        return byte >= 0xA0 && byte <= 0xBF;
    case 0xED:
        return byte >= 0x80 && byte <= 0x9F;
    case 0xF0:
        return byte >= 0x90 && byte <= 0xBF;
    case 0xF4:
        return byte >= 0x80 && byte <= 0x8F;
    default:
        return byte >= 0x80 && byte <= 0xBF;
    }
}

} // namespace

void LossyUtf8::push(std::string_view bytes, std::string *out) {
    std::string joined;
    if (!held_.empty()) {
        joined = held_;
        joined.append(bytes);
        bytes = joined;
        held_.clear();
    }
    size_t i = 0;
    while (i < bytes.size()) {
        const auto lead = static_cast<unsigned char>(bytes[i]);
        const size_t length = length_of(lead);
        size_t fits = std::min<size_t>(length, 1);
        while (fits > 0 && fits < length && i + fits < bytes.size()) {
            const auto byte = static_cast<unsigned char>(bytes[i + fits]);
            if (fits == 1 ? !second_fits(lead, byte) : !utf8_continues(bytes[i + fits])) break;
            ++fits;
        }
        if (fits == length && length > 0) {
            out->append(bytes.substr(i, length));
            i += length;
        } else if (fits > 0 && i + fits == bytes.size()) {
            held_.assign(bytes.substr(i));
            return;
        } else {
            out->append(kReplacementCharacter);
            i += std::max<size_t>(fits, 1);
        }
    }
}

void LossyUtf8::finish(std::string *out) {
    if (!held_.empty()) out->append(kReplacementCharacter);
    held_.clear();
}

} // namespace batchllm
