// Python's operators on values: arithmetic, comparison, membership.
#include <algorithm>
#include <cmath>

#include "text/jinja/evaluator.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

const char *sign_of(Operation operation) {
    switch (operation) {
    case Operation::add:
        return "+";
    case Operation::subtract:
        return "-";
    case Operation::multiply:
        return "*";
    case Operation::divide:
        return "/";
    case Operation::floor_divide:
        return "//";
    case Operation::modulo:
        return "%";
    default:
        return "**";
    }
}

Status overflow_error() { return template_error("a number is beyond 64 bits"); }

Result<Value> integer_power(int64_t base, int64_t exponent) {
    if (exponent < 0) {
        if (base == 0) return template_error("0 cannot be raised to a negative power");
        return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    }
    int64_t result = 1;
    if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
    if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
    for (; exponent > 0; --exponent) { // 63 rounds at most before it overflows
        if (__builtin_mul_overflow(result, base, &result)) return overflow_error();
    }
    return Value::integer(result);
}

Result<Value> integer_operation(Operation operation, int64_t a, int64_t b) {
    int64_t result = 0;
    switch (operation) {
    case Operation::add:
        if (__builtin_add_overflow(a, b, &result)) return overflow_error();
        return Value::integer(result);
    case Operation::subtract:
        if (__builtin_sub_overflow(a, b, &result)) return overflow_error();
        return Value::integer(result);
    case Operation::multiply:
        if (__builtin_mul_overflow(a, b, &result)) return overflow_error();
        return Value::integer(result);
    case Operation::power:
        return integer_power(a, b);
    default:
        break;
    }
    if (b == 0) return template_error("division by zero");
    if (operation == Operation::divide) {
        // Exact up to 53 bits; beyond that Python's result may differ in the last bit.
        return Value::real(static_cast<double>(a) / static_cast<double>(b));
    }
    if (b == -1) { // the only divisor that can overflow
        if (operation == Operation::modulo) return Value::integer(0);
        return integer_operation(Operation::subtract, 0, a);
    }
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0); // Python rounds towards minus infinity
    if (operation == Operation::modulo) return Value::integer(down ? rest + b : rest);
    return Value::integer(a / b - (down ? 1 : 0));
}

Result<Value> real_operation(Operation operation, double a, double b) {
    switch (operation) {
    case Operation::add:
        return Value::real(a + b);
    case Operation::subtract:
        return Value::real(a - b);
    case Operation::multiply:
        return Value::real(a * b);
    case Operation::power: {
        if (a == 0 && b < 0) return template_error("0 cannot be raised to a negative power");
        if (a < 0 && b != std::floor(b)) return template_error("a root of a negative number");
        const double result = std::pow(a, b);
        if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) return overflow_error();
        return Value::real(result);
    }
    default:
        break;
    }
    if (b == 0) return template_error("division by zero");
    if (operation == Operation::divide) return Value::real(a / b);
    double rest = std::fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    }
    if (operation == Operation::modulo)
        return Value::real(rest == 0 ? std::copysign(0.0, b) : rest);
    if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
    const double floor = std::floor(quotient);
    return Value::real(quotient - floor > 0.5 ? floor + 1 : floor);
}

// -1, 0 or 1 if a is less than, equal to or greater than b; 2 if they have no order (NaN).
Result<int> order(const Value &a, const Value &b) {
    if (a.is_number() && b.is_number()) {
        if (a.is_integral() && b.is_integral()) {
            return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
        }
        const double left = a.real(), right = b.real();
        return left < right ? -1 : left > right ? 1 : left == right ? 0 : 2;
    }
    if (a.is(Kind::string) && b.is(Kind::string)) {
        const int compared = a.text().compare(b.text());
        return compared < 0 ? -1 : compared > 0 ? 1 : 0;
    }
    const bool lists = a.is_sequence(SequenceType::list) && b.is_sequence(SequenceType::list);
    if (lists || (a.is_sequence(SequenceType::tuple) && b.is_sequence(SequenceType::tuple))) {
        const std::vector<Value> &left = a.sequence().items, &right = b.sequence().items;
        for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
            if (!equal(left[i], right[i])) return order(left[i], right[i]);
        }
        return left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
    }
    if (a.is(Kind::undefined)) return undefined_error(a);
    if (b.is(Kind::undefined)) return undefined_error(b);
    return template_error("a %s and a %s have no order", a.type_name(), b.type_name());
}

} // namespace

Status undefined_error(const Value &value) {
    return template_error("'%s' is undefined", std::string(cut(value.text(), 80)).c_str());
}

Result<Value> Evaluator::binary(Operation operation, const Value &left, const Value &right) {
    if (left.is(Kind::undefined)) return undefined_error(left);
    if (operation == Operation::modulo && left.is(Kind::string)) {
        return template_error("formatting with '%%' is not supported");
    }
    if (right.is(Kind::undefined)) return undefined_error(right);
    if (left.is_number() && right.is_number()) {
        if (left.is_integral() && right.is_integral()) {
            return integer_operation(operation, left.integer(), right.integer());
        }
        return real_operation(operation, left.real(), right.real());
    }
    if (operation == Operation::add && left.is(Kind::string) && right.is(Kind::string)) {
        const bool markup = left.is_markup() || right.is_markup();
        const size_t bytes = left.text().size() + right.text().size();
        RETURN_IF_ERROR(heap_.room_for(markup ? 5 * bytes : bytes));
        RETURN_IF_ERROR(charge(bytes / (markup ? 8 : 64)));
        const auto part = [markup](const Value &value) {
            return markup && !value.is_markup() ? escape_html(value.text())
                                                : std::string(value.text());
        };
        ASSIGN_OR_RETURN(const Value joined, heap_.string(part(left) + part(right)));
        return markup ? Value::markup(joined.text()) : joined;
    }
    const bool lists =
        left.is_sequence(SequenceType::list) && right.is_sequence(SequenceType::list);
    if (operation == Operation::add && (lists || (left.is_sequence(SequenceType::tuple) &&
                                                  right.is_sequence(SequenceType::tuple)))) {
        std::vector<Value> items = left.sequence().items;
        const std::vector<Value> &more = right.sequence().items;
        RETURN_IF_ERROR(charge((items.size() + more.size()) / 8));
        items.insert(items.end(), more.begin(), more.end());
        return heap_.sequence(left.sequence().type, std::move(items));
    }
    if (operation == Operation::multiply && (left.is_integral() || right.is_integral())) {
        const Value &repeated = left.is_integral() ? right : left;
        const int64_t times =
            std::max<int64_t>(0, left.is_integral() ? left.integer() : right.integer());
        if (repeated.is(Kind::string)) {
            const std::string_view text = repeated.text();
            if (text.empty() || times == 0) return repeated.typed("");
            size_t bytes = 0;
            if (__builtin_mul_overflow(text.size(), static_cast<size_t>(times), &bytes)) {
                bytes = SIZE_MAX;
            }
            RETURN_IF_ERROR(heap_.room_for(bytes));
            std::string out;
            for (int64_t i = 0; i < times; ++i) out += text;
            ASSIGN_OR_RETURN(const Value made, heap_.string(std::move(out)));
            return repeated.typed(made);
        }
        if (repeated.is(Kind::sequence) && repeated.sequence().indexed() &&
            repeated.sequence().type != SequenceType::range) {
            const std::vector<Value> &items = repeated.sequence().items;
            size_t bytes = 0;
            if (__builtin_mul_overflow(items.size() * sizeof(Value), static_cast<size_t>(times),
                                       &bytes)) {
                bytes = SIZE_MAX;
            }
            RETURN_IF_ERROR(heap_.room_for(bytes));
            std::vector<Value> out;
            for (int64_t i = 0; i < times && !items.empty(); ++i) {
                out.insert(out.end(), items.begin(), items.end());
            }
            return heap_.sequence(repeated.sequence().type, std::move(out));
        }
    }
    return template_error("a %s and a %s cannot be combined by '%s'", left.type_name(),
                          right.type_name(), sign_of(operation));
}

Result<bool> Evaluator::compare(Comparison comparison, const Value &left, const Value &right) {
    switch (comparison) {
    case Comparison::in:
        return contains(right, left);
    case Comparison::not_in: {
        ASSIGN_OR_RETURN(const bool found, contains(right, left));
        return !found;
    }
    case Comparison::equal:
    case Comparison::not_equal:
        RETURN_IF_ERROR(charge_comparison(left, right));
        return equal(left, right) == (comparison == Comparison::equal);
    default:
        break;
    }
    RETURN_IF_ERROR(charge_comparison(left, right));
    ASSIGN_OR_RETURN(const int ordered, order(left, right));
    if (ordered == 2) return false;
    switch (comparison) {
    case Comparison::less:
        return ordered < 0;
    case Comparison::less_equal:
        return ordered <= 0;
    case Comparison::greater:
        return ordered > 0;
    default:
        return ordered >= 0;
    }
}

// The cost of finding a key: it is hashed if the dictionary has an index, else compared with all keys.
Status Evaluator::charge_lookup(const Dict &dict, const Value &key) {
    const bool hashed = key.is(Kind::string) && !dict.index.empty();
    const size_t compared = hashed ? 0 : dict.items.size() / 8;
    const size_t each = key.is(Kind::string)     ? key.text().size() / 64
                        : key.is(Kind::sequence) ? key.sequence().items.size()
                                                 : 0;
    return charge(compared + (1 + compared) * each);
}

// The most that comparing two values may cost: the size of the smaller one, including all levels.
Status Evaluator::charge_comparison(const Value &left, const Value &right) {
    if (left.kind() != right.kind()) return {};
    if (left.is(Kind::string)) {
        return charge(std::min(left.text().size(), right.text().size()) / 64);
    }
    if (left.is(Kind::sequence)) {
        const std::vector<Value> &a = left.sequence().items, &b = right.sequence().items;
        const size_t both = std::min(a.size(), b.size());
        if (left.sequence().indexed()) {
            RETURN_IF_ERROR(charge(both));
            for (size_t i = 0; i < both; ++i) RETURN_IF_ERROR(charge_comparison(a[i], b[i]));
        } else if (a.size() == b.size()) { // sets: each item with all others
            for (const Value &one : a) {
                RETURN_IF_ERROR(charge(both));
                for (const Value &other : b) RETURN_IF_ERROR(charge_comparison(one, other));
            }
        }
        return {};
    }
    if (left.is(Kind::dict)) {
        const auto &a = left.dict().items, &b = right.dict().items;
        if (a.size() != b.size()) return {};
        RETURN_IF_ERROR(charge(left.dict().index.empty() ? a.size() : 1 + a.size() / 8));
        for (const auto &[key, value] : a) {
            const Value *other = right.dict().find(key);
            if (other != nullptr) RETURN_IF_ERROR(charge_comparison(value, *other));
        }
    }
    return {};
}

Result<Value> Evaluator::replace(std::string_view text, std::string_view part, std::string_view by,
                                 int64_t most) {
    RETURN_IF_ERROR(charge(text.size() / 8));
    const size_t times = part.empty() ? jinja::length(text) + 1 : count(text, part);
    size_t bytes = 0;
    if (__builtin_mul_overflow(times, by.size(), &bytes)) bytes = SIZE_MAX / 2;
    RETURN_IF_ERROR(heap_.room_for(text.size() + bytes));
    return heap_.string(jinja::replace(text, part, by, most));
}

Result<bool> Evaluator::contains(const Value &container, const Value &item) {
    switch (container.kind()) {
    case Kind::undefined:
        return false;
    case Kind::string:
        if (!item.is(Kind::string)) {
            return item.is(Kind::undefined)
                       ? undefined_error(item)
                       : template_error("a %s cannot be in a str", item.type_name());
        }
        RETURN_IF_ERROR(charge_text(container.text()));
        return find(container.text(), item.text()) != std::string_view::npos;
    case Kind::dict:
        if (!hashable(item)) {
            return template_error("a %s cannot be the key of a dictionary", item.type_name());
        }
        RETURN_IF_ERROR(charge_lookup(container.dict(), item));
        return container.dict().find(item) != nullptr;
    case Kind::sequence: {
        SequenceObject &sequence = container.sequence();
        if (sequence.read_once()) {
            // Reads as far as the item and leaves the rest.
            while (sequence.taken < sequence.items.size()) {
                const Value &next = sequence.items[sequence.taken++];
                RETURN_IF_ERROR(charge_comparison(next, item));
                if (equal(next, item)) return true;
            }
            RETURN_IF_ERROR(sequence.failure);
            return false;
        }
        RETURN_IF_ERROR(charge(sequence.items.size() / 8));
        for (const Value &other : sequence.items) {
            RETURN_IF_ERROR(charge_comparison(other, item));
            if (equal(other, item)) return true;
        }
        return false;
    }
    default:
        return template_error("a %s cannot hold anything", container.type_name());
    }
}

} // namespace batchllm::jinja
