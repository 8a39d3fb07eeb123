// Objects as nodes: members with names in the declared order, then free ones.
#include <algorithm>

#include "constraint/json_schema/emit.h"

namespace batchllm {

Result<NodeId> SchemaEmitter::object(const ObjectPlan &plan) {
    std::vector<ObjectSet::Named> named = plan.named;
    std::sort(named.begin(), named.end(),
              [](const auto &a, const auto &b) { return a.place < b.place; });
    Members members;
    for (const ObjectSet::Named &each : named) {
        members.elements.push_back({member(each.name, each.what), each.required});
    }
    if (!plan.regions.empty()) {
        ASSIGN_OR_RETURN(members.rest, free_member(plan));
        if (plan.one_free) members.elements.push_back({members.rest, true});
    }
    members.separator = mark(',');
    members.least = plan.least;
    members.greatest = plan.greatest;
    members.order = options_.order;
    const bool none = members.elements.empty() && members.rest == kNoNode;
    const NodeId body = none ? grammar_.empty() : grammar_.members(std::move(members));
    return braced(mark('{'), body, mark('}'));
}

NodeId SchemaEmitter::member(NameId name, RequirementId what) {
    const NodeId key = grammar_.bytes("\"" + json_escaped(meaning_.numbers().name(name)) + "\":");
    if (options_.spacing == JsonSchemaOptions::Spacing::compact) {
        return grammar_.sequence({key, node_of(what)});
    }
    return grammar_.sequence({key, grammar_.optional(grammar_.bytes(" ")), node_of(what)});
}

Result<NodeId> SchemaEmitter::free_member(const ObjectPlan &plan) {
    std::vector<NodeId> choices;
    for (const ObjectSet::Region &region : plan.regions) {
        ASSIGN_OR_RETURN(const NodeId key, free_name(region.names, plan.taken));
        std::vector<NodeId> parts = {key};
        if (options_.spacing == JsonSchemaOptions::Spacing::flexible) {
            parts.push_back(grammar_.optional(grammar_.bytes(" ")));
        }
        parts.push_back(node_of(region.what));
        choices.push_back(grammar_.sequence(std::move(parts)));
    }
    return grammar_.choice(std::move(choices));
}

// Includes the quotation marks and the colon.
Result<NodeId> SchemaEmitter::free_name(LanguageId names, const std::vector<std::string> &taken) {
    const auto known = free_names_.find({names, taken});
    if (known != free_names_.end()) return known->second;
    ASSIGN_OR_RETURN(const Automaton text, json_quoted(meaning_.numbers().language(names), ":",
                                                       taken, meaning_.budget()));
    const NodeId node = terminal(text);
    free_names_[{names, taken}] = node;
    return node;
}

} // namespace batchllm
