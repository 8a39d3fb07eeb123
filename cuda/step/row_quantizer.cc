#include "step/row_quantizer.h"

#include "elementwise/quantize.h"

namespace batchllm::cuda {

Result<std::byte *> RowQuantizer::begin(DType element, int64_t rows, int64_t columns,
                                        cudaStream_t stream) {
    const int64_t bytes = rows * columns * dtype_bytes(element);
    if (whole_.bytes() < bytes) {
        RETURN_IF_CUDA(cudaStreamSynchronize(stream)); // the last matrix may still be read
        whole_ = {};
        ASSIGN_OR_RETURN(whole_, DeviceMemory::create(bytes, "quantising weights"));
    }
    element_ = element;
    rows_ = rows;
    columns_ = columns;
    stream_ = stream;
    return whole_.data();
}

Status RowQuantizer::end(std::byte *to, float *scales) {
    const QuantizeArguments arguments{element_,
                                      whole_.data(),
                                      to,
                                      {scales},
                                      static_cast<int32_t>(rows_),
                                      static_cast<int32_t>(columns_)};
    return check_cuda(launch_quantize_rows(arguments, stream_), "quantising weights");
}

} // namespace batchllm::cuda
