// Shared by the readers of a "quantization_config".
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "model/quantization.h"

namespace batchllm {

// The value of the key, or `otherwise` if it is absent.
Result<std::string> text_of(const JsonValue &object, std::string_view key,
                            const std::string &otherwise);
// Fails, as unsupported, if the value is not one of these.
Status one_of(const JsonValue &object, std::string_view key, const std::string &otherwise,
              std::initializer_list<std::string_view> known, const std::string &what);

// "quant_method" awq and gptq: how a matrix is stored if it has the tensors of that method.
Result<ScaleScheme> read_awq(const JsonValue &config);
Result<ScaleScheme> read_gptq(const JsonValue &config);
// "weights" of a compressed-tensors group, if they have four bits.
Result<ScaleScheme> read_four_bit_weights(const JsonValue &weights);

} // namespace batchllm
