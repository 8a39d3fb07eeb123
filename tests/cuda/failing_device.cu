// Preloaded into the program: device 1 fails for good when the file that BATCHLLM_FAIL_WHEN names is there
// (tests/cli/test_ranks.py).
#include <cstdlib>
#include <thread>

#include <cuda_runtime_api.h>
#include <unistd.h>

namespace {

__global__ void trap() { __trap(); }

// The library's runtime and this one have the same context of a device.
void wait_and_fail(const char *file) {
    while (access(file, F_OK) != 0) usleep(1000);
    cudaSetDevice(1);
    trap<<<1, 1>>>();
    cudaDeviceSynchronize();
}

__attribute__((constructor)) void start() {
    if (const char *file = std::getenv("BATCHLLM_FAIL_WHEN"))
        std::thread(wait_and_fail, file).detach();
}

} // namespace
