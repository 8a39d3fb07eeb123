#include "constraint/gbnf.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "constraint/code_points.h"
#include "constraint/grammar_reader.h"

namespace batchllm {
namespace {

class GbnfParser {
  public:
    GbnfParser(std::string_view text, Budget *budget) : reader_(text), budget_(budget) {}

    Result<Grammar> parse() {
        skip(true);
        while (!reader_.at_end()) RETURN_IF_ERROR(rule());
        for (const auto &[name, found] : rules_) {
            if (!found.defined)
                return found.first_use.invalid("the rule " + in_quotes(name) + " is not defined");
        }
        const auto root = rules_.find("root");
        if (root == rules_.end()) return reader_.invalid("there is no rule \"root\"");
        grammar_.set_root(root->second.node);
        rewrite_left_recursion(&grammar_);
        return std::move(grammar_);
    }

  private:
    struct Rule {
        NodeId node;
        GrammarReader first_use;
        bool defined = false;
    };

    void skip(bool lines) { reader_.skip_space("#", lines); }

    Rule &rule_named(std::string_view name, const GrammarReader &use) {
        const auto known = rules_.find(name);
        if (known != rules_.end()) return known->second;
        const std::string text(name);
        return rules_.emplace(text, Rule{grammar_.declare(text), use}).first->second;
    }

    Status rule() {
        const GrammarReader start = reader_;
        const std::string_view name = reader_.name("-_");
        if (name.empty()) return reader_.invalid("a rule's name is missing");
        skip(false);
        if (!reader_.take("::=")) return reader_.invalid("::= is missing");
        skip(true);
        if (rule_named(name, start).defined)
            return start.invalid("the rule " + in_quotes(name) + " is defined twice");
        rule_named(name, start).defined = true;
        ASSIGN_OR_RETURN(const NodeId body, alternatives(0));
        grammar_.define(rule_named(name, start).node, body);
        if (!reader_.at_end() && reader_.peek() != '\n' && reader_.peek() != '\r')
            return reader_.invalid("the rule goes on with what has no meaning here");
        skip(true);
        return {};
    }

    Result<NodeId> alternatives(int32_t depth) {
        if (depth > GrammarReader::kDeepest)
            return reader_.unsupported("groups more than 200 deep");
        std::vector<NodeId> found;
        for (;;) {
            ASSIGN_OR_RETURN(const NodeId one, sequence(depth));
            found.push_back(one);
            if (depth == 0) {
                // If the next line begins with |, it belongs to the rule.
                const GrammarReader end = reader_;
                skip(true);
                if (reader_.peek() != '|') reader_ = end;
            }
            if (!reader_.take("|")) break;
            skip(true);
        }
        return grammar_.choice(std::move(found));
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

    // kNoNode: no item begins here.
    Result<NodeId> item(int32_t depth) {
        const GrammarReader start = reader_;
        switch (reader_.peek()) {
        case '"': {
            ASSIGN_OR_RETURN(std::string text, reader_.quoted());
            return grammar_.bytes(std::move(text));
        }
        case '[':
            return bracket();
        case '.':
            reader_.skip(1);
            return grammar_.terminal(Automaton::code_points(0, 0x10FFFF));
        case '(': {
            reader_.skip(1);
            ASSIGN_OR_RETURN(const NodeId group, alternatives(depth + 1));
            if (!reader_.take(")")) return start.invalid("a ( without its )");
            return group;
        }
        case '<':
        case '!':
            return reader_.unsupported("a token by name or number");
        case '*':
        case '+':
        case '?':
        case '{':
            return reader_.invalid("nothing to repeat");
        default:
            break;
        }
        const std::string_view name = reader_.name("-_");
        if (name.empty()) return kNoNode;
        return rule_named(name, start).node;
    }

    Result<NodeId> bracket() {
        const GrammarReader start = reader_;
        reader_.skip(1);
        const bool negative = reader_.take("^");
        CodePointSet set;
        while (reader_.peek() != ']') {
            if (reader_.at_end()) return start.invalid("a [ without its ]");
            ASSIGN_OR_RETURN(const uint32_t first, reader_.character());
            uint32_t last = first;
            if (reader_.peek() == '-' && !reader_.starts("-]")) {
                reader_.skip(1);
                ASSIGN_OR_RETURN(last, reader_.character());
                if (last < first) return reader_.invalid("a range that ends before its start");
            }
            set.add(first, last);
        }
        reader_.skip(1);
        set.normalize();
        if (negative) set = set.inverse();
        ASSIGN_OR_RETURN(Automaton automaton, Automaton::code_points(set.ranges(), budget_));
        return grammar_.terminal(std::move(automaton));
    }

    Result<NodeId> repeated(NodeId part) {
        for (;;) {
            if (reader_.take("*")) {
                part = grammar_.repeat(part, 0);
            } else if (reader_.take("+")) {
                part = grammar_.repeat(part, 1);
            } else if (reader_.take("?")) {
                part = grammar_.optional(part);
            } else if (reader_.take("{")) {
                ASSIGN_OR_RETURN(part, counted(part));
            } else {
                return part;
            }
        }
    }

    // After the {.
    Result<NodeId> counted(NodeId part) {
        skip(false);
        ASSIGN_OR_RETURN(const int64_t least, reader_.number());
        int64_t greatest = least;
        skip(false);
        if (reader_.take(",")) {
            skip(false);
            greatest = Automaton::kUnbounded;
            if (reader_.peek() != '}') {
                ASSIGN_OR_RETURN(greatest, reader_.number());
                if (greatest < least)
                    return reader_.invalid("a count whose end is below its start");
            }
            skip(false);
        }
        if (!reader_.take("}")) return reader_.invalid("a } is missing");
        return grammar_.repeat(part, least, greatest);
    }

    GrammarReader reader_;
    Budget *budget_;
    Grammar grammar_;
    std::map<std::string, Rule, std::less<>> rules_;
};

} // namespace

Result<Grammar> parse_gbnf(std::string_view text, Budget *budget) {
    RETURN_IF_ERROR(check_grammar_text(text));
    return GbnfParser(text, budget).parse();
}

} // namespace batchllm
