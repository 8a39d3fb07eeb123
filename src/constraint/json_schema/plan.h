// Sets of values -> what to write, requirement by requirement: objects and arrays whose conditions
// a grammar can enforce, and only requirements that some value satisfies.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "constraint/json_schema/meaning.h"

namespace batchllm {

struct ObjectPlan {
    std::vector<ObjectSet::Named> named;    // each can be satisfied
    std::vector<ObjectSet::Region> regions; // for names not in `taken`; each can be satisfied
    std::vector<std::string> taken; // names that are not free: the named and the absent ones
    bool one_free = false;          // requires a member with a free name
    int64_t least = 0;
    int64_t greatest = Automaton::kUnbounded;
};

struct ArrayPlan {
    // Without `states`: first `prefix`, then `rest`; between least and greatest items in total.
    std::vector<RequirementId> prefix;
    RequirementId rest = kAnything;
    int64_t least = 0;
    int64_t greatest = Automaton::kUnbounded;
    // With `states`: an automaton over items that starts in state 0. Its only cycles are
    // self-loops.
    struct Edge {
        RequirementId item;
        int32_t to;
    };
    struct State {
        bool accepting = false;
        std::vector<Edge> edges;
    };
    std::vector<State> states;
    // If set: each of `values` at most once, between least and greatest; prefix, rest and states
    // are unused.
    bool distinct = false;
    ValueSet values;
};

struct ValuePlan {
    const ValueSet *set = nullptr; // for everything but objects and arrays
    std::vector<ObjectPlan> objects;
    std::vector<ArrayPlan> arrays;
    bool possible = false; // whether any value satisfies it
};

class SchemaPlanner {
  public:
    explicit SchemaPlanner(SchemaMeaning *meaning) : meaning_(*meaning) {}

    // Plans the requirement and everything reachable from it.
    Status plan(RequirementId root);
    const ValuePlan &at(RequirementId id) const { return plans_.at(id); }
    bool possible(RequirementId id) const {
        return id == kAnything || (id != kNothing && plans_.at(id).possible);
    }

  private:
    Status add(RequirementId id);
    void need(RequirementId id);
    Status add_object(const ObjectSet &set, std::vector<ObjectPlan> *out);
    struct Way {
        ObjectSet set;
        bool one_free;
    };
    Result<std::vector<Way>> without_exists(ObjectSet set);
    bool spread(LanguageId names, RequirementId what, ObjectSet *set);
    void spread_finite_regions(ObjectSet *set);
    Status spread_all_but(LanguageId names, ObjectSet *set);
    Result<bool> has_free(LanguageId names, LanguageId others, const ObjectSet &set);
    void add_free(const ObjectSet &set, ObjectPlan *plan);
    Status add_array(const ArraySet &set, std::vector<ArrayPlan> *out);
    Result<bool> plan_distinct(const ArraySet &set, ArrayPlan *plan);
    Result<bool> plan_contains(const ArraySet &set, ArrayPlan *plan);
    RequirementId negated(RequirementId id);
    bool find_possible(ValuePlan *plan);
    bool possible_object(const ObjectPlan &plan) const;
    bool possible_array(const ArrayPlan &plan) const;
    void keep_possible(ObjectPlan *plan) const;
    void keep_possible(ArrayPlan *plan) const;

    SchemaMeaning &meaning_;
    std::unordered_map<RequirementId, ValuePlan> plans_;
    std::vector<RequirementId> order_; // keys of plans_, in the order in which they were needed
};

} // namespace batchllm
