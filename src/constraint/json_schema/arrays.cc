// Keywords for arrays.
#include <algorithm>

#include "constraint/json_schema/meaning.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

ValueSet only_arrays(std::vector<ArraySet> arrays) {
    ValueSet out;
    out.arrays = std::move(arrays);
    return out;
}

ValueSet arrays_and_others(ArraySet set) {
    ValueSet out = ValueSet::all();
    out.arrays = {std::move(set)};
    return out;
}

// The item at the index must meet `what`; those before it may be anything.
ArraySet with_item(int64_t index, RequirementId what) {
    ArraySet set;
    set.prefix.assign(static_cast<size_t>(index), kAnything);
    set.prefix.push_back(what);
    set.least = index + 1;
    return set;
}

} // namespace

Result<ValueSet> SchemaMeaning::items(SchemaId id, bool negated, bool track) {
    const Schema &schema = document_.at(id);
    const JsonTree *first = schema.find(Keyword::prefixItems);
    const JsonTree *rest = schema.find(Keyword::items);
    Keyword first_keyword = Keyword::prefixItems;
    Keyword rest_keyword = Keyword::items;
    if (first == nullptr && rest != nullptr && rest->is_array()) {
        if (schema.dialect == SchemaDialect::draft2020) {
            return invalid(id, Keyword::items, "a list is prefixItems in draft 2020-12");
        }
        first = rest;
        first_keyword = Keyword::items;
        rest = schema.find(Keyword::additionalItems);
        rest_keyword = Keyword::additionalItems;
    }
    if (first != nullptr && !first->is_array()) return invalid(id, first_keyword, "not a list");
    std::vector<SchemaId> prefix;
    for (size_t i = 0; first != nullptr && i < first->items.size(); ++i) {
        ASSIGN_OR_RETURN(const SchemaId item,
                         document_.child(id, &first->items[i], first_keyword, std::to_string(i)));
        prefix.push_back(item);
    }
    if (negated) {
        std::vector<ArraySet> broken;
        for (size_t i = 0; i < prefix.size(); ++i) {
            ASSIGN_OR_RETURN(const RequirementId what, requirement(prefix[i], true));
            ArraySet set = with_item(static_cast<int64_t>(i), what);
            if (tidy(&set)) broken.push_back(std::move(set));
        }
        if (rest != nullptr) {
            ASSIGN_OR_RETURN(const SchemaId other, document_.child(id, rest, rest_keyword));
            ASSIGN_OR_RETURN(const RequirementId what, requirement(other, true));
            ArraySet set;
            set.contains.push_back(
                {static_cast<int64_t>(prefix.size()), what, 1, kUnbounded, {id, rest_keyword}});
            if (tidy(&set)) broken.push_back(std::move(set));
        }
        return only_arrays(std::move(broken));
    }
    ArraySet set;
    for (const SchemaId item : prefix) {
        ASSIGN_OR_RETURN(const RequirementId what, requirement(item));
        set.prefix.push_back(what);
    }
    if (rest != nullptr) {
        ASSIGN_OR_RETURN(const SchemaId other, document_.child(id, rest, rest_keyword));
        ASSIGN_OR_RETURN(set.rest, requirement(other));
    }
    if (track) {
        set.all_evaluated = rest != nullptr;
        set.evaluated = static_cast<int64_t>(prefix.size());
    }
    return arrays_and_others(std::move(set));
}

Result<ValueSet> SchemaMeaning::item_counts(SchemaId id, bool negated, bool) {
    ASSIGN_OR_RETURN(const auto least, count(id, Keyword::minItems));
    ASSIGN_OR_RETURN(const auto greatest, count(id, Keyword::maxItems));
    if (!negated) {
        ArraySet set;
        set.least = least.value_or(0);
        set.greatest = greatest.value_or(kUnbounded);
        if (tidy(&set)) return arrays_and_others(std::move(set));
        ValueSet others = ValueSet::all();
        others.arrays.clear();
        return others;
    }
    std::vector<ArraySet> broken;
    if (least && *least > 0) {
        ArraySet set;
        set.greatest = *least - 1;
        if (tidy(&set)) broken.push_back(std::move(set));
    }
    if (greatest) {
        ArraySet set;
        set.least = *greatest + 1;
        broken.push_back(std::move(set));
    }
    return only_arrays(std::move(broken));
}

Result<ValueSet> SchemaMeaning::contains(SchemaId id, bool negated, bool track) {
    ASSIGN_OR_RETURN(const SchemaId item, child(id, Keyword::contains));
    ASSIGN_OR_RETURN(const RequirementId what, requirement(item));
    ASSIGN_OR_RETURN(const auto given_least, count(id, Keyword::minContains));
    ASSIGN_OR_RETURN(const auto given_greatest, count(id, Keyword::maxContains));
    const int64_t least = given_least.value_or(1);
    const int64_t greatest = given_greatest.value_or(kUnbounded);
    const SchemaOrigin origin{id, Keyword::contains};
    if (!negated) {
        ArraySet set;
        if (least > 0 || greatest != kUnbounded) {
            set.contains.push_back({0, what, least, greatest, origin});
        }
        const bool possible = (greatest == kUnbounded || least <= greatest) && tidy(&set);
        const bool evaluates = track && document_.at(id).dialect >= SchemaDialect::draft2020;
        if (evaluates) set.evaluated_matches.push_back(what);
        if (possible) return arrays_and_others(std::move(set));
        ValueSet others = ValueSet::all();
        others.arrays.clear();
        return others;
    }
    std::vector<ArraySet> broken;
    if (least > 0) {
        ArraySet set;
        set.contains.push_back({0, what, 0, least - 1, origin});
        if (tidy(&set)) broken.push_back(std::move(set));
    }
    if (greatest != kUnbounded) {
        ArraySet set;
        set.contains.push_back({0, what, greatest + 1, kUnbounded, origin});
        if (tidy(&set)) broken.push_back(std::move(set));
    }
    return only_arrays(std::move(broken));
}

Result<ValueSet> SchemaMeaning::unique_items(SchemaId id, bool negated, bool) {
    const JsonTree &json = *document_.at(id).find(Keyword::uniqueItems);
    if (!json.is_boolean()) return invalid(id, Keyword::uniqueItems, "not a boolean");
    if (!json.boolean) return negated ? ValueSet() : ValueSet::all();
    const SchemaOrigin origin{id, Keyword::uniqueItems};
    ArraySet set;
    if (negated) {
        set.repeats = origin;
        set.least = 2;
        return only_arrays({set});
    }
    set.unique = origin;
    return arrays_and_others(std::move(set));
}

Status SchemaMeaning::apply_unevaluated_items(SchemaId id, ValueSet *set) {
    ASSIGN_OR_RETURN(const SchemaId left, child(id, Keyword::unevaluatedItems));
    std::vector<ArraySet> kept;
    for (ArraySet &array : set->arrays) {
        if (!array.all_evaluated) {
            // Items that a `contains` matches are evaluated too.
            RequirementId what = kAnything;
            if (array.evaluated_matches.empty()) {
                ASSIGN_OR_RETURN(what, requirement(left));
            } else {
                std::vector<SchemaId> alternatives = {left};
                for (const RequirementId match : array.evaluated_matches) {
                    if (match == kAnything) {
                        alternatives.clear();
                        break;
                    }
                    if (match == kNothing) continue;
                    // A requirement from `contains` consists of one schema that must hold.
                    alternatives.push_back(numbers_.literals(match)[0] / 2);
                }
                if (!alternatives.empty()) {
                    const SchemaId any = document_.make_any_of(std::move(alternatives), id);
                    what = numbers_.requirement({2 * any});
                }
            }
            for (size_t i = static_cast<size_t>(array.evaluated); i < array.prefix.size(); ++i) {
                array.prefix[i] = numbers_.both(array.prefix[i], what);
            }
            while (static_cast<int64_t>(array.prefix.size()) < array.evaluated) {
                array.prefix.push_back(array.rest);
            }
            array.rest = numbers_.both(array.rest, what);
            array.all_evaluated = true;
            if (!tidy(&array)) continue;
        }
        kept.push_back(std::move(array));
    }
    set->arrays = std::move(kept);
    return Status();
}

} // namespace batchllm
