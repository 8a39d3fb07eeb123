// libFuzzer target: any bytes as a safetensors file. A file that is accepted must follow the
// format's rules.
#include <cstdlib>
#include <span>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::span<const std::byte> file(reinterpret_cast<const std::byte *>(data), size);
    const auto parsed = batchllm::parse_safetensors(file, "fuzz");
    if (!parsed.ok()) return 0;
    int64_t end = -1;
    for (const batchllm::StoredTensor &tensor : *parsed) {
        if (tensor.bytes < 0 || tensor.offset < 10) std::abort();
        if (end >= 0 && tensor.offset != end) std::abort();
        end = tensor.offset + tensor.bytes;
    }
    if (end >= 0 && end != static_cast<int64_t>(size)) std::abort();
    return 0;
}
