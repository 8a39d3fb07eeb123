#include "text/jinja/evaluator.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {

const Value &Loop::item(size_t at) const {
    return statement->condition == nullptr ? (*source)[at] : passed[at];
}

namespace {

// An error with the line it happened at, once.
Status at_line(Status status, int32_t line) {
    if (status.code() != BATCHLLM_ERROR_ROW_TEMPLATE || status.message().starts_with("line ")) {
        return status;
    }
    return std::move(status).within("line " + std::to_string(line));
}

} // namespace

Status template_error(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    // A text that fills the buffer may have been cut in the middle of a character.
    return Status(BATCHLLM_ERROR_ROW_TEMPLATE, std::string(cut(text, sizeof text - 5)));
}

// One level of evaluation: what bounds the stack.
class Evaluator::Deeper {
  public:
    explicit Deeper(Evaluator *evaluator) : evaluator_(evaluator) { ++evaluator_->depth_; }
    ~Deeper() { --evaluator_->depth_; }
    Deeper(const Deeper &) = delete;
    Deeper &operator=(const Deeper &) = delete;

    Status check() const {
        if (evaluator_->depth_ > evaluator_->limits_.depth) {
            return template_error("the template's macros and expressions nest too deeply");
        }
        return evaluator_->charge(1);
    }

  private:
    Evaluator *evaluator_;
};

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

// ---- Expressions ----

Result<Value> Evaluator::evaluate(const Expression &expression) {
    const Deeper deeper(this);
    Status status = deeper.check();
    if (status.ok()) {
        Result<Value> value = evaluate_here(expression);
        if (value.ok()) return value;
        status = std::move(value).status();
    }
    return at_line(std::move(status), expression.line);
}

Result<Value> Evaluator::evaluate_here(const Expression &expression) {
    switch (expression.operation) {
    case Operation::constant:
        return expression.value;
    case Operation::name:
        return evaluate_name(expression);
    case Operation::list:
    case Operation::tuple:
        return evaluate_list(expression);
    case Operation::dict:
        return evaluate_dict(expression);
    case Operation::attribute:
        return evaluate_attribute(expression);
    case Operation::item:
        return evaluate_item(expression);
    case Operation::slice:
        return evaluate_slice(expression);
    case Operation::call:
        return evaluate_call(expression);
    case Operation::filter:
        return evaluate_filter(expression);
    case Operation::test:
        return evaluate_test(expression);
    case Operation::conditional:
    case Operation::logical_or:
    case Operation::logical_and:
    case Operation::logical_not:
        return evaluate_logic(expression);
    case Operation::negative:
    case Operation::positive:
        return evaluate_sign(expression);
    case Operation::concatenate:
        return evaluate_concatenation(expression);
    case Operation::compare:
        return evaluate_comparison(expression);
    default:
        return evaluate_binary(expression);
    }
}

Result<Value> Evaluator::evaluate_name(const Expression &expression) {
    if (const Value *value = scope_->find(expression.text)) return *value;
    if (!has_function(expression.text)) return Value::undefined(expression.text);
    ASSIGN_OR_RETURN(Callable *const function, heap_.make<Callable>());
    function->name = expression.text;
    return Value(function);
}

Result<Value> Evaluator::evaluate_list(const Expression &expression) {
    std::vector<Value> items;
    for (const ExpressionPtr &item : expression.items) {
        ASSIGN_OR_RETURN(const Value value, evaluate(*item));
        items.push_back(value);
    }
    return heap_.sequence(expression.operation == Operation::list ? SequenceType::list
                                                                  : SequenceType::tuple,
                          std::move(items));
}

Result<Value> Evaluator::evaluate_dict(const Expression &expression) {
    auto dict = std::make_unique<Dict>();
    for (size_t i = 0; i < expression.items.size(); i += 2) {
        ASSIGN_OR_RETURN(const Value key, evaluate(*expression.items[i]));
        ASSIGN_OR_RETURN(const Value value, evaluate(*expression.items[i + 1]));
        if (!hashable(key)) {
            return template_error("a %s cannot be the key of a dictionary", key.type_name());
        }
        RETURN_IF_ERROR(charge_lookup(*dict, key));
        dict->set(key, value);
    }
    return heap_.dict(std::move(dict));
}

Result<Value> Evaluator::evaluate_logic(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value first, evaluate(*expression.items[0]));
    const bool truth = first.truth();
    switch (expression.operation) {
    case Operation::logical_not:
        return Value::boolean(!truth);
    case Operation::logical_or:
        return truth ? Result<Value>(first) : evaluate(*expression.items[1]);
    case Operation::logical_and:
        return truth ? evaluate(*expression.items[1]) : Result<Value>(first);
    default:
        break;
    }
    const ExpressionPtr &chosen = expression.items[truth ? 1 : 2];
    if (chosen == nullptr) return Value::undefined("the inline if without else");
    return evaluate(*chosen);
}

Result<Value> Evaluator::evaluate_concatenation(const Expression &expression) {
    std::string text;
    for (const ExpressionPtr &item : expression.items) {
        ASSIGN_OR_RETURN(const Value value, evaluate(*item));
        RETURN_IF_ERROR(append_string(value, &text));
        RETURN_IF_ERROR(heap_.room_for(text.size()));
    }
    RETURN_IF_ERROR(charge_text(text));
    return heap_.string(std::move(text));
}

Result<Value> Evaluator::evaluate_comparison(const Expression &expression) {
    ASSIGN_OR_RETURN(Value left, evaluate(*expression.items[0]));
    for (size_t i = 0; i < expression.comparisons.size(); ++i) {
        ASSIGN_OR_RETURN(const Value right, evaluate(*expression.items[i + 1]));
        ASSIGN_OR_RETURN(const bool holds, compare(expression.comparisons[i], left, right));
        if (!holds) return Value::boolean(false);
        left = right;
    }
    return Value::boolean(true);
}

Result<Value> Evaluator::evaluate_binary(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value left, evaluate(*expression.items[0]));
    ASSIGN_OR_RETURN(const Value right, evaluate(*expression.items[1]));
    return binary(expression.operation, left, right);
}

Result<Value> Evaluator::evaluate_sign(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*expression.items[0]));
    const bool negative = expression.operation == Operation::negative;
    if (value.is(Kind::undefined)) {
        return template_error("'%s' is undefined", std::string(value.text()).c_str());
    }
    if (!value.is_number()) {
        return template_error("a %s has no sign", value.type_name());
    }
    if (value.is(Kind::real)) return Value::real(negative ? -value.real() : value.real());
    return negative ? binary(Operation::subtract, Value::integer(0), value)
                    : Result<Value>(Value::integer(value.integer()));
}

Result<Value> Evaluator::evaluate_attribute(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value object, evaluate(*expression.items[0]));
    return attribute(object, expression.text);
}

Result<Value> Evaluator::evaluate_item(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value object, evaluate(*expression.items[0]));
    ASSIGN_OR_RETURN(const Value key, evaluate(*expression.items[1]));
    return item(object, key);
}

Result<Value> Evaluator::evaluate_slice(const Expression &expression) {
    Value parts[4];
    for (size_t i = 0; i < 4; ++i) {
        parts[i] = Value::none();
        if (expression.items[i] == nullptr) continue;
        ASSIGN_OR_RETURN(parts[i], evaluate(*expression.items[i]));
    }
    return slice(parts[0], parts[1], parts[2], parts[3]);
}

Status Evaluator::evaluate_arguments(const Arguments &arguments, CallArguments *out) {
    for (const ExpressionPtr &argument : arguments.positional) {
        ASSIGN_OR_RETURN(const Value value, evaluate(*argument));
        out->positional.push_back(value);
    }
    for (const auto &[name, argument] : arguments.named) {
        ASSIGN_OR_RETURN(const Value value, evaluate(*argument));
        out->named.emplace_back(name, value);
    }
    return {};
}

Result<Value> Evaluator::evaluate_call(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value function, evaluate(*expression.items[0]));
    CallArguments arguments;
    RETURN_IF_ERROR(evaluate_arguments(expression.arguments, &arguments));
    return call(function, arguments);
}

Result<Value> Evaluator::evaluate_filter(const Expression &expression) {
    Value value = block_text_;
    if (expression.items[0] != nullptr) {
        ASSIGN_OR_RETURN(value, evaluate(*expression.items[0]));
    }
    CallArguments arguments;
    RETURN_IF_ERROR(evaluate_arguments(expression.arguments, &arguments));
    return apply_filter(this, expression.code, value, arguments);
}

Result<Value> Evaluator::evaluate_test(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*expression.items[0]));
    CallArguments arguments;
    RETURN_IF_ERROR(evaluate_arguments(expression.arguments, &arguments));
    ASSIGN_OR_RETURN(const bool holds, apply_test(this, expression.code, value, arguments));
    return Value::boolean(holds);
}

Result<Value> Evaluator::call(const Value &function, const CallArguments &arguments) {
    if (function.is(Kind::undefined)) {
        return template_error("'%s' is undefined, and cannot be called",
                              std::string(function.text()).c_str());
    }
    if (!function.is(Kind::callable)) {
        return template_error("a %s cannot be called", function.type_name());
    }
    const Callable &callable = function.callable();
    switch (callable.type) {
    case Callable::Type::macro:
        return call_macro(callable, arguments);
    case Callable::Type::method:
        return call_method(this, callable.self, callable.name, arguments);
    case Callable::Type::function:
        break;
    }
    return call_function(this, callable.name, arguments);
}

Result<Value> Evaluator::filter(int32_t filter, const Value &value,
                                const CallArguments &arguments) {
    const Deeper deeper(this);
    RETURN_IF_ERROR(deeper.check());
    return apply_filter(this, filter, value, arguments);
}

Result<Value> Evaluator::call_macro(const Callable &callable, const CallArguments &arguments) {
    const Deeper deeper(this);
    RETURN_IF_ERROR(deeper.check());
    const MacroNode &macro = *callable.macro;
    const size_t count = macro.parameters.size();
    if (arguments.positional.size() > count) {
        return template_error("macro '%s' takes no more than %zu arguments", macro.name.c_str(),
                              count);
    }
    RETURN_IF_ERROR(charge(count * (1 + arguments.named.size() / 8)));
    ASSIGN_OR_RETURN(Scope *const scope, inner_scope(callable.scope));
    std::vector<bool> given(count, false);
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
        scope->set(macro.parameters[i], arguments.positional[i]);
        given[i] = true;
    }
    for (const auto &[name, value] : arguments.named) {
        const auto place = std::find(macro.parameters.begin(), macro.parameters.end(), name);
        if (place == macro.parameters.end()) {
            return template_error("macro '%s' takes no argument '%s'", macro.name.c_str(),
                                  std::string(name).c_str());
        }
        const auto i = static_cast<size_t>(place - macro.parameters.begin());
        if (given[i]) {
            return template_error("macro '%s' got two values for argument '%s'", macro.name.c_str(),
                                  std::string(name).c_str());
        }
        scope->set(*place, value);
        given[i] = true;
    }
    Scope *const before = std::exchange(scope_, scope);
    Result<Value> text = Value();
    for (size_t i = 0; i < count && text.ok(); ++i) {
        if (given[i]) continue;
        const size_t first_default = count - macro.defaults.size();
        if (i < first_default) {
            scope->set(macro.parameters[i], Value::undefined(macro.parameters[i]));
            continue;
        }
        text = evaluate(*macro.defaults[i - first_default]);
        if (text.ok()) scope->set(macro.parameters[i], *text);
    }
    if (text.ok()) text = capture(*macro.body, scope);
    scope_ = before;
    give_back(scope);
    return text;
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

// ---- Statements ----

Result<Evaluator::Flow> Evaluator::execute(const Body &body) {
    for (const auto &statement : body) {
        ASSIGN_OR_RETURN(const Flow flow, execute(*statement));
        if (flow != Flow::next) return flow;
    }
    return Flow::next;
}

Result<Evaluator::Flow> Evaluator::execute(const Statement &statement) {
    const Deeper deeper(this);
    {
        Status status = deeper.check();
        if (!status.ok()) return at_line(std::move(status), statement.line);
    }
    switch (statement.action) {
    case Action::text: {
        Status status = print(statement.text);
        if (!status.ok()) return at_line(std::move(status), statement.line);
        return Flow::next;
    }
    case Action::output: {
        ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
        Result<std::string_view> text = to_text(value);
        Status status = text.ok() ? print(*text) : std::move(text).status();
        if (!status.ok()) return at_line(std::move(status), statement.line);
        return Flow::next;
    }
    case Action::if_:
        return execute_if(statement);
    case Action::for_:
        return execute_for(statement);
    case Action::set: {
        ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
        Status status = assign(statement.target, value);
        if (!status.ok()) return at_line(std::move(status), statement.line);
        return Flow::next;
    }
    case Action::set_block:
    case Action::filter: {
        ASSIGN_OR_RETURN(Scope *const scope, inner_scope(scope_));
        ASSIGN_OR_RETURN(Value text, capture(statement.body, scope));
        give_back(scope);
        ASSIGN_OR_RETURN(text, filter_text(statement.expression.get(), text));
        Status status;
        if (statement.action == Action::set_block) {
            status = assign(statement.target, text);
        } else {
            Result<std::string_view> printed = to_text(text);
            status = printed.ok() ? print(*printed) : std::move(printed).status();
        }
        if (!status.ok()) return at_line(std::move(status), statement.line);
        return Flow::next;
    }
    case Action::macro: {
        ASSIGN_OR_RETURN(Callable *const macro, heap_.make<Callable>());
        macro->type = Callable::Type::macro;
        macro->macro = &statement.macro;
        macro->scope = scope_;
        macro->name = statement.macro.name;
        for (Scope *scope = scope_; scope != nullptr && !scope->kept; scope = scope->parent) {
            scope->kept = true;
        }
        scope_->set(macro->name, Value(macro));
        return Flow::next;
    }
    case Action::with:
        return execute_with(statement);
    case Action::scope: {
        ASSIGN_OR_RETURN(Scope *const scope, inner_scope(scope_));
        Scope *const before = std::exchange(scope_, scope);
        Result<Flow> flow = execute(statement.body);
        scope_ = before;
        give_back(scope);
        return flow;
    }
    case Action::break_:
        return Flow::break_;
    case Action::continue_:
        return Flow::continue_;
    }
    return Flow::next;
}

Result<Evaluator::Flow> Evaluator::execute_if(const Statement &statement) {
    for (const Branch &branch : statement.branches) {
        if (branch.condition != nullptr) {
            ASSIGN_OR_RETURN(const Value condition, evaluate(*branch.condition));
            if (!condition.truth()) continue;
        }
        return execute(branch.body);
    }
    return Flow::next;
}

Result<Evaluator::Flow> Evaluator::execute_with(const Statement &statement) {
    ASSIGN_OR_RETURN(Scope *const scope, inner_scope(scope_));
    std::vector<Value> values;
    for (const ExpressionPtr &expression : statement.expressions) {
        ASSIGN_OR_RETURN(const Value value, evaluate(*expression));
        values.push_back(value);
    }
    Scope *const before = std::exchange(scope_, scope);
    Status status;
    for (size_t i = 0; i < values.size() && status.ok(); ++i) {
        status = assign(statement.targets[i], values[i]);
    }
    Result<Flow> flow = status.ok() ? execute(statement.body)
                                    : Result<Flow>(at_line(std::move(status), statement.line));
    scope_ = before;
    give_back(scope);
    return flow;
}

Status Evaluator::start(Loop *loop, const Value &iterated) {
    if (iterated.is(Kind::sequence) && !iterated.sequence().read_once()) {
        loop->source = &iterated.sequence().items;
        return {};
    }
    ASSIGN_OR_RETURN(loop->own, iterate(iterated));
    loop->source = &loop->own;
    return heap_.room_for(loop->own.size() * sizeof(Value));
}

Result<bool> Evaluator::passes(Loop *loop, const Value &item) {
    ASSIGN_OR_RETURN(Scope *const scope, inner_scope(loop->outer));
    Scope *const before = std::exchange(scope_, scope);
    Status status = assign(loop->statement->target, item);
    Result<Value> condition =
        status.ok() ? evaluate(*loop->statement->condition) : Result<Value>(std::move(status));
    scope_ = before;
    give_back(scope);
    if (!condition.ok()) return std::move(condition).status();
    return condition->truth();
}

// Whether the loop has an item of this index. Takes items until it has.
Result<bool> Evaluator::fetch(Loop *loop, size_t index) {
    if (loop->statement->condition == nullptr) return index < loop->source->size();
    while (loop->passed.size() <= index) {
        if (loop->source_at == loop->source->size()) return false;
        const Value item = (*loop->source)[loop->source_at++];
        ASSIGN_OR_RETURN(const bool passed, passes(loop, item));
        if (passed) loop->passed.push_back(item);
    }
    return true;
}

Result<Evaluator::Flow> Evaluator::execute_loop(const Statement &statement, Loop *loop) {
    Scope *scope = nullptr;
    Flow flow = Flow::next;
    for (; flow != Flow::break_; ++loop->index) {
        ASSIGN_OR_RETURN(const bool more, fetch(loop, loop->index));
        if (!more) break;
        RETURN_IF_ERROR(charge(1));
        // Names set in the body last until the body's end: one item's are not the next one's.
        if (scope != nullptr) give_back(scope);
        ASSIGN_OR_RETURN(scope, inner_scope(loop->outer));
        scope_ = scope;
        RETURN_IF_ERROR(assign(statement.target, loop->item(loop->index)));
        scope_->set("loop", Value(loop));
        ASSIGN_OR_RETURN(flow, execute(statement.body));
        if (flow == Flow::break_) break;
    }
    if (scope != nullptr) give_back(scope);
    return scope == nullptr ? Flow::next : Flow::break_; // whether an item was there
}

Result<Evaluator::Flow> Evaluator::execute_for(const Statement &statement) {
    ASSIGN_OR_RETURN(const Value iterated, evaluate(*statement.expression));
    ASSIGN_OR_RETURN(Loop *const loop, heap_.make<Loop>());
    loop->statement = &statement;
    loop->outer = scope_;
    Status status = start(loop, iterated);
    if (!status.ok()) return at_line(std::move(status), statement.line);
    Scope *const before = scope_;
    const Result<Flow> flow = execute_loop(statement, loop);
    scope_ = before;
    loop->ended = true;
    loop->own = std::vector<Value>();
    loop->passed = std::vector<Value>();
    if (!flow.ok()) return at_line(flow.status(), statement.line);
    if (*flow == Flow::break_ || statement.other.empty()) return Flow::next;
    ASSIGN_OR_RETURN(scope_, inner_scope(before));
    const Result<Flow> other = execute(statement.other);
    give_back(scope_);
    scope_ = before;
    return other;
}

Result<Value> Evaluator::loop_attribute(Loop *loop, std::string_view name) {
    if (loop->ended) return template_error("'loop' is used after its loop has ended");
    const auto index = static_cast<int64_t>(loop->index);
    if (name == "index") return Value::integer(index + 1);
    if (name == "index0") return Value::integer(index);
    if (name == "first") return Value::boolean(index == 0);
    if (name == "depth") return Value::integer(1); // only recursive loops have more
    if (name == "depth0") return Value::integer(0);
    if (name == "previtem") {
        return index == 0 ? Value::undefined("loop.previtem") : loop->item(loop->index - 1);
    }
    if (name == "last" || name == "nextitem") {
        ASSIGN_OR_RETURN(const bool more, fetch(loop, loop->index + 1));
        if (name == "last") return Value::boolean(!more);
        return more ? loop->item(loop->index + 1) : Value::undefined("loop.nextitem");
    }
    if (name == "length" || name == "revindex" || name == "revindex0") {
        ASSIGN_OR_RETURN(const bool more, fetch(loop, SIZE_MAX - 1));
        (void)more;
        const auto length = static_cast<int64_t>(
            loop->statement->condition == nullptr ? loop->source->size() : loop->passed.size());
        return Value::integer(name == "length"     ? length
                              : name == "revindex" ? length - index
                                                   : length - index - 1);
    }
    if (name != "cycle" && name != "changed") return Value::undefined(name);
    ASSIGN_OR_RETURN(Callable *const method, heap_.make<Callable>());
    method->type = Callable::Type::method;
    method->name = name;
    method->self = Value(loop);
    return Value(method);
}

Status Evaluator::assign(const Target &target, const Value &value) {
    if (target.tuple) {
        ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(value));
        if (items.size() != target.parts.size()) {
            return template_error("%zu values cannot be unpacked to %zu names", items.size(),
                                  target.parts.size());
        }
        for (size_t i = 0; i < items.size(); ++i) {
            RETURN_IF_ERROR(assign(target.parts[i], items[i]));
        }
        return {};
    }
    if (target.attribute.empty()) {
        scope_->set(target.name, value);
        return {};
    }
    const Value *const object = scope_->find(target.name);
    if (object == nullptr || !object->is(Kind::name_space)) {
        return template_error("cannot assign attribute '%s': '%s' is not a namespace",
                              target.attribute.c_str(), target.name.c_str());
    }
    if (target.attribute.starts_with('_')) {
        return template_error("a namespace cannot hold '%s': it begins with '_'",
                              target.attribute.c_str());
    }
    object->name_space().attributes.set(Value::string(target.attribute), value);
    return {};
}

} // namespace batchllm::jinja
