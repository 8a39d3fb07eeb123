#include "text/jinja/grammar.h"

namespace batchllm::jinja {
namespace {

// Limits everything that walks the tree.
constexpr int32_t most_depth = 300;

} // namespace

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

// ---- tokens ----

std::string Parser::describe() const {
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

// ---- nodes ----

ExpressionPtr Parser::make(Operation operation, int32_t at_line) const {
    auto made = std::make_unique<Expression>();
    made->operation = operation;
    made->line = at_line;
    return made;
}

Result<ExpressionPtr> Parser::finish(ExpressionPtr made) const {
    int32_t below = 0;
    const auto look = [&below](const ExpressionPtr &item) {
        if (item != nullptr) below = std::max(below, item->depth);
    };
    for (const ExpressionPtr &item : made->items) look(item);
    for (const ExpressionPtr &item : made->arguments.positional) look(item);
    for (const auto &item : made->arguments.named) look(item.second);
    look(made->arguments.more);
    look(made->arguments.more_named);
    made->depth = below + 1;
    if (made->depth > most_depth) return fail("an expression is nested too deeply");
    return made;
}

Result<ExpressionPtr> Parser::binary(Operation operation, int32_t at_line, ExpressionPtr left,
                                     ExpressionPtr right) const {
    ExpressionPtr made = make(operation, at_line);
    made->items.push_back(std::move(left));
    made->items.push_back(std::move(right));
    return finish(std::move(made));
}

Result<Program> parse(std::string_view source) {
    ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
    return Parser(std::move(tokens)).run();
}

} // namespace batchllm::jinja
