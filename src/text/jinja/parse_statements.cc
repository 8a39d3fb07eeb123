// Text, what is printed, and tags; the targets that tags assign to.
#include "text/jinja/grammar.h"

namespace batchllm::jinja {

Result<Target> Parser::parse_target(bool with_attribute) {
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
    if (is_macro_name(target.name)) return fail(quoted("not supported: assigning ", target.name));
    if (with_attribute && skip_operator(".")) {
        ASSIGN_OR_RETURN(target.attribute, expect_name());
    }
    return target;
}

Result<Target> Parser::parse_targets(bool with_attribute) {
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

Result<Body> Parser::parse_body(Words end_words) {
    const Nested nested(&nesting_);
    if (nesting_ > most_nesting) return fail("the template is nested too deeply");
    Body body;
    for (;;) {
        const Token &token = current();
        auto made = std::make_unique<Statement>();
        made->line = token.line;
        if (token.type == TokenType::end) {
            if (end_words.size() == 0) return body;
            return fail("the template ends without '" + std::string(*(end_words.end() - 1)) + "'");
        }
        if (token.type == TokenType::data) {
            made->text = token.text;
            advance();
        } else if (token.type == TokenType::variable_begin) {
            advance();
            made->action = Action::output;
            ASSIGN_OR_RETURN(made->expression, parse_tuple(true, false));
            RETURN_IF_ERROR(expect(TokenType::variable_end, "'}}'"));
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

Result<Body> Parser::parse_block(Words end_words) {
    skip_operator(":");
    RETURN_IF_ERROR(expect(TokenType::block_end, "'%}'"));
    return parse_body(end_words);
}

Status Parser::parse_statement(Statement *made) {
    if (current().type != TokenType::name) return expected("a tag's name");
    const std::string tag = current().text;
    advance();
    if (tag == "if") return parse_if(made);
    if (tag == "for") return parse_for(made);
    if (tag == "set") return parse_set(made);
    if (tag == "macro") return parse_macro(made);
    if (tag == "call") return parse_call_block(made);
    if (tag == "with") return parse_with(made);
    if (tag == "print") {
        made->action = Action::output;
        ASSIGN_OR_RETURN(made->expression, parse_tuple(true, false));
        return {};
    }
    if (tag == "filter") {
        made->action = Action::filter;
        ASSIGN_OR_RETURN(made->expression,
                         parse_filter_name(make(Operation::filter, made->line), nullptr));
        while (at_operator("|")) {
            ASSIGN_OR_RETURN(made->expression, parse_filter(std::move(made->expression)));
        }
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

Result<Body> Parser::parse_loopless(Words end_words) {
    const int32_t loops = loops_;
    loops_ = 0;
    ASSIGN_OR_RETURN(Body body, parse_block(end_words));
    loops_ = loops;
    return body;
}

Status Parser::parse_if(Statement *made) {
    made->action = Action::if_;
    for (;;) {
        Branch branch;
        ASSIGN_OR_RETURN(branch.condition, parse_tuple(false, false));
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

Status Parser::parse_for(Statement *made) {
    made->action = Action::for_;
    ASSIGN_OR_RETURN(made->target, parse_targets(false));
    if (!skip_word("in")) return expected("'in'");
    ASSIGN_OR_RETURN(made->expression, parse_tuple(false, false, {"recursive"}));
    program_.reads_content_parts |= names_content(*made->expression);
    if (skip_word("if")) {
        ASSIGN_OR_RETURN(made->condition, parse_expression());
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

Status Parser::parse_set(Statement *made) {
    ASSIGN_OR_RETURN(made->target, parse_targets(true));
    if (skip_operator("=")) {
        made->action = Action::set;
        ASSIGN_OR_RETURN(made->expression, parse_tuple(true, false));
        return {};
    }
    made->action = Action::set_block;
    while (at_operator("|")) {
        ASSIGN_OR_RETURN(made->expression, parse_filter(std::move(made->expression)));
    }
    ASSIGN_OR_RETURN(made->body, parse_block({"endset"}));
    advance();
    return {};
}

Status Parser::parse_signature(MacroNode *macro) {
    RETURN_IF_ERROR(expect_operator("("));
    while (!at_operator(")")) {
        if (!macro->parameters.empty()) RETURN_IF_ERROR(expect_operator(","));
        ASSIGN_OR_RETURN(Target parameter, parse_target(false));
        if (parameter.tuple) return fail("a macro's parameter must be a name");
        macro->parameters.push_back(std::move(parameter.name));
        if (skip_operator("=")) {
            ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
            macro->defaults.push_back(std::move(value));
        } else if (!macro->defaults.empty()) {
            return fail("a parameter without a default stands behind one with a default");
        }
    }
    advance();
    return {};
}

Status Parser::parse_macro_body(Statement *made, std::string_view end_word) {
    macros_.push_back(&made->macro);
    ASSIGN_OR_RETURN(made->body, parse_loopless({end_word}));
    macros_.pop_back();
    made->macro.body = &made->body;
    advance();
    return {};
}

Status Parser::parse_macro(Statement *made) {
    made->action = Action::macro;
    ASSIGN_OR_RETURN(made->macro.name, expect_name());
    if (is_macro_name(made->macro.name)) {
        return fail(quoted("not supported: a macro named ", made->macro.name));
    }
    RETURN_IF_ERROR(parse_signature(&made->macro));
    return parse_macro_body(made, "endmacro");
}

Status Parser::parse_call_block(Statement *made) {
    made->action = Action::call;
    made->macro.name = "caller";
    if (at_operator("(")) RETURN_IF_ERROR(parse_signature(&made->macro));
    ASSIGN_OR_RETURN(made->expression, parse_expression());
    if (made->expression->operation != Operation::call) return expected("a call");
    return parse_macro_body(made, "endcall");
}

Status Parser::parse_with(Statement *made) {
    made->action = Action::with;
    while (current().type != TokenType::block_end) {
        if (!made->targets.empty()) RETURN_IF_ERROR(expect_operator(","));
        ASSIGN_OR_RETURN(Target target, parse_targets(false));
        RETURN_IF_ERROR(expect_operator("="));
        ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
        made->targets.push_back(std::move(target));
        made->expressions.push_back(std::move(value));
    }
    ASSIGN_OR_RETURN(made->body, parse_block({"endwith"}));
    advance();
    return {};
}

} // namespace batchllm::jinja
