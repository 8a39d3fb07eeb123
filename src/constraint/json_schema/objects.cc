// Keywords for objects.
#include <algorithm>

#include "constraint/json_schema/meaning.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

constexpr size_t kMostRegions = 64;

ValueSet only_objects(std::vector<ObjectSet> objects) {
    ValueSet out;
    out.objects = std::move(objects);
    return out;
}

ValueSet objects_and_others(ObjectSet set) {
    ValueSet out = ValueSet::all();
    out.objects = {std::move(set)};
    return out;
}

ValueSet no_objects() {
    ValueSet out = ValueSet::all();
    out.objects.clear();
    return out;
}

void sort_names(ObjectSet *set) {
    std::sort(set->named.begin(), set->named.end(),
              [](const auto &a, const auto &b) { return a.name < b.name; });
}

} // namespace

// The parsed properties, patternProperties, additionalProperties and required.
struct SchemaMeaning::MemberKeywords {
    std::vector<std::pair<NameId, SchemaId>> properties;
    std::vector<std::pair<LanguageId, SchemaId>> patterns;
    std::optional<SchemaId> additional;
    std::vector<NameId> required;
    bool unknown_names = false; // a pattern was dropped that may match any name
};

Status SchemaMeaning::read_members(SchemaId id, MemberKeywords *out) {
    const Schema &schema = document_.at(id);
    if (const JsonTree *json = schema.find(Keyword::properties)) {
        if (!json->is_object()) return invalid(id, Keyword::properties, "not an object");
        for (const auto &[name, value] : json->members) {
            ASSIGN_OR_RETURN(const SchemaId member,
                             document_.child(id, &value, Keyword::properties, name));
            out->properties.emplace_back(numbers_.name(name), member);
        }
    }
    if (const JsonTree *json = schema.find(Keyword::patternProperties)) {
        if (!json->is_object()) return invalid(id, Keyword::patternProperties, "not an object");
        for (const auto &[text, value] : json->members) {
            ASSIGN_OR_RETURN(const SchemaId member,
                             document_.child(id, &value, Keyword::patternProperties, text));
            auto language = pattern_language(id, Keyword::patternProperties, text);
            if (language.ok()) {
                out->patterns.emplace_back(numbers_.language(*language), member);
                continue;
            }
            RETURN_IF_ERROR(pass_over(std::move(language).status()));
            out->unknown_names = true;
        }
    }
    if (schema.find(Keyword::additionalProperties) != nullptr && !out->unknown_names) {
        ASSIGN_OR_RETURN(out->additional, child(id, Keyword::additionalProperties));
    }
    if (const JsonTree *json = schema.find(Keyword::required)) {
        // A boolean, as in draft 3, has no meaning in later drafts.
        if (json->is_boolean() && schema.dialect != SchemaDialect::draft2020) return Status();
        if (!json->is_array()) return invalid(id, Keyword::required, "not a list");
        for (const JsonTree &name : json->items) {
            if (!name.is_string()) return invalid(id, Keyword::required, "not a list of strings");
            const NameId number = numbers_.name(name.text);
            if (std::find(out->required.begin(), out->required.end(), number) ==
                out->required.end()) {
                out->required.push_back(number);
            }
        }
    }
    return Status();
}

Status SchemaMeaning::add_regions(SchemaId id, const MemberKeywords &keywords, ObjectSet *set) {
    std::vector<ObjectSet::Region> regions = {{kAllNames, kAnything}};
    LanguageId left = kAllNames; // names that no pattern matches
    for (const auto &[language, schema] : keywords.patterns) {
        ASSIGN_OR_RETURN(const RequirementId what, requirement(schema));
        std::vector<ObjectSet::Region> split;
        for (const ObjectSet::Region &region : regions) {
            ASSIGN_OR_RETURN(const LanguageId in, numbers_.both(region.names, language, budget_));
            ASSIGN_OR_RETURN(const LanguageId out,
                             numbers_.without(region.names, language, budget_));
            if (in != kNoNames) split.push_back({in, numbers_.both(region.what, what)});
            if (out != kNoNames) split.push_back({out, region.what});
        }
        regions = std::move(split);
        if (regions.size() > kMostRegions) {
            return document_.fail(BATCHLLM_ERROR_UNSUPPORTED, id, Keyword::patternProperties,
                                  "too many patterns that overlap");
        }
        ASSIGN_OR_RETURN(left, numbers_.without(left, language, budget_));
    }
    if (keywords.additional) {
        ASSIGN_OR_RETURN(const RequirementId what, requirement(*keywords.additional));
        for (ObjectSet::Region &region : regions) {
            ASSIGN_OR_RETURN(const LanguageId in, numbers_.both(region.names, left, budget_));
            if (in != kNoNames) region.what = numbers_.both(region.what, what);
        }
    }
    set->regions = std::move(regions);
    return Status();
}

Result<ValueSet> SchemaMeaning::members(SchemaId id, bool negated, bool track) {
    MemberKeywords keywords;
    RETURN_IF_ERROR(placed(read_members(id, &keywords), id, Keyword::properties));
    if (negated) {
        // Only objects can violate these keywords.
        if (keywords.unknown_names) return only_objects({ObjectSet()});
        return negated_members(id, keywords);
    }
    ObjectSet set;
    Status regions = placed(add_regions(id, keywords, &set), id, Keyword::patternProperties);
    if (!regions.ok()) {
        RETURN_IF_ERROR(pass_over(std::move(regions)));
        keywords.unknown_names = true;
    }
    for (const auto &[name, schema] : keywords.properties) {
        ASSIGN_OR_RETURN(RequirementId what, requirement(schema));
        for (const auto &[language, pattern_schema] : keywords.patterns) {
            if (!numbers_.has_name(language, name)) continue;
            ASSIGN_OR_RETURN(const RequirementId more, requirement(pattern_schema));
            what = numbers_.both(what, more);
        }
        set.named.push_back({name, what, false, static_cast<int32_t>(set.named.size())});
    }
    sort_names(&set);
    auto place_after = static_cast<int32_t>(set.named.size());
    for (const NameId name : keywords.required) {
        const auto place = std::lower_bound(
            set.named.begin(), set.named.end(), name,
            [](const ObjectSet::Named &named, NameId other) { return named.name < other; });
        if (place != set.named.end() && place->name == name) {
            place->required = true;
        } else {
            set.named.insert(place, {name, region_of(set, name), true, place_after++});
        }
    }
    if (track) {
        set.all_evaluated = keywords.additional.has_value() || keywords.unknown_names;
        for (const auto &property : keywords.properties) {
            set.evaluated_names.push_back(property.first);
        }
        std::sort(set.evaluated_names.begin(), set.evaluated_names.end());
        for (const auto &pattern : keywords.patterns) {
            set.evaluated_languages.push_back(pattern.first);
        }
    }
    for (const ObjectSet::Named &named : set.named) {
        if (named.required && named.what == kNothing) return no_objects();
    }
    return objects_and_others(std::move(set));
}

Result<ValueSet> SchemaMeaning::negated_members(SchemaId id, const MemberKeywords &keywords) {
    std::vector<ObjectSet> broken;
    for (const auto &[name, schema] : keywords.properties) {
        ASSIGN_OR_RETURN(const RequirementId what, requirement(schema, true));
        ObjectSet set;
        set.named.push_back({name, what, true});
        if (tidy(&set)) broken.push_back(std::move(set));
    }
    LanguageId left = kAllNames;
    for (const auto &[language, schema] : keywords.patterns) {
        ASSIGN_OR_RETURN(const RequirementId what, requirement(schema, true));
        ObjectSet set;
        set.exists.push_back({language, what, {id, Keyword::patternProperties}});
        if (tidy(&set)) broken.push_back(std::move(set));
        if (!keywords.additional) continue;
        ASSIGN_OR_RETURN(left, numbers_.without(left, language, budget_));
    }
    if (keywords.additional) {
        std::vector<std::string> names;
        for (const auto &property : keywords.properties)
            names.push_back(numbers_.name(property.first));
        ASSIGN_OR_RETURN(const Automaton known, Automaton::strings(std::move(names), budget_));
        ASSIGN_OR_RETURN(left, numbers_.without(left, numbers_.language(known), budget_));
        ASSIGN_OR_RETURN(const RequirementId what, requirement(*keywords.additional, true));
        ObjectSet set;
        set.exists.push_back({left, what, {id, Keyword::additionalProperties}});
        if (tidy(&set)) broken.push_back(std::move(set));
    }
    for (const NameId name : keywords.required) {
        ObjectSet set;
        set.named.push_back({name, kNothing, false});
        broken.push_back(std::move(set));
    }
    return only_objects(std::move(broken));
}

Result<ValueSet> SchemaMeaning::member_counts(SchemaId id, bool negated, bool) {
    ASSIGN_OR_RETURN(const auto least, count(id, Keyword::minProperties));
    ASSIGN_OR_RETURN(const auto greatest, count(id, Keyword::maxProperties));
    ObjectSet set;
    set.count_origin = SchemaOrigin{id, least ? Keyword::minProperties : Keyword::maxProperties};
    if (!negated) {
        set.least = least.value_or(0);
        set.greatest = greatest.value_or(kUnbounded);
        return tidy(&set) ? objects_and_others(std::move(set)) : no_objects();
    }
    std::vector<ObjectSet> broken;
    if (least && *least > 0) {
        set.greatest = *least - 1;
        broken.push_back(set);
        set.greatest = kUnbounded;
    }
    if (greatest) {
        set.least = *greatest + 1;
        broken.push_back(set);
    }
    return only_objects(std::move(broken));
}

Result<ValueSet> SchemaMeaning::property_names(SchemaId id, bool negated, bool) {
    ASSIGN_OR_RETURN(const SchemaId schema, child(id, Keyword::propertyNames));
    // If negated, the requirement is the schema's own negation. With a loose schema both are widened, and the
    // complement of a widened set would be too narrow.
    ASSIGN_OR_RETURN(const RequirementId what, requirement(schema, negated));
    ASSIGN_OR_RETURN(const ValueSet *names, set_of(what));
    const auto one_of = [&](LanguageId broken) {
        ObjectSet set;
        set.exists.push_back({broken, kAnything, {id, Keyword::propertyNames}});
        return only_objects({set});
    };
    std::vector<Automaton> languages;
    for (const StringSet &set : names->strings) {
        if (set.all()) return negated ? one_of(kAllNames) : ValueSet::all();
        auto language = language_of(set, budget_);
        if (!language.ok()) {
            RETURN_IF_ERROR(refuse({id, Keyword::propertyNames}, language.status().message()));
            return ValueSet::all();
        }
        languages.push_back(std::move(*language));
    }
    ASSIGN_OR_RETURN(const Automaton language, batchllm::unite(languages, budget_));
    const LanguageId allowed = numbers_.language(language);
    if (negated) return allowed == kNoNames ? ValueSet() : one_of(allowed);
    ASSIGN_OR_RETURN(const LanguageId others, numbers_.without(kAllNames, allowed, budget_));
    if (others == kNoNames) return ValueSet::all();
    ObjectSet set;
    set.regions.clear();
    if (allowed != kNoNames) set.regions.push_back({allowed, kAnything});
    set.regions.push_back({others, kNothing});
    return objects_and_others(std::move(set));
}

ValueSet SchemaMeaning::with_member(const std::string &name, RequirementId what, bool required) {
    ObjectSet set;
    set.named.push_back({numbers_.name(name), what, required});
    return only_objects({set});
}

// `needed`: names or a schema that the member requires.
Result<ValueSet> SchemaMeaning::depends(SchemaId id, Keyword keyword, const std::string &name,
                                        const JsonTree &needed, bool negated, bool track) {
    const ValueSet present = with_member(name, kAnything, true);
    ValueSet whole;
    if (needed.is_array()) {
        ValueSet all = negated ? ValueSet() : ValueSet::all();
        for (const JsonTree &other : needed.items) {
            if (!other.is_string()) return invalid(id, keyword, "not a list of strings");
            if (negated) {
                unite(&all, with_member(other.text, kNothing, false));
            } else {
                ASSIGN_OR_RETURN(all, intersect(all, with_member(other.text, kAnything, true)));
            }
        }
        ASSIGN_OR_RETURN(whole, intersect(present, all));
    } else {
        ASSIGN_OR_RETURN(const SchemaId schema, document_.child(id, &needed, keyword, name));
        ASSIGN_OR_RETURN(const ValueSet *set, of_schema(schema, negated, track));
        ASSIGN_OR_RETURN(whole, intersect(present, *set));
    }
    if (negated) return whole;
    unite(&whole, with_member(name, kNothing, false));
    ValueSet out = no_objects();
    unite(&out, std::move(whole));
    return out;
}

Result<ValueSet> SchemaMeaning::dependent_required(SchemaId id, bool negated, bool track) {
    return dependents(id, Keyword::dependentRequired, negated, track);
}

Result<ValueSet> SchemaMeaning::dependent_schemas(SchemaId id, bool negated, bool track) {
    return dependents(id, Keyword::dependentSchemas, negated, track);
}

Result<ValueSet> SchemaMeaning::dependents(SchemaId id, Keyword own, bool negated, bool track) {
    const bool names = own == Keyword::dependentRequired; // else schemas
    ValueSet set = negated ? ValueSet() : ValueSet::all();
    for (const Keyword keyword : {own, Keyword::dependencies}) {
        const JsonTree *json = document_.at(id).find(keyword);
        if (json == nullptr) continue;
        if (!json->is_object()) return invalid(id, keyword, "not an object");
        const bool both = keyword == Keyword::dependencies; // lists of names and schemas
        for (const auto &[name, needed] : json->members) {
            if (names && !needed.is_array()) {
                // Draft 3 allowed a single name here.
                if (both && !needed.is_string()) continue;
                return invalid(id, keyword, "not a list of names");
            }
            if (!names && both && needed.is_array()) continue;
            ASSIGN_OR_RETURN(ValueSet part, depends(id, keyword, name, needed, negated, track));
            if (negated) {
                unite(&set, std::move(part));
            } else {
                ASSIGN_OR_RETURN(set, intersect(set, part));
            }
        }
    }
    return set;
}

Status SchemaMeaning::apply_unevaluated_properties(SchemaId id, ValueSet *set) {
    ASSIGN_OR_RETURN(const SchemaId left, child(id, Keyword::unevaluatedProperties));
    ASSIGN_OR_RETURN(const RequirementId what, requirement(left));
    std::vector<ObjectSet> kept;
    for (ObjectSet &object : set->objects) {
        if (!object.all_evaluated) {
            for (ObjectSet::Named &named : object.named) {
                const bool evaluated =
                    std::binary_search(object.evaluated_names.begin(), object.evaluated_names.end(),
                                       named.name) ||
                    std::any_of(object.evaluated_languages.begin(),
                                object.evaluated_languages.end(), [&](LanguageId language) {
                                    return numbers_.has_name(language, named.name);
                                });
                if (!evaluated) named.what = numbers_.both(named.what, what);
            }
            std::vector<ObjectSet::Region> regions = std::move(object.regions);
            object.regions.clear();
            for (ObjectSet::Region region : regions) {
                LanguageId rest = region.names;
                for (const LanguageId language : object.evaluated_languages) {
                    ASSIGN_OR_RETURN(const LanguageId in, numbers_.both(rest, language, budget_));
                    if (in != kNoNames) object.regions.push_back({in, region.what});
                    ASSIGN_OR_RETURN(rest, numbers_.without(rest, language, budget_));
                }
                if (rest != kNoNames) {
                    object.regions.push_back({rest, numbers_.both(region.what, what)});
                }
            }
            object.all_evaluated = true;
            if (!tidy(&object)) continue;
        }
        kept.push_back(std::move(object));
    }
    set->objects = std::move(kept);
    return Status();
}

} // namespace batchllm
