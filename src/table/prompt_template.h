// A template's text -> the pieces from which a row's prompt is assembled.
//
//     "Is this review kind?\nTitle: {title}\nReview: {text}\nAnswer:"
//
// {name} is replaced by the row's value of that field; {{ and }} write a brace. If fields may move,
// they move by lines: the lines from the first field to the last have one field each; the text
// before and after them stays.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace batchllm {

// Literal text, then the field after it; the last part has none.
struct TemplatePart {
    std::string text;
    int32_t field = -1; // index into PromptTemplate::fields
};

struct PromptTemplate {
    std::vector<std::string> fields; // distinct names, as they first appear
    std::vector<TemplatePart> parts;

    // Fails with INVALID_ARGUMENT, with the place in the text.
    static Result<PromptTemplate> parse(std::string_view text);
};

// A line with one field. If it has no text before the field, it starts with the field's name,
// because the value would have no label in another place.
struct FieldLine {
    std::string before;
    std::string after;
    int32_t field = -1;
};

// head, then the lines in any order, separated by line feeds, then tail.
struct MovableTemplate {
    std::string head;
    std::vector<FieldLine> lines; // each field once
    std::string tail;

    // Fails with INVALID_ARGUMENT if a line cannot be moved.
    static Result<MovableTemplate> of(const PromptTemplate &parsed);

    // The template with its lines in the order of these fields, which has each once.
    PromptTemplate in_order(const PromptTemplate &parsed, std::span<const int32_t> fields) const;
};

} // namespace batchllm
