// A template as a tree, immutable once parsed. Line numbers are those of the template, from 1.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace batchllm::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Arguments {
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> named;
    ExpressionPtr more;       // *more: its items follow the positional ones; may be null
    ExpressionPtr more_named; // **more_named; may be null
};

enum class Operation : uint8_t {
    constant,    // value
    name,        // text
    list,        // items
    tuple,       // items
    dict,        // items: key, value, key, value, ...
    attribute,   // items[0].text
    item,        // items[0][items[1]]
    slice,       // items[0][items[1] : items[2] : items[3]]; absent ones are null
    call,        // items[0](arguments)
    filter,      // items[0] | text(arguments); code is the filter's number, or -1
    test,        // items[0] is text(arguments); code is the test's number, or -1
    conditional, // items[1] if items[0] else items[2], which may be null
    logical_or,  // items[0] or items[1]
    logical_and, // items[0] and items[1]
    logical_not, // not items[0]
    negative,    // -items[0]
    positive,    // +items[0]
    concatenate, // items joined by ~
    add,         // items[0] + items[1], and so on
    subtract,
    multiply,
    divide,
    floor_divide,
    modulo,
    power,
    compare, // items[0] comparisons[0] items[1] comparisons[1] items[2] ...
};

enum class Comparison : uint8_t {
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    in,
    not_in
};

struct Expression {
    Operation operation = Operation::constant;
    int32_t line = 0;
    int32_t code = 0;
    int32_t depth = 1; // nested expressions, including this one
    Value value;       // of a constant; points to `text`
    std::string text;
    std::vector<ExpressionPtr> items;
    Arguments arguments;
    std::vector<Comparison> comparisons;
};

// The target of an assignment: a name, a name's attribute (of a namespace), or a list of targets.
struct Target {
    std::string name;
    std::string attribute;     // empty: the name itself
    std::vector<Target> parts; // not empty: a tuple, without a name
    bool tuple = false;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct MacroNode {
    std::string name;
    std::vector<std::string> parameters;
    std::vector<ExpressionPtr> defaults; // of the last parameters
    Body *body = nullptr;                // in the statement that defines the macro
    // Whether the body uses these names, which hold what a call passes beyond the parameters.
    bool reads_caller = false;
    bool reads_varargs = false;
    bool reads_kwargs = false;
};

enum class Action : uint8_t {
    text,      // text
    output,    // expression
    if_,       // branches in order; the last may have no expression: else
    for_,      // target in expression if condition: body, else other
    set,       // target = expression
    set_block, // target = filters over body
    macro,     // macro, body
    call,      // expression is a call that gets `macro` as the argument `caller`; body
    with,      // targets = expressions: body
    filter,    // filters over body
    scope,     // body in its own scope: {% generation %}
    break_,
    continue_,
};

struct Branch {
    ExpressionPtr condition; // null: else
    Body body;
};

struct Statement {
    Action action = Action::text;
    int32_t line = 0;
    std::string text;
    Target target;
    ExpressionPtr expression;
    ExpressionPtr condition;
    std::vector<Branch> branches;
    std::vector<Target> targets;
    std::vector<ExpressionPtr> expressions;
    Body body;
    Body other;
    MacroNode macro;
};

} // namespace batchllm::jinja
