#include "constraint/lark.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "constraint/grammar_parser.h"
#include "constraint/lark_terminal.h"
#include "constraint/regex.h"

namespace batchllm {
namespace {

struct LarkName {
    NodeId node = kNoNode;
    GrammarReader first_use;
    bool defined = false;
    NodeId body = kNoNode; // for terminals, as written
    enum : uint8_t { fresh, open, done } state = fresh;
    Automaton automaton = {};
};

class LarkParser final : GrammarParser<LarkName> {
  public:
    LarkParser(std::string_view text, Budget *budget)
        : GrammarParser(text, budget), ignores_(text.find("%ignore") != std::string_view::npos) {}

    Result<Grammar> parse() {
        if (ignores_) ignored_ = grammar_.declare("%ignore");
        skip(true);
        while (!reader_.at_end()) {
            RETURN_IF_ERROR(reader_.peek() == '%' ? directive() : definition());
            skip(false);
            if (!at_line_end()) return reader_.invalid("what stands here has no meaning");
            skip(true);
        }
        ASSIGN_OR_RETURN(const NodeId start, start_rule("start"));
        RETURN_IF_ERROR(finish_terminals());
        return finished(ignores_ ? grammar_.sequence({ignored_, start}) : start);
    }

  private:
    void skip(bool lines) override {
        for (;;) {
            const size_t before = reader_.rest().size();
            reader_.skip_space("//", lines);
            reader_.skip_space("#", lines);
            if (reader_.rest().size() == before) return;
        }
    }

    std::string called(std::string_view name) const override { return in_quotes(name); }

    // A terminal as it occurs in a rule, followed by what may be ignored.
    NodeId in_rule(NodeId terminal) {
        return ignores_ ? grammar_.sequence({terminal, ignored_}) : terminal;
    }

    Status definition() {
        while (reader_.peek() == '?' || reader_.peek() == '!') reader_.skip(1);
        const GrammarReader start = reader_;
        const std::string_view name = reader_.name("_");
        if (name.empty()) return reader_.invalid("a name is missing");
        if (reader_.peek() == '{') return reader_.unsupported("a template");
        if (reader_.take(".")) {
            reader_.take("-");
            RETURN_IF_ERROR(reader_.number().status());
        }
        skip(false);
        if (!reader_.take(":")) return reader_.invalid(": is missing");
        RETURN_IF_ERROR(define_once(name, start));
        terminal_ = is_lark_terminal(name);
        ASSIGN_OR_RETURN(const NodeId body, alternatives(0));
        LarkName &defined = named(name, start);
        if (terminal_)
            defined.body = body;
        else
            grammar_.define(defined.node, body);
        return {};
    }

    Status directive() {
        const GrammarReader start = reader_;
        if (reader_.take("%ignore")) {
            skip(false);
            terminal_ = true;
            ASSIGN_OR_RETURN(const NodeId body, alternatives(0));
            ignored_bodies_.push_back(body);
            return {};
        }
        if (!reader_.take("%import")) {
            reader_.skip(1);
            return start.unsupported(std::string("%").append(reader_.name("_")));
        }
        skip(false);
        if (!reader_.take("common")) return start.unsupported("an import that is not from common");
        if (reader_.take(".")) {
            ASSIGN_OR_RETURN(const std::string_view name, import_one());
            (void)name;
            return {};
        }
        skip(false);
        if (!reader_.take("(")) return reader_.invalid("a name is missing");
        do {
            skip(false);
            ASSIGN_OR_RETURN(const std::string_view name, import_one());
            (void)name;
            skip(false);
        } while (reader_.take(","));
        return reader_.take(")") ? Status() : reader_.invalid("a ) is missing");
    }

    Result<std::string_view> import_one() {
        const GrammarReader start = reader_;
        const std::string_view name = reader_.name("_");
        const char *const expression = lark_common_terminal(name);
        if (!expression) return start.unsupported("the import of " + in_quotes(name));
        skip(false);
        std::string_view as = name;
        if (reader_.take("->")) {
            skip(false);
            as = reader_.name("_");
        }
        RETURN_IF_ERROR(define_once(as, start));
        ASSIGN_OR_RETURN(Automaton automaton, compile_regex(expression, {}, budget_));
        named(as, start).body = grammar_.terminal(std::move(automaton));
        return name;
    }

    Result<NodeId> alternatives(int32_t depth) {
        RETURN_IF_ERROR(check_depth(depth));
        std::vector<NodeId> found;
        skip(false);
        reader_.take("|");
        for (;;) {
            ASSIGN_OR_RETURN(const NodeId one, aliased(depth));
            found.push_back(one);
            // If the next line begins with |, it belongs to the rule.
            const GrammarReader end = reader_;
            skip(true);
            if (reader_.take("|")) continue;
            if (depth == 0) reader_ = end;
            break;
        }
        return grammar_.choice(std::move(found));
    }

    Result<NodeId> aliased(int32_t depth) {
        ASSIGN_OR_RETURN(const NodeId parts, sequence(depth));
        if (reader_.take("->")) {
            skip(false);
            if (reader_.name("_").empty()) return reader_.invalid("an alias is missing");
        }
        return parts;
    }

    Result<NodeId> item(int32_t depth) override {
        const GrammarReader start = reader_;
        switch (reader_.peek()) {
        case '"':
            return quoted();
        case '/':
            return expression();
        case '(':
        case '[': {
            const bool optional = reader_.peek() == '[';
            reader_.skip(1);
            ASSIGN_OR_RETURN(const NodeId group, alternatives(depth + 1));
            if (!reader_.take(optional ? "]" : ")"))
                return start.invalid("a group without its end");
            return optional ? grammar_.optional(group) : group;
        }
        case '*':
        case '+':
        case '?':
        case '~':
            return reader_.invalid("nothing to repeat");
        default:
            break;
        }
        const std::string_view name = reader_.name("_");
        if (name.empty()) return kNoNode;
        if (reader_.peek() == '{') return reader_.unsupported("a template");
        const bool terminal = is_lark_terminal(name);
        if (terminal_ && !terminal) return start.invalid("a rule inside a terminal");
        const NodeId node = named(name, start).node;
        return terminal && !terminal_ ? in_rule(node) : node;
    }

    // "text", "text"i or "a".."z".
    Result<NodeId> quoted() {
        const GrammarReader start = reader_;
        ASSIGN_OR_RETURN(std::string text, reader_.quoted());
        if (reader_.take("..")) {
            if (reader_.peek() != '"') return reader_.invalid("a range's end is missing");
            ASSIGN_OR_RETURN(const std::string last, reader_.quoted());
            std::optional<Automaton> range = characters_between(text, last);
            if (!range.has_value())
                return start.invalid("a range that is not from one character to a later one");
            return literal_node(grammar_.terminal(*std::move(range)));
        }
        if (!reader_.take("i")) return literal_node(grammar_.bytes(std::move(text)));
        ASSIGN_OR_RETURN(Automaton either, ignoring_case(text, budget_));
        return literal_node(grammar_.terminal(std::move(either)));
    }

    NodeId literal_node(NodeId node) { return terminal_ ? node : in_rule(node); }

    Result<NodeId> expression() {
        const GrammarReader start = reader_;
        reader_.skip(1);
        std::string source;
        while (reader_.peek() != '/') {
            if (reader_.at_end() || reader_.peek() == '\n')
                return start.invalid("an expression without its /");
            if (reader_.take("\\/")) {
                source += '/';
                continue;
            }
            const size_t length = reader_.peek() == '\\' && reader_.rest().size() > 1 ? 2 : 1;
            source += reader_.rest().substr(0, length);
            reader_.skip(length);
        }
        reader_.skip(1);
        RegexOptions options;
        for (;;) {
            if (reader_.take("i"))
                options.ignore_case = true;
            else if (reader_.take("s"))
                options.dot_all = true;
            else
                break;
        }
        if (const char flag = reader_.peek();
            flag == 'm' || flag == 'x' || flag == 'l' || flag == 'u')
            return reader_.unsupported(std::string("the flag ") + flag);
        auto automaton = compile_regex(source, options, budget_);
        if (!automaton.ok()) {
            const Status &status = automaton.status();
            const std::string text = "in the expression, " + status.message();
            return error(status.code(), "%s", start.invalid(text).message().c_str());
        }
        return literal_node(grammar_.terminal(std::move(automaton).value()));
    }

    Result<NodeId> repeated(NodeId part) override {
        for (;;) {
            // There may be space before a ~.
            const GrammarReader end = reader_;
            skip(false);
            if (reader_.peek() != '~') reader_ = end;
            if (const NodeId more = repeated_by_sign(part); more != kNoNode) {
                part = more;
            } else if (reader_.take("~")) {
                skip(false);
                ASSIGN_OR_RETURN(const int64_t least, reader_.number());
                int64_t greatest = least;
                if (reader_.take("..")) {
                    ASSIGN_OR_RETURN(greatest, number_from(least));
                }
                part = grammar_.repeat(part, least, greatest);
            } else {
                return part;
            }
        }
    }

    // The automaton of a terminal's body. Terminals may name others, but not in a cycle.
    Result<Automaton> automaton_of(NodeId id) {
        RETURN_IF_ERROR(budget_->spend_states(1));
        const Grammar::Node node = grammar_.node(id);
        std::vector<Automaton> parts;
        if (node.kind == Grammar::Kind::reference) return automaton_of_name(node.literal);
        for (const NodeId child : node.children) {
            ASSIGN_OR_RETURN(Automaton part, automaton_of(child));
            parts.push_back(std::move(part));
        }
        switch (node.kind) {
        case Grammar::Kind::bytes:
            return Automaton::literal(node.literal);
        case Grammar::Kind::terminal:
            return node.automaton;
        case Grammar::Kind::sequence:
            return concat(parts, budget_);
        case Grammar::Kind::choice:
            return unite(parts, budget_);
        case Grammar::Kind::repeat:
            return batchllm::repeat(parts[0], node.least, node.greatest, budget_);
        case Grammar::Kind::members:
        case Grammar::Kind::reference:
            break;
        }
        return error(BATCHLLM_ERROR_INTERNAL, "a terminal of an unknown kind");
    }

    Result<Automaton> automaton_of_name(const std::string &text) {
        LarkName &name = names_.find(text)->second;
        if (name.state == LarkName::open)
            return name.first_use.invalid("the terminal " + in_quotes(text) + " is made of itself");
        if (name.state == LarkName::fresh) {
            name.state = LarkName::open;
            ASSIGN_OR_RETURN(name.automaton, automaton_of(name.body));
            name.state = LarkName::done;
        }
        return name.automaton;
    }

    Status finish_terminals() {
        for (auto &[text, name] : names_) {
            if (name.body == kNoNode) continue;
            ASSIGN_OR_RETURN(Automaton automaton, automaton_of_name(text));
            grammar_.define(name.node, grammar_.terminal(std::move(automaton)));
        }
        if (!ignores_) return {};
        std::vector<Automaton> ignored;
        for (const NodeId body : ignored_bodies_) {
            ASSIGN_OR_RETURN(Automaton automaton, automaton_of(body));
            ignored.push_back(std::move(automaton));
        }
        ASSIGN_OR_RETURN(const Automaton one, unite(ignored, budget_));
        ASSIGN_OR_RETURN(Automaton any, batchllm::repeat(one, 0, Automaton::kUnbounded, budget_));
        grammar_.define(ignored_, grammar_.terminal(std::move(any)));
        return {};
    }

    bool ignores_;
    bool terminal_ = false; // inside the definition of a terminal
    NodeId ignored_ = kNoNode;
    std::vector<NodeId> ignored_bodies_;
};

} // namespace

Result<Grammar> parse_lark(std::string_view text, Budget *budget) {
    RETURN_IF_ERROR(check_grammar_text(text));
    return LarkParser(text, budget).parse();
}

} // namespace batchllm
