// Python's subscripts on values: attributes, items, slices.
#include <algorithm>

#include "text/jinja/evaluator.h"
#include "text/jinja/methods.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace batchllm::jinja {
namespace {

// An index as in Python: from the end if negative.
bool find_index(int64_t index, size_t size, size_t *at) {
    const auto count = static_cast<int64_t>(size);
    if (index < 0) index += count;
    if (index < 0 || index >= count) return false;
    *at = static_cast<size_t>(index);
    return true;
}

// An index that a slice may have: an integer, or absent.
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
            return object.typed(text.substr(byte, static_cast<size_t>(utf8_length(text[byte]))));
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
            if (places.count == 0) return object.typed("");
            const size_t begin = byte_of(text, places[0]);
            const size_t bytes = byte_of(text.substr(begin), static_cast<size_t>(places.count));
            return object.typed(text.substr(begin, bytes));
        }
        ASSIGN_OR_RETURN(const std::vector<Value> characters, iterate(object));
        ASSIGN_OR_RETURN(const SlicePlaces places, slice_places(characters.size(), from, to, step));
        std::string out;
        for (int64_t i = 0; i < places.count; ++i) out += characters[places[i]].text();
        ASSIGN_OR_RETURN(const Value made, heap_.string(std::move(out)));
        return object.typed(made);
    }
    if (object.is(Kind::sequence) && object.sequence().indexed()) {
        const SequenceObject &sequence = object.sequence();
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
    return template_error("a %s cannot be sliced", object.type_name());
}

} // namespace batchllm::jinja
