#include "constraint/json_schema/meaning.h"

#include <algorithm>

#include "base/printable.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

constexpr int64_t kMostSimpleSets = 200000; // made for one constraint
constexpr size_t kMostWarnings = 100;
constexpr size_t kMostDepth = 200;    // nesting of the schemas that are being converted
constexpr size_t kMostLookahead = 40; // nesting of requirements when checking whether one is empty

bool only_reference(const Schema &schema) {
    for (size_t i = 0; i < schema.keywords.size(); ++i) {
        const auto keyword = static_cast<Keyword>(i);
        if (schema.keywords[i] == nullptr || keyword == Keyword::ref) continue;
        if (keyword != Keyword::definitions && keyword != Keyword::defs && keyword != Keyword::id &&
            keyword != Keyword::old_id && keyword != Keyword::schema &&
            keyword != Keyword::anchor) {
            return false;
        }
    }
    return schema.find(Keyword::ref) != nullptr && schema.find(Keyword::ref)->is_string();
}

// Whether no keyword of the schema restricts anything.
bool asks_nothing(const Schema &schema) {
    if (schema.value != nullptr || !schema.alternatives.empty()) return false;
    for (size_t i = 0; i < schema.keywords.size(); ++i) {
        const auto keyword = static_cast<Keyword>(i);
        if (schema.keywords[i] != nullptr && keyword != Keyword::definitions &&
            keyword != Keyword::defs && keyword != Keyword::id && keyword != Keyword::old_id &&
            keyword != Keyword::schema && keyword != Keyword::anchor &&
            keyword != Keyword::dynamicAnchor) {
            return false;
        }
    }
    return true;
}

} // namespace

Result<RequirementId> SchemaMeaning::requirement(SchemaId id, bool negated) {
    // A schema that only refers to another one is that schema.
    for (int hops = 0; only_reference(document_.at(id)); ++hops) {
        auto target = document_.resolve(id, document_.at(id).find(Keyword::ref)->text);
        if (!target.ok()) {
            RETURN_IF_ERROR(refuse({id, Keyword::ref}, target.status().message()));
            return kAnything;
        }
        if (hops > 100) {
            return document_.fail(BATCHLLM_ERROR_INVALID_ARGUMENT, id, Keyword::ref,
                                  "leads back to itself");
        }
        id = *target;
    }
    const Schema &schema = document_.at(id);
    if (schema.json->is_boolean()) {
        return schema.json->boolean != negated ? kAnything : kNothing;
    }
    if (asks_nothing(schema)) return negated ? kNothing : kAnything;
    return numbers_.requirement({2 * first_alike(id) + (negated ? 1 : 0)});
}

SchemaId SchemaMeaning::first_alike(SchemaId id) {
    const Schema &schema = document_.at(id);
    if (schema.value != nullptr || !schema.alternatives.empty()) return id;
    std::string key;
    for (size_t i = 0; i < schema.keywords.size(); ++i) {
        const JsonTree *json = schema.keywords[i];
        if (json == nullptr) continue;
        const auto keyword = static_cast<Keyword>(i);
        switch (keyword) {
        case Keyword::type:
        case Keyword::format:
        case Keyword::pattern:
        case Keyword::minLength:
        case Keyword::maxLength:
        case Keyword::minimum:
        case Keyword::maximum:
        case Keyword::exclusiveMinimum:
        case Keyword::exclusiveMaximum:
        case Keyword::multipleOf:
            break;
        default:
            return id;
        }
        if (!json->is_string() && !json->is_number()) return id;
        key += static_cast<char>(i);
        key += json->is_string() ? 's' : 'n';
        key += std::to_string(json->text.size()) + ":" + json->text;
    }
    return leaves_.try_emplace(key, id).first->second;
}

Result<const ValueSet *> SchemaMeaning::set_of(RequirementId id) {
    const auto known = requirement_sets_.find(id);
    if (known != requirement_sets_.end()) return known->second.get();
    if (id == kNothing) {
        auto &place = requirement_sets_[id] = std::make_unique<ValueSet>();
        return place.get();
    }
    requirements_being_made_.insert(id);
    auto set = make_set_of(id);
    requirements_being_made_.erase(id);
    if (!set.ok()) return std::move(set).status();
    auto &place = requirement_sets_[id] = std::make_unique<ValueSet>(std::move(*set));
    return place.get();
}

Result<ValueSet> SchemaMeaning::make_set_of(RequirementId id) {
    ValueSet set = ValueSet::all();
    const std::vector<SchemaNumbers::Literal> literals = numbers_.literals(id);
    for (const SchemaNumbers::Literal literal : literals) {
        ASSIGN_OR_RETURN(const ValueSet *part, of_schema(literal / 2, literal % 2 == 1, false));
        auto both = intersect(set, *part);
        if (both.ok())
            set = std::move(*both);
        else
            RETURN_IF_ERROR(
                pass_over(placed(std::move(both).status(), literal / 2, Keyword::allOf)));
    }
    return set;
}

bool SchemaMeaning::seen_empty(RequirementId id) {
    if (id == kNothing) return true;
    if (id == kAnything || requirements_being_made_.count(id) > 0) return false;
    if (requirements_being_made_.size() > kMostLookahead) return false;
    // An error is returned again when the set is needed.
    const auto set = set_of(id);
    return set.ok() && (*set)->empty();
}

Result<const ValueSet *> SchemaMeaning::of_schema(SchemaId id, bool negated, bool track) {
    const std::pair<SchemaNumbers::Literal, bool> key{2 * id + (negated ? 1 : 0), track};
    const auto known = schema_sets_.find(key);
    if (known != schema_sets_.end()) return known->second.get();
    if (!being_made_.insert(key).second) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: refers to itself in place",
                     printable(document_.path(id), 400).c_str());
    }
    if (being_made_.size() > kMostDepth) {
        too_large_ = true;
        return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: nested more than %zu levels deep",
                     printable(document_.path(id), 400).c_str(), kMostDepth);
    }
    auto set = make_of_schema(id, negated, track);
    being_made_.erase(key);
    if (!set.ok()) return std::move(set).status();
    simple_sets_ += static_cast<int64_t>(set->numbers.size() + set->strings.size() +
                                         set->arrays.size() + set->objects.size());
    if (simple_sets_ > kMostSimpleSets) {
        too_large_ = true;
        return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: too many alternatives to tell apart",
                     printable(document_.path(id), 400).c_str());
    }
    auto &place = schema_sets_[key] = std::make_unique<ValueSet>(std::move(*set));
    return place.get();
}

Result<ValueSet> SchemaMeaning::make_of_schema(SchemaId id, bool negated, bool track) {
    const Schema &schema = document_.at(id);
    if (schema.value != nullptr) return of_value(*schema.value, id, negated);
    if (!schema.alternatives.empty()) {
        if (!negated) return any_of_these(schema.alternatives, track, id, Keyword::anyOf);
        return all_of_these(schema.alternatives, true, false);
    }
    if (schema.json->is_boolean()) {
        return schema.json->boolean != negated ? ValueSet::all() : ValueSet();
    }
    return of_parts(id, negated, track);
}

Result<ValueSet> SchemaMeaning::of_parts(SchemaId id, bool negated, bool track) {
    const Schema &schema = document_.at(id);
    struct Group {
        Part part;
        std::initializer_list<Keyword> keywords;
    };
    // Cheap and selective groups first.
    static const Group groups[] = {
        {&SchemaMeaning::type, {Keyword::type}},
        {&SchemaMeaning::constant, {Keyword::const_}},
        {&SchemaMeaning::enumeration, {Keyword::enum_}},
        {&SchemaMeaning::number_bounds,
         {Keyword::minimum, Keyword::maximum, Keyword::exclusiveMinimum,
          Keyword::exclusiveMaximum}},
        {&SchemaMeaning::multiple_of, {Keyword::multipleOf}},
        {&SchemaMeaning::pattern, {Keyword::pattern}},
        {&SchemaMeaning::format, {Keyword::format}},
        {&SchemaMeaning::lengths, {Keyword::minLength, Keyword::maxLength}},
        {&SchemaMeaning::items, {Keyword::items, Keyword::prefixItems}},
        {&SchemaMeaning::item_counts, {Keyword::minItems, Keyword::maxItems}},
        {&SchemaMeaning::contains, {Keyword::contains}},
        {&SchemaMeaning::unique_items, {Keyword::uniqueItems}},
        {&SchemaMeaning::members,
         {Keyword::properties, Keyword::patternProperties, Keyword::additionalProperties,
          Keyword::required}},
        {&SchemaMeaning::member_counts, {Keyword::minProperties, Keyword::maxProperties}},
        {&SchemaMeaning::property_names, {Keyword::propertyNames}},
        {&SchemaMeaning::dependent_required, {Keyword::dependentRequired, Keyword::dependencies}},
        {&SchemaMeaning::dependent_schemas, {Keyword::dependentSchemas, Keyword::dependencies}},
        {&SchemaMeaning::reference, {Keyword::ref}},
        {&SchemaMeaning::dynamic_reference, {Keyword::dynamicRef, Keyword::recursiveRef}},
        {&SchemaMeaning::all_of, {Keyword::allOf}},
        {&SchemaMeaning::any_of, {Keyword::anyOf}},
        {&SchemaMeaning::one_of, {Keyword::oneOf}},
        {&SchemaMeaning::negation, {Keyword::not_}},
        {&SchemaMeaning::condition, {Keyword::if_}},
    };
    // Anything but `true` is a restriction.
    const auto asks = [](const JsonTree *json) {
        return json != nullptr && !(json->is_boolean() && json->boolean);
    };
    const bool properties_left = schema.find(Keyword::unevaluatedProperties) != nullptr &&
                                 (track || asks(schema.find(Keyword::unevaluatedProperties)));
    const bool items_left = schema.find(Keyword::unevaluatedItems) != nullptr &&
                            (track || asks(schema.find(Keyword::unevaluatedItems)));
    if (negated && (properties_left || items_left)) {
        const Keyword which =
            properties_left ? Keyword::unevaluatedProperties : Keyword::unevaluatedItems;
        RETURN_IF_ERROR(
            refuse({id, which}, "not supported inside a negated schema (such as \"not\")"));
        return ValueSet::all();
    }
    ValueSet set = negated ? ValueSet() : ValueSet::all();
    for (const Group &group : groups) {
        const auto *const keyword =
            std::find_if(group.keywords.begin(), group.keywords.end(),
                         [&](Keyword one) { return schema.find(one) != nullptr; });
        if (keyword == group.keywords.end()) continue;
        const bool tracked = track || properties_left || items_left;
        auto part = (this->*group.part)(id, negated, tracked);
        if (!part.ok()) {
            RETURN_IF_ERROR(pass_over(placed(std::move(part).status(), id, *keyword)));
            part = anything(tracked);
        }
        if (negated) {
            unite(&set, std::move(*part));
            continue;
        }
        auto both = intersect(set, *part);
        if (both.ok()) {
            set = std::move(*both);
        } else {
            RETURN_IF_ERROR(pass_over(placed(std::move(both).status(), id, *keyword)));
            if (tracked) mark_evaluated(&set);
        }
    }
    if (items_left) {
        RETURN_IF_ERROR(
            pass_over(placed(apply_unevaluated_items(id, &set), id, Keyword::unevaluatedItems)));
    }
    if (properties_left) {
        RETURN_IF_ERROR(pass_over(
            placed(apply_unevaluated_properties(id, &set), id, Keyword::unevaluatedProperties)));
    }
    return set;
}

void SchemaMeaning::mark_evaluated(ValueSet *set) {
    for (ArraySet &array : set->arrays) array.all_evaluated = true;
    for (ObjectSet &object : set->objects) object.all_evaluated = true;
}

ValueSet SchemaMeaning::anything(bool track) {
    ValueSet set = ValueSet::all();
    if (track) mark_evaluated(&set);
    return set;
}

Status SchemaMeaning::refuse(const SchemaOrigin &origin, const std::string &problem) {
    return pass_over(
        document_.fail(BATCHLLM_ERROR_UNSUPPORTED, origin.schema, origin.keyword, problem));
}

Status SchemaMeaning::pass_over(Status status) {
    if (!options_.loose || too_large_ || status.code() != BATCHLLM_ERROR_UNSUPPORTED) return status;
    const bool known =
        std::find(warnings_.begin(), warnings_.end(), status.message()) != warnings_.end();
    if (!known && warnings_.size() < kMostWarnings) warnings_.push_back(status.message());
    return Status();
}

Status SchemaMeaning::placed(Status status, SchemaId id, Keyword keyword) const {
    if (status.ok() || status.message().substr(0, 1) == "#") return status;
    return document_.fail(status.code(), id, keyword, status.message());
}

Status SchemaMeaning::invalid(SchemaId id, Keyword keyword, const std::string &problem) const {
    return document_.fail(BATCHLLM_ERROR_INVALID_ARGUMENT, id, keyword, problem);
}

Result<std::optional<Decimal>> SchemaMeaning::number(SchemaId id, Keyword keyword) {
    const JsonTree *json = document_.at(id).find(keyword);
    if (json == nullptr) return std::optional<Decimal>();
    if (!json->is_number()) return invalid(id, keyword, "not a number");
    const auto value = decimal(json->text);
    if (!value) {
        return document_.fail(BATCHLLM_ERROR_UNSUPPORTED, id, keyword,
                              printable(json->text) + " is too large or too small a number");
    }
    return value;
}

Result<std::optional<int64_t>> SchemaMeaning::count(SchemaId id, Keyword keyword) {
    ASSIGN_OR_RETURN(const auto value, number(id, keyword));
    if (!value) return std::optional<int64_t>();
    if (value->negative || !value->integer()) {
        return invalid(id, keyword, "not a count");
    }
    // Longer than any text.
    constexpr int64_t most = int64_t{1} << 50;
    const auto small = small_integer(*value);
    return std::optional<int64_t>(small ? std::min(*small, most) : most);
}

Result<SchemaId> SchemaMeaning::child(SchemaId id, Keyword keyword) {
    return document_.child(id, document_.at(id).find(keyword), keyword);
}

} // namespace batchllm
