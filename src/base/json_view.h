// JSON text -> values. The only place that depends on the parser (simdjson): all code reads JSON
// through this header, through json.h (errors that name the file and the key) or through json_tree.h
// (numbers as they were written).
//
// A text is UTF-8 and one value. The parser accepts duplicate keys in an object. find_equal_keys
// detects them, and every reader rejects them, because two readers could otherwise disagree on
// which one counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <simdjson.h>

namespace batchllm {

class JsonItems;
class JsonMembers;

// One value, cheap to copy. Valid until its parser parses again or is destroyed.
class JsonView {
  public:
    enum class Kind : uint8_t { null, boolean, number, string, array, object };

    JsonView() = default; // only to be assigned to
    explicit JsonView(simdjson::dom::element element) : element_(element) {}

    Kind kind() const;
    bool is_null() const { return element_.is_null(); }
    bool is_boolean() const { return element_.is_bool(); }
    bool is_number() const { return element_.is_number(); }
    bool is_string() const { return element_.is_string(); }
    bool is_array() const { return element_.is_array(); }
    bool is_object() const { return element_.is_object(); }

    // Empty if the value has another type. A number with a fraction or an exponent is not an
    // integer, nor is one that the type cannot hold.
    std::optional<bool> boolean() const { return get<bool>(); }
    std::optional<int64_t> integer() const { return get<int64_t>(); }
    std::optional<uint64_t> unsigned_integer() const { return get<uint64_t>(); }
    std::optional<double> number() const { return get<double>(); }
    // May contain an escaped unpaired surrogate, which the parser accepts although it is not UTF-8.
    std::optional<std::string_view> string() const { return get<std::string_view>(); }
    // Store the result in a variable before a loop: `for (.. : *value.items())` iterates over a
    // destroyed temporary.
    std::optional<JsonItems> items() const;     // of an array
    std::optional<JsonMembers> members() const; // of an object
    // Also empty if this is not an object.
    std::optional<JsonView> find(std::string_view key) const;

    // As JSON without white space. Walks the whole value.
    std::string text() const { return simdjson::minify(element_); }

  private:
    template <typename T> std::optional<T> get() const {
        T value{};
        if (element_.get(value) != simdjson::SUCCESS) return std::nullopt;
        return value;
    }

    simdjson::dom::element element_;
};

class JsonItems {
  public:
    class Iterator {
      public:
        explicit Iterator(simdjson::dom::array::iterator at) : at_(at) {}
        JsonView operator*() const { return JsonView(*at_); }
        Iterator &operator++() { return ++at_, *this; }
        bool operator!=(const Iterator &other) const { return at_ != other.at_; }

      private:
        simdjson::dom::array::iterator at_;
    };

    explicit JsonItems(simdjson::dom::array array) : array_(array) {}
    Iterator begin() const { return Iterator(array_.begin()); }
    Iterator end() const { return Iterator(array_.end()); }
    bool empty() const { return !(begin() != end()); }
    size_t size() const { return array_.size(); } // saturates at 2^24 - 1
    std::optional<JsonView> first() const;

  private:
    simdjson::dom::array array_;
};

class JsonMembers {
  public:
    struct Member {
        std::string_view key;
        JsonView value;
    };
    class Iterator {
      public:
        explicit Iterator(simdjson::dom::object::iterator at) : at_(at) {}
        Member operator*() const { return {at_.key(), JsonView(at_.value())}; }
        Iterator &operator++() { return ++at_, *this; }
        bool operator!=(const Iterator &other) const { return at_ != other.at_; }

      private:
        simdjson::dom::object::iterator at_;
    };

    explicit JsonMembers(simdjson::dom::object object) : object_(object) {}
    Iterator begin() const { return Iterator(object_.begin()); }
    Iterator end() const { return Iterator(object_.end()); }
    size_t size() const { return object_.size(); }
    std::optional<JsonView> find(std::string_view key) const;

  private:
    simdjson::dom::object object_;
};

// The path of the first duplicate key ("rope.base", "rows[3].id"), printable for use in an error;
// empty if there is none.
std::optional<std::string> find_equal_keys(JsonView value);

// Why a text could not be parsed.
struct JsonFault {
    enum class Kind : uint8_t {
        none,
        memory,  // out of memory
        utf8,    // the text is not UTF-8
        number,  // a number is malformed, or too large for both 64 bits and a double
        grammar, // anything else
    };
    Kind kind = Kind::none;
    std::string text; // what is wrong, to append to "not JSON: "
};

// Keeps its memory, about 14 times the size of the longest text so far.
class JsonParser {
  public:
    // padded: json_padding bytes after the text are readable, so the text is not copied.
    JsonFault parse(std::string_view text, bool padded, JsonView *root);

  private:
    simdjson::dom::parser parser_;
};
constexpr size_t json_padding = simdjson::SIMDJSON_PADDING;

} // namespace batchllm
