// Keywords that apply schemas to the same value: references, allOf, anyOf, oneOf, not, if.
#include <algorithm>

#include "base/printable.h"
#include "constraint/json_schema/meaning.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

constexpr size_t kMostTrackedBranches = 6;
constexpr size_t kMostBranches = 2000;

} // namespace

Result<std::vector<SchemaId>> SchemaMeaning::branches(SchemaId id, Keyword keyword) {
    const JsonTree &json = *document_.at(id).find(keyword);
    if (!json.is_array() || json.items.empty())
        return invalid(id, keyword, "not a list of schemas");
    if (json.items.size() > kMostBranches) {
        return document_.fail(BATCHLLM_ERROR_UNSUPPORTED, id, keyword, "too many schemas");
    }
    std::vector<SchemaId> out;
    for (size_t i = 0; i < json.items.size(); ++i) {
        ASSIGN_OR_RETURN(const SchemaId branch,
                         document_.child(id, &json.items[i], keyword, std::to_string(i)));
        out.push_back(branch);
    }
    return out;
}

Result<ValueSet> SchemaMeaning::reference(SchemaId id, bool negated, bool track) {
    const JsonTree &json = *document_.at(id).find(Keyword::ref);
    if (!json.is_string()) return invalid(id, Keyword::ref, "not a string");
    auto target = document_.resolve(id, json.text);
    if (!target.ok()) {
        RETURN_IF_ERROR(refuse({id, Keyword::ref}, target.status().message()));
        return anything(track);
    }
    ASSIGN_OR_RETURN(const ValueSet *set, of_schema(*target, negated, track));
    return *set;
}

Result<ValueSet> SchemaMeaning::dynamic_reference(SchemaId id, bool negated, bool track) {
    const JsonTree *json = document_.at(id).find(Keyword::dynamicRef);
    if (json == nullptr) {
        RETURN_IF_ERROR(refuse({id, Keyword::recursiveRef}, "not supported"));
        return anything(track);
    }
    if (!json->is_string()) return invalid(id, Keyword::dynamicRef, "not a string");
    const size_t mark = json->text.find('#');
    const std::string anchor = mark == std::string::npos ? "" : json->text.substr(mark + 1);
    auto target = document_.resolve(id, json->text);
    if (!target.ok() || !document_.one_dynamic_anchor(anchor)) {
        RETURN_IF_ERROR(refuse({id, Keyword::dynamicRef}, target.ok() ? "may mean several schemas"
                                                                      : target.status().message()));
        return anything(track);
    }
    ASSIGN_OR_RETURN(const ValueSet *set, of_schema(*target, negated, track));
    return *set;
}

Result<ValueSet> SchemaMeaning::all_of_these(const std::vector<SchemaId> &schemas, bool negated,
                                             bool track) {
    ValueSet set = ValueSet::all();
    for (const SchemaId schema : schemas) {
        ASSIGN_OR_RETURN(const ValueSet *part, of_schema(schema, negated, track));
        auto both = intersect(set, *part);
        if (both.ok()) {
            set = std::move(*both);
            continue;
        }
        const Status failed = std::move(both).status();
        RETURN_IF_ERROR(
            pass_over(error(failed.code(), "%s: %s", printable(document_.path(schema), 400).c_str(),
                            failed.message().c_str())));
        if (track) mark_evaluated(&set);
    }
    return set;
}

Result<ValueSet> SchemaMeaning::any_of_these(const std::vector<SchemaId> &schemas, bool track,
                                             SchemaId id, Keyword keyword) {
    ValueSet set;
    for (const SchemaId schema : schemas) {
        ASSIGN_OR_RETURN(const ValueSet *part, of_schema(schema, false, track));
        unite(&set, *part);
    }
    if (!track || schemas.size() < 2) return set;
    // If several branches hold for a value, what each of them evaluates counts.
    if (schemas.size() > kMostTrackedBranches) {
        RETURN_IF_ERROR(refuse({id, keyword}, "too many schemas below one of unevaluated.."));
        return anything(track);
    }
    for (uint32_t chosen = 1; chosen < uint32_t{1} << schemas.size(); ++chosen) {
        if ((chosen & (chosen - 1)) == 0) continue; // a single one was added above
        std::vector<SchemaId> several;
        for (size_t i = 0; i < schemas.size(); ++i) {
            if ((chosen >> i & 1) != 0) several.push_back(schemas[i]);
        }
        ASSIGN_OR_RETURN(ValueSet part, all_of_these(several, false, true));
        unite(&set, std::move(part));
    }
    return set;
}

Result<ValueSet> SchemaMeaning::all_of(SchemaId id, bool negated, bool track) {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> schemas, branches(id, Keyword::allOf));
    if (!negated) return all_of_these(schemas, false, track);
    ValueSet set;
    for (const SchemaId schema : schemas) {
        ASSIGN_OR_RETURN(const ValueSet *part, of_schema(schema, true, false));
        unite(&set, *part);
    }
    return set;
}

Result<ValueSet> SchemaMeaning::any_of(SchemaId id, bool negated, bool track) {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> schemas, branches(id, Keyword::anyOf));
    if (negated) return all_of_these(schemas, true, false);
    return any_of_these(schemas, track, id, Keyword::anyOf);
}

Result<ValueSet> SchemaMeaning::one_of(SchemaId id, bool negated, bool track) {
    ASSIGN_OR_RETURN(const std::vector<SchemaId> schemas, branches(id, Keyword::oneOf));
    if (negated) {
        // None of them, or two.
        ASSIGN_OR_RETURN(ValueSet set, all_of_these(schemas, true, false));
        for (size_t i = 0; i < schemas.size(); ++i) {
            for (size_t j = 0; j < i; ++j) {
                ASSIGN_OR_RETURN(ValueSet two,
                                 all_of_these({schemas[i], schemas[j]}, false, false));
                unite(&set, std::move(two));
            }
        }
        return set;
    }
    std::vector<ValueSet> alone;
    for (const SchemaId schema : schemas) {
        ASSIGN_OR_RETURN(const ValueSet *set, of_schema(schema, false, track));
        alone.push_back(*set);
    }
    // If two may hold at once, each must hold without the other.
    for (size_t i = 0; i < schemas.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            ASSIGN_OR_RETURN(const ValueSet *first, of_schema(schemas[i], false, track));
            ASSIGN_OR_RETURN(const ValueSet *second, of_schema(schemas[j], false, track));
            ASSIGN_OR_RETURN(const ValueSet both, intersect(*first, *second));
            if (both.empty()) continue;
            ASSIGN_OR_RETURN(const ValueSet *not_first, of_schema(schemas[i], true, false));
            ASSIGN_OR_RETURN(const ValueSet *not_second, of_schema(schemas[j], true, false));
            ASSIGN_OR_RETURN(alone[i], intersect(alone[i], *not_second));
            ASSIGN_OR_RETURN(alone[j], intersect(alone[j], *not_first));
        }
    }
    ValueSet out;
    for (ValueSet &set : alone) unite(&out, std::move(set));
    return out;
}

Result<ValueSet> SchemaMeaning::negation(SchemaId id, bool negated, bool) {
    ASSIGN_OR_RETURN(const SchemaId schema, child(id, Keyword::not_));
    ASSIGN_OR_RETURN(const ValueSet *set, of_schema(schema, !negated, false));
    return *set;
}

Result<ValueSet> SchemaMeaning::condition(SchemaId id, bool negated, bool track) {
    const Schema &schema = document_.at(id);
    const bool has_then = schema.find(Keyword::then) != nullptr;
    const bool has_else = schema.find(Keyword::else_) != nullptr;
    if (!has_then && !has_else && !track) return negated ? ValueSet() : ValueSet::all();
    ASSIGN_OR_RETURN(const SchemaId test, child(id, Keyword::if_));
    ASSIGN_OR_RETURN(const ValueSet *holds, of_schema(test, false, track));
    ASSIGN_OR_RETURN(const ValueSet *fails, of_schema(test, true, false));
    ValueSet out;
    for (const bool branch : {true, false}) {
        ValueSet set = branch ? *holds : *fails;
        if (branch ? has_then : has_else) {
            ASSIGN_OR_RETURN(const SchemaId next,
                             child(id, branch ? Keyword::then : Keyword::else_));
            ASSIGN_OR_RETURN(const ValueSet *part, of_schema(next, negated, track && !negated));
            ASSIGN_OR_RETURN(set, intersect(set, *part));
        } else if (negated) {
            continue;
        }
        unite(&out, std::move(set));
    }
    return out;
}

} // namespace batchllm
