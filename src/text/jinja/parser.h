// Tokens -> the tree, by jinja2's grammar. What is not supported is refused here, by name and line.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/jinja/syntax.h"

namespace batchllm::jinja {

struct Program {
    Body body;
    // Whether the template looks into "content" as a list of parts or asks what type it is. One that
    // does not can only print text.
    bool reads_content_parts = false;
};

// Valid UTF-8 in. An error begins with "line N: ".
Result<Program> parse(std::string_view source);

} // namespace batchllm::jinja
