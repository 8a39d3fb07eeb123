#include "constraint/gbnf.h"

#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "constraint/grammar_parser.h"
#include "text/regex/code_points.h"

namespace batchllm {
namespace {

struct GbnfRule {
    NodeId node = kNoNode;
    GrammarReader first_use;
    bool defined = false;
};

class GbnfParser final : GrammarParser<GbnfRule> {
  public:
    GbnfParser(std::string_view text, Budget *budget) : GrammarParser(text, budget) {}

    Result<Grammar> parse() {
        skip(true);
        while (!reader_.at_end()) RETURN_IF_ERROR(rule());
        ASSIGN_OR_RETURN(const NodeId root, start_rule("root"));
        return finished(root);
    }

  private:
    void skip(bool lines) override { reader_.skip_space("#", lines); }

    std::string called(std::string_view name) const override {
        return "the rule " + in_quotes(name);
    }

    Status rule() {
        const GrammarReader start = reader_;
        const std::string_view name = reader_.name("-_");
        if (name.empty()) return reader_.invalid("a rule's name is missing");
        skip(false);
        if (!reader_.take("::=")) return reader_.invalid("::= is missing");
        skip(true);
        RETURN_IF_ERROR(define_once(name, start));
        ASSIGN_OR_RETURN(const NodeId body, alternatives(0));
        grammar_.define(named(name, start).node, body);
        if (!at_line_end())
            return reader_.invalid("the rule goes on with what has no meaning here");
        skip(true);
        return {};
    }

    Result<NodeId> alternatives(int32_t depth) {
        RETURN_IF_ERROR(check_depth(depth));
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

    Result<NodeId> item(int32_t depth) override {
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
        return named(name, start).node;
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

    Result<NodeId> repeated(NodeId part) override {
        for (;;) {
            if (const NodeId more = repeated_by_sign(part); more != kNoNode) {
                part = more;
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
                ASSIGN_OR_RETURN(greatest, number_from(least));
            }
            skip(false);
        }
        if (!reader_.take("}")) return reader_.invalid("a } is missing");
        return grammar_.repeat(part, least, greatest);
    }
};

} // namespace

Result<Grammar> parse_gbnf(std::string_view text, Budget *budget) {
    RETURN_IF_ERROR(check_grammar_text(text));
    return GbnfParser(text, budget).parse();
}

} // namespace batchllm
