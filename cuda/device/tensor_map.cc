#include "device/tensor_map.h"

#include <atomic>

namespace batchllm::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looks up the driver's function, since this library is not linked with the driver.
cudaError_t find_encode(Encode *encode) {
    static std::atomic<Encode> found = nullptr;
    *encode = found.load(std::memory_order_relaxed);
    if (*encode != nullptr) return cudaSuccess;
    void *address = nullptr;
    cudaDriverEntryPointQueryResult outcome{};
#if CUDART_VERSION >= 12050
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address,
                                                                12000, cudaEnableDefault, &outcome);
#else
    const cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &outcome);
#endif
    if (status != cudaSuccess) return status;
    if (outcome != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    *encode = reinterpret_cast<Encode>(address);
    found.store(*encode, std::memory_order_relaxed);
    return cudaSuccess;
}

// box_bytes: of a box's row, 128 or 32.
cudaError_t make_map(const void *data, DType type, int64_t rows, int64_t columns, int64_t matrices,
                     int64_t step, uint32_t box_bytes, int32_t box_rows, CUtensorMap *map) {
    Encode encode = nullptr;
    const cudaError_t status = find_encode(&encode);
    if (status != cudaSuccess) return status;
    const auto bytes = static_cast<uint32_t>(dtype_bytes(type));
    const CUtensorMapDataType element = type == DType::f32    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                        : type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : bytes == 2          ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                                static_cast<cuuint64_t>(matrices)};
    const cuuint64_t strides[] = {sizes[0] * bytes, static_cast<cuuint64_t>(step)};
    const cuuint32_t box[] = {box_bytes / bytes, static_cast<cuuint32_t>(box_rows), 1};
    const cuuint32_t steps[] = {1, 1, 1};
    const CUresult result =
        encode(map, element, matrices > 0 ? 3 : 2, const_cast<void *>(data), sizes, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               box_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace

cudaError_t make_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                            int32_t box_rows, CUtensorMap *map) {
    return make_map(data, type, rows, columns, 0, 0, 128, box_rows, map);
}

cudaError_t make_narrow_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                                   int32_t box_rows, CUtensorMap *map) {
    return make_map(data, type, rows, columns, 0, 0, 32, box_rows, map);
}

cudaError_t make_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                            int64_t matrices, int64_t step, int32_t box_rows, CUtensorMap *map) {
    return make_map(data, type, rows, columns, matrices, step, 128, box_rows, map);
}

} // namespace batchllm::cuda
