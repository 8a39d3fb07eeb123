// Reads "post_processor": which tokens stand around those of the text.
#include "text/tokenizer_parts.h"

namespace batchllm {
namespace {

constexpr size_t kMostPieces = 1024;

Result<int32_t> read_id(const JsonValue &value, const TokenizerSpec &spec) {
    ASSIGN_OR_RETURN(const int64_t id, value.integer(0, INT32_MAX));
    const auto token = static_cast<int32_t>(id);
    if (spec.model.vocabulary.contains(token)) return token;
    for (const AddedToken &added : spec.added_tokens) {
        if (added.id == token) return token;
    }
    return value.malformed("no token has the id " + std::to_string(token));
}

// "special_tokens" of a template: the tokens that a name stands for.
Result<std::vector<int32_t>> read_special(const JsonObject &tokens_by_name, const std::string &name,
                                          const TokenizerSpec &spec) {
    ASSIGN_OR_RETURN(const JsonValue value, tokens_by_name.get("special_tokens"));
    simdjson::dom::object object;
    if (value.raw().get(object) != simdjson::SUCCESS) return value.malformed("not an object");
    const simdjson::dom::element *found = nullptr;
    simdjson::dom::element element;
    for (const auto [key, member] : object) {
        if (key != name) continue;
        if (found != nullptr) return value.malformed("key \"" + name + "\" is given twice");
        element = member;
        found = &element;
    }
    if (found == nullptr) return value.malformed("key \"" + name + "\" is missing");
    ASSIGN_OR_RETURN(const JsonObject entry, JsonObject::open({element, value.where() + "." + name},
                                                              {"id", "ids", "tokens"}));
    ASSIGN_OR_RETURN(const JsonValue ids, entry.get("ids"));
    ASSIGN_OR_RETURN(const std::vector<JsonValue> items, ids.array());
    if (items.size() > kMostPieces) return ids.unsupported("more than 1024 ids");
    std::vector<int32_t> result;
    for (const JsonValue &item : items) {
        ASSIGN_OR_RETURN(const int32_t id, read_id(item, spec));
        result.push_back(id);
    }
    return result;
}

Status read_template(const JsonValue &part, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const JsonObject object,
                     JsonObject::open(part, {"type", "single", "pair", "special_tokens"}));
    ASSIGN_OR_RETURN(const JsonValue single, object.get("single"));
    ASSIGN_OR_RETURN(const std::vector<JsonValue> pieces, single.array());
    if (pieces.size() > kMostPieces) return single.unsupported("more than 1024 pieces");
    spec->special.clear();
    spec->texts = 0;
    for (const JsonValue &piece : pieces) {
        ASSIGN_OR_RETURN(const JsonObject kind,
                         JsonObject::open(piece, {"Sequence", "SpecialToken"}));
        const bool is_text = kind.has("Sequence");
        if (is_text == kind.has("SpecialToken")) {
            return piece.malformed("neither a Sequence nor a SpecialToken");
        }
        ASSIGN_OR_RETURN(const JsonValue inner, kind.get(is_text ? "Sequence" : "SpecialToken"));
        ASSIGN_OR_RETURN(const JsonObject fields, JsonObject::open(inner, {"id", "type_id"}));
        ASSIGN_OR_RETURN(const std::string id, fields.string("id"));
        if (is_text && id != "A") return inner.unsupported("sequence " + id + " of a single text");
        TemplatePiece made{is_text, {}};
        if (!is_text) {
            ASSIGN_OR_RETURN(made.tokens, read_special(object, id, *spec));
        }
        spec->texts += is_text ? 1 : 0;
        spec->special.push_back(std::move(made));
    }
    return {};
}

// BertProcessing and RobertaProcessing: cls, the text, sep; each given as [token, id].
Status read_cls_sep(const JsonValue &part, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(
        const JsonObject object,
        JsonObject::open(part, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
    std::vector<int32_t> ids;
    for (const char *key : {"cls", "sep"}) {
        ASSIGN_OR_RETURN(const JsonValue pair, object.get(key));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, pair.array());
        if (items.size() != 2) return pair.malformed("not a token and its id");
        ASSIGN_OR_RETURN(const int32_t id, read_id(items[1], *spec));
        ids.push_back(id);
    }
    spec->special = {{false, {ids[0]}}, {true, {}}, {false, {ids[1]}}};
    return {};
}

Status read_one(const JsonValue &part, bool *adds_tokens, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const std::string type, part_type(part));
    if (type == "ByteLevel") { // of offsets alone, which are not kept
        return JsonObject::open(part, {"type", "add_prefix_space", "trim_offsets", "use_regex"})
            .status();
    }
    if (type == "Sequence") {
        ASSIGN_OR_RETURN(const JsonObject object, JsonObject::open(part, {"type", "processors"}));
        ASSIGN_OR_RETURN(const JsonValue list, object.get("processors"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.array());
        for (const JsonValue &item : items) RETURN_IF_ERROR(read_one(item, adds_tokens, spec));
        return {};
    }
    if (*adds_tokens) return part.unsupported("a second post-processor that adds tokens");
    *adds_tokens = true;
    if (type == "TemplateProcessing") return read_template(part, spec);
    if (type == "BertProcessing" || type == "RobertaProcessing") return read_cls_sep(part, spec);
    return part.unsupported("post-processor " + type + " is not supported");
}

} // namespace

Status read_post_processor(const JsonValue &part, TokenizerSpec *spec) {
    bool adds_tokens = false;
    return read_one(part, &adds_tokens, spec);
}

} // namespace batchllm
