// Tokens -> the tree, according to jinja2's grammar. Unsupported constructs are rejected here, with
// their name and line.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja/syntax.h"

namespace batchllm::jinja {

struct Program {
    Body body;
    // Whether the template uses "content" as a list of parts or checks its type. A template that
    // does neither can only print text.
    bool reads_content_parts = false;
};

// source must be valid UTF-8. An error begins with "line N: ".
Result<Program> parse(std::string_view source);

} // namespace batchllm::jinja
