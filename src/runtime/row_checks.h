// Whether a row's tokens can be computed: its tokens are the model's, and it is no longer than a
// request may be and a device's pool of pages has room for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "runtime/columns.h"
#include "runtime/row_store.h"
#include "schedule/scheduler.h"

namespace batchllm {

// The KV pages of a device.
struct DevicePages {
    int64_t longest_request; // Scheduler::longest_request()
    int64_t pages;
    int32_t page_tokens;
    const Scheduler *scheduler = nullptr; // for pictures
    int64_t picture_tokens = 0;           // BackendInfo::picture_tokens
    int64_t picture_patches = 0;          // BackendInfo::picture_patches
};

class RowChecks {
  public:
    RowChecks(int32_t vocabulary, int64_t max_request_tokens, bool scores_tokens)
        : vocabulary_(vocabulary), max_request_tokens_(max_request_tokens),
          scores_tokens_(scores_tokens) {}
    // Those of the devices that have not failed: any of them may get the row.
    void set_devices(std::vector<DevicePages> devices) { devices_ = std::move(devices); }
    // Pictures have to be in one batch, so the last token of a prompt, which is computed by itself, cannot be
    // a picture's.
    void set_whole_pictures(bool whole) { cut_by_end_ = whole; }

    // pictures: those of the prompt; null: none.
    Status check(std::span<const int32_t> prompt, const RowPictures *pictures,
                 const PreparedParams &params) const;
    Status check(std::span<const int32_t> prompt, const RowPictures *pictures,
                 const ScoreSpec &score) const;

  private:
    Status check_tokens(const char *what, std::span<const int32_t> tokens, bool pictures) const;
    Status check_prompt(std::span<const int32_t> prompt, const RowPictures *pictures,
                        int64_t generated) const;
    Status check_pictures(const RowPictures *pictures, int64_t prompt, int64_t stored) const;
    Status check_pages(const char *what, int64_t tokens, bool all_stored) const;

    int32_t vocabulary_;
    int64_t max_request_tokens_;
    bool scores_tokens_;
    bool cut_by_end_ = false;
    std::vector<DevicePages> devices_;
};

} // namespace batchllm
