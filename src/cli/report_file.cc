#include "cli/report_file.h"

namespace batchllm::cli {

Result<ReportFile> ReportFile::open(const std::string &path) {
    ReportFile file;
    if (path.empty()) return file;
    file.path_ = path;
    batchllm_report *made = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_report_create(&made)));
    file.handle_.reset(made);
    return file;
}

Status ReportFile::add_failure(int64_t line, const std::string &kind, const std::string &message) {
    if (!wanted()) return {};
    return call_status(batchllm_report_add_failure(handle(), static_cast<uint64_t>(line),
                                                   kind.c_str(), message.c_str()));
}

Status ReportFile::add_fact(const char *name, const std::string &value) {
    if (!wanted() || value.empty()) return {};
    return call_status(batchllm_report_add_fact(handle(), name, value.c_str()));
}

Status ReportFile::write(const std::string &title, const ReportSeconds &seconds) {
    if (!wanted()) return {};
    batchllm_report_options options;
    batchllm_report_options_init(&options, sizeof options);
    options.title = title.c_str();
    options.seconds = seconds.total;
    options.tokenize_seconds = seconds.tokenize;
    options.plan_seconds = seconds.plan;
    return call_status(batchllm_report_save(handle(), &options, path_.c_str()));
}

std::string heading_of(const std::string &path) {
    if (path == "-") return "stdin";
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

} // namespace batchllm::cli
