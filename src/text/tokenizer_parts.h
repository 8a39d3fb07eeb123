// The small parts of tokenizer.json (everything but model and added_tokens) -> their steps.
//
// Each reader receives the part's value, which is not null, and rejects unsupported values by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer_spec.h"

namespace batchllm {

Status read_normalizer(const JsonValue &part, std::vector<NormalizerStep> *steps);

// Sets spec->pre_tokenizer and spec->byte_level.
Status read_pre_tokenizer(const JsonValue &part, TokenizerSpec *spec);

// Sets spec->special. The vocabulary and the added tokens must already be set.
Status read_post_processor(const JsonValue &part, TokenizerSpec *spec);

Status read_decoder(const JsonValue &part, std::vector<DecoderStep> *steps);

// {"String": text}, not empty: the pattern of Replace. Regular expressions are rejected.
Result<std::string> read_string_pattern(const JsonValue &pattern);

// A string of one character.
Result<std::string> read_character(const JsonValue &object, std::string_view key);

} // namespace batchllm
