#include "image/decode_row.h"

#include "image/picture.h"

namespace batchllm {

Result<std::string> decode_row(const Tokenizer &tokenizer, std::span<const int32_t> tokens) {
    std::string text;
    for (size_t begin = 0; begin < tokens.size();) {
        const bool picture = tokens[begin] >= first_picture_id;
        size_t end = begin + 1;
        while (end < tokens.size() &&
               (picture ? tokens[end] == tokens[begin] : tokens[end] < first_picture_id)) {
            ++end;
        }
        if (picture) {
            text += "[picture]";
        } else {
            ASSIGN_OR_RETURN(const std::string part,
                             tokenizer.decode(tokens.subspan(begin, end - begin), false));
            text += part;
        }
        begin = end;
    }
    return text;
}

} // namespace batchllm
