#include "text/tokenizer_parts.h"

#include "text/utf8.h"

namespace batchllm {
namespace {

constexpr int64_t kMostStripped = 1 << 20;

Result<PreTokenizerStep> read_split(const JsonValue &part) {
    ASSIGN_OR_RETURN(const JsonObject split,
                     JsonObject::open(part, {"type", "pattern", "behavior", "invert"}));
    ASSIGN_OR_RETURN(const JsonValue pattern, split.get("pattern"));
    ASSIGN_OR_RETURN(const JsonObject kinds, JsonObject::open(pattern, {"Regex", "String"}));
    if (!kinds.has("Regex"))
        return pattern.unsupported("only patterns of kind Regex are supported");
    ASSIGN_OR_RETURN(const std::string regex, kinds.string("Regex"));
    const auto known = split_pattern_of(regex);
    if (!known.has_value())
        return pattern.unsupported("regular expression not supported: " + regex);
    ASSIGN_OR_RETURN(const std::string behavior, split.string("behavior"));
    ASSIGN_OR_RETURN(const bool invert, split.boolean("invert"));
    // The known patterns leave no text between matches: to isolate the matches is to remove what is
    // not one.
    if (!(behavior == "Isolated" || (behavior == "Removed" && invert))) {
        return part.unsupported("behavior \"" + behavior + "\" with invert " +
                                (invert ? "true" : "false") + " is not supported");
    }
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::split};
    step.pattern = *known;
    return step;
}

Status read_byte_level(const JsonValue &part, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(
        const JsonObject object,
        JsonObject::open(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    ASSIGN_OR_RETURN(const bool prefix, object.boolean("add_prefix_space"));
    RETURN_IF_ERROR(object.boolean("trim_offsets").status()); // of offsets, which are not kept
    ASSIGN_OR_RETURN(const bool use_regex, object.boolean("use_regex", true));
    if (prefix) spec->pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::prefix_space});
    if (use_regex) spec->pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::split});
    spec->byte_level = true;
    return {};
}

// Metaspace, as a pre-tokenizer and as a decoder.
Result<PreTokenizerStep> read_metaspace(const JsonValue &part) {
    ASSIGN_OR_RETURN(const JsonObject object,
                     JsonObject::open(part, {"type", "replacement", "add_prefix_space",
                                             "prepend_scheme", "split", "str_rep"}));
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::metaspace};
    ASSIGN_OR_RETURN(step.mark, read_character(object, "replacement"));
    if (step.mark == " ") return part.unsupported("a space as the replacement");
    std::string scheme = "always";
    if (object.has("prepend_scheme")) {
        ASSIGN_OR_RETURN(scheme, object.string("prepend_scheme"));
    }
    ASSIGN_OR_RETURN(const bool prefix, object.boolean("add_prefix_space", true));
    if (scheme == "always") {
        step.prepend = PreTokenizerStep::Prepend::always;
    } else if (scheme == "first") {
        step.prepend = PreTokenizerStep::Prepend::first;
    } else if (scheme == "never") {
        step.prepend = PreTokenizerStep::Prepend::never;
    } else {
        return object["prepend_scheme"].malformed("\"" + scheme +
                                                  "\" is neither always, first nor never");
    }
    if (!prefix && scheme != "never") {
        if (object.has("prepend_scheme")) {
            return part.malformed("add_prefix_space false contradicts prepend_scheme " + scheme);
        }
        return part.malformed("add_prefix_space false without prepend_scheme never");
    }
    ASSIGN_OR_RETURN(step.cut, object.boolean("split", true));
    return step;
}

Result<PreTokenizerStep> read_digits(const JsonValue &part) {
    ASSIGN_OR_RETURN(const JsonObject object,
                     JsonObject::open(part, {"type", "individual_digits"}));
    ASSIGN_OR_RETURN(const bool each, object.boolean("individual_digits", false));
    PreTokenizerStep step{.kind = PreTokenizerStep::Kind::split};
    step.pattern = each ? SplitPattern::digits_each : SplitPattern::digits;
    return step;
}

} // namespace

Result<std::string> part_type(const JsonValue &part) {
    simdjson::dom::object object;
    if (part.raw().get(object) != simdjson::SUCCESS) return part.malformed("not an object");
    simdjson::dom::element type;
    if (object["type"].get(type) != simdjson::SUCCESS) {
        return part.malformed("key \"type\" is missing");
    }
    return JsonValue(type, part.where() + ".type").string();
}

Result<std::string> read_string_pattern(const JsonValue &pattern) {
    ASSIGN_OR_RETURN(const JsonObject kinds, JsonObject::open(pattern, {"String", "Regex"}));
    if (!kinds.has("String")) {
        return pattern.unsupported("only patterns of kind String are supported");
    }
    ASSIGN_OR_RETURN(std::string text, kinds.string("String"));
    if (text.empty()) return pattern.unsupported("an empty pattern");
    return text;
}

Result<std::string> read_character(const JsonObject &object, std::string_view key) {
    ASSIGN_OR_RETURN(std::string text, object.string(key));
    if (text.empty() || static_cast<size_t>(utf8_length(text[0])) != text.size()) {
        return object[key].malformed("not one character");
    }
    return text;
}

Status read_normalizer(const JsonValue &part, std::vector<NormalizerStep> *steps) {
    ASSIGN_OR_RETURN(const std::string type, part_type(part));
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const JsonObject object, JsonObject::open(part, {"type", "normalizers"}));
        ASSIGN_OR_RETURN(const JsonValue list, object.get("normalizers"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.array());
        for (const JsonValue &item : items) RETURN_IF_ERROR(read_normalizer(item, steps));
        return {};
    }
    if (type == "NFC") {
        RETURN_IF_ERROR(JsonObject::open(part, {"type"}).status());
        steps->push_back({NormalizerStep::Kind::nfc, {}, {}});
        return {};
    }
    if (type == "Prepend") {
        ASSIGN_OR_RETURN(const JsonObject object, JsonObject::open(part, {"type", "prepend"}));
        ASSIGN_OR_RETURN(std::string content, object.string("prepend"));
        steps->push_back({NormalizerStep::Kind::prepend, {}, std::move(content)});
        return {};
    }
    if (type == "Replace") {
        ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::open(part, {"type", "pattern", "content"}));
        ASSIGN_OR_RETURN(const JsonValue value, object.get("pattern"));
        ASSIGN_OR_RETURN(std::string pattern, read_string_pattern(value));
        ASSIGN_OR_RETURN(std::string content, object.string("content"));
        steps->push_back({NormalizerStep::Kind::replace, std::move(pattern), std::move(content)});
        return {};
    }
    return part.unsupported("normalizer " + type + " is not supported");
}

Status read_pre_tokenizer(const JsonValue &part, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const std::string type, part_type(part));
    if (spec->byte_level) return part.unsupported("nothing is supported after ByteLevel");
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::open(part, {"type", "pretokenizers"}));
        ASSIGN_OR_RETURN(const JsonValue list, object.get("pretokenizers"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.array());
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
    return part.unsupported("pre-tokenizer " + type + " is not supported");
}

Status read_decoder(const JsonValue &part, std::vector<DecoderStep> *steps) {
    ASSIGN_OR_RETURN(const std::string type, part_type(part));
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const JsonObject object, JsonObject::open(part, {"type", "decoders"}));
        ASSIGN_OR_RETURN(const JsonValue list, object.get("decoders"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.array());
        for (const JsonValue &item : items) RETURN_IF_ERROR(read_decoder(item, steps));
        if (steps->size() > 64) return list.unsupported("more than 64 steps");
        return {};
    }
    if (type == "ByteFallback" || type == "Fuse") {
        RETURN_IF_ERROR(JsonObject::open(part, {"type"}).status());
        steps->push_back(
            {.kind = type == "Fuse" ? DecoderStep::Kind::fuse : DecoderStep::Kind::byte_fallback});
        return {};
    }
    if (type == "ByteLevel") {
        RETURN_IF_ERROR(
            JsonObject::open(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"})
                .status());
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
        ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::open(part, {"type", "pattern", "content"}));
        DecoderStep step{.kind = DecoderStep::Kind::replace};
        ASSIGN_OR_RETURN(const JsonValue pattern, object.get("pattern"));
        ASSIGN_OR_RETURN(step.pattern, read_string_pattern(pattern));
        ASSIGN_OR_RETURN(step.content, object.string("content"));
        steps->push_back(std::move(step));
        return {};
    }
    if (type == "Strip") {
        ASSIGN_OR_RETURN(const JsonObject object,
                         JsonObject::open(part, {"type", "content", "start", "stop"}));
        DecoderStep step{.kind = DecoderStep::Kind::strip};
        ASSIGN_OR_RETURN(step.content, read_character(object, "content"));
        ASSIGN_OR_RETURN(const JsonValue start, object.get("start"));
        ASSIGN_OR_RETURN(step.start, start.integer(0, kMostStripped));
        ASSIGN_OR_RETURN(const JsonValue stop, object.get("stop"));
        ASSIGN_OR_RETURN(step.stop, stop.integer(0, kMostStripped));
        steps->push_back(std::move(step));
        return {};
    }
    return part.unsupported("decoder " + type + " is not supported");
}

} // namespace batchllm
