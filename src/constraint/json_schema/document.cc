#include "constraint/json_schema/document.h"

#include <algorithm>

#include "base/printable.h"
#include "constraint/json_schema/uri.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

constexpr size_t kMostSchemas = size_t{1} << 18;

std::string escaped_step(std::string_view name) {
    std::string out;
    for (const char byte : name) {
        if (byte == '~') {
            out += "~0";
        } else if (byte == '/') {
            out += "~1";
        } else {
            out += byte;
        }
    }
    return out;
}

std::string unescaped_step(std::string_view step) {
    std::string out;
    for (size_t at = 0; at < step.size(); ++at) {
        const bool escape = step[at] == '~' && at + 1 < step.size();
        if (escape && step[at + 1] == '0') {
            out += '~';
            ++at;
        } else if (escape && step[at + 1] == '1') {
            out += '/';
            ++at;
        } else {
            out += step[at];
        }
    }
    return out;
}

bool is_schema(const JsonTree &json) { return json.is_object() || json.is_boolean(); }

} // namespace

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::load(std::string_view text) {
    std::unique_ptr<SchemaDocument> document(new SchemaDocument());
    ASSIGN_OR_RETURN(document->tree_, parse_json_tree(text, "schema", size_t{16} << 20));
    if (!is_schema(document->tree_)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "#: a schema is an object or a boolean");
    }
    document->resources_[""] = {&document->tree_, 0};
    ASSIGN_OR_RETURN(const SchemaId root, document->add(&document->tree_, -1, ""));
    RETURN_IF_ERROR(document->walk(root));
    return document;
}

Result<SchemaId> SchemaDocument::add(const JsonTree *json, SchemaId parent, std::string step) {
    const auto known_place = by_place_.find(json);
    if (known_place != by_place_.end()) return known_place->second;
    if (schemas_.size() >= kMostSchemas) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "schema: more than %zu subschemas", kMostSchemas);
    }
    const SchemaId id = static_cast<SchemaId>(schemas_.size());
    Schema &schema = schemas_.emplace_back();
    schema.json = json;
    schema.parent = parent;
    schema.step = std::move(step);
    schema.dialect = parent >= 0 ? at(parent).dialect : SchemaDialect::unnamed;
    schema.base = parent >= 0 ? at(parent).base : "";
    by_place_[json] = id;
    RETURN_IF_ERROR(choose_dialect(&schema));
    find_keywords(&schema);
    RETURN_IF_ERROR(add_names(id));
    return id;
}

Status SchemaDocument::choose_dialect(Schema *schema) const {
    const JsonTree *named = schema->json->find("$schema");
    if (named == nullptr || !named->is_string()) return Status();
    // Below the root it counts only where an identifier begins a resource.
    if (schema->parent >= 0 && schema->json->find("$id") == nullptr) return Status();
    std::string_view uri = named->text;
    if (!uri.empty() && uri.back() == '#') uri.remove_suffix(1);
    if (uri.substr(0, 7) == "http://") uri.remove_prefix(7);
    if (uri.substr(0, 8) == "https://") uri.remove_prefix(8);
    static const std::unordered_map<std::string_view, SchemaDialect> all = {
        {"json-schema.org/draft-04/schema", SchemaDialect::draft4},
        {"json-schema.org/draft-06/schema", SchemaDialect::draft6},
        {"json-schema.org/draft-07/schema", SchemaDialect::draft7},
        {"json-schema.org/draft/2019-09/schema", SchemaDialect::draft2019},
        {"json-schema.org/draft/2020-12/schema", SchemaDialect::draft2020},
        {"json-schema.org/schema", SchemaDialect::unnamed},
    };
    const auto found = all.find(uri);
    if (found == all.end()) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "%s/$schema: %s is no draft that is known",
                     schema->parent < 0 ? "#" : path(schema->parent).c_str(),
                     printable(named->text).c_str());
    }
    schema->dialect = found->second;
    return Status();
}

void SchemaDocument::find_keywords(Schema *schema) const {
    schema->keywords.fill(nullptr);
    for (const auto &[name, value] : schema->json->members) {
        const std::optional<Keyword> keyword = keyword_of(name);
        if (keyword && is_known(schema->dialect, *keyword)) {
            schema->keywords[static_cast<size_t>(*keyword)] = &value;
        }
    }
    // Up to draft 7 a reference hides the keywords beside it.
    if (schema->dialect <= SchemaDialect::draft7 && schema->find(Keyword::ref) != nullptr) {
        const JsonTree *ref = schema->find(Keyword::ref);
        if (!ref->is_string()) return;
        const JsonTree *definitions = schema->find(Keyword::definitions);
        schema->keywords.fill(nullptr);
        schema->keywords[static_cast<size_t>(Keyword::ref)] = ref;
        schema->keywords[static_cast<size_t>(Keyword::definitions)] = definitions;
    }
}

// Registers the schema's `$id` and anchors.
Status SchemaDocument::add_names(SchemaId id) {
    Schema &schema = schemas_[static_cast<size_t>(id)];
    const JsonTree *name = schema.find(Keyword::id);
    if (name == nullptr) name = schema.find(Keyword::old_id);
    if (name != nullptr && name->is_string()) {
        const std::string uri = resolve_uri(schema.base, name->text);
        const auto [resource, fragment] = split_fragment(uri);
        const bool anchor_alone = !name->text.empty() && name->text[0] == '#';
        if (!fragment.empty()) {
            anchors_.try_emplace(uri, id);
            anchors_.try_emplace(schema.base + "#" + std::string(fragment), id);
        }
        if (!anchor_alone) {
            schema.base = resource;
            resources_.try_emplace(schema.base, Resource{schema.json, id});
        }
    }
    for (const Keyword keyword : {Keyword::anchor, Keyword::dynamicAnchor}) {
        const JsonTree *anchor = schema.find(keyword);
        if (anchor == nullptr || !anchor->is_string()) continue;
        anchors_.try_emplace(schema.base + "#" + anchor->text, id);
        if (keyword == Keyword::dynamicAnchor) ++dynamic_anchors_[anchor->text];
    }
    return Status();
}

// Visits schemas in the order of the text, so that their numbers are in that order too.
Status SchemaDocument::walk(SchemaId id) {
    for (const auto &[name, json] : at(id).json->members) {
        const std::optional<Keyword> keyword = keyword_of(name);
        if (keyword && at(id).find(*keyword) == &json) {
            RETURN_IF_ERROR(walk_children(id, *keyword, json));
        }
    }
    return Status();
}

Status SchemaDocument::walk_children(SchemaId id, Keyword keyword, const JsonTree &json) {
    const SchemasHeld how = schemas_held(keyword);
    const auto enter = [&](const JsonTree &place, std::string_view member) -> Status {
        if (!is_schema(place) || by_place_.count(&place) > 0) return Status();
        ASSIGN_OR_RETURN(const SchemaId found, child(id, &place, keyword, member));
        return walk(found);
    };
    if ((how == SchemasHeld::one || how == SchemasHeld::one_or_list) && is_schema(json))
        return enter(json, {});
    if ((how == SchemasHeld::list || how == SchemasHeld::one_or_list) && json.is_array()) {
        for (size_t i = 0; i < json.items.size(); ++i) {
            RETURN_IF_ERROR(enter(json.items[i], std::to_string(i)));
        }
    }
    if (how == SchemasHeld::map && json.is_object()) {
        for (const auto &[name, place] : json.members) RETURN_IF_ERROR(enter(place, name));
    }
    return Status();
}

Result<SchemaId> SchemaDocument::child(SchemaId parent, const JsonTree *json, Keyword keyword,
                                       std::string_view member) {
    const auto found = by_place_.find(json);
    if (found != by_place_.end()) return found->second;
    std::string step(keyword_name(keyword));
    if (!member.empty()) step += "/" + escaped_step(member);
    if (!is_schema(*json)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s/%s: a schema is an object or a boolean",
                     path(parent).c_str(), step.c_str());
    }
    return add(json, parent, std::move(step));
}

Status SchemaDocument::unresolved(const std::string &reference) const {
    const std::string_view resource = split_fragment(reference).first;
    const char *why = resource.empty() || resources_.count(std::string(resource)) > 0
                          ? "names nothing in the schema"
                          : "is in another document, which is not read";
    return error(BATCHLLM_ERROR_UNSUPPORTED, "%s %s", printable(reference).c_str(), why);
}

Result<SchemaId> SchemaDocument::resolve(SchemaId from, const std::string &reference) {
    const std::string uri = resolve_uri(at(from).base, reference);
    const auto [resource_uri, fragment] = split_fragment(uri);
    const auto found = resources_.find(std::string(resource_uri));
    if (found == resources_.end()) return unresolved(uri);
    const Resource &resource = found->second;
    if (fragment.empty()) return resource.id;
    if (fragment[0] == '/') return follow_pointer(resource, fragment, uri);
    const auto anchor = anchors_.find(std::string(resource_uri) + "#" + percent_decoded(fragment));
    if (anchor == anchors_.end()) return unresolved(uri);
    return anchor->second;
}

Result<SchemaId> SchemaDocument::follow_pointer(const Resource &resource, std::string_view pointer,
                                                const std::string &reference) {
    const std::string decoded = percent_decoded(pointer);
    const JsonTree *place = resource.json;
    SchemaId nearest = resource.id; // the last schema on the path
    std::string step;               // from there
    size_t at_byte = 0;
    while (at_byte < decoded.size()) {
        const size_t slash = decoded.find('/', at_byte + 1);
        const size_t end = slash == std::string::npos ? decoded.size() : slash;
        const std::string name =
            unescaped_step(std::string_view(decoded).substr(at_byte + 1, end - at_byte - 1));
        at_byte = end;
        if (place->is_array()) {
            if (name.empty() || name.size() > 9 ||
                name.find_first_not_of("0123456789") != std::string::npos ||
                std::stoul(name) >= place->items.size()) {
                return unresolved(reference);
            }
            place = &place->items[std::stoul(name)];
        } else {
            place = place->find(name);
            if (place == nullptr) return unresolved(reference);
        }
        step += (step.empty() ? "" : "/") + escaped_step(name);
        const auto schema = by_place_.find(place);
        if (schema != by_place_.end()) {
            nearest = schema->second;
            step.clear();
        }
    }
    if (step.empty()) return nearest;
    if (!is_schema(*place)) return unresolved(reference);
    // It is inside an unknown keyword, but a reference names it, so it is a schema.
    ASSIGN_OR_RETURN(const SchemaId id, add(place, nearest, step));
    RETURN_IF_ERROR(walk(id));
    return id;
}

bool SchemaDocument::one_dynamic_anchor(const std::string &name) const {
    const auto found = dynamic_anchors_.find(name);
    return found == dynamic_anchors_.end() || found->second == 1;
}

SchemaId SchemaDocument::make_value(const JsonTree *value, SchemaId parent) {
    // Not added to by_place_: a reference may make a schema at the same place.
    const SchemaId id = static_cast<SchemaId>(schemas_.size());
    static const JsonTree nothing{JsonTree::Kind::object, false, {}, {}, {}};
    Schema &schema = schemas_.emplace_back();
    schema.json = &nothing;
    schema.parent = parent;
    schema.step = keyword_name(Keyword::const_);
    schema.dialect = at(parent).dialect;
    schema.keywords.fill(nullptr);
    schema.value = value;
    return id;
}

SchemaId SchemaDocument::make_any_of(std::vector<SchemaId> alternatives, SchemaId parent) {
    const SchemaId id = make_value(nullptr, parent);
    schemas_.back().step = keyword_name(Keyword::anyOf);
    schemas_.back().alternatives = std::move(alternatives);
    return id;
}

std::string SchemaDocument::path(SchemaId id) const {
    std::string out;
    for (; id >= 0 && at(id).parent >= 0; id = at(id).parent) out = "/" + at(id).step + out;
    return "#" + out;
}

Status SchemaDocument::fail(int32_t code, SchemaId id, Keyword keyword,
                            const std::string &problem) const {
    return error(code, "%s/%s: %s", printable(path(id)).c_str(),
                 std::string(keyword_name(keyword)).c_str(), problem.c_str());
}

} // namespace batchllm
