// JSON text -> values. The one reader of JSON in the library: all code reads through this header,
// through json.h (errors that name the file and the key) or through json_tree.h (values that own
// their text).
//
// A text is UTF-8 and one value; a byte order mark before it is skipped. A number is kept as it is
// written and is converted when somebody asks for it, so a number of any size can be read. Equal
// keys of an object are accepted here; readers reject them at least where they ask for the key,
// because two readers could otherwise disagree on which one counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace batchllm {

class JsonItems;
class JsonMembers;

// A value, or the key before a member's value. The nodes of a text are in its order, so what is in
// an array or object follows its node.
struct JsonNode {
    enum class Kind : uint8_t { null, boolean, number, string, array, object };
    const char *text; // of a string, without escapes; of a number, as written
    union {
        int64_t integer; // of a number that is_short
        uint32_t nodes;  // of an array or object: this node and those of what is in it
        bool truth;
    };
    uint32_t size; // bytes of the text; items of an array, members of an object
    Kind kind;
    bool is_short; // a number of up to 18 digits without a fraction or an exponent

    std::string_view view() const { return {text, size}; }
    const JsonNode *next() const { return this + (kind >= Kind::array ? nodes : 1); }
};

// One value, cheap to copy. Valid until its parser parses again or is destroyed.
class JsonView {
  public:
    using Kind = JsonNode::Kind;

    JsonView() = default; // only to be assigned to
    explicit JsonView(const JsonNode *node) : node_(node) {}

    Kind kind() const { return node_->kind; }
    bool is_null() const { return kind() == Kind::null; }
    bool is_boolean() const { return kind() == Kind::boolean; }
    bool is_number() const { return kind() == Kind::number; }
    bool is_integer() const; // a number without a fraction or an exponent, of any size
    bool is_string() const { return kind() == Kind::string; }
    bool is_array() const { return kind() == Kind::array; }
    bool is_object() const { return kind() == Kind::object; }

    // Empty if the value has another type, or the type cannot hold it. 1.0 and 1e3 are integers too;
    // a number that is too small for a double is 0.
    std::optional<bool> boolean() const;
    std::optional<int64_t> integer() const {
        if (!is_number()) return std::nullopt;
        return node_->is_short ? node_->integer : other_integer<int64_t>();
    }
    std::optional<uint64_t> unsigned_integer() const {
        if (!is_number()) return std::nullopt;
        if (!node_->is_short) return other_integer<uint64_t>();
        if (node_->integer < 0) return std::nullopt;
        return static_cast<uint64_t>(node_->integer);
    }
    std::optional<double> number() const;
    std::optional<std::string_view> number_text() const; // as written
    std::optional<std::string_view> string() const;      // UTF-8
    // Store the result in a variable before a loop: `for (.. : *value.items())` iterates over a
    // destroyed temporary.
    std::optional<JsonItems> items() const;     // of an array
    std::optional<JsonMembers> members() const; // of an object
    // Also empty if this is not an object.
    std::optional<JsonView> find(std::string_view key) const;

    // As JSON without white space, numbers as they were written. Walks the whole value.
    std::string text() const;

  private:
    template <typename T> std::optional<T> other_integer() const;

    const JsonNode *node_;
};

class JsonItems {
  public:
    class Iterator {
      public:
        explicit Iterator(const JsonNode *at) : at_(at) {}
        JsonView operator*() const { return JsonView(at_); }
        Iterator &operator++() {
            at_ = at_->next();
            return *this;
        }
        bool operator!=(const Iterator &other) const { return at_ != other.at_; }

      private:
        const JsonNode *at_;
    };

    explicit JsonItems(const JsonNode *array) : array_(array) {}
    Iterator begin() const { return Iterator(array_ + 1); }
    Iterator end() const { return Iterator(array_->next()); }
    bool empty() const { return array_->size == 0; }
    size_t size() const { return array_->size; }
    // Whether none of them is an array or object that has items of its own.
    bool are_flat() const { return array_->nodes == array_->size + 1; }
    std::optional<JsonView> first() const;

  private:
    const JsonNode *array_;
};

class JsonMembers {
  public:
    struct Member {
        std::string_view key;
        JsonView value;
    };
    class Iterator {
      public:
        explicit Iterator(const JsonNode *at) : at_(at) {}
        Member operator*() const { return {at_->view(), JsonView(at_ + 1)}; }
        Iterator &operator++() {
            at_ = (at_ + 1)->next();
            return *this;
        }
        bool operator!=(const Iterator &other) const { return at_ != other.at_; }

      private:
        const JsonNode *at_;
    };

    explicit JsonMembers(const JsonNode *object) : object_(object) {}
    Iterator begin() const { return Iterator(object_ + 1); }
    Iterator end() const { return Iterator(object_->next()); }
    size_t size() const { return object_->size; }
    std::optional<JsonView> find(std::string_view key) const; // the first of equal keys
    std::optional<std::string_view> equal_keys() const;       // a key that is given twice

  private:
    const JsonNode *object_;
};

// The path of the first duplicate key ("rope.base", "rows[3].id"), printable for use in an error;
// empty if there is none.
std::optional<std::string> find_equal_keys(JsonView value);

// Why a text could not be parsed.
struct JsonFault {
    enum class Kind : uint8_t {
        none,
        memory, // out of memory
        utf8,   // the text is not UTF-8
        number, // malformed numbers (01, 1., +1), which are null among the values, but nothing else
        grammar, // anything else
    };
    Kind kind = Kind::none;
    std::string text; // what is wrong and where, to append to "not JSON: "
};

// What a text may contain.
struct JsonRules {
    uint32_t most_depth = 1024; // of arrays and objects in each other
    // Also Infinity, -Infinity and NaN, as Python's json module writes them: numbers without a value.
    bool python = false;
};

class JsonParser {
  public:
    JsonParser();
    JsonParser(JsonParser &&) noexcept;
    JsonParser &operator=(JsonParser &&) noexcept;
    ~JsonParser();

    // *root is set unless the fault is of another kind than none and number. Keeps a copy of the
    // text, to which the values refer, and its memory for the next text.
    JsonFault parse(std::string_view text, JsonView *root, const JsonRules &rules = {});

  private:
    struct Memory;
    std::unique_ptr<Memory> memory_;
};

} // namespace batchllm
