// Reads tokenizer.json: the model's vocabulary and merges, the added tokens, and all parts together.
#include <algorithm>
#include <unordered_set>

#include "base/file.h"
#include "base/json.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace batchllm {
namespace {

constexpr size_t kMostFileBytes = size_t{512} << 20;
constexpr int64_t kMostId = (1 << 22) - 1;
constexpr size_t kMostMerges = size_t{1} << 24;
constexpr size_t kMostAdded = size_t{1} << 17;
constexpr size_t kMostTokenBytes = 1 << 16;
constexpr size_t kMostAddedBytes = 4096;
constexpr size_t kMostSteps = 16;

Status read_vocabulary(const JsonValue &value, TokenTable *vocabulary) {
    const std::optional<JsonMembers> tokens = value.view().members();
    if (!tokens.has_value()) return value.fail("must be an object");
    for (const auto [token, id_value] : *tokens) {
        const int64_t id = id_value.integer().value_or(-1);
        if (id < 0 || id > kMostId) {
            return value.fail("token " + in_quotes(token) + ": id is not an integer from 0 to " +
                              std::to_string(kMostId));
        }
        if (!is_utf8(token)) {
            return value.fail("token of id " + std::to_string(id) + ": not valid Unicode");
        }
        if (token.size() > kMostTokenBytes) {
            return value.fail("token " + in_quotes(token) + ": longer than " +
                              std::to_string(kMostTokenBytes) + " bytes");
        }
        if (!vocabulary->insert(token, static_cast<int32_t>(id))) {
            return value.fail(vocabulary->find(token) >= 0
                                  ? "token " + in_quotes(token) + " is given twice"
                                  : "token " + in_quotes(token) + ": another one has its id, " +
                                        std::to_string(id));
        }
    }
    return {};
}

// A merge in either notation: "a b" or ["a", "b"].
Result<std::pair<std::string_view, std::string_view>>
read_merge(const JsonValue &merges, JsonView item, size_t index, bool legacy) {
    const auto malformed = [&](const char *what) {
        return merges.fail("merge " + std::to_string(index) + ": " + what);
    };
    if (legacy) {
        const std::optional<std::string_view> text = item.string();
        if (!text.has_value()) return malformed("not a string, as those before");
        const size_t space = text->find(' ');
        if (space == std::string_view::npos ||
            text->find(' ', space + 1) != std::string_view::npos) {
            return malformed("not two tokens with a space between them");
        }
        return std::pair(text->substr(0, space), text->substr(space + 1));
    }
    const std::optional<JsonItems> pair = item.items();
    std::optional<std::string_view> parts[2];
    if (pair.has_value() && pair->size() == 2) {
        size_t i = 0;
        for (const JsonView part : *pair) parts[i++] = part.string();
    }
    if (!parts[0].has_value() || !parts[1].has_value()) {
        return malformed("not an array of two tokens, as those before");
    }
    return std::pair(*parts[0], *parts[1]);
}

Status read_merges(const JsonValue &value, BpeSettings *model) {
    const std::optional<JsonItems> items = value.view().items();
    if (!items.has_value()) return value.fail("must be a list");
    const TokenTable &vocabulary = model->vocabulary;
    size_t index = 0;
    bool legacy = false;
    std::string joined;
    for (const JsonView item : *items) {
        if (index == kMostMerges) return value.fail("more than 16777216 merges");
        if (index == 0) legacy = item.is_string();
        if (legacy && item.string().value_or("").starts_with("#version")) {
            ++index; // skips the first line of merges.txt, which was copied too
            continue;
        }
        ASSIGN_OR_RETURN(const auto merge, read_merge(value, item, index, legacy));
        joined.assign(merge.first);
        joined.append(merge.second);
        const MergePair pair = {vocabulary.find(merge.first), vocabulary.find(merge.second),
                                vocabulary.find(joined)};
        if (pair.left < 0 || pair.right < 0 || pair.token < 0) {
            const std::string_view missing = pair.left < 0    ? merge.first
                                             : pair.right < 0 ? merge.second
                                                              : std::string_view(joined);
            return value.fail("merge " + std::to_string(index) + ": token " + in_quotes(missing) +
                              " is not in the vocabulary");
        }
        model->merges.push_back(pair);
        ++index;
    }
    return {};
}

// Refuses a key unless it is absent, null or a value without effect.
Status refuse_affix(const JsonValue &model, const char *key) {
    const std::optional<JsonValue> value = model.given(key);
    if (!value.has_value()) return {};
    ASSIGN_OR_RETURN(const std::string text, value->string());
    return text.empty() ? Status() : value->unsupported("only null is supported");
}

// Older files do not name the model's kind: it shows in the other keys.
Status check_kind(const JsonValue &model) {
    const char *only = "the only supported model is BPE";
    if (const std::optional<JsonValue> type = model.find("type")) {
        ASSIGN_OR_RETURN(const std::string name, type->string());
        return name == "BPE" ? Status() : type->unsupported(only);
    }
    const std::optional<JsonValue> vocabulary = model.find("vocab");
    if (!vocabulary.has_value() || model.find("merges").has_value()) return {};
    const bool words = model.find("unk_token").has_value();
    if (!vocabulary->is_array() && !words) return {};
    const char *kind = vocabulary->is_array()                               ? "Unigram"
                       : model.find("max_input_chars_per_word").has_value() ? "WordPiece"
                                                                            : "WordLevel";
    return model.unsupported(std::string("this is a model of kind ") + kind + ", and " + only);
}

Status read_model(const JsonValue &value, BpeSettings *model) {
    RETURN_IF_ERROR(value.only_keys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                                     "end_of_word_suffix", "fuse_unk", "byte_fallback",
                                     "ignore_merges", "vocab", "merges"}));
    if (const std::optional<JsonValue> dropout = value.given("dropout")) {
        ASSIGN_OR_RETURN(const double share, dropout->number(0, 1));
        if (share != 0) return dropout->unsupported("only null and 0 are supported");
    }
    RETURN_IF_ERROR(refuse_affix(value, "continuing_subword_prefix"));
    RETURN_IF_ERROR(refuse_affix(value, "end_of_word_suffix"));
    ASSIGN_OR_RETURN(model->fuse_unknown, value.boolean_or("fuse_unk", false));
    ASSIGN_OR_RETURN(model->byte_fallback, value.boolean_or("byte_fallback", false));
    ASSIGN_OR_RETURN(model->ignore_merges, value.boolean_or("ignore_merges", false));
    ASSIGN_OR_RETURN(const JsonValue vocabulary, value.at("vocab"));
    RETURN_IF_ERROR(read_vocabulary(vocabulary, &model->vocabulary));
    ASSIGN_OR_RETURN(const JsonValue merges, value.at("merges"));
    RETURN_IF_ERROR(read_merges(merges, model));
    return {};
}

// Whether the vocabulary spells every byte, so that no text can need the unknown token.
bool spells_every_byte(const BpeSettings &model, bool byte_level) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
        std::string character;
        utf8_append(byte_character(static_cast<uint8_t>(byte)), &character);
        const bool spelled = byte_level && model.vocabulary.find(character) >= 0;
        const bool falls_back =
            model.byte_fallback &&
            model.vocabulary.find(byte_fallback_token(static_cast<uint8_t>(byte))) >= 0;
        if (!spelled && !falls_back) return false;
    }
    return true;
}

// If the vocabulary lacks the unknown token, the reference fails only when a text needs it.
Status read_unknown_token(const JsonValue &model, TokenizerSpec *spec) {
    const std::optional<JsonValue> token = model.given("unk_token");
    if (!token.has_value()) return {};
    ASSIGN_OR_RETURN(const std::string unknown, token->string());
    spec->model.unknown_token = spec->model.vocabulary.find(unknown);
    if (spec->model.unknown_token < 0) {
        if (spells_every_byte(spec->model, spec->byte_level)) return {};
        return token->fail("not in the vocabulary, which does not spell every byte either");
    }
    if (unknown.empty()) return token->unsupported("an empty token");
    return {};
}

Result<AddedToken> read_added_token(const JsonValue &value) {
    RETURN_IF_ERROR(value.only_keys(
        {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    AddedToken token;
    ASSIGN_OR_RETURN(const JsonValue id, value.at("id"));
    ASSIGN_OR_RETURN(const int64_t number, id.integer(0, kMostId));
    token.id = static_cast<int32_t>(number);
    ASSIGN_OR_RETURN(const JsonValue content, value.at("content"));
    ASSIGN_OR_RETURN(token.content, content.string());
    ASSIGN_OR_RETURN(token.single_word, value.boolean("single_word"));
    ASSIGN_OR_RETURN(token.left_strip, value.boolean("lstrip"));
    ASSIGN_OR_RETURN(token.right_strip, value.boolean("rstrip"));
    ASSIGN_OR_RETURN(token.normalized, value.boolean("normalized"));
    ASSIGN_OR_RETURN(token.special, value.boolean("special"));
    if (token.content.empty()) return content.unsupported("an empty token");
    if (token.content.size() > kMostAddedBytes) {
        return content.unsupported("longer than 4096 bytes");
    }
    return token;
}

// The reference gives an added token the id that the vocabulary has for it, or else the next free one,
// whatever the file says. A file that says otherwise is refused, because readers would disagree.
Status read_added_tokens(const JsonValue &value, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> items, value.elements());
    if (items.size() > kMostAdded) return value.unsupported("more than 131072 tokens");
    const TokenTable &vocabulary = spec->model.vocabulary;
    const Normalizer normalizer(spec->normalizer);
    std::unordered_set<std::string> contents;
    std::unordered_set<std::string> patterns[2];
    auto next_id = static_cast<int32_t>(vocabulary.size());
    for (const JsonValue &item : items) {
        ASSIGN_OR_RETURN(AddedToken token, read_added_token(item));
        if (!contents.insert(token.content).second) {
            return item.fail("token " + in_quotes(token.content) + " is given twice");
        }
        int32_t id = vocabulary.find(token.content);
        if (id < 0) {
            id = next_id++;
            if (vocabulary.contains(id)) {
                return item.unsupported("the vocabulary's ids have gaps: token " +
                                        in_quotes(token.content) + " would share id " +
                                        std::to_string(id));
            }
        }
        if (id != token.id) {
            return item.fail("token " + in_quotes(token.content) + " has id " +
                             std::to_string(token.id) + ", but its place gives it " +
                             std::to_string(id));
        }
        std::string buffer;
        token.pattern = token.normalized ? normalizer.apply(token.content, &buffer) : token.content;
        if (token.pattern.empty()) return item.unsupported("normalizes to nothing");
        if (token.pattern.size() > kMostAddedBytes) {
            return item.unsupported("normalizes to more than 4096 bytes");
        }
        if (!patterns[token.normalized ? 1 : 0].insert(token.pattern).second) {
            return item.unsupported("normalizes to the same text as another token");
        }
        spec->added_tokens.push_back(std::move(token));
    }
    return {};
}

// "truncation" and "padding" determine how a batch of texts becomes one tensor. transformers turns both off
// unless a call asks for them, and here no call does.
Status leave_aside(const JsonValue &root, const char *key, TokenizerSpec *spec) {
    const std::optional<JsonValue> value = root.given(key);
    if (!value) return {};
    if (!value->is_object()) return value->fail("must be an object or null");
    if (!spec->note.empty()) spec->note += ", ";
    spec->note += '"' + std::string(key) + '"';
    return {};
}

// Metaspace with prepend_scheme first depends on whether a piece starts where the raw text does. That is
// known only after normalizers that turn one character into one.
Status check_first_piece(const JsonValue &root, const TokenizerSpec &spec) {
    for (const PreTokenizerStep &step : spec.pre_tokenizer) {
        if (step.kind != PreTokenizerStep::Kind::metaspace ||
            step.prepend != PreTokenizerStep::Prepend::first) {
            continue;
        }
        for (const NormalizerStep &normalizer : spec.normalizer) {
            const std::string &content = normalizer.content;
            const bool keeps_place = normalizer.kind == NormalizerStep::Kind::replace &&
                                     normalizer.pattern == " " && !content.empty() &&
                                     static_cast<size_t>(utf8_length(content[0])) == content.size();
            if (!keeps_place) {
                return root.unsupported(
                    "pre_tokenizer Metaspace with prepend_scheme first is supported only with no "
                    "normalizer or Replace of a space by one character");
            }
        }
    }
    return {};
}

Status read_root(const JsonValue &root, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const JsonValue model, root.at("model"));
    RETURN_IF_ERROR(check_kind(model)); // before what only such a model has
    RETURN_IF_ERROR(
        root.only_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"}));
    if (const std::optional<JsonValue> value = root.given("version")) {
        ASSIGN_OR_RETURN(const std::string version, value->string());
        if (version != "1.0") return value->unsupported("only \"1.0\" is supported");
    }
    RETURN_IF_ERROR(leave_aside(root, "truncation", spec));
    RETURN_IF_ERROR(leave_aside(root, "padding", spec));
    if (!spec->note.empty()) {
        spec->note =
            root.file() + ": " + spec->note + " left aside: rows are neither cut nor padded";
    }
    RETURN_IF_ERROR(read_model(model, &spec->model));
    if (const std::optional<JsonValue> part = root.given("normalizer")) {
        RETURN_IF_ERROR(read_normalizer(*part, &spec->normalizer));
    }
    if (const std::optional<JsonValue> part = root.given("pre_tokenizer")) {
        RETURN_IF_ERROR(read_pre_tokenizer(*part, spec));
        if (spec->pre_tokenizer.size() > kMostSteps) {
            return part->unsupported("more than 16 steps");
        }
    }
    RETURN_IF_ERROR(read_unknown_token(model, spec));
    RETURN_IF_ERROR(check_first_piece(root, *spec));
    if (const std::optional<JsonValue> part = root.given("added_tokens")) {
        RETURN_IF_ERROR(read_added_tokens(*part, spec));
    }
    spec->special = {{true, {}}};
    if (const std::optional<JsonValue> part = root.given("post_processor")) {
        RETURN_IF_ERROR(read_post_processor(*part, spec));
    }
    if (const std::optional<JsonValue> part = root.given("decoder")) {
        RETURN_IF_ERROR(read_decoder(*part, &spec->decoder));
    } else {
        spec->decoder.push_back({.kind = DecoderStep::Kind::join});
    }
    return {};
}

} // namespace

Result<TokenizerSpec> parse_tokenizer_json(const std::string &name, const std::string &bytes) {
    constexpr int32_t code = BATCHLLM_ERROR_TOKENIZER_FORMAT;
    if (bytes.size() > kMostFileBytes) {
        return error(code, "%s: %zu bytes, more than the %zu allowed", name.c_str(), bytes.size(),
                     kMostFileBytes);
    }
    ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse_large(bytes, name, code));
    TokenizerSpec spec;
    RETURN_IF_ERROR(read_root(document.root(), &spec));
    return spec;
}

Result<TokenizerSpec> read_tokenizer_json(const std::string &path) {
    ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMostFileBytes));
    return parse_tokenizer_json(path, bytes);
}

} // namespace batchllm
