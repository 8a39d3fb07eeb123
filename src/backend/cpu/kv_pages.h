// The pool of KV pages. A page has the keys and values of page_tokens tokens, for every layer of a
// KV group and every KV head.
//
//   [plane][page][kv_head] { keys [page_tokens / 16][16 * D], values [page_tokens / 16][16 * D] }
//
// in the key and value groups of kernels.h, where D = head_dim padded to a multiple of 16. Latents
// have keys alone. A plane
// is the index of a layer in its KV group: layers of different groups share a plane, but never a
// page in it. The pages of a plane are contiguous, so consecutive pages of a node are read as one
// stream. If layers differ in heads or head_dim, a plane's page has room for the largest.
//
// Address space is reserved at once. Memory is used when pages are first written, so unused pages
// cost nothing.
#pragma once

#include <cstdint>

#include <string>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "base/dtype.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm::cpu {

class KvPages {
  public:
    // page_tokens: a multiple of 16. bytes: of the whole pool; an error if not even one page fits.
    // If the system provides less, the pool is smaller (SmallerPool).
    static Result<KvPages> create(const Model &model, DType element, int32_t page_tokens,
                                  int64_t bytes);

    // Keys and values of one token, in the pages of all KV groups.
    static int64_t token_bytes(const Model &model, DType element);

    int32_t page_tokens() const { return page_tokens_; }
    int64_t page_bytes() const { return page_bytes_; }
    int64_t pages() const { return pages_; }
    const std::string &warning() const { return warning_; } // of a smaller pool; or ""

    // Group `group` of a layer's page: tokens [16 group, 16 group + 16) of it.
    std::byte *keys(const Attention &layer, int32_t page, int32_t kv_head, int32_t group) const {
        return head(layer, page, kv_head) + group * group_bytes(layer);
    }
    std::byte *values(const Attention &layer, int32_t page, int32_t kv_head, int32_t group) const {
        return head(layer, page, kv_head) +
               (page_tokens_ / kGroupTokens + group) * group_bytes(layer);
    }
    int64_t group_bytes(const Attention &layer) const {
        return int64_t{kGroupTokens} * padded_head_dim(layer.head_dim) * element_bytes_;
    }

    // Keys and values, or keys alone.
    static int64_t parts(const Attention &layer) { return layer.latent ? 1 : 2; }

  private:
    std::byte *head(const Attention &layer, int64_t page, int64_t kv_head) const {
        return data_.data() + (layer.kv_plane * pages_ + page) * plane_bytes_ +
               kv_head * parts(layer) * (page_tokens_ / kGroupTokens) * group_bytes(layer);
    }

    Buffer data_;
    int32_t page_tokens_ = 0;
    int64_t element_bytes_ = 0;
    int64_t plane_bytes_ = 0; // of one page in one plane
    int64_t page_bytes_ = 0;
    int64_t pages_ = 0;
    std::string warning_;
};

} // namespace batchllm::cpu
