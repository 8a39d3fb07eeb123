// Reads "post_processor": which tokens are added around those of the text.
#include "text/tokenizer_parts.h"

namespace batchllm {
namespace {

constexpr size_t kMostPieces = 1024;
constexpr size_t kMostIds = 1024; // in all pieces together: each is looked up, and every row gets
                                  // all of them
constexpr int64_t kMostTexts = 8;

Result<int32_t> read_id(const JsonValue &value, const TokenizerSpec &spec) {
    ASSIGN_OR_RETURN(const int64_t id, value.integer(0, INT32_MAX));
    const auto token = static_cast<int32_t>(id);
    if (spec.model.vocabulary.contains(token)) return token;
    for (const AddedToken &added : spec.added_tokens) {
        if (added.id == token) return token;
    }
    return value.fail("no token has the id " + std::to_string(token));
}

// Reads "special_tokens" of a template: the tokens that a name stands for.
Result<std::vector<int32_t>> read_special(const JsonValue &part, const std::string &name,
                                          const TokenizerSpec &spec) {
    ASSIGN_OR_RETURN(const JsonValue by_name, part.at("special_tokens"));
    ASSIGN_OR_RETURN(const JsonValue entry, by_name.at(name));
    RETURN_IF_ERROR(entry.only_keys({"id", "ids", "tokens"}));
    ASSIGN_OR_RETURN(const JsonValue ids, entry.at("ids"));
    ASSIGN_OR_RETURN(const std::vector<JsonValue> items, ids.elements());
    if (items.size() > kMostPieces) return ids.unsupported("more than 1024 ids");
    std::vector<int32_t> result;
    for (const JsonValue &item : items) {
        ASSIGN_OR_RETURN(const int32_t id, read_id(item, spec));
        result.push_back(id);
    }
    return result;
}

Status read_template(const JsonValue &part, TokenizerSpec *spec) {
    RETURN_IF_ERROR(part.only_keys({"type", "single", "pair", "special_tokens"}));
    ASSIGN_OR_RETURN(const JsonValue single, part.at("single"));
    ASSIGN_OR_RETURN(const std::vector<JsonValue> pieces, single.elements());
    if (pieces.size() > kMostPieces) return single.unsupported("more than 1024 pieces");
    spec->special.clear();
    spec->texts = 0;
    size_t ids = 0;
    for (const JsonValue &piece : pieces) {
        RETURN_IF_ERROR(piece.only_keys({"Sequence", "SpecialToken"}));
        const bool is_text = piece.given("Sequence").has_value();
        if (is_text == piece.given("SpecialToken").has_value()) {
            return piece.fail("neither a Sequence nor a SpecialToken");
        }
        ASSIGN_OR_RETURN(const JsonValue inner, piece.at(is_text ? "Sequence" : "SpecialToken"));
        RETURN_IF_ERROR(inner.only_keys({"id", "type_id"}));
        ASSIGN_OR_RETURN(const std::string id, inner.string("id"));
        if (is_text && id != "A")
            return inner.unsupported("sequence " + in_quotes(id) + " of a single text");
        TemplatePiece made{is_text, {}};
        if (!is_text) {
            ASSIGN_OR_RETURN(made.tokens, read_special(part, id, *spec));
        }
        ids += made.tokens.size();
        if (ids > kMostIds) return single.unsupported("more than 1024 ids in all");
        spec->texts += is_text ? 1 : 0;
        if (spec->texts > kMostTexts) return single.unsupported("the text more than 8 times");
        spec->special.push_back(std::move(made));
    }
    return {};
}

// BertProcessing and RobertaProcessing: cls, the text, sep; each given as [token, id].
Status read_cls_sep(const JsonValue &part, TokenizerSpec *spec) {
    RETURN_IF_ERROR(part.only_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
    std::vector<int32_t> ids;
    for (const char *key : {"cls", "sep"}) {
        ASSIGN_OR_RETURN(const JsonValue pair, part.at(key));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, pair.elements());
        if (items.size() != 2) return pair.fail("not a token and its id");
        ASSIGN_OR_RETURN(const int32_t id, read_id(items[1], *spec));
        ids.push_back(id);
    }
    spec->special = {{false, {ids[0]}}, {true, {}}, {false, {ids[1]}}};
    return {};
}

Status read_one(const JsonValue &part, bool *adds_tokens, TokenizerSpec *spec) {
    ASSIGN_OR_RETURN(const std::string type, part.string("type"));
    if (type == "ByteLevel") { // only concerns offsets, which are not kept
        return part.only_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    }
    if (type == "Sequence") {
        RETURN_IF_ERROR(part.only_keys({"type", "processors"}));
        ASSIGN_OR_RETURN(const JsonValue list, part.at("processors"));
        ASSIGN_OR_RETURN(const std::vector<JsonValue> items, list.elements());
        for (const JsonValue &item : items) RETURN_IF_ERROR(read_one(item, adds_tokens, spec));
        return {};
    }
    if (*adds_tokens) return part.unsupported("a second post-processor that adds tokens");
    *adds_tokens = true;
    if (type == "TemplateProcessing") return read_template(part, spec);
    if (type == "BertProcessing" || type == "RobertaProcessing") return read_cls_sep(part, spec);
    return part.unsupported("post-processor " + in_quotes(type) + " is not supported");
}

} // namespace

Status read_post_processor(const JsonValue &part, TokenizerSpec *spec) {
    bool adds_tokens = false;
    return read_one(part, &adds_tokens, spec);
}

} // namespace batchllm
