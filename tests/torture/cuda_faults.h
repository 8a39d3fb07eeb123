// CUDA and cuBLASLt that fail on purpose: every call of the backend, kernel launches too, goes through a
// table (cuda_faults.cc) where the program is linked with --wrap. One call is made to fail, or all
// from one on: the call is not made, and returns an error. Calls that free something are still
// made, as CUDA does when it reports the failure of an earlier call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cuda_faults {

struct Call {
    const char *name;
    const void *site; // the address it is called from
};

// Counts calls from now on, from 0; number k fails, and with `forever` all later ones. k -1: none
// fails.
void start(int64_t k, bool forever);
// Stops failing calls. Returns the calls since start().
std::vector<Call> stop();
// The first call that failed since start(), or null.
const char *failed();
// What has been allocated and not freed: "2 cudaMalloc, 1 cublasLtCreate", or "".
std::string taken();

} // namespace cuda_faults
