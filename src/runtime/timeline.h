// The composition of each batch -> a line of CSV.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "base/status.h"
#include "schedule/scheduler.h"

namespace batchllm {

// A write error (a full disk) ends the timeline, not the job: write() or flush() returns it once,
// and nothing is written afterwards.
class Timeline {
  public:
    // Replaces the file, or writes to the open descriptor that the path names (base/file.h).
    static Result<Timeline> open(const std::string &path);

    Status write(int64_t step, double milliseconds, const StepCounts &counts, int32_t device);
    Status flush();

  private:
    struct Close {
        void operator()(std::FILE *file) const { std::fclose(file); }
    };
    Status failed();

    std::string path_;
    std::unique_ptr<std::FILE, Close> file_;
    int64_t unflushed_ = 0;
};

} // namespace batchllm
