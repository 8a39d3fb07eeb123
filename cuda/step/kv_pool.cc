#include "step/kv_pool.h"

#include <algorithm>
#include <numeric>

#include "attention/attention.h"
#include "backend/gpu/step_buffers.h"
#include "backend/kv_scales.h"
#include "latent/latent.h"

namespace batchllm::cuda {

KvPool::KvPool(const Model &model, DType type) : model_(model) {
    std::vector<int64_t> bytes; // [KV groups] of a page in a plane
    for (const KvGroup &group : model_.kv_groups) {
        const Attention &a = *model_.layers[static_cast<size_t>(group.layers[0])].attention();
        const auto element = static_cast<int32_t>(dtype_bytes(type));
        bytes.push_back(a.latent ? latent_page_bytes(padded_key_dim(a), element)
                                 : kv_page_bytes(a.kv_heads, padded_key_dim(a), element));
        plane_bytes_ = std::lcm(plane_bytes_, bytes.back());
    }
    for (const int64_t of_group : bytes) {
        page_scale_.push_back(static_cast<int32_t>(plane_bytes_ / of_group));
    }
}

int64_t KvPool::most_pages() const {
    return int64_t{INT32_MAX} / kPageKeys /
           *std::max_element(page_scale_.begin(), page_scale_.end());
}

Status KvPool::take_pages(int64_t pages) {
    // Padding of heads stays zero for ever.
    ASSIGN_OR_RETURN(pages_, zeroed_memory(pages * page_bytes(), "the KV pages"));
    page_count_ = pages;
    return {};
}

Status KvPool::load_scales(int32_t threads) {
    const std::vector<KvScales> scales = kv_scales(model_, threads);
    std::vector<float> all;
    for (const KvScales &of_layer : scales) {
        all.insert(all.end(), of_layer.k.begin(), of_layer.k.end());
        all.insert(all.end(), of_layer.v.begin(), of_layer.v.end());
    }
    const size_t bytes = all.size() * sizeof(float);
    ASSIGN_OR_RETURN(scale_values_,
                     DeviceMemory::create(static_cast<int64_t>(bytes), "scales of keys"));
    RETURN_IF_CUDA(cudaMemcpy(scale_values_.data(), all.data(), bytes, cudaMemcpyHostToDevice));
    const auto *next = scale_values_.as<float>();
    scales_.clear();
    for (const KvScales &of_layer : scales) {
        scales_.push_back({next, next + of_layer.k.size()});
        next += of_layer.k.size() + of_layer.v.size();
    }
    return {};
}

Status KvPool::stage_slots(const TokenBatch &batch, int64_t tokens, StepInput *input,
                           Staging *staging) {
    tokens_ = tokens;
    const auto count = static_cast<int64_t>(batch.pages.size()) * tokens;
    ASSIGN_OR_RETURN(int32_t *const all, input->stage_room<int32_t>(kSlots, count, staging));
    std::fill_n(all, count, -1);
    for (size_t g = 0; g < batch.pages.size(); ++g) {
        int32_t *const slots = all + static_cast<int64_t>(g) * tokens;
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            for (int32_t i = 0; i < node.token_count; ++i) {
                const int32_t key = node.length - node.token_count + i;
                const int32_t page =
                    batch.pages[g].page(static_cast<int32_t>(n), key / kPageKeys) * page_scale_[g];
                slots[node.token_begin + i] = page * kPageKeys + key % kPageKeys;
            }
        }
    }
    return {};
}

} // namespace batchllm::cuda
