// A recursive-descent parser for jinja2's grammar, with a function per rule. parser.cc creates the
// nodes, parse_statements.cc reads tags, parse_expressions.cc operators, and parse_operands.cc
// operands. The nesting depth is checked before descending, so that no template exhausts the stack.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace batchllm::jinja {

// Limits the parser's own stack.
inline constexpr int32_t most_nesting = 60;

using Words = std::initializer_list<std::string_view>;

inline bool is_one_of(std::string_view word, Words words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

// The names available to a macro's body in addition to its parameters.
inline bool is_macro_name(std::string_view name) {
    return is_one_of(name, {"caller", "varargs", "kwargs"});
}

// Whether the expression is a name, attribute or item called "content".
bool names_content(const Expression &expression);

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
    std::string describe() const;
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

    ExpressionPtr make(Operation operation, int32_t at_line) const;
    // Completes the node by setting its depth.
    Result<ExpressionPtr> finish(ExpressionPtr made) const;
    Result<ExpressionPtr> binary(Operation operation, int32_t at_line, ExpressionPtr left,
                                 ExpressionPtr right) const;

    struct Nested {
        explicit Nested(int32_t *levels) : levels_(levels) { ++*levels_; }
        ~Nested() { --*levels_; }
        int32_t *levels_;
    };

    // ---- expressions, loosest first ----

    Result<ExpressionPtr> parse_expression(bool with_conditional = true);
    Result<ExpressionPtr> parse_or();
    Result<ExpressionPtr> parse_and();
    Result<ExpressionPtr> parse_not();
    Result<ExpressionPtr> negate(ExpressionPtr operand, int32_t at_line) const;
    bool skip_comparison(Comparison *comparison);
    Result<ExpressionPtr> parse_compare();
    Result<ExpressionPtr> parse_sum();
    Result<ExpressionPtr> parse_concatenation();
    Result<ExpressionPtr> parse_product();
    Result<ExpressionPtr> parse_power();
    Result<ExpressionPtr> parse_unary(bool with_filter);

    // ---- operands ----

    Result<ExpressionPtr> parse_primary();
    Result<ExpressionPtr> parse_name();
    bool at_tuple_end(Words end_words) const;
    // An expression, or several separated by commas: a tuple. empty: () is one too.
    Result<ExpressionPtr> parse_tuple(bool with_conditional, bool empty, Words end_words = {});
    Result<ExpressionPtr> parse_list();
    Result<ExpressionPtr> parse_dict();
    Result<ExpressionPtr> parse_postfix(ExpressionPtr node);
    Result<ExpressionPtr> parse_attribute(ExpressionPtr node);
    Result<ExpressionPtr> parse_subscript(ExpressionPtr node);
    Status parse_arguments(Arguments *arguments);
    Result<ExpressionPtr> parse_call(ExpressionPtr node);
    // node null: the filter of a block, whose input is the block's text.
    Result<ExpressionPtr> parse_filter(ExpressionPtr node);
    Result<ExpressionPtr> parse_filter_name(ExpressionPtr made, ExpressionPtr node);
    Result<ExpressionPtr> parse_test(ExpressionPtr node);
    static bool asks_type(std::string_view test);

    // ---- targets ----

    Result<Target> parse_target(bool with_attribute);
    Result<Target> parse_targets(bool with_attribute);

    // ---- statements ----

    // Everything up to a tag that begins with one of the words; that tag becomes the current one.
    // Without words: up to the end of the template.
    Result<Body> parse_body(Words end_words);
    // The body after a tag; skips its end tag.
    Result<Body> parse_block(Words end_words);
    Status parse_statement(Statement *made);
    // A body that break and continue cannot leave.
    Result<Body> parse_loopless(Words end_words);
    Status parse_if(Statement *made);
    Status parse_for(Statement *made);
    Status parse_set(Statement *made);
    Status parse_macro(Statement *made);
    Status parse_call_block(Statement *made);
    // The parameters after "(", including the closing ")".
    Status parse_signature(MacroNode *macro);
    // The body of a macro or a call.
    Status parse_macro_body(Statement *made, std::string_view end_word);
    Status parse_with(Statement *made);

    std::vector<Token> tokens_;
    size_t at_ = 0;
    int32_t nesting_ = 0;
    int32_t loops_ = 0;
    std::vector<MacroNode *> macros_; // the macros whose bodies are being parsed
    Program program_;
};

} // namespace batchllm::jinja
