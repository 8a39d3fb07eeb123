// A device's compute capability -> the attention kernels that it runs, and their costs there.
#pragma once

#include <string_view>

#include "attention/attention.h"
#include "attention/worklist.h"

namespace batchllm::cuda {

struct AttentionFamily {
    const char *name;
    int32_t least, most; // compute capabilities that run it, major * 10 + minor
    cudaError_t (*launch)(const AttentionArguments &arguments, int sms, cudaStream_t stream);
    void (*set_costs)(WorklistOptions *options); // the shape and kv_bytes are already set
};

// Whether it is that of sm_90a, whose instructions other kernels use too.
inline bool is_sm90(const AttentionFamily *family) {
    return family != nullptr && family->most == 90;
}

// name: "auto", the device's best; or "sm80", "sm90" or "sm80_small" (sm80 as on devices with
// little shared memory; for checks). Null if the name is unknown, or if the device does not run it.
const AttentionFamily *find_attention(std::string_view name, int32_t major, int32_t minor);

} // namespace batchllm::cuda
