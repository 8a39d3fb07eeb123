// `format` -> the language of its strings.
#pragma once

#include <string_view>

#include "constraint/automaton.h"

namespace batchllm {

enum class FormatKind : uint8_t {
    unknown,   // treated as an annotation
    language,  // decided by an automaton
    undecided, // known, but no automaton can decide it
};

FormatKind format_kind(std::string_view name);

struct FormatAutomata {
    Automaton language;
    Automaton text; // the same as JSON, including the quotation marks
};

// Whether the language covers the whole format. It does not for times, which lack leap seconds
// other than those in UTC, and host names, which lack internationalised labels.
bool format_is_whole(std::string_view name);

// For a format of kind `language`. Created on first use and cached, because nearly all schemas with
// a format use one of these few.
const FormatAutomata &format_automata(std::string_view name);

} // namespace batchllm
