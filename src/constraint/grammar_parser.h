// What the parsers of both grammar languages have in common: a table of names, sequences of items, and
// the checks at the end.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "constraint/budget.h"
#include "constraint/grammar_reader.h"

namespace batchllm {

// The rules of a grammar by name, as far as they have been read.
// Name: what a parser keeps for a name, with node, first_use and defined.
template <typename Name> class GrammarParser {
  protected:
    GrammarParser(std::string_view text, Budget *budget) : reader_(text), budget_(budget) {}
    ~GrammarParser() = default;

    virtual void skip(bool lines) = 0;                      // spaces and comments
    virtual Result<NodeId> item(int32_t depth) = 0;         // kNoNode: no item begins here
    virtual Result<NodeId> repeated(NodeId part) = 0;       // with what follows an item
    virtual std::string called(std::string_view) const = 0; // a name in an error

    Name &named(std::string_view name, const GrammarReader &use) {
        const auto known = names_.find(name);
        if (known != names_.end()) return known->second;
        const std::string text(name);
        Name fresh;
        fresh.node = grammar_.declare(text);
        fresh.first_use = use;
        return names_.emplace(text, std::move(fresh)).first->second;
    }

    // Marks a name as defined. An error if it was already.
    Status define_once(std::string_view name, const GrammarReader &start) {
        Name &found = named(name, start);
        if (found.defined) return start.invalid(called(name) + " is defined twice");
        found.defined = true;
        return {};
    }

    // Whether a definition ends here.
    bool at_line_end() const {
        return reader_.at_end() || reader_.peek() == '\n' || reader_.peek() == '\r';
    }

    Status check_depth(int32_t depth) const {
        return depth > GrammarReader::kDeepest ? reader_.unsupported("groups more than 200 deep")
                                               : Status();
    }

    Result<NodeId> sequence(int32_t depth) {
        std::vector<NodeId> parts;
        for (;;) {
            skip(depth > 0);
            ASSIGN_OR_RETURN(NodeId part, item(depth));
            if (part == kNoNode) break;
            RETURN_IF_ERROR(budget_->spend_states(1));
            ASSIGN_OR_RETURN(part, repeated(part));
            parts.push_back(part);
        }
        return grammar_.sequence(std::move(parts));
    }

    // *, + or ? after an item. kNoNode: none of them is there.
    NodeId repeated_by_sign(NodeId part) {
        if (reader_.take("*")) return grammar_.repeat(part, 0);
        if (reader_.take("+")) return grammar_.repeat(part, 1);
        return reader_.take("?") ? grammar_.optional(part) : kNoNode;
    }

    // The upper end of a count.
    Result<int64_t> number_from(int64_t least) {
        ASSIGN_OR_RETURN(const int64_t greatest, reader_.number());
        if (greatest < least) return reader_.invalid("a count whose end is below its start");
        return greatest;
    }

    // The rule of this name, with which every text begins, once all text is read.
    Result<NodeId> start_rule(std::string_view name) const {
        for (const auto &[used, found] : names_) {
            if (!found.defined) return found.first_use.invalid(called(used) + " is not defined");
        }
        const auto start = names_.find(name);
        if (start == names_.end())
            return reader_.invalid("there is no rule \"" + std::string(name) + "\"");
        return start->second.node;
    }

    Result<Grammar> finished(NodeId root) {
        grammar_.set_root(root);
        rewrite_left_recursion(&grammar_);
        return std::move(grammar_);
    }

    GrammarReader reader_;
    Budget *budget_;
    Grammar grammar_;
    std::map<std::string, Name, std::less<>> names_;
};

} // namespace batchllm
