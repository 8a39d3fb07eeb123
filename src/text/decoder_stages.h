// The stages of a decoder chain (decoder.h): one for each DecoderStep::Kind.
#pragma once

#include <memory>

#include "text/decoder.h"

namespace batchllm {

// next must outlive the stage.
std::unique_ptr<TokenSink> make_decoder_stage(const DecoderStep &step, TokenSink *next);

} // namespace batchllm
