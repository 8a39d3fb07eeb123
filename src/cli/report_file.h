// A command's --report: what there is to show is collected while the command runs, and written at its end.
#pragma once

#include <memory>
#include <string>

#include "cli/api.h"

namespace batchllm::cli {

using ReportHandle = std::unique_ptr<batchllm_report, FreeWith<batchllm_report_destroy>>;

struct ReportSeconds {
    double total = 0;
    double tokenize = 0, plan = 0; // outside of an engine
};

// Without a path nothing is collected, and every call is OK.
class ReportFile {
  public:
    static Result<ReportFile> open(const std::string &path);

    bool wanted() const { return handle_ != nullptr; }
    batchllm_report *handle() { return handle_.get(); }
    Status add_failure(int64_t line, const std::string &kind, const std::string &message);
    Status add_fact(const char *name, const std::string &value); // unless the value is empty
    // Replaces an existing file as a whole, or leaves it as it was.
    Status write(const std::string &title, const ReportSeconds &seconds);

  private:
    std::string path_;
    ReportHandle handle_;
};

// The name of an input for a heading: "rows.jsonl" of "data/rows.jsonl", "stdin" of "-".
std::string heading_of(const std::string &path);

} // namespace batchllm::cli
