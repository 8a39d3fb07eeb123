// Values -> JSON text, appended to a string. Numbers have the fewest digits that read back as the
// same value. The output is always valid UTF-8 and never contains a raw line end.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/printable.h"

namespace batchllm::cli {

// Quoted and escaped. Bytes that are not UTF-8 become U+FFFD.
void append_json(std::string *out, std::string_view text);
inline void append_json(std::string *out, const char *text) {
    append_json(out, std::string_view(text));
}

void append_json_integer(std::string *out, int64_t value);
void append_json_integer(std::string *out, uint64_t value);
template <std::integral T> void append_json(std::string *out, T value) {
    if constexpr (std::is_signed_v<T>) {
        append_json_integer(out, static_cast<int64_t>(value));
    } else {
        append_json_integer(out, static_cast<uint64_t>(value));
    }
}
inline void append_json(std::string *out, bool value) { *out += value ? "true" : "false"; }

// JSON has no NaN and no infinities; they are written as null.
void append_json(std::string *out, float value);
void append_json(std::string *out, double value);

template <typename T> void append_json_list(std::string *out, std::span<const T> values) {
    *out += '[';
    for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0) *out += ',';
        append_json(out, values[i]);
    }
    *out += ']';
}

// A string of the bytes in Base64 (RFC 4648).
void append_json_base64(std::string *out, std::span<const std::byte> bytes);

// Writes an object key by key: JsonObject(&out).field("rows", 3).field("name", "x"), ended by
// close().
class JsonObject {
  public:
    explicit JsonObject(std::string *out) : out_(out) { *out_ += '{'; }

    // Writes the key; the caller then appends the value to the same string.
    JsonObject &key(std::string_view name) {
        if (!first_) *out_ += ',';
        first_ = false;
        append_json(out_, name);
        *out_ += ':';
        return *this;
    }
    template <typename T> JsonObject &field(std::string_view name, const T &value) {
        key(name);
        append_json(out_, value);
        return *this;
    }
    // The value is already JSON.
    JsonObject &raw(std::string_view name, std::string_view json) {
        key(name);
        *out_ += json;
        return *this;
    }
    // Whole members, which are JSON already.
    JsonObject &members(std::string_view json) {
        if (json.empty()) return *this;
        if (!first_) *out_ += ',';
        first_ = false;
        *out_ += json;
        return *this;
    }
    void close() { *out_ += '}'; }

  private:
    std::string *out_;
    bool first_ = true;
};

} // namespace batchllm::cli
