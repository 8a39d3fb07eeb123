// BackendOptions and the machine -> the settings that the backend is created with. Options:
// docs/backends.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/state_memory.h"
#include "device/device.h"
#include "step/forward_options.h"

namespace batchllm::cuda {

// Without tensor_parallel, which is several backends'.
struct CudaOptions {
    ForwardOptions forward;
    bool overlap = true;
    StateOptions states;
};

// The devices that "devices" names, as many as ranks; the first ones for "".
Result<std::vector<int>> read_devices(const std::string &devices, int32_t ranks);
// The single device that "devices" names; 0 for "".
Result<int> read_device(const std::string &devices);

// What the driver reports about a device.
struct DeviceFacts {
    int driver = 0; // the CUDA version that it supports, such as 13000; 0: no driver
    cudaError_t counted = cudaSuccess, asked = cudaSuccess; // results of the queries for the rest
    int count = 0;                                          // devices
    int device = 0;
    const char *name = "";
    int major = 0, minor = 0; // compute capability
};

// Whether this build can run on the device.
Status check_device(const DeviceFacts &facts);

// Checks that this build can run on the device, and makes it the calling thread's device.
Result<cudaDeviceProp> open_device(int device);

// default_step_tokens() (backend/gpu/step_buffers.h) for these options.
int64_t step_tokens_by_memory(const Model &model, const ForwardOptions &options,
                              int64_t memory_bytes);

Result<CudaOptions> read_options(const Model &model, const BackendOptions &options,
                                 const cudaDeviceProp &device);

// Bytes for keys, values and states that the options and the free memory allow. beside_adapters: what else they take if they
// have memory of their own.
Result<int64_t> pool_bytes(const BackendOptions &options, int64_t beside_adapters);
// How many pages fit in these bytes.
Result<int64_t> count_pages(int64_t bytes, int64_t page_bytes);

} // namespace batchllm::cuda
