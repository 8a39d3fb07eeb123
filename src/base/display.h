// Names and numbers formatted for people.
#pragma once

#include <cstdint>
#include <string>

namespace batchllm {

const char *finish_name(int32_t reason); // "stop" of BATCHLLM_FINISH_STOP
std::string format_count(int64_t value); // 12,345

} // namespace batchllm
