// Tests: value is name.
#include <algorithm>

#include "text/jinja/case.h"
#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

using Answer = Result<bool>;

// The second value is the test's argument, if it takes one.
Answer defined(Evaluator *, const Value &value, const Value &) {
    return !value.is(Kind::undefined);
}
Answer undefined(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::undefined);
}
Answer none(Evaluator *, const Value &value, const Value &) { return value.is(Kind::none); }
Answer boolean(Evaluator *, const Value &value, const Value &) { return value.is(Kind::boolean); }
Answer is_true(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::boolean) && value.truth();
}
Answer is_false(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::boolean) && !value.truth();
}
Answer integer(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::integer) || value.is(Kind::large_integer);
}
Answer real(Evaluator *, const Value &value, const Value &) { return value.is(Kind::real); }
Answer number(Evaluator *, const Value &value, const Value &) {
    return value.is_number() || value.is(Kind::large_integer);
}
Answer string(Evaluator *, const Value &value, const Value &) { return value.is(Kind::string); }
Answer mapping(Evaluator *, const Value &value, const Value &) { return value.is(Kind::dict); }
Answer iterable(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::undefined) || value.is(Kind::string) || value.is(Kind::dict) ||
           value.is(Kind::sequence) || value.is(Kind::loop);
}
Answer sequence(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::undefined) || value.is(Kind::string) || value.is(Kind::dict) ||
           (value.is(Kind::sequence) && value.sequence().indexed());
}
Answer callable(Evaluator *, const Value &value, const Value &) {
    return value.is(Kind::callable) || value.is(Kind::undefined);
}

template <Comparison comparison>
Answer compared(Evaluator *evaluator, const Value &value, const Value &other) {
    return evaluator->compare(comparison, value, other);
}
constexpr auto equal_to = compared<Comparison::equal>,
               not_equal_to = compared<Comparison::not_equal>, less = compared<Comparison::less>,
               less_equal = compared<Comparison::less_equal>,
               greater = compared<Comparison::greater>,
               greater_equal = compared<Comparison::greater_equal>;

Answer in(Evaluator *evaluator, const Value &value, const Value &other) {
    return evaluator->contains(other, value);
}

// The remainder of a division, as in Python.
Answer divides(Evaluator *evaluator, const Value &value, const Value &by, int64_t rest) {
    ASSIGN_OR_RETURN(const Value left, evaluator->binary(Operation::modulo, value, by));
    return equal(left, Value::integer(rest));
}
Answer odd(Evaluator *evaluator, const Value &value, const Value &) {
    return divides(evaluator, value, Value::integer(2), 1);
}
Answer even(Evaluator *evaluator, const Value &value, const Value &) {
    return divides(evaluator, value, Value::integer(2), 0);
}
Answer divisible(Evaluator *evaluator, const Value &value, const Value &other) {
    return divides(evaluator, value, other, 0);
}

Answer escaped(Evaluator *, const Value &value, const Value &) { return value.is_markup(); }
Answer names(int32_t (*find)(std::string_view), const Value &value) {
    if (!hashable(value)) return template_error("a %s names nothing", value.type_name());
    return value.is(Kind::string) && find(value.text()) >= 0;
}
Answer filter(Evaluator *, const Value &value, const Value &) { return names(find_filter, value); }
Answer test(Evaluator *, const Value &value, const Value &) { return names(find_test, value); }

// Python's `is`. Of other values, it depends on the interpreter which are one object.
Answer same_as(Evaluator *, const Value &value, const Value &other) {
    if (!other.is(Kind::boolean) && !other.is(Kind::none)) {
        return template_error("sameas is supported for true, false and none, not for a %s",
                              other.type_name());
    }
    return value.kind() == other.kind() && value.truth() == other.truth();
}

struct Test {
    std::string_view name;
    Answer (*holds)(Evaluator *, const Value &, const Value &);
    bool takes_one = false; // an argument
};

constexpr Test tests[] = {
    {"!=", not_equal_to, true},
    {"<", less, true},
    {"<=", less_equal, true},
    {"==", equal_to, true},
    {">", greater, true},
    {">=", greater_equal, true},
    {"boolean", boolean},
    {"callable", callable},
    {"defined", defined},
    {"divisibleby", divisible, true},
    {"eq", equal_to, true},
    {"equalto", equal_to, true},
    {"escaped", escaped},
    {"even", even},
    {"false", is_false},
    {"filter", filter},
    {"float", real},
    {"ge", greater_equal, true},
    {"greaterthan", greater, true},
    {"gt", greater, true},
    {"in", in, true},
    {"integer", integer},
    {"iterable", iterable},
    {"le", less_equal, true},
    {"lessthan", less, true},
    {"lt", less, true},
    {"mapping", mapping},
    {"ne", not_equal_to, true},
    {"none", none},
    {"number", number},
    {"odd", odd},
    {"sameas", same_as, true},
    {"sequence", sequence},
    {"string", string},
    {"test", test},
    {"true", is_true},
    {"undefined", undefined},
};

} // namespace

Status no_test(std::string_view name) {
    const bool known = name == "lower" || name == "upper"; // to jinja2
    return template_error(known ? "not supported: test '%s'" : "there is no test '%s'",
                          std::string(cut(name, 80)).c_str());
}

int32_t find_test(std::string_view name) {
    const auto found = std::find_if(std::begin(tests), std::end(tests),
                                    [&](const Test &test) { return test.name == name; });
    return found == std::end(tests) ? -1 : static_cast<int32_t>(found - std::begin(tests));
}

Result<bool> apply_test(Evaluator *evaluator, int32_t test, const Value &value,
                        const CallArguments &arguments) {
    const Test &entry = tests[test];
    if (!entry.takes_one) {
        RETURN_IF_ERROR(Parameters::bind(entry.name, arguments, {}).status());
        return entry.holds(evaluator, value, {});
    }
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind(entry.name, arguments, {"other"}));
    ASSIGN_OR_RETURN(const Value other, given.required(0));
    return entry.holds(evaluator, value, other);
}

} // namespace batchllm::jinja
