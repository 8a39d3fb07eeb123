// A JSON file -> named values. A key that is given twice is an error once somebody asks for it. Every value knows its file and its path of keys, so that errors can
// name both. Meant for files, because each value stores the text of its path; code that reads many
// values, such as rows or a vocabulary, uses the views of json_view.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_view.h"
#include "base/printable.h"
#include "base/status.h"

namespace batchllm {

// A view of one value: valid while its document lives, even if the document is moved.
class JsonValue {
  public:
    bool is_null() const { return view_.is_null(); }
    bool is_object() const { return view_.is_object() && !not_finite(); }
    bool is_array() const { return view_.is_array(); }
    bool is_string() const { return view_.is_string(); }

    // Each fails, naming file, key and value, if the value has another type or is outside [least,
    // most]. In a file of Python, 1.0 and 1e3 are integers, and 0 and 1 are false and true.
    Result<bool> boolean() const;
    Result<int64_t> integer(int64_t least, int64_t most) const;
    Result<double> number(double least, double most) const;
    // "Infinity", "-Infinity" or "NaN" if the value is one, or the object that transformers 5 writes
    // instead, {"__float__": "Infinity"}. All other functions treat both as numbers out of range.
    std::optional<std::string_view> not_finite() const;
    Result<std::string> string() const; // valid UTF-8
    Result<std::vector<JsonValue>> elements() const;
    Result<std::vector<std::pair<std::string_view, JsonValue>>> members() const;

    // A member of an object. If it is absent, find returns nothing and at fails. A null is returned
    // as a value. If the key is given twice, at fails, and find returns a value of no type, with
    // which everything fails.
    std::optional<JsonValue> find(std::string_view key) const;
    Result<JsonValue> at(std::string_view key) const;
    // Empty if it is absent or null.
    std::optional<JsonValue> given(std::string_view key) const;
    // at(key) converted to the type; boolean_or returns `otherwise` if the key is absent or null.
    Result<std::string> string(std::string_view key) const;
    Result<bool> boolean(std::string_view key) const;
    Result<bool> boolean_or(std::string_view key, bool otherwise) const;
    // Fails if the object has any other key, with an error that names it as not supported.
    Status only_keys(std::initializer_list<std::string_view> known) const;

    JsonView view() const { return view_; }
    const std::string &file() const { return source_->file; }

    // "file: path is value: problem", with the document's error code or BATCHLLM_ERROR_UNSUPPORTED.
    Status fail(const std::string &problem) const;
    Status unsupported(const std::string &what) const;

  private:
    friend class JsonDocument;
    struct Source {
        std::string file;
        int32_t code;
        bool python;
    };
    JsonValue(JsonView view, const Source *source, std::string path)
        : view_(view), source_(source), path_(std::move(path)) {}
    Status refuse(int32_t code, const std::string &problem) const;
    JsonValue child(std::string_view key, JsonView view) const;
    bool is_given_twice() const;

    JsonView view_;
    const Source *source_;
    std::string path_; // "rope_scaling.factor"; "" for the whole document
};

class JsonDocument {
  public:
    // file: its name, for errors. code: BATCHLLM_ERROR_... of all errors, including parse errors. Two
    // equal keys in an object are an error even if nobody asks for them.
    static Result<JsonDocument> parse(std::string_view text, const std::string &file, int32_t code);

    // The same, but two equal keys are an error only where somebody asks for one of them: for a large
    // file whose reader goes through all that matters.
    static Result<JsonDocument> parse_large(std::string_view text, const std::string &file,
                                            int32_t code);

    // What Python's json module reads and writes, and configurations in Python are content with: also
    // Infinity, -Infinity and NaN, and two equal keys where nobody asks for them.
    static Result<JsonDocument> parse_of_python(std::string_view text, const std::string &file,
                                                int32_t code);

    // Reads a file like parse_of_python. It must have at most `limit` bytes.
    static Result<JsonDocument> load(const std::string &path, int32_t code,
                                     size_t limit = size_t{64} << 20);

    JsonValue root() const { return JsonValue(root_, &contents_->source, ""); }

  private:
    struct Contents {
        JsonParser parser;
        JsonValue::Source source;
    };
    JsonDocument() = default;
    static Result<JsonDocument> read(std::string_view text, bool python, const std::string &file,
                                     int32_t code);

    std::unique_ptr<Contents> contents_; // on the heap, so that values survive a move
    JsonView root_;
};

} // namespace batchllm
