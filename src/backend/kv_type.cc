#include "backend/kv_type.h"

#include "batchllm.h"

namespace batchllm {

Result<DType> read_kv_type(const std::string &value, DType compute) {
    if (value == "auto") return compute;
    if (value != "fp8") {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "backend option kv_type=%s: auto or fp8",
                     value.c_str());
    }
    if (compute == DType::f32) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "backend option kv_type=fp8: compute_type must be bf16 or f16, it is f32");
    }
    return DType::e4m3;
}

std::string name_of_kv_type(DType type) {
    return type == DType::e4m3 ? ", keys and values in fp8 (e4m3)" : "";
}

} // namespace batchllm
