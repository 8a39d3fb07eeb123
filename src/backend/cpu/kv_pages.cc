#include "backend/cpu/kv_pages.h"

#include <algorithm>
#include <limits>

#include "backend/smaller_pool.h"

namespace batchllm::cpu {

int64_t KvPages::token_bytes(const Model &model, DType element) {
    int64_t heads = 0; // numbers per token in the largest plane
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr) continue;
        heads = std::max(heads, parts(*a) * a->kv_heads * padded_head_dim(a->head_dim));
    }
    return heads * dtype_bytes(element) * model.kv_planes() *
           static_cast<int64_t>(model.kv_groups.size());
}

Result<KvPages> KvPages::create(const Model &model, DType element, int32_t page_tokens,
                                int64_t bytes) {
    KvPages pool;
    pool.page_tokens_ = page_tokens;
    pool.element_bytes_ = dtype_bytes(element);
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr) continue;
        const int64_t head_bytes = parts(*a) * (page_tokens / kGroupTokens) * pool.group_bytes(*a);
        pool.plane_bytes_ = std::max(pool.plane_bytes_, a->kv_heads * head_bytes);
    }
    pool.page_bytes_ = pool.plane_bytes_ * model.kv_planes();
    pool.pages_ = bytes / pool.page_bytes_;
    // Page numbers are 32-bit.
    if (pool.pages_ > std::numeric_limits<int32_t>::max()) {
        pool.pages_ = std::numeric_limits<int32_t>::max();
    }
    if (pool.pages_ < 1) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                     "kv_memory: %lld bytes are too few for one KV page of %d tokens (%lld bytes)",
                     static_cast<long long>(bytes), page_tokens,
                     static_cast<long long>(pool.page_bytes_));
    }
    SmallerPool size(pool.pages_, pool.page_bytes_);
    Result<Buffer> data = Buffer::create(pool.pages_ * pool.page_bytes_, "KV pages");
    while (!data.ok() && size.next()) {
        data = Buffer::create(size.pages() * pool.page_bytes_, "KV pages");
    }
    if (!data.ok()) {
        return error(data.status().code(),
                     "%s; kv_memory_bytes (--kv-memory) says how many to take",
                     data.status().message().c_str());
    }
    pool.data_ = std::move(data).value();
    pool.pages_ = size.pages();
    pool.warning_ = size.warning();
    return pool;
}

} // namespace batchllm::cpu
