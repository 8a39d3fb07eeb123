// JSON text -> values with a name. Every value knows its file and the path of keys that leads to
// it, so that an error can name both. Parsed strictly: UTF-8, one document, no object with two
// equal keys (a reader that takes the last of them hides what another reader saw).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <simdjson.h>

#include "base/printable.h"
#include "base/status.h"

namespace batchllm {

// A view of one value: valid while the document it came from lives, wherever that is moved.
class JsonValue {
  public:
    bool is_null() const { return element_.is_null(); }
    bool is_object() const { return element_.is_object(); }
    bool is_array() const { return element_.is_array(); }
    bool is_string() const { return element_.is_string(); }

    // Each fails, naming file, key and value, when the value is of another type or out of
    // [least, most]. A number with a fraction or an exponent is no integer.
    Result<bool> boolean() const;
    Result<int64_t> integer(int64_t least, int64_t most) const;
    Result<double> number(double least, double most) const;
    Result<std::string> string() const; // valid UTF-8
    Result<std::vector<JsonValue>> elements() const;
    Result<std::vector<std::pair<std::string_view, JsonValue>>> members() const;

    // A member of an object. find: nothing when it is absent, null included when it is not; at: an
    // error when it is absent.
    std::optional<JsonValue> find(std::string_view key) const;
    Result<JsonValue> at(std::string_view key) const;
    // Nothing when it is absent or null.
    std::optional<JsonValue> given(std::string_view key) const;
    // at(key) read as such; boolean_or: `otherwise` when it is not given.
    Result<std::string> string(std::string_view key) const;
    Result<bool> boolean(std::string_view key) const;
    Result<bool> boolean_or(std::string_view key, bool otherwise) const;
    // Refuses, as not supported and by name, a key of the object that is none of these.
    Status only_keys(std::initializer_list<std::string_view> known) const;

    simdjson::dom::element raw() const { return element_; }
    const std::string &file() const { return source_->file; }

    // "file: path is value: problem". The document's error code, and BATCHLLM_ERROR_UNSUPPORTED.
    Status fail(const std::string &problem) const;
    Status unsupported(const std::string &what) const;

  private:
    friend class JsonDocument;
    struct Source {
        std::string file;
        int32_t code;
    };
    JsonValue(simdjson::dom::element element, const Source *source, std::string path)
        : element_(element), source_(source), path_(std::move(path)) {}
    Status refuse(int32_t code, const std::string &problem) const;
    JsonValue child(std::string_view key, simdjson::dom::element element) const;

    simdjson::dom::element element_;
    const Source *source_;
    std::string path_; // "rope_scaling.factor"; "" for the whole document
};

class JsonDocument {
  public:
    // file: named in errors. code: of errors, parse errors included (BATCHLLM_ERROR_...).
    static Result<JsonDocument> parse(std::string_view text, const std::string &file, int32_t code);

    // Reads the file, of at most `limit` bytes.
    static Result<JsonDocument> load(const std::string &path, size_t limit, int32_t code);

    JsonValue root() const { return JsonValue(root_, source_.get(), ""); }

  private:
    JsonDocument() = default;
    // On the heap, so that values survive a move of the document.
    std::unique_ptr<simdjson::dom::parser> parser_;
    std::unique_ptr<JsonValue::Source> source_;
    simdjson::dom::element root_;
};

} // namespace batchllm
