// Sets of JSON values, the normal form for all of JSON Schema: for each kind of value a union of
// simple sets, whose parts (members, items) are sets identified by number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "constraint/json_schema/document.h"
#include "constraint/json_schema/number.h"
#include "constraint/json_schema/string.h"

namespace batchllm {

// A requirement: the schemas that a value must satisfy together with those that it must not.
using RequirementId = int32_t;
inline constexpr RequirementId kAnything = 0; // no schema
inline constexpr RequirementId kNothing = 1;  // no value satisfies it

using NameId = int32_t;
using LanguageId = int32_t; // a language of names
inline constexpr LanguageId kAllNames = 0;
inline constexpr LanguageId kNoNames = -1;

// Where in the schema something comes from, for errors.
struct SchemaOrigin {
    SchemaId schema = 0;
    SchemaKeyword keyword = SchemaKeyword::type;
};

struct ArraySet {
    // Between `least` and `greatest` of the items from index `from` on satisfy `what`.
    struct Contains {
        int64_t from;
        RequirementId what;
        int64_t least;
        int64_t greatest;
        SchemaOrigin origin;
    };
    std::vector<RequirementId> prefix; // for the first items
    RequirementId rest = kAnything;    // for the items after them
    int64_t least = 0;
    int64_t greatest = Automaton::kUnbounded;
    std::vector<Contains> contains;
    std::optional<SchemaOrigin> unique;  // no two items are equal
    std::optional<SchemaOrigin> repeats; // two items are equal
    // What `unevaluatedItems` may ignore; only if tracked.
    bool all_evaluated = false;
    int64_t evaluated = 0;
    std::vector<RequirementId> evaluated_matches;

    RequirementId item(int64_t index) const {
        return index < static_cast<int64_t>(prefix.size()) ? prefix[static_cast<size_t>(index)]
                                                           : rest;
    }
};

struct ObjectSet {
    struct Named {
        NameId name;
        RequirementId what; // kNothing: absent
        bool required;
        int32_t place = 0;                          // in declared order
        bool operator==(const Named &other) const { // ignores the place
            return name == other.name && what == other.what && required == other.required;
        }
    };
    struct Region {
        LanguageId names;
        RequirementId what;
        bool operator==(const Region &) const = default;
    };
    // Some member whose name is in the language satisfies `what`.
    struct Exists {
        LanguageId names;
        RequirementId what;
        SchemaOrigin origin;
    };
    std::vector<Named> named; // sorted by name
    // For names not in `named`: disjoint languages that together contain all names.
    std::vector<Region> regions = {{kAllNames, kAnything}};
    int64_t least = 0;
    int64_t greatest = Automaton::kUnbounded;
    std::optional<SchemaOrigin> count_origin;
    std::vector<Exists> exists;
    // What `unevaluatedProperties` may ignore; only if tracked.
    bool all_evaluated = false;
    std::vector<NameId> evaluated_names;
    std::vector<LanguageId> evaluated_languages;
};

struct ValueSet {
    bool null = false;
    bool yes = false; // true
    bool no = false;  // false
    std::vector<NumberSet> numbers;
    std::vector<StringSet> strings;
    std::vector<ArraySet> arrays;
    std::vector<ObjectSet> objects;

    static ValueSet all();
    bool empty() const {
        return !null && !yes && !no && numbers.empty() && strings.empty() && arrays.empty() &&
               objects.empty();
    }
};

// Whether the set has all values of its kind and records nothing as evaluated.
bool unconstrained(const ArraySet &set);
bool unconstrained(const ObjectSet &set);
bool same(const ArraySet &a, const ArraySet &b);
bool same(const ObjectSet &a, const ObjectSet &b);

// Adds b's values to a, except for simple sets that a already has.
void unite(ValueSet *a, ValueSet b);

// Requirements, names and languages of names, each stored once and numbered.
class SchemaNumbers {
  public:
    SchemaNumbers();

    // A schema that must hold (2 * id) or must not hold (2 * id + 1).
    using Literal = int32_t;
    RequirementId requirement(std::vector<Literal> literals);
    RequirementId both(RequirementId a, RequirementId b);
    const std::vector<Literal> &literals(RequirementId id) const {
        return requirements_[static_cast<size_t>(id)];
    }
    int32_t requirements() const { return static_cast<int32_t>(requirements_.size()); }

    NameId name(const std::string &name);
    const std::string &name(NameId id) const { return names_[static_cast<size_t>(id)]; }

    LanguageId language(const Automaton &language);
    const Automaton &language(LanguageId id) const { return languages_[static_cast<size_t>(id)]; }
    bool has_name(LanguageId language, NameId name) const;
    Result<LanguageId> both(LanguageId a, LanguageId b, Budget *budget);
    Result<LanguageId> without(LanguageId a, LanguageId b, Budget *budget);

  private:
    struct LiteralsHash {
        size_t operator()(const std::vector<Literal> &literals) const;
    };
    std::vector<std::vector<Literal>> requirements_;
    std::unordered_map<std::vector<Literal>, RequirementId, LiteralsHash> requirement_ids_;
    std::vector<std::string> names_;
    std::unordered_map<std::string, NameId> name_ids_;
    std::vector<Automaton> languages_;
    std::unordered_multimap<uint64_t, LanguageId> language_ids_;
    std::unordered_map<uint64_t, LanguageId> both_languages_;
    std::unordered_map<uint64_t, LanguageId> without_languages_;
};

} // namespace batchllm
