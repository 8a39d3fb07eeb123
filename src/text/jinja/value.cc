#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

namespace batchllm::jinja {
namespace {

constexpr size_t indexed_dict = 12;

bool equal_items(const std::vector<Value> &a, const std::vector<Value> &b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

bool equal_sequences(const SequenceObject &a, const SequenceObject &b) {
    if (&a == &b) return true;
    if (a.type != b.type) return false;
    if (a.indexed()) return equal_items(a.items, b.items);
    if (a.type != SequenceType::dict_items && a.type != SequenceType::dict_keys) return false;
    // Views compare as sets do.
    return a.items.size() == b.items.size() &&
           std::all_of(a.items.begin(), a.items.end(), [&b](const Value &item) {
               return std::any_of(b.items.begin(), b.items.end(),
                                  [&item](const Value &other) { return equal(item, other); });
           });
}

bool equal_dicts(const Dict &a, const Dict &b) {
    if (a.items.size() != b.items.size()) return false;
    return std::all_of(a.items.begin(), a.items.end(), [&b](const auto &item) {
        const Value *other = b.find(item.first);
        return other != nullptr && equal(item.second, *other);
    });
}

} // namespace

bool Value::is_sequence(SequenceType type) const {
    return kind_ == Kind::sequence && sequence_->type == type;
}

bool Value::truth() const {
    switch (kind_) {
    case Kind::undefined:
    case Kind::none:
        return false;
    case Kind::boolean:
    case Kind::integer:
        return integer_ != 0;
    case Kind::real:
        return real_ != 0;
    case Kind::string:
        return text_.size != 0;
    case Kind::sequence:
        return sequence_->read_once() || !sequence_->items.empty();
    case Kind::dict:
        return !dict_->items.empty();
    case Kind::large_integer: // beyond 64 bits, so not 0
    case Kind::name_space:
    case Kind::loop:
    case Kind::callable:
        break;
    }
    return true;
}

int32_t Value::depth() const {
    if (kind_ == Kind::sequence) return sequence_->depth;
    if (kind_ == Kind::dict) return dict_->depth;
    return 0;
}

const char *Value::type_name() const {
    switch (kind_) {
    case Kind::undefined:
        return "Undefined";
    case Kind::none:
        return "NoneType";
    case Kind::boolean:
        return "bool";
    case Kind::integer:
        return "int";
    case Kind::large_integer:
        return "number beyond 64 bits";
    case Kind::real:
        return "float";
    case Kind::string:
        return markup_ ? "Markup" : "str";
    case Kind::dict:
        return "dict";
    case Kind::name_space:
        return "Namespace";
    case Kind::loop:
        return "LoopContext";
    case Kind::callable:
        return "function";
    case Kind::sequence:
        break;
    }
    switch (sequence_->type) {
    case SequenceType::list:
        return "list";
    case SequenceType::tuple:
        return "tuple";
    case SequenceType::range:
        return "range";
    case SequenceType::generator:
        return "generator";
    case SequenceType::reversed:
        return "list_reverseiterator";
    case SequenceType::dict_items:
        return "dict_items";
    case SequenceType::dict_keys:
        return "dict_keys";
    case SequenceType::dict_values:
        break;
    }
    return "dict_values";
}

const Value *Dict::find(std::string_view key) const {
    if (!index.empty()) {
        const auto found = index.find(key);
        return found == index.end() ? nullptr : &items[found->second].second;
    }
    for (const auto &[name, value] : items) {
        if (name.is(Kind::string) && name.text() == key) return &value;
    }
    return nullptr;
}

const Value *Dict::find(const Value &key) const {
    if (key.is(Kind::string)) return find(key.text());
    for (const auto &[name, value] : items) {
        if (equal(name, key)) return &value;
    }
    return nullptr;
}

void Dict::set(const Value &key, const Value &value) {
    if (const Value *found = find(key)) {
        *const_cast<Value *>(found) = value;
        return;
    }
    items.emplace_back(key, value);
    if (!index.empty()) {
        if (key.is(Kind::string)) index.emplace(key.text(), items.size() - 1);
    } else if (items.size() >= indexed_dict) {
        for (size_t i = 0; i < items.size(); ++i) {
            if (items[i].first.is(Kind::string)) index.emplace(items[i].first.text(), i);
        }
    }
}

void Dict::clear() {
    items.clear();
    if (!index.empty()) index.clear();
}

const Value *Scope::find(std::string_view name) const {
    for (const Scope *scope = this; scope != nullptr; scope = scope->parent) {
        if (const Value *found = scope->names.find(name)) return found;
    }
    return nullptr;
}

void Scope::set(std::string_view name, const Value &value) {
    names.set(Value::string(name), value);
}

Status Heap::room_for(size_t bytes) const {
    if (bytes <= left_) return {};
    return error(BATCHLLM_ERROR_ROW_TEMPLATE, "the template makes more text and lists than it may");
}

Status Heap::take(size_t bytes) {
    RETURN_IF_ERROR(room_for(bytes));
    left_ -= bytes;
    return {};
}

Result<Value> Heap::string(std::string text) {
    if (text.empty()) return Value::string("");
    ASSIGN_OR_RETURN(Text *const made, make<Text>());
    RETURN_IF_ERROR(take(text.size()));
    made->text = std::move(text);
    return Value::string(made->text);
}

Result<Value> Heap::sequence(SequenceType type, std::vector<Value> items) {
    ASSIGN_OR_RETURN(SequenceObject *const made, make<SequenceObject>());
    RETURN_IF_ERROR(take(items.size() * sizeof(Value)));
    for (const Value &item : items) made->depth = std::max(made->depth, item.depth() + 1);
    if (made->depth > most_depth) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE, "values are nested deeper than %d levels",
                     most_depth);
    }
    made->type = type;
    made->items = std::move(items);
    return Value(made);
}

Result<Value> Heap::dict(std::unique_ptr<Dict> dict) {
    RETURN_IF_ERROR(take(sizeof(Dict) + dict->items.size() * 2 * sizeof(Value)));
    for (const auto &[key, value] : dict->items) {
        dict->depth = std::max({dict->depth, key.depth() + 1, value.depth() + 1});
    }
    if (dict->depth > most_depth) {
        return error(BATCHLLM_ERROR_ROW_TEMPLATE, "values are nested deeper than %d levels",
                     most_depth);
    }
    const Dict *made = dict.get();
    objects_.push_back(std::move(dict));
    return Value(made);
}

bool equal(const Value &a, const Value &b) {
    if (a.is_number() && b.is_number()) {
        if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
        if (a.is(Kind::real) && b.is(Kind::real)) return a.real() == b.real();
        // Exact: an integer of more than 53 bits must not equal a neighbour's float.
        const double real = a.is(Kind::real) ? a.real() : b.real();
        const int64_t integer = a.is(Kind::real) ? b.integer() : a.integer();
        return real >= -0x1p63 && real < 0x1p63 && real == std::floor(real) &&
               static_cast<int64_t>(real) == integer;
    }
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
        return true;
    case Kind::string:
    case Kind::large_integer:
        return a.text() == b.text();
    case Kind::sequence:
        return equal_sequences(a.sequence(), b.sequence());
    case Kind::dict:
        return equal_dicts(a.dict(), b.dict());
    case Kind::name_space:
        return &a.name_space() == &b.name_space();
    case Kind::loop:
        return &a.loop() == &b.loop();
    case Kind::callable:
        return &a.callable() == &b.callable();
    default:
        return false;
    }
}

bool hashable(const Value &value) {
    if (value.is(Kind::dict)) return false;
    if (!value.is(Kind::sequence)) return true;
    if (!value.is_sequence(SequenceType::tuple)) return value.sequence().type != SequenceType::list;
    return value.depth() == 1;
}

} // namespace batchllm::jinja
