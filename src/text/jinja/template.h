// A chat model's Jinja template -> text, character for character as jinja2's sandbox renders it
// with the settings of transformers (docs/chat.md).
#pragma once

#include <string>
#include <string_view>

#include "base/json_view.h"
#include "base/status.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace batchllm::jinja {

// Immutable once parsed: any number of threads may render it.
class Template {
  public:
    // Fails with ROW_TEMPLATE, "line N: " and what is invalid or unsupported.
    static Result<Template> parse(std::string_view source);

    // Appends to *out; on an error *out is unchanged. The evaluator contains the variables and can
    // be used only once.
    Status render(Evaluator *evaluator, std::string *out) const;

    bool reads_content_parts() const { return program_.reads_content_parts; }

  private:
    Program program_;
};

// The limits of a rendering, depending on the size of its input.
Limits limits_for(size_t input_bytes);

// JSON whose objects have no duplicate keys -> a value on the heap. Its text stays in the document.
Result<Value> to_value(Heap *heap, JsonView view);

} // namespace batchllm::jinja
