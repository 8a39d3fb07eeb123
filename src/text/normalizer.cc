#include "text/normalizer.h"

#include "text/nfc.h"

namespace batchllm {

void append_replaced(std::string_view text, std::string_view pattern, std::string_view content,
                     std::string *out) {
    size_t done = 0;
    for (size_t found; (found = text.find(pattern, done)) != std::string_view::npos;) {
        out->append(text.substr(done, found - done));
        out->append(content);
        done = found + pattern.size();
    }
    out->append(text.substr(done));
}

std::string_view Normalizer::apply(std::string_view text, std::string *buffer) const {
    std::string next;
    for (const NormalizerStep &step : steps_) {
        switch (step.kind) {
        case NormalizerStep::Kind::nfc:
            if (is_nfc(text)) continue;
            next.clear();
            append_nfc(text, &next);
            break;
        case NormalizerStep::Kind::prepend:
            if (text.empty()) continue;
            next = step.content;
            next.append(text);
            break;
        case NormalizerStep::Kind::replace:
            if (text.find(step.pattern) == std::string_view::npos) continue;
            next.clear();
            next.reserve(text.size() + text.size() / 4);
            append_replaced(text, step.pattern, step.content, &next);
            break;
        }
        buffer->swap(next);
        text = *buffer;
    }
    return text;
}

} // namespace batchllm
