// CUDA and cuBLASLt that fail on purpose: every call of the backend, kernel launches too, goes through a
// table (cuda_faults.cc) where the program is linked with --wrap. One call is made to fail, or all from one
// on: it is not made, and an error is returned. What gives something up is made all the same, as CUDA does
// when it reports the failure of an earlier call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cuda_faults {

struct Call {
    const char *name;
    const void *site; // where it is called from
};

// From now on calls are counted, from 0 on; number k fails, and with `forever` all behind it. k -1: none.
void start(int64_t k, bool forever);
// No call fails any more. Those since start().
std::vector<Call> stop();
// The call that failed first since start(), or null.
const char *failed();
// What has been taken and not given back: "2 cudaMalloc, 1 cublasLtCreate", or "".
std::string taken();

} // namespace cuda_faults
