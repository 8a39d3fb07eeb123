// Handles a KV pool for which less memory is available than expected, because another process has
// taken some of it. A smaller pool still does the job, only slower. It may shrink to half the
// planned size; a much smaller pool would reject rows that fit the one the caller expects.
//
//     SmallerPool pool(pages, page_bytes);
//     while (<pool.pages() cannot be allocated> && pool.next()) ..
#pragma once

#include <cstdint>
#include <string>

namespace batchllm {

class SmallerPool {
  public:
    SmallerPool(int64_t pages, int64_t page_bytes)
        : planned_(pages), pages_(pages), page_bytes_(page_bytes) {}

    int64_t pages() const { return pages_; }
    bool smaller() const { return pages_ < planned_; }

    // Tries the next smaller size; false if there is none.
    bool next() {
        const int64_t pages = pages_ - (planned_ + 15) / 16;
        if (pages < 1 || pages < planned_ / 2) return false;
        pages_ = pages;
        return true;
    }

    // "" if the pool has the planned size.
    std::string warning() const {
        if (!smaller()) return {};
        return "a smaller pool of KV pages: " + std::to_string(pages_) + " instead of " +
               std::to_string(planned_) + ", of " + std::to_string(page_bytes_) +
               " bytes each: others have taken memory meanwhile";
    }

  private:
    int64_t planned_, pages_, page_bytes_;
};

} // namespace batchllm
