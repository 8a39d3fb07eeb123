// BackendOptions and the machine -> what the backend is made with. Options: cuda_backend.h.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "device.h"
#include "forward.h"

namespace batchllm::cuda {

struct CudaOptions {
    ForwardOptions forward;
    bool overlap = true;
};

// The one device that "devices" names; 0 for "".
Result<int> read_device(const std::string &devices);

// Whether this build can run on the device, which becomes the calling thread's.
Result<cudaDeviceProp> open_device(int device);

Result<CudaOptions> read_options(const Model &model, const BackendOptions &options);

// Pages that the options and the memory left allow.
Result<int64_t> count_pages(const BackendOptions &options, int64_t page_bytes);

} // namespace batchllm::cuda
