// `format` -> the language of the strings that have it.
#pragma once

#include <string_view>

#include "constraint/automaton.h"

namespace batchllm {

enum class FormatKind : uint8_t {
    unknown,   // only an annotation
    language,  // decided by an automaton
    undecided, // known, but no automaton can decide it
};

FormatKind format_kind(std::string_view name);

struct FormatAutomata {
    Automaton language;
    Automaton text; // the same as JSON, with its quotation marks
};

// Whether the language covers the whole format: times lack leap seconds except those in UTC, and
// host names lack internationalised labels.
bool format_is_whole(std::string_view name);

// For a format of kind `language`. Made on first use and kept, because nearly all schemas with a
// format use one of these few.
const FormatAutomata &format_automata(std::string_view name);

} // namespace batchllm
