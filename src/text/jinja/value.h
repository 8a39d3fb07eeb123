// The values that a template computes with: Python's, as far as templates can observe them.
//
// A Value is small and cheap to copy. The text, lists and dictionaries that it points to belong to
// the rendering's Heap or to the document that is rendered. Except for namespaces they never
// change: lists and dictionaries are read-only, as in jinja2's immutable sandbox.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm::jinja {

class Value;
class Heap;

enum class Kind : uint8_t {
    undefined,
    none,
    boolean,
    integer,
    large_integer, // beyond 64 bits, as it is written: it can be printed and tested, not computed with
    real,
    string,
    sequence,
    dict,
    name_space,
    loop,
    callable,
};

// The Python type: it determines len(), indices, truth and printing.
enum class SequenceType : uint8_t {
    list,
    tuple,
    range,
    generator, // can be read once; always truthy
    reversed,  // likewise
    dict_items,
    dict_keys,
    dict_values,
};

struct SequenceObject;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

class Value {
  public:
    Value() : kind_(Kind::undefined) { text_ = {"", 0}; }
    // name: the undefined name, for error messages; must outlive the value.
    static Value undefined(std::string_view name) { return Value(Kind::undefined, name); }
    static Value none() { return Value(Kind::none, {}); }
    static Value boolean(bool value) {
        Value made(Kind::boolean, {});
        made.integer_ = value ? 1 : 0;
        return made;
    }
    static Value integer(int64_t value) {
        Value made(Kind::integer, {});
        made.integer_ = value;
        return made;
    }
    // Digits, and a sign if negative, that must outlive the value.
    static Value large_integer(std::string_view digits) {
        return Value(Kind::large_integer, digits);
    }
    static Value real(double value) {
        Value made(Kind::real, {});
        made.real_ = value;
        return made;
    }
    // UTF-8 that must outlive the value.
    static Value string(std::string_view text) { return Value(Kind::string, text); }
    // A string of MarkupSafe's type, which the filter `safe` creates: text added to it is escaped
    // as HTML, and most strings derived from it have the same type.
    static Value markup(std::string_view text) {
        Value made(Kind::string, text);
        made.markup_ = true;
        return made;
    }
    // A string of the same type as this one.
    Value typed(std::string_view text) const { return markup_ ? markup(text) : string(text); }
    Value typed(const Value &text) const { return typed(text.text()); }
    explicit Value(SequenceObject *sequence) : kind_(Kind::sequence) { sequence_ = sequence; }
    explicit Value(const Dict *dict) : kind_(Kind::dict) { dict_ = dict; }
    explicit Value(Namespace *name_space) : kind_(Kind::name_space) { namespace_ = name_space; }
    explicit Value(Loop *loop) : kind_(Kind::loop) { loop_ = loop; }
    explicit Value(const Callable *callable) : kind_(Kind::callable) { callable_ = callable; }

    Kind kind() const { return kind_; }
    bool is(Kind kind) const { return kind_ == kind; }
    bool is_sequence(SequenceType type) const;
    bool is_markup() const { return markup_; }
    bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); } // Python's int
    bool is_number() const { return is_integral() || is(Kind::real); }

    // Each may be called only on values of that kind.
    std::string_view text() const {
        return {text_.data, text_.size};
    }                                            // undefined: its name; large_integer
    int64_t integer() const { return integer_; } // booleans: 0 or 1
    double real() const { return is(Kind::real) ? real_ : static_cast<double>(integer_); }
    SequenceObject &sequence() const { return *sequence_; }
    const Dict &dict() const { return *dict_; }
    Namespace &name_space() const { return *namespace_; }
    Loop &loop() const { return *loop_; }
    const Callable &callable() const { return *callable_; }

    // bool(value).
    bool truth() const;
    // The nesting depth of lists and dictionaries, including this one; 0 for anything else.
    int32_t depth() const;
    // Python's name of the type: "str", "int", "Undefined", ...
    const char *type_name() const;

  private:
    Value(Kind kind, std::string_view text) : kind_(kind) { text_ = {text.data(), text.size()}; }

    struct Text {
        const char *data;
        size_t size;
    };
    Kind kind_;
    bool markup_ = false;
    union {
        Text text_;
        int64_t integer_;
        double real_;
        SequenceObject *sequence_;
        const Dict *dict_;
        Namespace *namespace_;
        Loop *loop_;
        const Callable *callable_;
    };
};

struct Object {
    virtual ~Object() = default;
};

struct SequenceObject : Object {
    SequenceType type = SequenceType::list;
    int32_t depth = 1;
    size_t taken = 0; // generator: how many items have been read
    Status failure;   // generator: the result of reading beyond its items
    std::vector<Value> items;

    bool read_once() const {
        return type == SequenceType::generator || type == SequenceType::reversed;
    }
    // Whether it has both indices and a length; whether it has a length.
    bool indexed() const {
        return type == SequenceType::list || type == SequenceType::tuple ||
               type == SequenceType::range;
    }
};

struct Dict : Object {
    int32_t depth = 1;
    std::vector<std::pair<Value, Value>> items;         // in order of insertion; keys are distinct
    std::unordered_map<std::string_view, size_t> index; // of string keys; used if there are many

    const Value *find(std::string_view key) const;
    const Value *find(const Value &key) const;
    // Replaces the value if there is an equal key. Keys must be hashable: see hashable().
    void set(const Value &key, const Value &value);
    void clear();
};

struct Namespace : Object {
    Dict attributes; // keys are strings
};

struct MacroNode;
struct Scope;
struct Statement;

// The variable `loop`. Items are read at most one ahead of the body, because a condition may depend
// on what the body changes; but all are read if the template asks for the length. Cleared when the
// loop ends.
struct Loop : Object {
    const Statement *statement = nullptr;
    Scope *outer = nullptr;
    const std::vector<Value> *source = nullptr; // `own`, or the items of a list
    std::vector<Value> own;
    std::vector<Value> passed; // items that satisfied the condition, if there is one
    size_t source_at = 0;
    size_t index = 0; // of the current item
    bool ended = false;
    bool asked_changed = false;
    std::vector<Value> changed; // the arguments of the last loop.changed()

    const Value &item(size_t at) const; // one that has been read
};

// The names of a block that has its own, and the enclosing scope.
struct Scope : Object {
    Scope *parent = nullptr;
    Dict names;        // keys are strings
    bool kept = false; // a macro refers to it

    const Value *find(std::string_view name) const;
    void set(std::string_view name, const Value &value); // in this scope
};

// A macro, a function of the environment, or a method bound to a value.
struct Callable : Object {
    enum class Type : uint8_t { macro, function, method } type = Type::function;
    const MacroNode *macro = nullptr;
    Scope *scope = nullptr; // where the macro was defined
    std::string_view name;
    Value self;
};

// Owns the values that a rendering creates, and limits their size; nothing is freed before the
// rendering ends.
class Heap {
  public:
    explicit Heap(size_t most_bytes) : left_(most_bytes) {}

    // Whether this many more bytes are allowed; does not count them.
    Status room_for(size_t bytes) const;
    Status room_for_items(size_t items) const { return room_for(items * sizeof(Value)); }
    // The same for a list of this many parts of a text.
    Status room_for_parts(size_t parts) const {
        return room_for(parts * (sizeof(std::string_view) + sizeof(Value)));
    }
    Result<Value> string(std::string text);
    Result<Value> sequence(SequenceType type, std::vector<Value> items);
    Result<Value> dict(std::unique_ptr<Dict> dict);
    template <typename T> Result<T *> make() {
        RETURN_IF_ERROR(take(sizeof(T) + 32));
        objects_.push_back(std::make_unique<T>());
        return static_cast<T *>(objects_.back().get());
    }

    // Values nested deeper than this are rejected, so that traversing one needs a bounded stack.
    static constexpr int32_t most_depth = 200;

  private:
    struct Text : Object {
        std::string text;
    };
    Status take(size_t bytes);

    size_t left_;
    std::vector<std::unique_ptr<Object>> objects_;
};

// a == b, as in Python. The depth of both is bounded.
bool equal(const Value &a, const Value &b);

// Whether the value can be a dictionary key. Tuples can if they contain no lists or tuples.
bool hashable(const Value &value);

} // namespace batchllm::jinja
