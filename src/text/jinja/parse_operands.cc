// Operands: names, constants, displays, and what may follow them.
#include "text/jinja/grammar.h"

#include "text/jinja/filters.h"

namespace batchllm::jinja {

Result<ExpressionPtr> Parser::parse_primary() {
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

Result<ExpressionPtr> Parser::parse_name() {
    const std::string name = current().text;
    ExpressionPtr made = make(Operation::constant, line());
    if (is_one_of(name, {"true", "True", "false", "False"})) {
        made->value = Value::boolean(name == "true" || name == "True");
    } else if (is_one_of(name, {"none", "None"})) {
        made->value = Value::none();
    } else {
        for (MacroNode *const macro : macros_) {
            macro->reads_caller |= name == "caller";
            macro->reads_varargs |= name == "varargs";
            macro->reads_kwargs |= name == "kwargs";
        }
        made->operation = Operation::name;
        made->text = name;
    }
    advance();
    return made;
}

bool Parser::at_tuple_end(Words end_words) const {
    return current().type == TokenType::variable_end || current().type == TokenType::block_end ||
           at_operator(")") ||
           (current().type == TokenType::name && is_one_of(current().text, end_words));
}

Result<ExpressionPtr> Parser::parse_tuple(bool with_conditional, bool empty, Words end_words) {
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

Result<ExpressionPtr> Parser::parse_list() {
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

Result<ExpressionPtr> Parser::parse_dict() {
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

Result<ExpressionPtr> Parser::parse_postfix(ExpressionPtr node) {
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

Result<ExpressionPtr> Parser::parse_attribute(ExpressionPtr node) {
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
    return finish(std::move(made));
}

Result<ExpressionPtr> Parser::parse_subscript(ExpressionPtr node) {
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
        program_.reads_content_parts |= names_content(*node) &&
                                        parts[0]->operation == Operation::constant &&
                                        parts[0]->value.is(Kind::integer);
        return binary(Operation::item, at_line, std::move(node), std::move(parts[0]));
    }
    ExpressionPtr made = make(Operation::slice, at_line);
    made->items.push_back(std::move(node));
    for (ExpressionPtr &part : parts) made->items.push_back(std::move(part));
    return finish(std::move(made));
}

Status Parser::parse_arguments(Arguments *arguments) {
    RETURN_IF_ERROR(expect_operator("("));
    bool first = true;
    while (!at_operator(")")) {
        if (!first) RETURN_IF_ERROR(expect_operator(","));
        if (at_operator(")")) break;
        first = false;
        if (arguments->more_named != nullptr) return fail("an argument stands behind '**'");
        if (at_operator("*") || at_operator("**")) {
            ExpressionPtr &more = at_operator("*") ? arguments->more : arguments->more_named;
            if (more != nullptr) return fail("'*' is given twice");
            advance();
            ASSIGN_OR_RETURN(more, parse_expression());
            continue;
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
        if (arguments->more != nullptr) return fail("an argument without a name stands behind '*'");
        if (!arguments->named.empty()) {
            return fail("an argument without a name stands behind one with a name");
        }
        ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
        arguments->positional.push_back(std::move(value));
    }
    advance();
    return {};
}

Result<ExpressionPtr> Parser::parse_call(ExpressionPtr node) {
    ExpressionPtr made = make(Operation::call, line());
    made->items.push_back(std::move(node));
    RETURN_IF_ERROR(parse_arguments(&made->arguments));
    return finish(std::move(made));
}

Result<ExpressionPtr> Parser::parse_filter(ExpressionPtr node) {
    ExpressionPtr made = make(Operation::filter, line());
    advance();
    return parse_filter_name(std::move(made), std::move(node));
}

Result<ExpressionPtr> Parser::parse_filter_name(ExpressionPtr made, ExpressionPtr node) {
    ASSIGN_OR_RETURN(made->text, expect_name());
    made->code = find_filter(made->text);
    if (node != nullptr && names_content(*node)) {
        program_.reads_content_parts |= is_one_of(made->text, {"map", "selectattr", "rejectattr"});
    }
    made->items.push_back(std::move(node));
    if (at_operator("(")) RETURN_IF_ERROR(parse_arguments(&made->arguments));
    return finish(std::move(made));
}

Result<ExpressionPtr> Parser::parse_test(ExpressionPtr node) {
    ExpressionPtr made = make(Operation::test, line());
    advance();
    const bool negated = skip_word("not");
    ASSIGN_OR_RETURN(made->text, expect_name());
    made->code = find_test(made->text);
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

bool Parser::asks_type(std::string_view test) {
    return is_one_of(test, {"string", "iterable", "sequence", "mapping"});
}

} // namespace batchllm::jinja
