// The pool of KV pages: keys and values of page_tokens tokens, for every layer and KV head.
//
//   [layer][page][kv_head] { keys [page_tokens / 16][16 * D], values [page_tokens / 16][16 * D] }
//
// in the key and value groups of kernels.h, D = head_dim padded to a multiple of 16. A layer's pages
// stand together, so that consecutive pages of a node are read as one stream.
//
// Address space is taken at once and memory as pages are first written, so unused pages cost nothing.
#pragma once

#include <cstdint>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "base/dtype.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm::cpu {

class KvPages {
  public:
    // page_tokens: a multiple of 16. bytes: of the whole pool; an error when not one page fits.
    static Result<KvPages> create(const ModelConfig &config, DType element, int32_t page_tokens,
                                  int64_t bytes);

    int32_t page_tokens() const { return page_tokens_; }
    int64_t page_bytes() const { return page_bytes_; }
    int64_t pages() const { return pages_; }

    // Group `group` of a page: tokens [16 group, 16 group + 16) of it.
    std::byte *keys(int32_t layer, int32_t page, int32_t kv_head, int32_t group) const {
        return head(layer, page, kv_head) + group * group_bytes_;
    }
    std::byte *values(int32_t layer, int32_t page, int32_t kv_head, int32_t group) const {
        return head(layer, page, kv_head) + (page_tokens_ / kGroupTokens + group) * group_bytes_;
    }
    int64_t group_bytes() const { return group_bytes_; }

  private:
    std::byte *head(int64_t layer, int64_t page, int64_t kv_head) const {
        return data_.data() + ((layer * pages_ + page) * kv_heads_ + kv_head) * head_bytes_;
    }

    Buffer data_;
    int32_t page_tokens_ = 0;
    int64_t kv_heads_ = 0;
    int64_t group_bytes_ = 0;
    int64_t head_bytes_ = 0; // keys and values of one head in one page
    int64_t page_bytes_ = 0;
    int64_t pages_ = 0;
};

} // namespace batchllm::cpu
