// Expressions of the tree -> values.
#include <algorithm>

#include "text/jinja/evaluation.h"
#include "text/jinja/filters.h"
#include "text/jinja/functions.h"
#include "text/jinja/methods.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {

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
    if (arguments.more != nullptr) {
        ASSIGN_OR_RETURN(const Value more, evaluate(*arguments.more));
        ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(more));
        out->positional.insert(out->positional.end(), items.begin(), items.end());
    }
    for (const auto &[name, argument] : arguments.named) {
        ASSIGN_OR_RETURN(const Value value, evaluate(*argument));
        out->named.emplace_back(name, value);
    }
    if (arguments.more_named == nullptr) return {};
    ASSIGN_OR_RETURN(const Value more, evaluate(*arguments.more_named));
    if (!more.is(Kind::dict)) {
        return template_error("what stands behind '**' is a %s, not a dict", more.type_name());
    }
    const size_t written_out = out->named.size();
    for (const auto &[name, value] : more.dict().items) {
        if (!name.is(Kind::string)) {
            return template_error("an argument's name must be text, not a %s", name.type_name());
        }
        RETURN_IF_ERROR(charge(1 + written_out));
        const auto end = out->named.begin() + static_cast<std::ptrdiff_t>(written_out);
        if (std::any_of(out->named.begin(), end,
                        [&name = name](const auto &named) { return named.first == name.text(); })) {
            return template_error("argument '%s' is given twice",
                                  std::string(cut(name.text(), 80)).c_str());
        }
        out->named.emplace_back(name.text(), value);
    }
    return {};
}

Result<Value> Evaluator::evaluate_call(const Expression &expression, const Value *caller) {
    ASSIGN_OR_RETURN(const Value function, evaluate(*expression.items[0]));
    CallArguments arguments;
    RETURN_IF_ERROR(evaluate_arguments(expression.arguments, &arguments));
    if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
    return call(function, arguments);
}

Result<Value> Evaluator::evaluate_filter(const Expression &expression) {
    Value value = block_text_;
    if (expression.items[0] != nullptr) {
        ASSIGN_OR_RETURN(value, evaluate(*expression.items[0]));
    }
    CallArguments arguments;
    RETURN_IF_ERROR(evaluate_arguments(expression.arguments, &arguments));
    if (expression.code < 0) return no_filter(expression.text);
    return apply_filter(this, expression.code, value, arguments);
}

Result<Value> Evaluator::evaluate_test(const Expression &expression) {
    ASSIGN_OR_RETURN(const Value value, evaluate(*expression.items[0]));
    CallArguments arguments;
    RETURN_IF_ERROR(evaluate_arguments(expression.arguments, &arguments));
    if (expression.code < 0) return no_test(expression.text);
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

Status Evaluator::bind_macro(const MacroNode &macro, const CallArguments &arguments,
                             std::vector<bool> *given, Scope *scope) {
    const size_t count = macro.parameters.size();
    const size_t positional = std::min(arguments.positional.size(), count);
    if (arguments.positional.size() > count && !macro.reads_varargs) {
        return template_error("macro '%s' takes no more than %zu arguments", macro.name.c_str(),
                              count);
    }
    RETURN_IF_ERROR(charge(count * (1 + arguments.named.size() / 8)));
    given->assign(count, false);
    for (size_t i = 0; i < positional; ++i) {
        scope->set(macro.parameters[i], arguments.positional[i]);
        (*given)[i] = true;
    }
    if (macro.reads_varargs) {
        std::vector<Value> rest(arguments.positional.begin() +
                                    static_cast<std::ptrdiff_t>(positional),
                                arguments.positional.end());
        ASSIGN_OR_RETURN(const Value varargs, heap_.sequence(SequenceType::tuple, std::move(rest)));
        scope->set("varargs", varargs);
    }
    Value caller = Value::undefined("caller");
    auto kwargs = std::make_unique<Dict>();
    const auto first = macro.parameters.begin() + static_cast<std::ptrdiff_t>(positional);
    for (const auto &[name, value] : arguments.named) {
        const auto place = std::find(first, macro.parameters.end(), name);
        if (place != macro.parameters.end()) {
            scope->set(*place, value);
            (*given)[static_cast<size_t>(place - macro.parameters.begin())] = true;
        } else if (name == "caller" && macro.reads_caller) {
            if (!value.is(Kind::none)) caller = value;
        } else if (macro.reads_kwargs) {
            kwargs->set(Value::string(name), value);
        } else {
            return template_error("macro '%s' takes no argument '%s'", macro.name.c_str(),
                                  std::string(cut(name, 80)).c_str());
        }
    }
    if (macro.reads_caller) scope->set("caller", caller);
    if (!macro.reads_kwargs) return {};
    ASSIGN_OR_RETURN(const Value rest, heap_.dict(std::move(kwargs)));
    scope->set("kwargs", rest);
    return {};
}

Result<Value> Evaluator::call_macro(const Callable &callable, const CallArguments &arguments) {
    const Deeper deeper(this);
    RETURN_IF_ERROR(deeper.check());
    const MacroNode &macro = *callable.macro;
    const size_t count = macro.parameters.size();
    ASSIGN_OR_RETURN(Scope *const scope, inner_scope(callable.scope));
    std::vector<bool> given;
    RETURN_IF_ERROR(bind_macro(macro, arguments, &given, scope));
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

} // namespace batchllm::jinja
