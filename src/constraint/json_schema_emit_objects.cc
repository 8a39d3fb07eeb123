// Objects as nodes: members with names in the declared order, then free ones.
#include <algorithm>

#include "constraint/json_schema_emit.h"

namespace batchllm {

namespace {

using Keyword = SchemaKeyword;

constexpr int kMostRanked = 100000; // names looked at for one order

} // namespace

Result<NodeId> SchemaEmitter::object(RequirementId id, const ObjectPlan &plan) {
    std::vector<ObjectSet::Named> named = plan.named;
    if (named.size() > 1 && options_.order == Members::Order::declared) {
        const auto order = ranks(id);
        const auto rank = [&](NameId name) {
            const auto found = order.find(name);
            return found == order.end() ? kMostRanked : found->second;
        };
        const SchemaNumbers &numbers = meaning_.numbers();
        std::sort(named.begin(), named.end(), [&](const auto &a, const auto &b) {
            const int first = rank(a.name), second = rank(b.name);
            return first != second ? first < second : numbers.name(a.name) < numbers.name(b.name);
        });
    }
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
    const NodeId key =
        grammar_.bytes("\"" + json_escaped(meaning_.numbers().name(name)) + "\":");
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

// With its quotation marks and the colon.
Result<NodeId> SchemaEmitter::free_name(LanguageId names, const std::vector<std::string> &taken) {
    const auto known = free_names_.find({names, taken});
    if (known != free_names_.end()) return known->second;
    ASSIGN_OR_RETURN(const Automaton text, json_quoted(meaning_.numbers().language(names), ":",
                                                       taken, meaning_.budget()));
    const NodeId node = terminal(text);
    free_names_[{names, taken}] = node;
    return node;
}

std::unordered_map<NameId, int> SchemaEmitter::ranks(RequirementId id) {
    std::unordered_map<NameId, int> out;
    std::unordered_set<SchemaId> seen;
    for (const SchemaNumbers::Literal literal : meaning_.numbers().literals(id)) {
        add_ranks(literal / 2, &seen, &out);
    }
    return out;
}

void SchemaEmitter::add_ranks(SchemaId id, std::unordered_set<SchemaId> *seen,
                              std::unordered_map<NameId, int> *ranks) {
    if (!seen->insert(id).second || seen->size() > 10000) return;
    SchemaDocument &document = meaning_.document();
    const Schema &schema = document.at(id);
    const auto add = [&](const std::string &name) {
        if (ranks->size() < kMostRanked) {
            ranks->try_emplace(meaning_.numbers().name(name), static_cast<int>(ranks->size()));
        }
    };
    const auto descend = [&](const JsonTree &json, Keyword keyword, const std::string &step) {
        const auto child = document.child(id, &json, keyword, step);
        if (child.ok()) add_ranks(*child, seen, ranks);
    };
    if (schema.value != nullptr) {
        for (const auto &member : schema.value->members) add(member.first);
    }
    for (const SchemaId alternative : schema.alternatives) add_ranks(alternative, seen, ranks);
    if (const JsonTree *json = schema.find(Keyword::properties)) {
        for (const auto &property : json->members) add(property.first);
    }
    if (const JsonTree *json = schema.find(Keyword::required)) {
        for (const JsonTree &name : json->items) add(name.text);
    }
    for (const Keyword keyword : {Keyword::dependentRequired, Keyword::dependentSchemas,
                                  Keyword::dependencies}) {
        const JsonTree *json = schema.find(keyword);
        if (json == nullptr) continue;
        for (const auto &[name, needed] : json->members) {
            add(name);
            for (const JsonTree &other : needed.items) add(other.text);
        }
    }
    for (const Keyword keyword : {Keyword::ref, Keyword::dynamicRef}) {
        const JsonTree *json = schema.find(keyword);
        if (json == nullptr) continue;
        const auto target = document.resolve(id, json->text);
        if (target.ok()) add_ranks(*target, seen, ranks);
    }
    for (const Keyword keyword : {Keyword::allOf, Keyword::anyOf, Keyword::oneOf}) {
        const JsonTree *json = schema.find(keyword);
        for (size_t i = 0; json != nullptr && i < json->items.size(); ++i) {
            descend(json->items[i], keyword, std::to_string(i));
        }
    }
    for (const Keyword keyword : {Keyword::if_, Keyword::then, Keyword::else_}) {
        const JsonTree *json = schema.find(keyword);
        if (json != nullptr) descend(*json, keyword, "");
    }
    for (const Keyword keyword :
         {Keyword::dependentSchemas, Keyword::dependencies}) {
        const JsonTree *json = schema.find(keyword);
        if (json == nullptr) continue;
        for (const auto &[name, value] : json->members) {
            if (!value.is_array()) descend(value, keyword, name);
        }
    }
    for (const Keyword keyword : {Keyword::const_, Keyword::enum_}) {
        const JsonTree *json = schema.find(keyword);
        if (json == nullptr) continue;
        for (const auto &member : json->members) add(member.first);
        for (const JsonTree &item : json->items) {
            for (const auto &member : item.members) add(member.first);
        }
    }
}

} // namespace batchllm
