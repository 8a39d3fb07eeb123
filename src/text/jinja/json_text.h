// Values -> JSON text, as Python's json.dumps writes it.
#pragma once

#include <string>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    bool indented = false;
    std::string indent; // for one level, if the output is indented
    std::string item_separator = ", ";
    std::string key_separator = ": ";
};

Status append_json(Evaluator *evaluator, const JsonStyle &style, const Value &value,
                   std::string *out);

} // namespace batchllm::jinja
