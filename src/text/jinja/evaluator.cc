#include "text/jinja/evaluation.h"

#include <cstdarg>
#include <cstdio>

#include "text/jinja/python_text.h"

namespace batchllm::jinja {

Status at_line(Status status, int32_t line) {
    if (status.code() != BATCHLLM_ERROR_ROW_TEMPLATE || status.message().starts_with("line ")) {
        return status;
    }
    return std::move(status).within("line " + std::to_string(line));
}

Status template_error(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // A text that fills the buffer may have been cut in the middle of a character.
    return Status(BATCHLLM_ERROR_ROW_TEMPLATE, std::string(cut(text, sizeof text - 5)));
}

Status Evaluator::charge(size_t work) {
    steps_left_ -= static_cast<int64_t>(work);
    if (steps_left_ >= 0) return {};
    steps_left_ = -1;
    return template_error("the template takes more than %lld steps",
                          static_cast<long long>(limits_.steps));
}

Status Evaluator::run(const Program &program, std::string *out) {
    out_ = out;
    ASSIGN_OR_RETURN(scope_, inner_scope(&globals_));
    return execute(program.body).status();
}

Status Evaluator::print(std::string_view text) {
    printed_ += text.size();
    if (printed_ > limits_.output_bytes) {
        return template_error("the template prints more than %zu bytes", limits_.output_bytes);
    }
    RETURN_IF_ERROR(charge_text(text));
    out_->append(text);
    return {};
}

Result<Scope *> Evaluator::inner_scope(Scope *parent) {
    if (!unused_scopes_.empty()) {
        Scope *const scope = unused_scopes_.back();
        unused_scopes_.pop_back();
        scope->parent = parent;
        return scope;
    }
    ASSIGN_OR_RETURN(Scope *const scope, heap_.make<Scope>());
    scope->parent = parent;
    return scope;
}

void Evaluator::give_back(Scope *scope) {
    if (scope->kept) return;
    scope->names.clear();
    unused_scopes_.push_back(scope);
}

Result<Value> Evaluator::capture(const Body &body, Scope *scope) {
    std::string text;
    std::string *const out = std::exchange(out_, &text);
    Scope *const before = std::exchange(scope_, scope);
    const Status status = execute(body).status();
    scope_ = before;
    out_ = out;
    RETURN_IF_ERROR(status);
    return heap_.string(std::move(text));
}

Result<Value> Evaluator::filter_text(const Expression *filters, Value text) {
    if (filters == nullptr) return text;
    const Value before = std::exchange(block_text_, text);
    Result<Value> filtered = evaluate(*filters);
    block_text_ = before;
    return filtered;
}

} // namespace batchllm::jinja
