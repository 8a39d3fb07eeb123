// Expressions with operators, loosest first.
#include "text/jinja/grammar.h"

namespace batchllm::jinja {

Result<ExpressionPtr> Parser::parse_expression(bool with_conditional) {
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

Result<ExpressionPtr> Parser::parse_or() {
    ASSIGN_OR_RETURN(ExpressionPtr left, parse_and());
    for (int32_t at_line = line(); skip_word("or"); at_line = line()) {
        ASSIGN_OR_RETURN(ExpressionPtr right, parse_and());
        ASSIGN_OR_RETURN(left,
                         binary(Operation::logical_or, at_line, std::move(left), std::move(right)));
    }
    return left;
}

Result<ExpressionPtr> Parser::parse_and() {
    ASSIGN_OR_RETURN(ExpressionPtr left, parse_not());
    for (int32_t at_line = line(); skip_word("and"); at_line = line()) {
        ASSIGN_OR_RETURN(ExpressionPtr right, parse_not());
        ASSIGN_OR_RETURN(
            left, binary(Operation::logical_and, at_line, std::move(left), std::move(right)));
    }
    return left;
}

Result<ExpressionPtr> Parser::parse_not() {
    const Nested nested(&nesting_);
    if (nesting_ > most_nesting) return fail("the template is nested too deeply");
    const int32_t at_line = line();
    if (!skip_word("not")) return parse_compare();
    ASSIGN_OR_RETURN(ExpressionPtr operand, parse_not());
    return negate(std::move(operand), at_line);
}

Result<ExpressionPtr> Parser::negate(ExpressionPtr operand, int32_t at_line) const {
    ExpressionPtr made = make(Operation::logical_not, at_line);
    made->items.push_back(std::move(operand));
    return finish(std::move(made));
}

bool Parser::skip_comparison(Comparison *comparison) {
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

Result<ExpressionPtr> Parser::parse_compare() {
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

Result<ExpressionPtr> Parser::parse_sum() {
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

Result<ExpressionPtr> Parser::parse_concatenation() {
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

Result<ExpressionPtr> Parser::parse_product() {
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

Result<ExpressionPtr> Parser::parse_power() {
    const int32_t at_line = line();
    ASSIGN_OR_RETURN(ExpressionPtr left, parse_unary(true));
    while (skip_operator("**")) {
        ASSIGN_OR_RETURN(ExpressionPtr right, parse_unary(true));
        ASSIGN_OR_RETURN(left,
                         binary(Operation::power, at_line, std::move(left), std::move(right)));
    }
    return left;
}

Result<ExpressionPtr> Parser::parse_unary(bool with_filter) {
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

} // namespace batchllm::jinja
