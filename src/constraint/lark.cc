#include "constraint/lark.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "constraint/grammar_reader.h"
#include "constraint/lark_terminal.h"
#include "constraint/regex.h"

namespace batchllm {
namespace {

class LarkParser {
  public:
    LarkParser(std::string_view text, Budget *budget)
        : reader_(text), budget_(budget), ignores_(text.find("%ignore") != std::string_view::npos) {
    }

    Result<Grammar> parse() {
        if (ignores_) ignored_ = grammar_.declare("%ignore");
        skip(true);
        while (!reader_.at_end()) {
            RETURN_IF_ERROR(reader_.peek() == '%' ? directive() : definition());
            skip(false);
            if (!reader_.at_end() && reader_.peek() != '\n' && reader_.peek() != '\r')
                return reader_.invalid("what stands here has no meaning");
            skip(true);
        }
        for (const auto &[name, found] : names_) {
            if (!found.defined) return found.first_use.invalid(in_quotes(name) + " is not defined");
        }
        const auto start = names_.find("start");
        if (start == names_.end()) return reader_.invalid("there is no rule \"start\"");
        RETURN_IF_ERROR(finish_terminals());
        grammar_.set_root(ignores_ ? grammar_.sequence({ignored_, start->second.node})
                                   : start->second.node);
        rewrite_left_recursion(&grammar_);
        return std::move(grammar_);
    }

  private:
    struct Name {
        NodeId node;
        GrammarReader first_use;
        bool defined = false;
        NodeId body = kNoNode; // for terminals, as written
        enum : uint8_t { fresh, open, done } state = fresh;
        Automaton automaton = {};
    };

    void skip(bool lines) {
        for (;;) {
            const size_t before = reader_.rest().size();
            reader_.skip_space("//", lines);
            reader_.skip_space("#", lines);
            if (reader_.rest().size() == before) return;
        }
    }

    Name &named(std::string_view name, const GrammarReader &use) {
        const auto known = names_.find(name);
        if (known != names_.end()) return known->second;
        const std::string text(name);
        return names_.emplace(text, Name{.node = grammar_.declare(text), .first_use = use})
            .first->second;
    }

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
        if (named(name, start).defined) return start.invalid(in_quotes(name) + " is defined twice");
        named(name, start).defined = true;
        terminal_ = is_lark_terminal(name);
        ASSIGN_OR_RETURN(const NodeId body, alternatives(0));
        Name &defined = named(name, start);
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
        Name &defined = named(as, start);
        if (defined.defined) return start.invalid(in_quotes(as) + " is defined twice");
        defined.defined = true;
        ASSIGN_OR_RETURN(Automaton automaton, compile_regex(expression, {}, budget_));
        defined.body = grammar_.terminal(std::move(automaton));
        return name;
    }

    Result<NodeId> alternatives(int32_t depth) {
        if (depth > GrammarReader::kDeepest)
            return reader_.unsupported("groups more than 200 deep");
        std::vector<NodeId> found;
        skip(false);
        reader_.take("|");
        for (;;) {
            ASSIGN_OR_RETURN(const NodeId one, sequence(depth));
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
        if (reader_.take("->")) {
            skip(false);
            if (reader_.name("_").empty()) return reader_.invalid("an alias is missing");
        }
        return grammar_.sequence(std::move(parts));
    }

    // kNoNode: no item begins here.
    Result<NodeId> item(int32_t depth) {
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

    Result<NodeId> repeated(NodeId part) {
        for (;;) {
            // There may be space before a ~.
            const GrammarReader end = reader_;
            skip(false);
            if (reader_.peek() != '~') reader_ = end;
            if (reader_.take("*")) {
                part = grammar_.repeat(part, 0);
            } else if (reader_.take("+")) {
                part = grammar_.repeat(part, 1);
            } else if (reader_.take("?")) {
                part = grammar_.optional(part);
            } else if (reader_.take("~")) {
                skip(false);
                ASSIGN_OR_RETURN(const int64_t least, reader_.number());
                int64_t greatest = least;
                if (reader_.take("..")) {
                    ASSIGN_OR_RETURN(greatest, reader_.number());
                    if (greatest < least)
                        return reader_.invalid("a count whose end is below its start");
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
        Name &name = names_.find(text)->second;
        if (name.state == Name::open)
            return name.first_use.invalid("the terminal " + in_quotes(text) + " is made of itself");
        if (name.state == Name::fresh) {
            name.state = Name::open;
            ASSIGN_OR_RETURN(name.automaton, automaton_of(name.body));
            name.state = Name::done;
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

    GrammarReader reader_;
    Budget *budget_;
    bool ignores_;
    bool terminal_ = false; // inside the definition of a terminal
    Grammar grammar_;
    NodeId ignored_ = kNoNode;
    std::vector<NodeId> ignored_bodies_;
    std::map<std::string, Name, std::less<>> names_;
};

} // namespace

Result<Grammar> parse_lark(std::string_view text, Budget *budget) {
    RETURN_IF_ERROR(check_grammar_text(text));
    return LarkParser(text, budget).parse();
}

} // namespace batchllm
