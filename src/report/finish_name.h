// How a row's end is named: on the page, and by batchllm_finish_name.
#pragma once

#include <cstdint>

namespace batchllm {

const char *finish_name(int32_t reason); // "stop" of BATCHLLM_FINISH_STOP; "error" of other numbers

} // namespace batchllm
