// Whether a row's tokens can be computed: its tokens are the model's, and it is no longer than a
// request may be and a device's pool of pages has room for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "runtime/columns.h"
#include "runtime/row_store.h"

namespace batchllm {

// The KV pages of a device.
struct DevicePages {
    int64_t longest_request; // Scheduler::longest_request()
    int64_t pages;
    int32_t page_tokens;
};

class RowChecks {
  public:
    RowChecks(int32_t vocabulary, int64_t max_request_tokens, bool scores_tokens)
        : vocabulary_(vocabulary), max_request_tokens_(max_request_tokens),
          scores_tokens_(scores_tokens) {}
    // Those of the devices that have not failed: any of them may get the row.
    void set_devices(std::vector<DevicePages> devices) { devices_ = std::move(devices); }

    Status check(std::span<const int32_t> prompt, const PreparedParams &params) const;
    Status check(std::span<const int32_t> prompt, const ScoreSpec &score) const;

  private:
    Status check_tokens(const char *what, std::span<const int32_t> tokens) const;
    Status check_prompt(std::span<const int32_t> prompt, int64_t generated) const;
    Status check_pages(const char *what, int64_t tokens, bool all_stored) const;

    int32_t vocabulary_;
    int64_t max_request_tokens_;
    bool scores_tokens_;
    std::vector<DevicePages> devices_;
};

} // namespace batchllm
