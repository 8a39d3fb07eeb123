#include "backend/cpu/kv_pages.h"

#include <limits>

namespace batchllm::cpu {

Result<KvPages> KvPages::create(const ModelConfig &config, DType element, int32_t page_tokens,
                                int64_t bytes) {
    KvPages pool;
    pool.page_tokens_ = page_tokens;
    pool.kv_heads_ = config.kv_heads;
    pool.group_bytes_ =
        int64_t{kGroupTokens} * padded_head_dim(config.head_dim) * dtype_bytes(element);
    pool.head_bytes_ = 2 * (page_tokens / kGroupTokens) * pool.group_bytes_;
    pool.page_bytes_ = pool.head_bytes_ * config.kv_heads * config.layers;
    pool.pages_ = bytes / pool.page_bytes_;
    // Page numbers are 32-bit.
    if (pool.pages_ > std::numeric_limits<int32_t>::max()) {
        pool.pages_ = std::numeric_limits<int32_t>::max();
    }
    if (pool.pages_ < 1) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory: %lld bytes hold not one KV page of %d tokens (%lld bytes)",
                     static_cast<long long>(bytes), page_tokens,
                     static_cast<long long>(pool.page_bytes_));
    }
    ASSIGN_OR_RETURN(pool.data_, Buffer::create(pool.pages_ * pool.page_bytes_, "KV pages"));
    return pool;
}

} // namespace batchllm::cpu
