// Reads tokenizer.json: the model's vocabulary and merges, the added tokens, and all parts together.
#include <algorithm>
#include <unordered_set>

#include "base/file.h"
#include "text/json.h"
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
    simdjson::dom::object object;
    if (value.raw().get(object) != simdjson::SUCCESS) return value.malformed("not an object");
    for (const auto [token, id_value] : object) {
        int64_t id = 0;
        if (!id_value.is_number() || id_value.get(id) != simdjson::SUCCESS || id < 0 ||
            id > kMostId) {
            return value.malformed("token " + quote_for_error(token) +
                                   ": id is not an integer from 0 to " + std::to_string(kMostId));
        }
        if (!simdjson::validate_utf8(token.data(), token.size())) {
            return value.malformed("token of id " + std::to_string(id) + ": not valid Unicode");
        }
        if (token.size() > kMostTokenBytes) {
            return value.malformed("token " + quote_for_error(token) + ": longer than " +
                                   std::to_string(kMostTokenBytes) + " bytes");
        }
        if (!vocabulary->insert(token, static_cast<int32_t>(id))) {
            return value.malformed(vocabulary->find(token) >= 0
                                       ? "token " + quote_for_error(token) + " is given twice"
                                       : "token " + quote_for_error(token) +
                                             ": another one has its id, " + std::to_string(id));
        }
    }
    return {};
}

// A merge in either spelling: "a b" or ["a", "b"].
Result<std::pair<std::string_view, std::string_view>>
read_merge(const JsonValue &merges, simdjson::dom::element item, size_t index, bool legacy) {
    const auto malformed = [&](const char *what) {
        return JsonValue(item, merges.where() + "[" + std::to_string(index) + "]").malformed(what);
    };
    if (legacy) {
        std::string_view text;
        if (item.get(text) != simdjson::SUCCESS) return malformed("not a string, as those before");
        const size_t space = text.find(' ');
        if (space == std::string_view::npos ||
            text.find(' ', space + 1) != std::string_view::npos) {
            return malformed("not two tokens with a space between them");
        }
        return std::pair(text.substr(0, space), text.substr(space + 1));
    }
    simdjson::dom::array pair;
    std::string_view parts[2];
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(0).get(parts[0]) != simdjson::SUCCESS ||
        pair.at(1).get(parts[1]) != simdjson::SUCCESS) {
        return malformed("not an array of two tokens, as those before");
    }
    return std::pair(parts[0], parts[1]);
}

Status read_merges(const JsonValue &value, BpeSettings *model) {
    simdjson::dom::array items;
    if (value.raw().get(items) != simdjson::SUCCESS) return value.malformed("not an array");
    const TokenTable &vocabulary = model->vocabulary;
    size_t index = 0;
    bool legacy = false;
    std::string joined;
    for (const simdjson::dom::element item : items) {
        if (index == kMostMerges) return value.malformed("more than 16777216 merges");
        if (index == 0) legacy = item.is_string();
        std::string_view text;
        if (legacy && item.get(text) == simdjson::SUCCESS && text.starts_with("#version")) {
            ++index; // the first line of merges.txt, carried along
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
            return value.malformed("merge " + std::to_string(index) + ": token " +
                                   quote_for_error(missing) + " is not in the vocabulary");
        }
        model->merges.push_back(pair);
        ++index;
    }
    return {};
}

// Refuses a key that must be absent, null, or a value that changes nothing.
Status refuse_affix(const JsonObject &model, const char *key) {
    if (!model.has(key)) return {};
    ASSIGN_OR_RETURN(const std::string text, model.string(key));
    return text.empty() ? Status() : model[key].unsupported("only null is supported");
}

Status read_model(const JsonValue &value, BpeSettings *model) {
    simdjson::dom::object raw;
    if (value.raw().get(raw) != simdjson::SUCCESS) return value.malformed("not an object");
    simdjson::dom::element type;
    if (raw["type"].get(type) == simdjson::SUCCESS) {
        ASSIGN_OR_RETURN(const std::string name, JsonValue(type, value.where() + ".type").string());
        if (name != "BPE") {
            return value.unsupported("model " + quote_for_error(name) +
                                     " is not supported, only BPE");
        }
    }
    ASSIGN_OR_RETURN(
        const JsonObject object,
        JsonObject::open(value, {"type", "dropout", "unk_token", "continuing_subword_prefix",
                                 "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                                 "vocab", "merges"}));
    if (object.has("dropout")) {
        double dropout = 0;
        if (object["dropout"].raw().get(dropout) != simdjson::SUCCESS) {
            return object["dropout"].malformed("not a number");
        }
        if (dropout != 0) return object["dropout"].unsupported("only null and 0 are supported");
    }
    RETURN_IF_ERROR(refuse_affix(object, "continuing_subword_prefix"));
    RETURN_IF_ERROR(refuse_affix(object, "end_of_word_suffix"));
    ASSIGN_OR_RETURN(model->fuse_unknown, object.boolean("fuse_unk", false));
    ASSIGN_OR_RETURN(model->byte_fallback, object.boolean("byte_fallback", false));
    ASSIGN_OR_RETURN(model->ignore_merges, object.boolean("ignore_merges", false));
    ASSIGN_OR_RETURN(const JsonValue vocabulary, object.get("vocab"));
    RETURN_IF_ERROR(read_vocabulary(vocabulary, &model->vocabulary));
    ASSIGN_OR_RETURN(const JsonValue merges, object.get("merges"));
    RETURN_IF_ERROR(read_merges(merges, model));
    if (object.has("unk_token")) {
        ASSIGN_OR_RETURN(const std::string unknown, object.string("unk_token"));
        model->unknown_token = model->vocabulary.find(unknown);
        if (model->unknown_token < 0) {
            return object["unk_token"].malformed(quote_for_error(unknown) +
                                                 " is not in the vocabulary");
        }
        if (unknown.empty()) return object["unk_token"].unsupported("an empty token");
    }
    return {};
}

Result<AddedToken> read_added_token(const JsonValue &value) {
    ASSIGN_OR_RETURN(const JsonObject object,
                     JsonObject::open(value, {"id", "content", "single_word", "lstrip", "rstrip",
                                              "normalized", "special"}));
    AddedToken token;
    ASSIGN_OR_RETURN(const JsonValue id, object.get("id"));
    ASSIGN_OR_RETURN(const int64_t number, id.integer(0, kMostId));
    token.id = static_cast<int32_t>(number);
    ASSIGN_OR_RETURN(token.content, object.string("content"));
    ASSIGN_OR_RETURN(token.single_word, object.boolean("single_word"));
    ASSIGN_OR_RETURN(token.left_strip, object.boolean("lstrip"));
    ASSIGN_OR_RETURN(token.right_strip, object.boolean("rstrip"));
    ASSIGN_OR_RETURN(token.normalized, object.boolean("normalized"));
    ASSIGN_OR_RETURN(token.special, object.boolean("special"));
    if (token.content.empty()) return object["content"].unsupported("an empty token");
    if (token.content.size() > kMostAddedBytes) {
        return object["content"].unsupported("longer than 4096 bytes");
    }
    return token;
}

// The reference gives an added token the id that the vocabulary has for it, or else the next free
// one, whatever the file says. A file that says otherwise is refused: one of its readers would be
// wrong.
Status read_added_tokens(const JsonValue &value, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const std::vector<JsonValue> items, value.array());
    if (items.size() > kMostAdded) return value.unsupported("more than 131072 tokens");
    const TokenTable &vocabulary = spec->model.vocabulary;
    const Normalizer normalizer(spec->normalizer);
    std::unordered_set<std::string> contents;
    std::unordered_set<std::string> patterns[2];
    auto next_id = static_cast<int32_t>(vocabulary.size());
    for (const JsonValue &item : items) {
        ASSIGN_OR_RETURN(AddedToken token, read_added_token(item));
        if (!contents.insert(token.content).second) {
            return item.malformed("token " + quote_for_error(token.content) + " is given twice");
        }
        int32_t id = vocabulary.find(token.content);
        if (id < 0) {
            id = next_id++;
            if (vocabulary.contains(id)) {
                return item.unsupported("the vocabulary's ids have gaps: token " +
                                        quote_for_error(token.content) + " would share id " +
                                        std::to_string(id));
            }
        }
        if (id != token.id) {
            return item.malformed("token " + quote_for_error(token.content) + " has id " +
                                  std::to_string(token.id) + ", but its place gives it " +
                                  std::to_string(id));
        }
        std::string buffer;
        token.pattern = token.normalized ? normalizer.apply(token.content, &buffer) : token.content;
        if (token.pattern.empty()) return item.unsupported("normalizes to nothing");
        if (!patterns[token.normalized ? 1 : 0].insert(token.pattern).second) {
            return item.unsupported("normalizes to the same text as another token");
        }
        spec->added_tokens.push_back(std::move(token));
    }
    return {};
}

Status refuse_unless_null(const JsonObject &root, const char *key, const char *why) {
    return root.has(key) ? root[key].unsupported(why) : Status();
}

// Metaspace with prepend_scheme first asks whether a piece starts where the raw text does. That is
// followed only through normalizers that make one character of one.
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

Status read_root(const JsonValue &root_value, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const JsonObject root,
                     JsonObject::open(root_value, {"version", "truncation", "padding",
                                                   "added_tokens", "normalizer", "pre_tokenizer",
                                                   "post_processor", "decoder", "model"}));
    if (root.has("version")) {
        ASSIGN_OR_RETURN(const std::string version, root.string("version"));
        if (version != "1.0") return root["version"].unsupported("only \"1.0\" is supported");
    }
    RETURN_IF_ERROR(refuse_unless_null(
        root, "truncation", "would cut texts silently; set it to null to use this file"));
    RETURN_IF_ERROR(refuse_unless_null(
        root, "padding", "would add tokens silently; set it to null to use this file"));
    ASSIGN_OR_RETURN(const JsonValue model, root.get("model"));
    RETURN_IF_ERROR(read_model(model, &spec->model));
    if (root.has("normalizer")) {
        RETURN_IF_ERROR(read_normalizer(root["normalizer"], &spec->normalizer));
        if (spec->normalizer.size() > kMostSteps) {
            return root["normalizer"].unsupported("more than 16 steps");
        }
    }
    if (root.has("pre_tokenizer")) {
        RETURN_IF_ERROR(read_pre_tokenizer(root["pre_tokenizer"], spec));
        if (spec->pre_tokenizer.size() > kMostSteps) {
            return root["pre_tokenizer"].unsupported("more than 16 steps");
        }
    }
    RETURN_IF_ERROR(check_first_piece(root_value, *spec));
    if (root.has("added_tokens")) {
        RETURN_IF_ERROR(read_added_tokens(root["added_tokens"], spec));
    }
    spec->special = {{true, {}}};
    if (root.has("post_processor")) {
        RETURN_IF_ERROR(read_post_processor(root["post_processor"], spec));
    }
    if (root.has("decoder")) {
        RETURN_IF_ERROR(read_decoder(root["decoder"], &spec->decoder));
    } else {
        spec->decoder.push_back({.kind = DecoderStep::Kind::join});
    }
    return {};
}

} // namespace

Result<TokenizerSpec> parse_tokenizer_json(const std::string &name, const std::string &bytes) {
    simdjson::dom::parser parser(kMostFileBytes);
    simdjson::dom::element root;
    if (const auto code = parser.parse(bytes).get(root); code != simdjson::SUCCESS) {
        return error(BATCHLLM_ERROR_TOKENIZER_FORMAT, "%s: not valid JSON: %s", name.c_str(),
                     simdjson::error_message(code));
    }
    TokenizerSpec spec;
    RETURN_IF_ERROR(read_root(JsonValue(root, name + ": "), &spec));
    return spec;
}

Result<TokenizerSpec> read_tokenizer_json(const std::string &path) {
    ASSIGN_OR_RETURN(const std::string bytes, read_file(path, kMostFileBytes));
    return parse_tokenizer_json(path, bytes);
}

} // namespace batchllm
