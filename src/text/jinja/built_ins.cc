// Python's built-in functions on values: iter, len, str, repr.
#include "text/jinja/evaluator.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace batchllm::jinja {

// ---- Going through values ----

Result<std::vector<Value>> Evaluator::iterate(const Value &value) {
    std::vector<Value> items;
    switch (value.kind()) {
    case Kind::undefined:
        return items;
    case Kind::sequence: {
        SequenceObject &sequence = value.sequence();
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
    case Kind::large_integer:
        RETURN_IF_ERROR(charge_text(value.text()));
        *out += value.text();
        return {};
    case Kind::real:
        append_float(value.real(), out);
        return {};
    case Kind::string:
        RETURN_IF_ERROR(charge_text(value.text()));
        RETURN_IF_ERROR(heap_.room_for(out->size() + 4 * value.text().size())); // if every
                                                                                // character is
                                                                                // escaped
        if (value.is_markup()) *out += "Markup(";
        jinja::append_repr(value.text(), out);
        if (value.is_markup()) *out += ')';
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
    const SequenceObject &sequence = value.sequence();
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

} // namespace batchllm::jinja
