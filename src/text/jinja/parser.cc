#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/lexer.h"
#include "text/jinja/methods.h"

namespace batchllm::jinja {
namespace {

// Bounds of the parser's own stack, and of what walks over the tree.
constexpr int32_t most_nesting = 60;
constexpr int32_t most_depth = 300;

using Words = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view word, Words words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

// A name, attribute or item that says "content".
bool names_content(const Expression &expression) {
    switch (expression.operation) {
    case Operation::name:
    case Operation::attribute:
        return expression.text == "content";
    case Operation::item:
        return expression.items[1]->operation == Operation::constant &&
               expression.items[1]->text == "content";
    default:
        return false;
    }
}

class Parser {
  public:
    explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

    Result<Program> run() {
        ASSIGN_OR_RETURN(program_.body, parse_body({}));
        return std::move(program_);
    }

  private:
    // ---- tokens ----

    const Token &current() const { return tokens_[at_]; }
    const Token &next_token() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    int32_t line() const { return current().line; }
    bool at_operator(std::string_view spelling) const {
        return current().is(TokenType::operator_, spelling);
    }
    bool at_word(std::string_view word) const { return current().is(TokenType::name, word); }
    void advance() {
        if (at_ + 1 < tokens_.size()) ++at_;
    }
    bool skip_operator(std::string_view spelling) {
        const bool found = at_operator(spelling);
        if (found) advance();
        return found;
    }
    bool skip_word(std::string_view word) {
        const bool found = at_word(word);
        if (found) advance();
        return found;
    }

    Status fail(const std::string &what) const { return error_at(line(), what); }
    std::string describe() const {
        switch (current().type) {
        case TokenType::end:
            return "the end of the template";
        case TokenType::data:
            return "text";
        case TokenType::variable_begin:
            return "'{{'";
        case TokenType::variable_end:
            return "the end of the expression, '}}'";
        case TokenType::block_begin:
            return "'{%'";
        case TokenType::block_end:
            return "the end of the tag, '%}'";
        case TokenType::string:
            return "a string";
        default:
            return quoted("", current().text.substr(0, 40));
        }
    }
    Status expected(const std::string &what) const {
        return fail("expected " + what + ", not " + describe());
    }
    Status expect(TokenType type, const char *what) {
        if (current().type != type) return expected(what);
        advance();
        return {};
    }
    Status expect_operator(std::string_view spelling) {
        if (!skip_operator(spelling)) return expected(quoted("", spelling));
        return {};
    }
    Result<std::string> expect_name() {
        if (current().type != TokenType::name) return expected("a name");
        std::string name = current().text;
        advance();
        return name;
    }

    // ---- nodes ----

    ExpressionPtr make(Operation operation, int32_t at_line) const {
        auto made = std::make_unique<Expression>();
        made->operation = operation;
        made->line = at_line;
        return made;
    }

    // The node with its depth, once it has all it will have.
    Result<ExpressionPtr> finish(ExpressionPtr made) const {
        int32_t below = 0;
        const auto look = [&below](const ExpressionPtr &item) {
            if (item != nullptr) below = std::max(below, item->depth);
        };
        for (const ExpressionPtr &item : made->items) look(item);
        for (const ExpressionPtr &item : made->arguments.positional) look(item);
        for (const auto &item : made->arguments.named) look(item.second);
        made->depth = below + 1;
        if (made->depth > most_depth) return fail("an expression is nested too deeply");
        return made;
    }

    Result<ExpressionPtr> binary(Operation operation, int32_t at_line, ExpressionPtr left,
                                 ExpressionPtr right) const {
        ExpressionPtr made = make(operation, at_line);
        made->items.push_back(std::move(left));
        made->items.push_back(std::move(right));
        return finish(std::move(made));
    }

    struct Nested {
        explicit Nested(int32_t *levels) : levels_(levels) { ++*levels_; }
        ~Nested() { --*levels_; }
        int32_t *levels_;
    };

    // ---- expressions, loosest first ----

    Result<ExpressionPtr> parse_expression(bool with_conditional = true) {
        const Nested nested(&nesting_);
        if (nesting_ > most_nesting) return fail("the template is nested too deeply");
        const int32_t at_line = line();
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_or());
        while (with_conditional && skip_word("if")) {
            ExpressionPtr made = make(Operation::conditional, at_line);
            ASSIGN_OR_RETURN(ExpressionPtr condition, parse_or());
            made->items.push_back(std::move(condition));
            made->items.push_back(std::move(left));
            made->items.emplace_back();
            if (skip_word("else")) {
                ASSIGN_OR_RETURN(made->items[2], parse_expression());
            }
            ASSIGN_OR_RETURN(left, finish(std::move(made)));
        }
        return left;
    }

    Result<ExpressionPtr> parse_or() {
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_and());
        for (int32_t at_line = line(); skip_word("or"); at_line = line()) {
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_and());
            ASSIGN_OR_RETURN(
                left, binary(Operation::logical_or, at_line, std::move(left), std::move(right)));
        }
        return left;
    }

    Result<ExpressionPtr> parse_and() {
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_not());
        for (int32_t at_line = line(); skip_word("and"); at_line = line()) {
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_not());
            ASSIGN_OR_RETURN(
                left, binary(Operation::logical_and, at_line, std::move(left), std::move(right)));
        }
        return left;
    }

    Result<ExpressionPtr> parse_not() {
        const Nested nested(&nesting_);
        if (nesting_ > most_nesting) return fail("the template is nested too deeply");
        const int32_t at_line = line();
        if (!skip_word("not")) return parse_compare();
        ASSIGN_OR_RETURN(ExpressionPtr operand, parse_not());
        return negate(std::move(operand), at_line);
    }

    Result<ExpressionPtr> negate(ExpressionPtr operand, int32_t at_line) const {
        ExpressionPtr made = make(Operation::logical_not, at_line);
        made->items.push_back(std::move(operand));
        return finish(std::move(made));
    }

    bool skip_comparison(Comparison *comparison) {
        static constexpr std::pair<std::string_view, Comparison> known[] = {
            {"==", Comparison::equal},  {"!=", Comparison::not_equal},
            {"<", Comparison::less},    {"<=", Comparison::less_equal},
            {">", Comparison::greater}, {">=", Comparison::greater_equal},
        };
        for (const auto &[spelling, meaning] : known) {
            *comparison = meaning;
            if (skip_operator(spelling)) return true;
        }
        *comparison = Comparison::in;
        if (skip_word("in")) return true;
        if (!at_word("not") || !next_token().is(TokenType::name, "in")) return false;
        advance();
        advance();
        *comparison = Comparison::not_in;
        return true;
    }

    Result<ExpressionPtr> parse_compare() {
        const int32_t at_line = line();
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_sum());
        Comparison comparison;
        if (!skip_comparison(&comparison)) return left;
        ExpressionPtr made = make(Operation::compare, at_line);
        made->items.push_back(std::move(left));
        do {
            made->comparisons.push_back(comparison);
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_sum());
            made->items.push_back(std::move(right));
        } while (skip_comparison(&comparison));
        return finish(std::move(made));
    }

    Result<ExpressionPtr> parse_sum() {
        const int32_t at_line = line();
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_concatenation());
        for (;;) {
            const bool adds = at_operator("+");
            if (!adds && !at_operator("-")) return left;
            advance();
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_concatenation());
            ASSIGN_OR_RETURN(left, binary(adds ? Operation::add : Operation::subtract, at_line,
                                          std::move(left), std::move(right)));
        }
    }

    Result<ExpressionPtr> parse_concatenation() {
        const int32_t at_line = line();
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_product());
        if (!at_operator("~")) return left;
        ExpressionPtr made = make(Operation::concatenate, at_line);
        made->items.push_back(std::move(left));
        while (skip_operator("~")) {
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_product());
            made->items.push_back(std::move(right));
        }
        return finish(std::move(made));
    }

    Result<ExpressionPtr> parse_product() {
        const int32_t at_line = line();
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_power());
        for (;;) {
            Operation operation;
            if (at_operator("*")) {
                operation = Operation::multiply;
            } else if (at_operator("/")) {
                operation = Operation::divide;
            } else if (at_operator("//")) {
                operation = Operation::floor_divide;
            } else if (at_operator("%")) {
                operation = Operation::modulo;
            } else {
                return left;
            }
            advance();
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_power());
            ASSIGN_OR_RETURN(left, binary(operation, at_line, std::move(left), std::move(right)));
        }
    }

    Result<ExpressionPtr> parse_power() {
        const int32_t at_line = line();
        ASSIGN_OR_RETURN(ExpressionPtr left, parse_unary(true));
        while (skip_operator("**")) {
            ASSIGN_OR_RETURN(ExpressionPtr right, parse_unary(true));
            ASSIGN_OR_RETURN(left,
                             binary(Operation::power, at_line, std::move(left), std::move(right)));
        }
        return left;
    }

    Result<ExpressionPtr> parse_unary(bool with_filter) {
        const Nested nested(&nesting_);
        if (nesting_ > most_nesting) return fail("the template is nested too deeply");
        const int32_t at_line = line();
        ExpressionPtr node;
        if (at_operator("-") || at_operator("+")) {
            node = make(at_operator("-") ? Operation::negative : Operation::positive, at_line);
            advance();
            ASSIGN_OR_RETURN(ExpressionPtr operand, parse_unary(false));
            node->items.push_back(std::move(operand));
            ASSIGN_OR_RETURN(node, finish(std::move(node)));
        } else {
            ASSIGN_OR_RETURN(node, parse_primary());
        }
        ASSIGN_OR_RETURN(node, parse_postfix(std::move(node)));
        while (with_filter) {
            if (at_operator("|")) {
                ASSIGN_OR_RETURN(node, parse_filter(std::move(node)));
            } else if (at_word("is")) {
                ASSIGN_OR_RETURN(node, parse_test(std::move(node)));
            } else if (at_operator("(")) {
                ASSIGN_OR_RETURN(node, parse_call(std::move(node)));
            } else {
                break;
            }
        }
        return node;
    }

    Result<ExpressionPtr> parse_primary() {
        const Token &token = current();
        ExpressionPtr made = make(Operation::constant, token.line);
        switch (token.type) {
        case TokenType::name:
            return parse_name();
        case TokenType::string:
            while (current().type == TokenType::string) {
                made->text += current().text;
                advance();
            }
            made->value = Value::string(made->text);
            return made;
        case TokenType::integer:
            made->value = Value::integer(token.integer);
            advance();
            return made;
        case TokenType::real:
            made->value = Value::real(token.real);
            advance();
            return made;
        case TokenType::operator_:
            if (token.text == "(") {
                advance();
                ASSIGN_OR_RETURN(made, parse_tuple(true, true));
                RETURN_IF_ERROR(expect_operator(")"));
                return made;
            }
            if (token.text == "[") return parse_list();
            if (token.text == "{") return parse_dict();
            break;
        default:
            break;
        }
        return fail("unexpected " + describe());
    }

    Result<ExpressionPtr> parse_name() {
        const std::string name = current().text;
        ExpressionPtr made = make(Operation::constant, line());
        if (is_one_of(name, {"true", "True", "false", "False"})) {
            made->value = Value::boolean(name == "true" || name == "True");
        } else if (is_one_of(name, {"none", "None"})) {
            made->value = Value::none();
        } else if (is_one_of(name, {"lipsum", "cycler", "joiner", "self", "super", "caller",
                                    "varargs", "kwargs"})) {
            return fail(quoted("not supported: ", name));
        } else {
            made->operation = Operation::name;
            made->text = name;
        }
        advance();
        return made;
    }

    bool at_tuple_end(Words end_words) const {
        return current().type == TokenType::variable_end ||
               current().type == TokenType::block_end || at_operator(")") ||
               (current().type == TokenType::name && is_one_of(current().text, end_words));
    }

    // An expression, or several with commas between them: a tuple. empty: () is one.
    Result<ExpressionPtr> parse_tuple(bool with_conditional, bool empty, Words end_words = {}) {
        ExpressionPtr made = make(Operation::tuple, line());
        bool comma = false;
        while (!at_tuple_end(end_words)) {
            ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression(with_conditional));
            made->items.push_back(std::move(item));
            if (!skip_operator(",")) break;
            comma = true;
        }
        if (!comma) {
            if (!made->items.empty()) return std::move(made->items[0]);
            if (!empty) return expected("an expression");
        }
        return finish(std::move(made));
    }

    Result<ExpressionPtr> parse_list() {
        ExpressionPtr made = make(Operation::list, line());
        advance();
        while (!at_operator("]")) {
            if (!made->items.empty()) RETURN_IF_ERROR(expect_operator(","));
            if (at_operator("]")) break;
            ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression());
            made->items.push_back(std::move(item));
        }
        advance();
        return finish(std::move(made));
    }

    Result<ExpressionPtr> parse_dict() {
        ExpressionPtr made = make(Operation::dict, line());
        advance();
        while (!at_operator("}")) {
            if (!made->items.empty()) RETURN_IF_ERROR(expect_operator(","));
            if (at_operator("}")) break;
            ASSIGN_OR_RETURN(ExpressionPtr key, parse_expression());
            RETURN_IF_ERROR(expect_operator(":"));
            ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
            made->items.push_back(std::move(key));
            made->items.push_back(std::move(value));
        }
        advance();
        return finish(std::move(made));
    }

    Result<ExpressionPtr> parse_postfix(ExpressionPtr node) {
        for (;;) {
            if (at_operator(".")) {
                ASSIGN_OR_RETURN(node, parse_attribute(std::move(node)));
            } else if (at_operator("[")) {
                ASSIGN_OR_RETURN(node, parse_subscript(std::move(node)));
            } else if (at_operator("(")) {
                ASSIGN_OR_RETURN(node, parse_call(std::move(node)));
            } else {
                return node;
            }
        }
    }

    Result<ExpressionPtr> parse_attribute(ExpressionPtr node) {
        const int32_t at_line = line();
        advance();
        const Token &token = current();
        if (token.type == TokenType::integer) {
            ExpressionPtr index = make(Operation::constant, at_line);
            index->value = Value::integer(token.integer);
            advance();
            return binary(Operation::item, at_line, std::move(node), std::move(index));
        }
        if (token.type != TokenType::name) return expected("a name or a number after '.'");
        ExpressionPtr made = make(Operation::attribute, at_line);
        made->text = token.text;
        advance();
        made->items.push_back(std::move(node));
        if (at_operator("(") && is_refused_method(made->text)) {
            return error_at(at_line, quoted("not supported: method ", made->text));
        }
        return finish(std::move(made));
    }

    Result<ExpressionPtr> parse_subscript(ExpressionPtr node) {
        const int32_t at_line = line();
        advance();
        ExpressionPtr parts[3];
        bool is_slice = false;
        for (int part = 0;; ++part) {
            if (!at_operator(":") && !at_operator("]")) {
                ASSIGN_OR_RETURN(parts[part], parse_expression());
            }
            if (part == 2 || !skip_operator(":")) break;
            is_slice = true;
        }
        if (at_operator(",")) return fail("an index of several parts is not supported");
        RETURN_IF_ERROR(expect_operator("]"));
        if (!is_slice) {
            if (parts[0] == nullptr) return error_at(at_line, "not supported: an empty index");
            return binary(Operation::item, at_line, std::move(node), std::move(parts[0]));
        }
        ExpressionPtr made = make(Operation::slice, at_line);
        made->items.push_back(std::move(node));
        for (ExpressionPtr &part : parts) made->items.push_back(std::move(part));
        return finish(std::move(made));
    }

    Status parse_arguments(Arguments *arguments) {
        RETURN_IF_ERROR(expect_operator("("));
        bool first = true;
        while (!at_operator(")")) {
            if (!first) RETURN_IF_ERROR(expect_operator(","));
            if (at_operator(")")) break;
            first = false;
            if (at_operator("*") || at_operator("**")) {
                return fail("arguments given by '*' are not supported");
            }
            if (current().type == TokenType::name && next_token().is(TokenType::operator_, "=")) {
                std::string name = current().text;
                for (const auto &named : arguments->named) {
                    if (named.first == name) return fail(quoted("given twice: argument ", name));
                }
                advance();
                advance();
                ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
                arguments->named.emplace_back(std::move(name), std::move(value));
                continue;
            }
            if (!arguments->named.empty()) {
                return fail("an argument without a name stands behind one with a name");
            }
            ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
            arguments->positional.push_back(std::move(value));
        }
        advance();
        return {};
    }

    Result<ExpressionPtr> parse_call(ExpressionPtr node) {
        ExpressionPtr made = make(Operation::call, line());
        made->items.push_back(std::move(node));
        RETURN_IF_ERROR(parse_arguments(&made->arguments));
        return finish(std::move(made));
    }

    // node null: the filter of a block, which takes its text.
    Result<ExpressionPtr> parse_filter(ExpressionPtr node) {
        ExpressionPtr made = make(Operation::filter, line());
        advance();
        return parse_filter_name(std::move(made), std::move(node));
    }

    Result<ExpressionPtr> parse_filter_name(ExpressionPtr made, ExpressionPtr node) {
        ASSIGN_OR_RETURN(made->text, expect_name());
        made->code = find_filter(made->text);
        if (made->code < 0) {
            return error_at(made->line, quoted("not supported: filter ", made->text));
        }
        made->items.push_back(std::move(node));
        if (at_operator("(")) RETURN_IF_ERROR(parse_arguments(&made->arguments));
        RETURN_IF_ERROR(check_names(*made));
        return finish(std::move(made));
    }

    // map, select and the like take the names of filters and tests as their first argument.
    Status check_names(const Expression &filter) const {
        const bool tests = is_one_of(filter.text, {"select", "reject", "selectattr", "rejectattr"});
        if (!tests && filter.text != "map") return {};
        const size_t place = filter.text.ends_with("attr") ? 1 : 0;
        const auto &positional = filter.arguments.positional;
        if (positional.size() <= place) return {};
        const Expression &name = *positional[place];
        if (name.operation != Operation::constant || !name.value.is(Kind::string)) {
            return error_at(filter.line,
                            quoted("supported only with a name written out: filter ", filter.text));
        }
        if ((tests ? find_test(name.text) : find_filter(name.text)) >= 0) return {};
        return error_at(
            filter.line,
            quoted(tests ? "not supported: test " : "not supported: filter ", name.text));
    }

    Result<ExpressionPtr> parse_test(ExpressionPtr node) {
        ExpressionPtr made = make(Operation::test, line());
        advance();
        const bool negated = skip_word("not");
        ASSIGN_OR_RETURN(made->text, expect_name());
        made->code = find_test(made->text);
        if (made->code < 0) {
            return error_at(made->line, quoted("not supported: test ", made->text));
        }
        if (names_content(*node)) program_.reads_content_parts |= asks_type(made->text);
        made->items.push_back(std::move(node));
        const Token &token = current();
        const bool value = token.type == TokenType::name || token.type == TokenType::string ||
                           token.type == TokenType::integer || token.type == TokenType::real ||
                           at_operator("[") || at_operator("{");
        if (at_operator("(")) {
            RETURN_IF_ERROR(parse_arguments(&made->arguments));
        } else if (value && !at_word("else") && !at_word("or") && !at_word("and")) {
            if (at_word("is")) return fail("tests cannot be chained with 'is'");
            ASSIGN_OR_RETURN(ExpressionPtr argument, parse_primary());
            ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
            made->arguments.positional.push_back(std::move(argument));
        }
        const int32_t at_line = made->line;
        ASSIGN_OR_RETURN(made, finish(std::move(made)));
        if (!negated) return made;
        return negate(std::move(made), at_line);
    }

    static bool asks_type(std::string_view test) {
        return is_one_of(test, {"string", "iterable", "sequence", "mapping"});
    }

    // ---- targets ----

    Result<Target> parse_target(bool with_attribute) {
        const Nested nested(&nesting_);
        if (nesting_ > most_nesting) return fail("the template is nested too deeply");
        Target target;
        if (skip_operator("(")) {
            ASSIGN_OR_RETURN(target, parse_targets(false));
            RETURN_IF_ERROR(expect_operator(")"));
            return target;
        }
        ASSIGN_OR_RETURN(target.name, expect_name());
        if (is_one_of(target.name, {"true", "false", "none", "True", "False", "None"})) {
            return fail(quoted("cannot be assigned to: ", target.name));
        }
        if (with_attribute && skip_operator(".")) {
            ASSIGN_OR_RETURN(target.attribute, expect_name());
        }
        return target;
    }

    Result<Target> parse_targets(bool with_attribute) {
        ASSIGN_OR_RETURN(Target first, parse_target(with_attribute));
        if (!at_operator(",")) return first;
        Target tuple;
        tuple.tuple = true;
        tuple.parts.push_back(std::move(first));
        while (skip_operator(",")) {
            if (current().type != TokenType::name && !at_operator("(")) break;
            if (at_word("in")) break;
            ASSIGN_OR_RETURN(Target next, parse_target(with_attribute));
            tuple.parts.push_back(std::move(next));
        }
        return tuple;
    }

    // ---- statements ----

    // Everything up to a tag that begins with one of the words, which is left at hand. No words: to
    // the end of the template.
    Result<Body> parse_body(Words end_words) {
        const Nested nested(&nesting_);
        if (nesting_ > most_nesting) return fail("the template is nested too deeply");
        Body body;
        for (;;) {
            const Token &token = current();
            auto made = std::make_unique<Statement>();
            made->line = token.line;
            if (token.type == TokenType::end) {
                if (end_words.size() == 0) return body;
                return fail("the template ends without '" + std::string(*(end_words.end() - 1)) +
                            "'");
            }
            if (token.type == TokenType::data) {
                made->text = token.text;
                advance();
            } else if (token.type == TokenType::variable_begin) {
                advance();
                made->action = Action::output;
                ASSIGN_OR_RETURN(made->expression, parse_tuple(true, false));
                RETURN_IF_ERROR(expect(TokenType::variable_end, "'}}'"));
                RETURN_IF_ERROR(check_safe(*made->expression, true));
            } else {
                advance();
                if (current().type == TokenType::name && is_one_of(current().text, end_words)) {
                    return body;
                }
                RETURN_IF_ERROR(parse_statement(made.get()));
                RETURN_IF_ERROR(expect(TokenType::block_end, "'%}'"));
            }
            body.push_back(std::move(made));
        }
    }

    // The body behind a tag; its end tag is passed over up to its own end.
    Result<Body> parse_block(Words end_words) {
        skip_operator(":");
        RETURN_IF_ERROR(expect(TokenType::block_end, "'%}'"));
        return parse_body(end_words);
    }

    Status parse_statement(Statement *made) {
        if (current().type != TokenType::name) return expected("a tag's name");
        const std::string tag = current().text;
        advance();
        if (tag == "if") return parse_if(made);
        if (tag == "for") return parse_for(made);
        if (tag == "set") return parse_set(made);
        if (tag == "macro") return parse_macro(made);
        if (tag == "with") return parse_with(made);
        if (tag == "print") {
            made->action = Action::output;
            ASSIGN_OR_RETURN(made->expression, parse_tuple(true, false));
            return check_safe(*made->expression, true);
        }
        if (tag == "filter") {
            made->action = Action::filter;
            ASSIGN_OR_RETURN(made->expression,
                             parse_filter_name(make(Operation::filter, made->line), nullptr));
            while (at_operator("|")) {
                ASSIGN_OR_RETURN(made->expression, parse_filter(std::move(made->expression)));
            }
            RETURN_IF_ERROR(check_safe(*made->expression, true));
            ASSIGN_OR_RETURN(made->body, parse_block({"endfilter"}));
            advance();
            return {};
        }
        if (tag == "generation") {
            made->action = Action::scope;
            ASSIGN_OR_RETURN(made->body, parse_loopless({"endgeneration"}));
            advance();
            return {};
        }
        if (tag == "break" || tag == "continue") {
            made->action = tag == "break" ? Action::break_ : Action::continue_;
            if (loops_ > 0) return {};
            return error_at(made->line, quoted("outside of a loop: ", tag));
        }
        if (tag.starts_with("end") || is_one_of(tag, {"else", "elif"})) {
            return error_at(made->line, quoted("unexpected ", tag));
        }
        return error_at(made->line, quoted("not supported: tag ", tag.substr(0, 40)));
    }

    // A body that break and continue cannot leave.
    Result<Body> parse_loopless(Words end_words) {
        const int32_t loops = loops_;
        loops_ = 0;
        ASSIGN_OR_RETURN(Body body, parse_block(end_words));
        loops_ = loops;
        return body;
    }

    Status parse_if(Statement *made) {
        made->action = Action::if_;
        for (;;) {
            Branch branch;
            ASSIGN_OR_RETURN(branch.condition, parse_tuple(false, false));
            RETURN_IF_ERROR(check_safe(*branch.condition, false));
            ASSIGN_OR_RETURN(branch.body, parse_block({"elif", "else", "endif"}));
            made->branches.push_back(std::move(branch));
            if (skip_word("elif")) continue;
            if (skip_word("else")) {
                Branch last;
                ASSIGN_OR_RETURN(last.body, parse_block({"endif"}));
                made->branches.push_back(std::move(last));
            }
            advance(); // endif
            return {};
        }
    }

    Status parse_for(Statement *made) {
        made->action = Action::for_;
        ASSIGN_OR_RETURN(made->target, parse_targets(false));
        if (!skip_word("in")) return expected("'in'");
        ASSIGN_OR_RETURN(made->expression, parse_tuple(false, false, {"recursive"}));
        RETURN_IF_ERROR(check_safe(*made->expression, false));
        program_.reads_content_parts |= names_content(*made->expression);
        if (skip_word("if")) {
            ASSIGN_OR_RETURN(made->condition, parse_expression());
            RETURN_IF_ERROR(check_safe(*made->condition, false));
        }
        if (at_word("recursive")) return fail("a recursive loop is not supported");
        ++loops_;
        ASSIGN_OR_RETURN(made->body, parse_block({"else", "endfor"}));
        --loops_;
        if (skip_word("else")) {
            ASSIGN_OR_RETURN(made->other, parse_block({"endfor"}));
        }
        advance(); // endfor
        return {};
    }

    Status parse_set(Statement *made) {
        ASSIGN_OR_RETURN(made->target, parse_targets(true));
        if (skip_operator("=")) {
            made->action = Action::set;
            ASSIGN_OR_RETURN(made->expression, parse_tuple(true, false));
            return check_safe(*made->expression, false);
        }
        made->action = Action::set_block;
        while (at_operator("|")) {
            ASSIGN_OR_RETURN(made->expression, parse_filter(std::move(made->expression)));
        }
        if (made->expression != nullptr) RETURN_IF_ERROR(check_safe(*made->expression, false));
        ASSIGN_OR_RETURN(made->body, parse_block({"endset"}));
        advance();
        return {};
    }

    Status parse_macro(Statement *made) {
        made->action = Action::macro;
        MacroNode &macro = made->macro;
        ASSIGN_OR_RETURN(macro.name, expect_name());
        RETURN_IF_ERROR(expect_operator("("));
        while (!at_operator(")")) {
            if (!macro.parameters.empty()) RETURN_IF_ERROR(expect_operator(","));
            ASSIGN_OR_RETURN(Target parameter, parse_target(false));
            if (parameter.tuple) return fail("a macro's parameter must be a name");
            macro.parameters.push_back(std::move(parameter.name));
            if (skip_operator("=")) {
                ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
                RETURN_IF_ERROR(check_safe(*value, false));
                macro.defaults.push_back(std::move(value));
            } else if (!macro.defaults.empty()) {
                return fail("a parameter without a default stands behind one with a default");
            }
        }
        advance();
        ASSIGN_OR_RETURN(made->body, parse_loopless({"endmacro"}));
        macro.body = &made->body;
        advance();
        return {};
    }

    Status parse_with(Statement *made) {
        made->action = Action::with;
        while (current().type != TokenType::block_end) {
            if (!made->targets.empty()) RETURN_IF_ERROR(expect_operator(","));
            ASSIGN_OR_RETURN(Target target, parse_targets(false));
            RETURN_IF_ERROR(expect_operator("="));
            ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
            RETURN_IF_ERROR(check_safe(*value, false));
            made->targets.push_back(std::move(target));
            made->expressions.push_back(std::move(value));
        }
        ASSIGN_OR_RETURN(made->body, parse_block({"endwith"}));
        advance();
        return {};
    }

    // `safe` makes text that jinja2 treats unlike other text in further operations. It is taken only
    // where nothing further happens: as what is printed.
    Status check_safe(const Expression &expression, bool printed) const {
        const auto &items = expression.items;
        const bool is_safe = expression.operation == Operation::filter && expression.text == "safe";
        if (is_safe && !printed) {
            return error_at(expression.line,
                            "filter 'safe' is supported only as the last of what is printed");
        }
        for (size_t i = 0; i < items.size(); ++i) {
            if (items[i] == nullptr) continue;
            const bool tail =
                printed && ((expression.operation == Operation::conditional && i > 0) || is_safe);
            RETURN_IF_ERROR(check_safe(*items[i], tail));
        }
        for (const ExpressionPtr &item : expression.arguments.positional) {
            RETURN_IF_ERROR(check_safe(*item, false));
        }
        for (const auto &item : expression.arguments.named) {
            RETURN_IF_ERROR(check_safe(*item.second, false));
        }
        return {};
    }

    std::vector<Token> tokens_;
    size_t at_ = 0;
    int32_t nesting_ = 0;
    int32_t loops_ = 0;
    Program program_;
};

} // namespace

Result<Program> parse(std::string_view source) {
    ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
    return Parser(std::move(tokens)).run();
}

} // namespace batchllm::jinja
