// What Python's operators and built-in functions do with values.
#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "text/jinja/evaluator.h"
#include "text/jinja/methods.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace batchllm::jinja {
namespace {

Status undefined_error(const Value &value) {
    return template_error("'%s' is undefined", std::string(cut(value.text(), 80)).c_str());
}

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
        // Exact up to 53 bits, as Python's is beyond them too but for the last bit.
        return Value::real(static_cast<double>(a) / static_cast<double>(b));
    }
    if (b == -1) { // the one that overflows
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

// -1, 0, 1 for a below, at, above b; 2: no order between them (NaN).
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

// An index as Python takes it: from the end when negative.
bool find_index(int64_t index, size_t size, size_t *at) {
    const auto count = static_cast<int64_t>(size);
    if (index < 0) index += count;
    if (index < 0 || index >= count) return false;
    *at = static_cast<size_t>(index);
    return true;
}

// An index that a slice may have: whole, or absent.
Result<int64_t> slice_part(const Value &part, int64_t otherwise) {
    if (part.is(Kind::none)) return otherwise;
    if (part.is_integral()) return part.integer();
    if (part.is(Kind::undefined)) return undefined_error(part);
    return template_error("a slice needs whole numbers, not a %s", part.type_name());
}

// The items that a slice takes, in order: begin, begin + step, ...
struct SlicePlaces {
    int64_t begin = 0;
    int64_t step = 1;
    int64_t count = 0;

    size_t operator[](int64_t i) const { return static_cast<size_t>(begin + i * step); }
};

// Python's slice.indices().
Result<SlicePlaces> slice_places(size_t size, const Value &from, const Value &to,
                                 const Value &step) {
    ASSIGN_OR_RETURN(const int64_t by, slice_part(step, 1));
    if (by == 0) return template_error("the step of a slice is 0");
    const auto count = static_cast<int64_t>(size);
    const int64_t least = by < 0 ? -1 : 0;
    const int64_t most = by < 0 ? count - 1 : count;
    const auto clip = [&](int64_t index) {
        if (index < 0) index += count;
        return std::clamp(index, least, most);
    };
    ASSIGN_OR_RETURN(const int64_t given_from, slice_part(from, 0));
    ASSIGN_OR_RETURN(const int64_t given_to, slice_part(to, 0));
    const int64_t begin = from.is(Kind::none) ? (by < 0 ? most : least) : clip(given_from);
    const int64_t end = to.is(Kind::none) ? (by < 0 ? least : most) : clip(given_to);
    const int64_t between = by < 0 ? begin - end : end - begin;
    const uint64_t stride = by < 0 ? 0 - static_cast<uint64_t>(by) : static_cast<uint64_t>(by);
    SlicePlaces places{begin, by, 0};
    if (between > 0) {
        places.count = static_cast<int64_t>(static_cast<uint64_t>(between - 1) / stride) + 1;
    }
    return places;
}

} // namespace

// ---- Attributes, items, slices ----

Result<Value> Evaluator::attribute(const Value &object, std::string_view name) {
    if (object.is(Kind::undefined)) return undefined_error(object);
    if (object.is(Kind::loop)) return loop_attribute(&object.loop(), name);
    if (object.is(Kind::name_space)) {
        const Value *found = object.name_space().attributes.find(name);
        return found == nullptr ? Value::undefined(name) : *found;
    }
    if (has_method(object, name)) {
        ASSIGN_OR_RETURN(Callable *const method, heap_.make<Callable>());
        method->type = Callable::Type::method;
        method->name = name;
        method->self = object;
        return Value(method);
    }
    if (lacks_attribute(object, name)) {
        return template_error("attribute '%s' of a %s is not supported", std::string(name).c_str(),
                              object.type_name());
    }
    if (object.is(Kind::dict)) {
        RETURN_IF_ERROR(charge_lookup(object.dict(), Value::string(name)));
        if (const Value *found = object.dict().find(name)) return *found;
    }
    return Value::undefined(name);
}

Result<Value> Evaluator::item(const Value &object, const Value &key) {
    if (object.is(Kind::undefined)) return undefined_error(object);
    if (object.is(Kind::dict)) {
        if (!hashable(key)) return Value::undefined("an item");
        RETURN_IF_ERROR(charge_lookup(object.dict(), key));
        if (const Value *found = object.dict().find(key)) return *found;
    }
    if (key.is_integral()) {
        size_t at = 0;
        if (object.is(Kind::sequence) && object.sequence().indexed()) {
            const std::vector<Value> &items = object.sequence().items;
            if (find_index(key.integer(), items.size(), &at)) return items[at];
        }
        if (object.is(Kind::string)) {
            RETURN_IF_ERROR(charge_text(object.text()));
            const std::string_view text = object.text();
            if (!find_index(key.integer(), jinja::length(text), &at)) {
                return Value::undefined("a character");
            }
            const size_t byte = byte_of(text, at);
            return Value::string(text.substr(byte, static_cast<size_t>(utf8_length(text[byte]))));
        }
        return Value::undefined("an item");
    }
    if (key.is(Kind::string)) return attribute(object, key.text());
    return Value::undefined("an item");
}

Result<Value> Evaluator::slice(const Value &object, const Value &from, const Value &to,
                               const Value &step) {
    if (object.is(Kind::undefined)) return undefined_error(object);
    if (object.is(Kind::string)) {
        const std::string_view text = object.text();
        RETURN_IF_ERROR(charge(text.size() / 8));
        if (step.is(Kind::none) || (step.is_integral() && step.integer() == 1)) {
            ASSIGN_OR_RETURN(const SlicePlaces places,
                             slice_places(jinja::length(text), from, to, Value::none()));
            if (places.count == 0) return Value::string("");
            const size_t begin = byte_of(text, places[0]);
            const size_t bytes = byte_of(text.substr(begin), static_cast<size_t>(places.count));
            return Value::string(text.substr(begin, bytes));
        }
        ASSIGN_OR_RETURN(const std::vector<Value> characters, iterate(object));
        ASSIGN_OR_RETURN(const SlicePlaces places, slice_places(characters.size(), from, to, step));
        std::string out;
        for (int64_t i = 0; i < places.count; ++i) out += characters[places[i]].text();
        return heap_.string(std::move(out));
    }
    if (object.is(Kind::sequence) && object.sequence().indexed()) {
        const Sequence &sequence = object.sequence();
        if (sequence.type == SequenceType::range) {
            return template_error("a slice of a range is not supported");
        }
        ASSIGN_OR_RETURN(const SlicePlaces places,
                         slice_places(sequence.items.size(), from, to, step));
        RETURN_IF_ERROR(charge(static_cast<size_t>(places.count) / 8));
        std::vector<Value> items;
        for (int64_t i = 0; i < places.count; ++i) items.push_back(sequence.items[places[i]]);
        return heap_.sequence(sequence.type, std::move(items));
    }
    // Python takes a slice of nothing else; jinja2 calls the outcome undefined.
    return Value::undefined("a slice");
}

// ---- Going through values ----

Result<std::vector<Value>> Evaluator::iterate(const Value &value) {
    std::vector<Value> items;
    switch (value.kind()) {
    case Kind::undefined:
        return items;
    case Kind::sequence: {
        Sequence &sequence = value.sequence();
        RETURN_IF_ERROR(charge(sequence.items.size() / 8));
        if (sequence.read_once()) {
            items.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.taken),
                         sequence.items.end());
            sequence.taken = sequence.items.size();
            RETURN_IF_ERROR(sequence.failure);
            return items;
        }
        return sequence.items;
    }
    case Kind::dict:
        RETURN_IF_ERROR(charge(value.dict().items.size() / 8));
        for (const auto &item : value.dict().items) items.push_back(item.first);
        return items;
    case Kind::string: {
        const std::string_view text = value.text();
        RETURN_IF_ERROR(charge(text.size() / 8));
        RETURN_IF_ERROR(heap_.room_for(text.size() * sizeof(Value)));
        for (size_t i = 0; i < text.size();) {
            const auto bytes = static_cast<size_t>(utf8_length(text[i]));
            items.push_back(Value::string(text.substr(i, bytes)));
            i += bytes;
        }
        return items;
    }
    default:
        return template_error("a %s cannot be gone through", value.type_name());
    }
}

Result<int64_t> Evaluator::length(const Value &value) {
    switch (value.kind()) {
    case Kind::undefined:
        return int64_t{0};
    case Kind::string:
        RETURN_IF_ERROR(charge_text(value.text()));
        return static_cast<int64_t>(jinja::length(value.text()));
    case Kind::dict:
        return static_cast<int64_t>(value.dict().items.size());
    case Kind::sequence:
        if (!value.sequence().read_once()) {
            return static_cast<int64_t>(value.sequence().items.size());
        }
        break;
    default:
        break;
    }
    return template_error("a %s has no length", value.type_name());
}

// ---- Printing ----

Status Evaluator::append_string(const Value &value, std::string *out) {
    if (value.is(Kind::string)) {
        out->append(value.text());
        return {};
    }
    if (value.is(Kind::undefined)) return {};
    return append_repr(value, out);
}

Result<std::string> Evaluator::to_string(const Value &value) {
    std::string text;
    RETURN_IF_ERROR(append_string(value, &text));
    return text;
}

Result<std::string_view> Evaluator::to_text(const Value &value) {
    if (value.is(Kind::string)) return value.text();
    ASSIGN_OR_RETURN(std::string text, to_string(value));
    ASSIGN_OR_RETURN(const Value kept, heap_.string(std::move(text)));
    return kept.text();
}

Status Evaluator::append_repr(const Value &value, std::string *out) {
    RETURN_IF_ERROR(charge(1));
    RETURN_IF_ERROR(heap_.room_for(out->size()));
    switch (value.kind()) {
    case Kind::none:
        *out += "None";
        return {};
    case Kind::boolean:
        *out += value.truth() ? "True" : "False";
        return {};
    case Kind::integer:
        *out += std::to_string(value.integer());
        return {};
    case Kind::real:
        append_float(value.real(), out);
        return {};
    case Kind::string:
        RETURN_IF_ERROR(charge_text(value.text()));
        RETURN_IF_ERROR(heap_.room_for(out->size() + 4 * value.text().size())); // all escaped
        jinja::append_repr(value.text(), out);
        return {};
    case Kind::undefined:
        *out += "Undefined";
        return {};
    case Kind::dict: {
        *out += '{';
        bool first = true;
        for (const auto &[key, item] : value.dict().items) {
            if (!first) *out += ", ";
            first = false;
            RETURN_IF_ERROR(append_repr(key, out));
            *out += ": ";
            RETURN_IF_ERROR(append_repr(item, out));
        }
        *out += '}';
        return {};
    }
    case Kind::sequence:
        break;
    default:
        return template_error("printing a %s is not supported", value.type_name());
    }
    const Sequence &sequence = value.sequence();
    if (sequence.read_once() || sequence.type == SequenceType::range) {
        return template_error("printing a %s is not supported", value.type_name());
    }
    const bool tuple = sequence.type == SequenceType::tuple;
    const bool view = !tuple && sequence.type != SequenceType::list;
    if (view) *out += value.type_name();
    *out += view ? "([" : tuple ? "(" : "[";
    for (size_t i = 0; i < sequence.items.size(); ++i) {
        if (i > 0) *out += ", ";
        RETURN_IF_ERROR(append_repr(sequence.items[i], out));
    }
    if (tuple && sequence.items.size() == 1) *out += ',';
    *out += view ? "])" : tuple ? ")" : "]";
    return {};
}

// ---- Operators ----

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
        RETURN_IF_ERROR(heap_.room_for(left.text().size() + right.text().size()));
        RETURN_IF_ERROR(charge((left.text().size() + right.text().size()) / 64));
        std::string text(left.text());
        text += right.text();
        return heap_.string(std::move(text));
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
            if (text.empty() || times == 0) return Value::string("");
            size_t bytes = 0;
            if (__builtin_mul_overflow(text.size(), static_cast<size_t>(times), &bytes)) {
                bytes = SIZE_MAX;
            }
            RETURN_IF_ERROR(heap_.room_for(bytes));
            std::string out;
            for (int64_t i = 0; i < times; ++i) out += text;
            return heap_.string(std::move(out));
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

// Finding a key: hashed where the dictionary has an index, else compared with all keys.
Status Evaluator::charge_lookup(const Dict &dict, const Value &key) {
    const bool hashed = key.is(Kind::string) && !dict.index.empty();
    const size_t compared = hashed ? 0 : dict.items.size() / 8;
    const size_t each = key.is(Kind::string)     ? key.text().size() / 64
                        : key.is(Kind::sequence) ? key.sequence().items.size()
                                                 : 0;
    return charge(compared + (1 + compared) * each);
}

// What a comparison of two values may cost: the smaller one's size, all levels counted.
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
        } else if (a.size() == b.size()) { // sets: each with all
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
        Sequence &sequence = container.sequence();
        if (sequence.read_once()) {
            // Reads up to the item, and keeps the rest.
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
