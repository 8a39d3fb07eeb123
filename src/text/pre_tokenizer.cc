#include "text/pre_tokenizer.h"

namespace batchllm {
namespace {

// A separator, or the text before the next one.
struct Segment {
    size_t end;
    bool is_match; // with invert: the text between matches
};

Segment segment_at(const PreTokenizerStep &step, std::string_view piece, size_t from) {
    if (step.kind == PreTokenizerStep::Kind::split_at_any) {
        // An empty match ends the text before it, and is none itself.
        const auto match = step.matcher->find(piece, from);
        if (!match) return {piece.size(), step.invert};
        if (match->begin == from) return {match->end, !step.invert};
        return {match->begin, step.invert};
    }
    const std::string &separator = step.separator;
    if (piece.substr(from).starts_with(separator)) return {from + separator.size(), !step.invert};
    return {std::min(piece.find(separator, from), piece.size()), step.invert};
}

} // namespace

SplitPlace next_split_at(const PreTokenizerStep &step, std::string_view piece, size_t from) {
    using Behavior = PreTokenizerStep::Behavior;
    while (from < piece.size()) {
        const Segment first = segment_at(step, piece, from);
        if (step.behavior == Behavior::removed && first.is_match) {
            from = first.end;
            continue;
        }
        size_t end = first.end;
        // A match joins the text on one side of it, if that is text; equals join in a run of them.
        while (end < piece.size()) {
            const Segment next = segment_at(step, piece, end);
            const bool joins =
                step.behavior == Behavior::with_previous ? !first.is_match && next.is_match
                : step.behavior == Behavior::with_next   ? first.is_match && !next.is_match
                : step.behavior == Behavior::contiguous  ? first.is_match == next.is_match
                                                         : false;
            if (!joins) break;
            end = next.end;
            if (step.behavior != Behavior::contiguous) break;
        }
        return {from, end};
    }
    return {piece.size(), piece.size()};
}

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
