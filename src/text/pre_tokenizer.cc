#include "text/pre_tokenizer.h"

namespace batchllm {

void PreTokenizer::add_marks(const PreTokenizerStep &step, std::string_view piece, bool at_start,
                             std::string *out) {
    const bool starts = piece.starts_with(' ') || piece.starts_with(step.mark);
    const bool prepend = step.prepend == PreTokenizerStep::Prepend::always ||
                         (step.prepend == PreTokenizerStep::Prepend::first && at_start);
    out->reserve(piece.size() + piece.size() / 2 + step.mark.size());
    if (prepend && !starts) out->append(step.mark);
    for (const char byte : piece) {
        if (byte == ' ') {
            out->append(step.mark);
        } else {
            out->push_back(byte);
        }
    }
}

} // namespace batchllm
