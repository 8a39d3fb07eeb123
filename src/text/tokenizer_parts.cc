#include "text/tokenizer_parts.h"

#include <algorithm>

#include "text/utf8.h"

namespace batchllm {
namespace {

constexpr int64_t kMostStripped = 1 << 20;
constexpr size_t kMostPatternBytes = 4096;
// Checked at each step, since check_growth() goes through all of them.
constexpr size_t kMostNormalizerSteps = 16, kMostDecoderSteps = 64;
constexpr size_t kMostGrowth = 256; // more than any tokenizer needs, and little enough for memory

// Replacements multiply: a few short ones would turn a short text into gigabytes. `step` is the
// last one.
template <typename Step>
Status check_growth(const JsonValue &step, const std::vector<Step> &steps) {
    size_t growth = 1;
    for (const Step &each : steps) {
        if (each.kind != Step::Kind::replace) continue;
        const size_t ratio = (each.content.size() + each.pattern.size() - 1) / each.pattern.size();
        if (ratio > kMostGrowth || (growth *= std::max<size_t>(ratio, 1)) > kMostGrowth) {
            return step.unsupported("replacements that make a text more than " +
                                    std::to_string(kMostGrowth) + " times as long");
        }
    }
    return {};
}

// What Split and Punctuation do with what they find.
Result<PreTokenizerStep::Behavior> read_behavior(const JsonValue &part) {
    using Behavior = PreTokenizerStep::Behavior;
    ASSIGN_OR_RETURN(const std::string behavior, part.string("behavior"));
    constexpr std::pair<std::string_view, Behavior> known[] = {
        {"Removed", Behavior::removed},
        {"Isolated", Behavior::isolated},
        {"MergedWithPrevious", Behavior::with_previous},
        {"MergedWithNext", Behavior::with_next},
        {"Contiguous", Behavior::contiguous}};
    for (const auto &[name, value] : known) {
        if (name == behavior) return value;
    }
    return part.fail("behavior " + in_quotes(behavior) + " is not known");
}

// The step with the expression. where: for errors.
Result<PreTokenizerStep> split_at_any(PreTokenizerStep step, const std::string &regex,
                                      const JsonValue &where) {
    using Behavior = PreTokenizerStep::Behavior;
    Result<RegexMatcher> matcher = RegexMatcher::make(regex);
    if (!matcher.ok()) {
        if (is_failure_of_process(matcher.status().code())) return std::move(matcher).status();
        return where.unsupported("regular expression " + printable(regex, 400) + ": " +
                                 matcher.status().message());
    }
    step.kind = PreTokenizerStep::Kind::split_at_any;
    step.separator = regex;
    step.matcher = std::make_shared<const RegexMatcher>(std::move(matcher).value());
    if (step.matcher->may_be_empty() && step.behavior != Behavior::isolated &&
        step.behavior != Behavior::removed)
        return where.unsupported("regular expression " + printable(regex, 400) +
                                 ": it may match the empty text, with this behavior");
    return step;
}

Result<PreTokenizerStep> read_split(const JsonValue &part) {
    RETURN_IF_ERROR(part.only_keys({"type", "pattern", "behavior", "invert"}));
    ASSIGN_OR_RETURN(const JsonValue pattern, part.at("pattern"));
    RETURN_IF_ERROR(pattern.only_keys({"Regex", "String"}));
    using Behavior = PreTokenizerStep::Behavior;
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::split_at};
    ASSIGN_OR_RETURN(step.behavior, read_behavior(part));
    ASSIGN_OR_RETURN(step.invert, part.boolean("invert"));
    if (pattern.given("String").has_value()) {
        ASSIGN_OR_RETURN(step.separator, read_string_pattern(pattern));
        return step;
    }
    ASSIGN_OR_RETURN(const std::string regex, pattern.string("Regex"));
    // The known patterns leave no text between matches, so isolating the matches is the same as removing
    // everything else.
    const auto known = split_pattern_of(regex);
    if (known && (step.behavior == Behavior::isolated ||
                  (step.behavior == Behavior::removed && step.invert)))
        return PreTokenizerStep{.kind = PreTokenizerStep::Kind::split, .pattern = *known};
    if (regex.empty()) return pattern.unsupported("an empty pattern");
    if (regex.size() > kMostPatternBytes) return pattern.unsupported("longer than 4096 bytes");
    return split_at_any(std::move(step), regex, pattern);
}

Status read_byte_level(const JsonValue &part, TokenizerSpec *spec) {
    RETURN_IF_ERROR(part.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    ASSIGN_OR_RETURN(const bool prefix, part.boolean("add_prefix_space"));
    RETURN_IF_ERROR(part.boolean("trim_offsets").status()); // offsets are not kept
    ASSIGN_OR_RETURN(const bool use_regex, part.boolean_or("use_regex", true));
    if (prefix) spec->pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::prefix_space});
    if (use_regex) spec->pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::split});
    spec->byte_level = true;
    return {};
}

// Metaspace, as a pre-tokenizer and as a decoder.
Result<PreTokenizerStep> read_metaspace(const JsonValue &part) {
    RETURN_IF_ERROR(part.only_keys(
        {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::metaspace};
    ASSIGN_OR_RETURN(step.mark, read_character(part, "replacement"));
    if (step.mark == " ") return part.unsupported("a space as the replacement");
    const std::optional<JsonValue> named_scheme = part.given("prepend_scheme");
    std::string scheme = "always";
    if (named_scheme.has_value()) {
        ASSIGN_OR_RETURN(scheme, named_scheme->string());
    }
    ASSIGN_OR_RETURN(const bool prefix, part.boolean_or("add_prefix_space", true));
    if (scheme == "always") {
        step.prepend = PreTokenizerStep::Prepend::always;
    } else if (scheme == "first") {
        step.prepend = PreTokenizerStep::Prepend::first;
    } else if (scheme == "never") {
        step.prepend = PreTokenizerStep::Prepend::never;
    } else {
        return named_scheme->fail("neither always, first nor never");
    }
    if (!prefix && scheme != "never") {
        if (named_scheme.has_value()) {
            return part.fail("add_prefix_space false contradicts prepend_scheme " + scheme);
        }
        return part.fail("add_prefix_space false without prepend_scheme never");
    }
    ASSIGN_OR_RETURN(step.cut, part.boolean_or("split", true));
    return step;
}

Result<PreTokenizerStep> read_digits(const JsonValue &part) {
    RETURN_IF_ERROR(part.only_keys({"type", "individual_digits"}));
    ASSIGN_OR_RETURN(const bool each, part.boolean_or("individual_digits", false));
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::split};
    step.pattern = each ? SplitPattern::digits_each : SplitPattern::digits;
    return step;
}

} // namespace

Result<std::string> read_string_pattern(const JsonValue &pattern) {
    RETURN_IF_ERROR(pattern.only_keys({"String", "Regex"}));
    if (!pattern.given("String").has_value()) {
        return pattern.unsupported("only patterns of kind String are supported");
    }
    ASSIGN_OR_RETURN(std::string text, pattern.string("String"));
    if (text.empty()) return pattern.unsupported("an empty pattern");
    if (text.size() > kMostPatternBytes) return pattern.unsupported("longer than 4096 bytes");
    return text;
}

Result<std::string> read_character(const JsonValue &object, std::string_view key) {
    ASSIGN_OR_RETURN(const JsonValue value, object.at(key));
    ASSIGN_OR_RETURN(std::string text, value.string());
    if (text.empty() || static_cast<size_t>(utf8_length(text[0])) != text.size()) {
        return value.fail("not one character");
    }
    return text;
}

Status read_normalizer(const JsonValue &part, std::vector<NormalizerStep> *steps) {
    ASSIGN_OR_RETURN(const std::string type, part.string("type"));
    if (type == "Sequence") {
        RETURN_IF_ERROR(part.only_keys({"type", "normalizers"}));
        ASSIGN_OR_RETURN(const JsonValue list, part.at("normalizers"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.elements());
        for (const JsonValue &item : items) {
            RETURN_IF_ERROR(read_normalizer(item, steps));
            if (steps->size() > kMostNormalizerSteps) return list.unsupported("more than 16 steps");
        }
        return {};
    }
    if (type == "NFC") {
        RETURN_IF_ERROR(part.only_keys({"type"}));
        steps->push_back({NormalizerStep::Kind::nfc, {}, {}});
        return {};
    }
    if (type == "Prepend") {
        RETURN_IF_ERROR(part.only_keys({"type", "prepend"}));
        ASSIGN_OR_RETURN(std::string content, part.string("prepend"));
        if (content.size() > kMostPatternBytes) return part.unsupported("longer than 4096 bytes");
        steps->push_back({NormalizerStep::Kind::prepend, {}, std::move(content)});
        return {};
    }
    if (type == "Replace") {
        RETURN_IF_ERROR(part.only_keys({"type", "pattern", "content"}));
        ASSIGN_OR_RETURN(const JsonValue value, part.at("pattern"));
        ASSIGN_OR_RETURN(std::string pattern, read_string_pattern(value));
        ASSIGN_OR_RETURN(std::string content, part.string("content"));
        steps->push_back({NormalizerStep::Kind::replace, std::move(pattern), std::move(content)});
        return check_growth(part, *steps);
    }
    return part.unsupported("normalizer " + in_quotes(type) + " is not supported");
}

Status read_pre_tokenizer(const JsonValue &part, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const std::string type, part.string("type"));
    if (spec->byte_level) return part.unsupported("nothing is supported after ByteLevel");
    if (type == "Sequence") {
        RETURN_IF_ERROR(part.only_keys({"type", "pretokenizers"}));
        ASSIGN_OR_RETURN(const JsonValue list, part.at("pretokenizers"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.elements());
        if (items.size() > 16) return list.unsupported("more than 16 steps");
        for (const JsonValue &item : items) RETURN_IF_ERROR(read_pre_tokenizer(item, spec));
        return {};
    }
    if (type == "ByteLevel") return read_byte_level(part, spec);
    if (type == "Split") {
        ASSIGN_OR_RETURN(PreTokenizerStep step, read_split(part));
        spec->pre_tokenizer.push_back(std::move(step));
        return {};
    }
    if (type == "Digits") {
        ASSIGN_OR_RETURN(PreTokenizerStep step, read_digits(part));
        spec->pre_tokenizer.push_back(std::move(step));
        return {};
    }
    if (type == "Metaspace") {
        for (const PreTokenizerStep &earlier : spec->pre_tokenizer) {
            if (earlier.kind == PreTokenizerStep::Kind::metaspace) {
                return part.unsupported("a second Metaspace");
            }
        }
        ASSIGN_OR_RETURN(PreTokenizerStep step, read_metaspace(part));
        spec->pre_tokenizer.push_back(std::move(step));
        return {};
    }
    return part.unsupported("pre-tokenizer " + in_quotes(type) + " is not supported");
}

Status read_decoder(const JsonValue &part, std::vector<DecoderStep> *steps) {
    ASSIGN_OR_RETURN(const std::string type, part.string("type"));
    if (type == "Sequence") {
        RETURN_IF_ERROR(part.only_keys({"type", "decoders"}));
        ASSIGN_OR_RETURN(const JsonValue list, part.at("decoders"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.elements());
        for (const JsonValue &item : items) {
            RETURN_IF_ERROR(read_decoder(item, steps));
            if (steps->size() > kMostDecoderSteps) return list.unsupported("more than 64 steps");
        }
        return {};
    }
    if (type == "ByteFallback" || type == "Fuse") {
        RETURN_IF_ERROR(part.only_keys({"type"}));
        steps->push_back(
            {.kind = type == "Fuse" ? DecoderStep::Kind::fuse : DecoderStep::Kind::byte_fallback});
        return {};
    }
    if (type == "ByteLevel") {
        RETURN_IF_ERROR(part.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
        steps->push_back({.kind = DecoderStep::Kind::byte_level});
        return {};
    }
    if (type == "Metaspace") {
        ASSIGN_OR_RETURN(const PreTokenizerStep metaspace, read_metaspace(part));
        DecoderStep step{.kind = DecoderStep::Kind::metaspace, .pattern = metaspace.mark};
        step.drop_first = metaspace.prepend != PreTokenizerStep::Prepend::never;
        steps->push_back(std::move(step));
        return {};
    }
    if (type == "Replace") {
        RETURN_IF_ERROR(part.only_keys({"type", "pattern", "content"}));
        DecoderStep step{.kind = DecoderStep::Kind::replace};
        ASSIGN_OR_RETURN(const JsonValue pattern, part.at("pattern"));
        ASSIGN_OR_RETURN(step.pattern, read_string_pattern(pattern));
        ASSIGN_OR_RETURN(step.content, part.string("content"));
        steps->push_back(std::move(step));
        return check_growth(part, *steps);
    }
    if (type == "Strip") {
        RETURN_IF_ERROR(part.only_keys({"type", "content", "start", "stop"}));
        DecoderStep step{.kind = DecoderStep::Kind::strip};
        ASSIGN_OR_RETURN(step.content, read_character(part, "content"));
        ASSIGN_OR_RETURN(const JsonValue start, part.at("start"));
        ASSIGN_OR_RETURN(step.start, start.integer(0, kMostStripped));
        ASSIGN_OR_RETURN(const JsonValue stop, part.at("stop"));
        ASSIGN_OR_RETURN(step.stop, stop.integer(0, kMostStripped));
        steps->push_back(std::move(step));
        return {};
    }
    return part.unsupported("decoder " + in_quotes(type) + " is not supported");
}

} // namespace batchllm
