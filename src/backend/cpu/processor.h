// What this machine offers, for display and for the size of the KV pool.
#pragma once

#include <cstdint>
#include <string>

namespace batchllm::cpu {

std::string processor_name();

// Bytes that can be taken without swapping, within the container's limit; 0 when unknown.
int64_t available_memory();

} // namespace batchllm::cpu
