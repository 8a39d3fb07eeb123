// Tokens -> the tree, by jinja2's grammar. Unsupported constructs are refused here, by name and
// line.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja/syntax.h"

namespace batchllm::jinja {

struct Program {
    Body body;
    // Whether the template uses "content" as a list of parts or asks for its type. One that does
    // neither can only print text.
    bool reads_content_parts = false;
};

// Valid UTF-8 in. An error begins with "line N: ".
Result<Program> parse(std::string_view source);

} // namespace batchllm::jinja
