// Strict reading of JSON values: an error names the file and the key, and a key is given once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <simdjson.h>

#include "base/status.h"

namespace batchllm {

// Text from a file as an error shows it: in quotes, cut short, without control characters.
std::string quote_for_error(std::string_view text);

// Apart from base/json.h's class of this name, which reads values of known types only.
inline namespace tokenizer_json {

// A value and where it stands: "tokenizer.json: model.vocab".
class JsonValue {
  public:
    JsonValue(simdjson::dom::element value, std::string where)
        : value_(value), where_(std::move(where)) {}

    const std::string &where() const { return where_; }
    simdjson::dom::element raw() const { return value_; }
    bool is_null() const { return value_.is_null(); }

    Status malformed(const std::string &what) const;
    Status unsupported(const std::string &what) const;

    Result<std::string> string() const; // valid UTF-8
    Result<bool> boolean() const;
    Result<int64_t> integer(int64_t least, int64_t most) const;
    Result<std::vector<JsonValue>> array() const;

  private:
    simdjson::dom::element value_;
    std::string where_;
};

// An object all of whose keys are known and given once.
class JsonObject {
  public:
    // Keys other than `known` are refused as not supported, by name.
    static Result<JsonObject> open(const JsonValue &value,
                                   std::initializer_list<std::string_view> known);

    const JsonValue &value() const { return value_; }
    bool has(std::string_view key) const;             // and it is not null
    JsonValue operator[](std::string_view key) const; // has(key), or null

    // The member, which must be there.
    Result<JsonValue> get(std::string_view key) const;
    Result<std::string> string(std::string_view key) const;
    Result<bool> boolean(std::string_view key) const;
    Result<bool> boolean(std::string_view key, bool otherwise) const; // when absent or null

  private:
    explicit JsonObject(JsonValue value) : value_(std::move(value)) {}
    JsonValue value_;
    std::vector<std::pair<std::string_view, simdjson::dom::element>> members_;
};

} // namespace tokenizer_json

} // namespace batchllm
