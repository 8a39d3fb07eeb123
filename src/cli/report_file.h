// A command's --report: data is collected while the command runs, and the report is written at the
// end.
#pragma once

#include <memory>
#include <string>

#include "cli/api.h"

namespace batchllm::cli {

using ReportHandle = std::unique_ptr<batchllm_report, FreeWith<batchllm_report_destroy>>;

struct ReportSeconds {
    double total = 0;
    double tokenize = 0, plan = 0; // spent outside an engine
};

// Without a path nothing is collected, and every call returns OK.
class ReportFile {
  public:
    static Result<ReportFile> open(const std::string &path);

    bool wanted() const { return handle_ != nullptr; }
    batchllm_report *handle() { return handle_.get(); }
    Status add_failure(int64_t line, const std::string &kind, const std::string &message);
    Status add_fact(const char *name, const std::string &value); // ignored if the value is empty
    // Replaces an existing file as a whole; on an error the file is unchanged.
    Status write(const std::string &title, const ReportSeconds &seconds);

  private:
    std::string path_;
    ReportHandle handle_;
};

// The name of an input for a heading: "data/rows.jsonl" becomes "rows.jsonl", "-" becomes "stdin".
std::string heading_of(const std::string &path);

} // namespace batchllm::cli
