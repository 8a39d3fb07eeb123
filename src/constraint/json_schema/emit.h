// Plans of values -> grammar nodes.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "constraint/json_schema/json_schema.h"
#include "constraint/json_schema/plan.h"

namespace batchllm {

class SchemaEmitter {
  public:
    SchemaEmitter(SchemaMeaning *meaning, const SchemaPlanner *planner,
                  const JsonSchemaOptions &options, Grammar *grammar)
        : meaning_(*meaning), planner_(*planner), options_(options), grammar_(*grammar) {}

    // Builds the grammar of the requirement, which some value must satisfy.
    Status emit(RequirementId root);

  private:
    // The node for a requirement; its body is built later.
    NodeId node_of(RequirementId id);
    Result<NodeId> value(RequirementId id, const ValuePlan &plan);
    // owner: for errors.
    Status add_scalars(const ValueSet &set, SchemaId owner, std::vector<NodeId> *choices);
    NodeId anything();
    Result<NodeId> object(const ObjectPlan &plan);
    Result<NodeId> free_member(const ObjectPlan &plan);
    Result<NodeId> free_name(LanguageId names, const std::vector<std::string> &taken);
    NodeId terminal(const Automaton &automaton); // returns the same node for equal automata
    NodeId member(NameId name, RequirementId what);
    NodeId braced(NodeId opening, NodeId body, NodeId closing);
    NodeId array(const ArrayPlan &plan);
    NodeId tuple(const ArrayPlan &plan);
    NodeId items_by_state(const ArrayPlan &plan);
    Result<NodeId> distinct_items(SchemaId owner, const ArrayPlan &plan);
    NodeId mark(char byte); // one of { } [ ] , with its whitespace

    SchemaMeaning &meaning_;
    const SchemaPlanner &planner_;
    JsonSchemaOptions options_;
    Grammar &grammar_;
    std::unordered_map<RequirementId, NodeId> nodes_;
    std::vector<RequirementId> waiting_;
    std::map<std::pair<LanguageId, std::vector<std::string>>, NodeId> free_names_;
    std::unordered_multimap<uint64_t, NodeId> terminals_;
    std::unordered_map<char, NodeId> marks_;
};

} // namespace batchllm
