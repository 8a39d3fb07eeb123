#include "device/device.h"

namespace batchllm::cuda {

Status check_cuda(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return {};
    return error(code == cudaErrorMemoryAllocation ? BATCHLLM_ERROR_OUT_OF_MEMORY
                                                   : BATCHLLM_ERROR_DEVICE,
                 "cuda: %s (%s) in %.200s", cudaGetErrorString(code), cudaGetErrorName(code), what);
}

template <Place place>
Result<Memory<place>> Memory<place>::create(int64_t bytes, const char *what) {
    Memory memory;
    if (bytes <= 0) return memory;
    void *data = nullptr;
    const auto size = static_cast<size_t>(bytes);
    const cudaError_t code = place == Place::device
                                 ? cudaMalloc(&data, size)
                                 : cudaHostAlloc(&data, size, cudaHostAllocDefault);
    if (code != cudaSuccess) {
        cudaGetLastError(); // a failed allocation does not break the context
        return error(code == cudaErrorMemoryAllocation ? BATCHLLM_ERROR_OUT_OF_MEMORY
                                                       : BATCHLLM_ERROR_DEVICE,
                     "cuda: %lld bytes of %s memory for %s: %s", static_cast<long long>(bytes),
                     place == Place::device ? "device" : "pinned", what, cudaGetErrorString(code));
    }
    memory.data_ = static_cast<std::byte *>(data);
    memory.bytes_ = bytes;
    return memory;
}

template <Place place> Memory<place>::~Memory() {
    if (data_ == nullptr) return;
    if (place == Place::device) {
        cudaFree(data_);
    } else {
        cudaFreeHost(data_);
    }
}

template class Memory<Place::device>;
template class Memory<Place::pinned>;

Result<DeviceMemory> zeroed_memory(int64_t bytes, const char *what) {
    ASSIGN_OR_RETURN(DeviceMemory memory, DeviceMemory::create(bytes, what));
    if (bytes == 0) return memory;
    RETURN_IF_ERROR(
        check_cuda(cudaMemset(memory.data(), 0, static_cast<size_t>(memory.bytes())), what));
    return memory;
}

Result<Stream> Stream::create() {
    Stream stream;
    RETURN_IF_CUDA(cudaStreamCreateWithFlags(&stream.raw_, cudaStreamNonBlocking));
    return stream;
}

Result<Event> Event::create(bool timed, bool sleeps) {
    Event event;
    const unsigned flags = (timed ? cudaEventDefault : cudaEventDisableTiming) |
                           (sleeps ? cudaEventBlockingSync : cudaEventDefault);
    RETURN_IF_CUDA(cudaEventCreateWithFlags(&event.raw_, flags));
    return event;
}

} // namespace batchllm::cuda
