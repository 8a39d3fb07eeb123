// What this machine offers, for display and for sizing the KV pool.
#pragma once

#include <cstdint>
#include <string>

namespace batchllm::cpu {

std::string processor_name();

// Bytes available without swapping, within the container's limit; 0 if unknown.
int64_t available_memory();

} // namespace batchllm::cpu
