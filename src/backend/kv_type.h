// The backend option kv_type=auto|fp8: the type in which keys and values are stored.
#pragma once

#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace batchllm {

// auto: the compute type; fp8: e4m3.
Result<DType> read_kv_type(const std::string &value, DType compute);

// For BackendInfo::compute_type: "", or ", keys and values in fp8 (e4m3)".
std::string name_of_kv_type(DType type);

} // namespace batchllm
