// Statements of the tree, executed: text printed, names assigned.
#include "text/jinja/evaluation.h"

namespace batchllm::jinja {

const Value &Loop::item(size_t at) const {
    return statement->condition == nullptr ? (*source)[at] : passed[at];
}

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
        ASSIGN_OR_RETURN(const Value macro, make_macro(statement.macro));
        scope_->set(statement.macro.name, macro);
        return Flow::next;
    }
    case Action::call: {
        Status status = execute_call(statement);
        if (!status.ok()) return at_line(std::move(status), statement.line);
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

Result<Value> Evaluator::make_macro(const MacroNode &macro) {
    ASSIGN_OR_RETURN(Callable *const made, heap_.make<Callable>());
    made->type = Callable::Type::macro;
    made->macro = &macro;
    made->scope = scope_;
    made->name = macro.name;
    for (Scope *scope = scope_; scope != nullptr && !scope->kept; scope = scope->parent) {
        scope->kept = true;
    }
    return Value(made);
}

Status Evaluator::execute_call(const Statement &statement) {
    ASSIGN_OR_RETURN(const Value caller, make_macro(statement.macro));
    ASSIGN_OR_RETURN(const Value value, evaluate_call(*statement.expression, &caller));
    if (value.is(Kind::string)) return print(value.text());
    return template_error("a call block of what gives a %s", value.type_name());
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

// The values of a target's names, in tuples like the target's.
Result<Value> Evaluator::held_by(const Target &target) {
    if (!target.tuple) return *scope_->find(target.name);
    std::vector<Value> parts;
    for (const Target &part : target.parts) {
        ASSIGN_OR_RETURN(const Value value, held_by(part));
        parts.push_back(value);
    }
    return heap_.sequence(SequenceType::tuple, std::move(parts));
}

// Whether the loop's condition lets the item pass. As in jinja2, an item that is unpacked becomes a
// tuple of its parts, whatever its type.
Result<bool> Evaluator::passes(Loop *loop, Value *item) {
    ASSIGN_OR_RETURN(Scope *const scope, inner_scope(loop->outer));
    Scope *const before = std::exchange(scope_, scope);
    const Target &target = loop->statement->target;
    Status status = assign(target, *item);
    Result<Value> condition =
        status.ok() ? evaluate(*loop->statement->condition) : Result<Value>(std::move(status));
    Result<Value> unpacked = *item;
    if (condition.ok() && condition->truth() && target.tuple) unpacked = held_by(target);
    scope_ = before;
    give_back(scope);
    if (!condition.ok()) return std::move(condition).status();
    ASSIGN_OR_RETURN(*item, unpacked);
    return condition->truth();
}

// Whether the loop has an item with this index. Reads items until it does.
Result<bool> Evaluator::fetch(Loop *loop, size_t index) {
    if (loop->statement->condition == nullptr) return index < loop->source->size();
    while (loop->passed.size() <= index) {
        if (loop->source_at == loop->source->size()) return false;
        Value item = (*loop->source)[loop->source_at++];
        ASSIGN_OR_RETURN(const bool passed, passes(loop, &item));
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
        // Names set in the body last until its end: the next item does not see them.
        if (scope != nullptr) give_back(scope);
        ASSIGN_OR_RETURN(scope, inner_scope(loop->outer));
        scope_ = scope;
        RETURN_IF_ERROR(assign(statement.target, loop->item(loop->index)));
        scope_->set("loop", Value(loop));
        ASSIGN_OR_RETURN(flow, execute(statement.body));
        if (flow == Flow::break_) break;
    }
    if (scope != nullptr) give_back(scope);
    return scope == nullptr ? Flow::next : Flow::break_; // next if there was an item
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
