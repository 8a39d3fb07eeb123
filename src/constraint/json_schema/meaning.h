// Schemas -> sets of values (json_schema_sets.h). Exact: a keyword without an exact set is an error
// that names it or, with SchemaMeaningOptions::loose, a larger set and a warning.
//
// Works on demand and one level at a time: the sets of members and items are requirements, whose
// own sets are built when needed. So recursion through references terminates, and equal
// requirements are processed once.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "constraint/json_schema/sets.h"

namespace batchllm {

struct SchemaMeaningOptions {
    bool formats = true; // whether `format` is enforced
    bool loose = false;
};

class SchemaMeaning {
  public:
    SchemaMeaning(SchemaDocument *document, const SchemaMeaningOptions &options, Budget *budget)
        : document_(*document), options_(options), budget_(budget) {}

    SchemaNumbers &numbers() { return numbers_; }
    SchemaDocument &document() { return document_; }
    Budget *budget() { return budget_; }
    const std::vector<std::string> &warnings() const { return warnings_; }
    const std::set<std::string> &formats() const { return formats_; } // found so far

    // The requirement that the schema holds or, if negated, that it does not.
    Result<RequirementId> requirement(SchemaId id, bool negated = false);
    // Valid as long as this object.
    Result<const ValueSet *> set_of(RequirementId id);
    // Whether it is certain that no value satisfies it.
    bool seen_empty(RequirementId id);

    Result<ValueSet> intersect(const ValueSet &a, const ValueSet &b);
    // The intersection; empty optional if no value is in both.
    Result<std::optional<ObjectSet>> intersect(const ObjectSet &a, const ObjectSet &b);
    Result<std::optional<ArraySet>> intersect(const ArraySet &a, const ArraySet &b);
    // Removes parts that cannot occur; false if nothing is left.
    bool tidy(ObjectSet *set);
    bool tidy(ArraySet *set);
    // What a member must satisfy whose name is not in set.named.
    RequirementId region_of(const ObjectSet &set, NameId name) const;

    // Returns an error or, with `loose`, issues a warning; the caller then widens the set with
    // anything().
    Status refuse(const SchemaOrigin &origin, const std::string &problem);
    // The same for an error that already names its place. An error about an invalid schema stays an
    // error.
    Status pass_over(Status status);
    // The error, prefixed with its place.
    Status placed(Status status, SchemaId id, SchemaKeyword keyword) const;

  private:
    // All values. If evaluation is tracked, all parts of the values may have been evaluated.
    static ValueSet anything(bool track);
    static void mark_evaluated(ValueSet *set);
    bool implies(RequirementId narrow, RequirementId wide) const;
    bool covers(const ObjectSet &wide, const ObjectSet &narrow) const;
    void add_uncovered(std::vector<ObjectSet> *sets, ObjectSet set) const;

    using Part = Result<ValueSet> (SchemaMeaning::*)(SchemaId, bool, bool);
    // The set of each group of keywords. `negated`: the values that violate it. `track`: records
    // what is evaluated.
    Result<const ValueSet *> of_schema(SchemaId id, bool negated, bool track);
    Result<ValueSet> make_of_schema(SchemaId id, bool negated, bool track);
    Result<ValueSet> of_parts(SchemaId id, bool negated, bool track);
    Result<ValueSet> make_set_of(RequirementId id);
    // The set of one value, or of several, which are merged if possible.
    Result<ValueSet> of_value(const JsonTree &value, SchemaId origin, bool negated);
    Result<ValueSet> of_values(const std::vector<const JsonTree *> &values, SchemaId origin,
                               SchemaKeyword keyword, bool negated);
    Result<ValueSet> of_scalars(const std::vector<const JsonTree *> &values, SchemaId origin,
                                SchemaKeyword keyword, bool negated);
    ValueSet of_array_value(const JsonTree &value, SchemaId origin, bool negated);
    Result<ValueSet> of_object_value(const JsonTree &value, SchemaId origin, bool negated);

    // The first schema with the same text, if it contains no other schemas; else the schema itself.
    SchemaId first_alike(SchemaId id);

    // json_schema_scalars.cc
    Result<ValueSet> type(SchemaId id, bool negated, bool track);
    Result<ValueSet> enumeration(SchemaId id, bool negated, bool track);
    Result<ValueSet> constant(SchemaId id, bool negated, bool track);
    Result<ValueSet> number_bounds(SchemaId id, bool negated, bool track);
    Result<ValueSet> multiple_of(SchemaId id, bool negated, bool track);
    Result<ValueSet> lengths(SchemaId id, bool negated, bool track);
    Result<ValueSet> pattern(SchemaId id, bool negated, bool track);
    Result<ValueSet> format(SchemaId id, bool negated, bool track);
    Result<ValueSet> strings_only(StringSet strings, bool negated, SchemaId id,
                                  SchemaKeyword keyword);
    Result<ValueSet> numbers_only(std::vector<NumberSet> numbers, bool negated);
    Result<Automaton> pattern_language(SchemaId id, SchemaKeyword keyword, const std::string &text);

    // json_schema_arrays.cc
    Result<ValueSet> items(SchemaId id, bool negated, bool track);
    Result<ValueSet> item_counts(SchemaId id, bool negated, bool track);
    Result<ValueSet> contains(SchemaId id, bool negated, bool track);
    Result<ValueSet> unique_items(SchemaId id, bool negated, bool track);
    Status apply_unevaluated_items(SchemaId id, ValueSet *set);

    // json_schema_objects.cc
    Result<ValueSet> members(SchemaId id, bool negated, bool track);
    Result<ValueSet> member_counts(SchemaId id, bool negated, bool track);
    Result<ValueSet> property_names(SchemaId id, bool negated, bool track);
    Result<ValueSet> dependent_required(SchemaId id, bool negated, bool track);
    Result<ValueSet> dependent_schemas(SchemaId id, bool negated, bool track);
    Status apply_unevaluated_properties(SchemaId id, ValueSet *set);
    struct MemberKeywords;
    Status read_members(SchemaId id, MemberKeywords *out);
    Status add_regions(SchemaId id, const MemberKeywords &keywords, ObjectSet *set);
    Result<ValueSet> negated_members(SchemaId id, const MemberKeywords &keywords);
    // own: dependentRequired or dependentSchemas; `dependencies` is included.
    Result<ValueSet> dependents(SchemaId id, SchemaKeyword own, bool negated, bool track);
    Result<ValueSet> depends(SchemaId id, SchemaKeyword keyword, const std::string &name,
                             const JsonTree &needed, bool negated, bool track);
    ValueSet with_member(const std::string &name, RequirementId what, bool required);

    // json_schema_applicators.cc
    Result<ValueSet> reference(SchemaId id, bool negated, bool track);
    Result<ValueSet> dynamic_reference(SchemaId id, bool negated, bool track);
    Result<ValueSet> all_of(SchemaId id, bool negated, bool track);
    Result<ValueSet> any_of(SchemaId id, bool negated, bool track);
    Result<ValueSet> one_of(SchemaId id, bool negated, bool track);
    Result<ValueSet> negation(SchemaId id, bool negated, bool track);
    Result<ValueSet> condition(SchemaId id, bool negated, bool track);
    Result<std::vector<SchemaId>> branches(SchemaId id, SchemaKeyword keyword);
    Result<ValueSet> any_of_these(const std::vector<SchemaId> &schemas, bool track, SchemaId id,
                                  SchemaKeyword keyword);
    Result<ValueSet> all_of_these(const std::vector<SchemaId> &schemas, bool negated, bool track);
    Result<SchemaId> child(SchemaId id, SchemaKeyword keyword);

    // The numeric value of a keyword.
    Result<std::optional<int64_t>> count(SchemaId id, SchemaKeyword keyword);
    Result<std::optional<Decimal>> number(SchemaId id, SchemaKeyword keyword);
    Status invalid(SchemaId id, SchemaKeyword keyword, const std::string &problem) const;

    SchemaDocument &document_;
    SchemaMeaningOptions options_;
    Budget *budget_;
    SchemaNumbers numbers_;
    std::map<std::pair<SchemaNumbers::Literal, bool>, std::unique_ptr<ValueSet>> schema_sets_;
    std::set<std::pair<SchemaNumbers::Literal, bool>> being_made_;
    std::map<RequirementId, std::unique_ptr<ValueSet>> requirement_sets_;
    std::set<RequirementId> requirements_being_made_;
    std::map<std::string, Automaton> patterns_;
    std::map<const JsonTree *, SchemaId> value_schemas_;
    std::set<std::string> formats_;
    std::map<std::string, SchemaId> leaves_; // simple schemas, by text
    std::vector<std::string> warnings_;
    int64_t simple_sets_ = 0; // built so far
    int64_t pairs_ = 0;       // intersections so far
    bool too_large_ = false;  // the whole schema is: `loose` no longer helps
};

} // namespace batchllm
