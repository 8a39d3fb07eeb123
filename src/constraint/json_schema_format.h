// `format` -> the language of the strings that have it.
#pragma once

#include <string_view>

#include "constraint/automaton.h"

namespace batchllm {

enum class FormatKind : uint8_t {
    unknown,   // an annotation, whatever it says
    language,  // decided by an automaton
    undecided, // known, and beyond what an automaton can tell
};

FormatKind format_kind(std::string_view name);

struct FormatAutomata {
    Automaton language;
    Automaton text; // the same as JSON, with its quotation marks
};

// Whether the language is all of the format: of times leap seconds are left out but for those in UTC, of
// host names those with internationalised labels.
bool format_is_whole(std::string_view name);

// Of a format of kind `language`. Made when it is first asked for, and kept: nearly all schemas that name
// a format name one of these few.
const FormatAutomata &format_automata(std::string_view name);

} // namespace batchllm
