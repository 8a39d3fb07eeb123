#include "cli/job_mistakes.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sys/stat.h>
#include <utility>

#include "base/display.h"
#include "base/file.h"
#include "base/printable.h"

namespace batchllm::cli {
namespace {

Status check(batchllm_engine *engine, const SamplingOptions &options) {
    ParameterViews views;
    const batchllm_params params = view_params(options, &views);
    return call_status(batchllm_engine_check_params(engine, &params));
}

} // namespace

Status check_options(batchllm_engine *engine, const SamplingOptions &options) {
    Status checked = check(engine, options);
    if (checked.ok()) return {};
    // If the model cannot generate at all, every row without another task gets that error.
    if (options.task == Task::generate && !check(engine, SamplingOptions()).ok()) return {};
    return Status(checked.code(), "no row can run with these options: " + checked.message());
}

Status check_model_name(const std::string &model) {
    if (model.find("://") != std::string::npos) {
        return error(
            BATCHLLM_ERROR_IO,
            "%s is an address: nothing is downloaded; --model names a directory on this "
            "machine (hf download NAME --local-dir DIR gets one from the Hugging Face Hub)",
            model.c_str());
    }
    const bool part = model.ends_with("config.json") || model.ends_with(".safetensors");
    struct stat info;
    if (part && ::stat(model.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
        return error(BATCHLLM_ERROR_IO, "%s is a file: --model names the directory that it is in",
                     model.c_str());
    }
    const size_t slash = model.find('/');
    const auto plain = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
    };
    const bool name =
        slash != std::string::npos && slash > 0 && slash + 1 < model.size() && model[0] != '.' &&
        std::all_of(model.begin(), model.end(), [&](char c) { return c == '/' || plain(c); }) &&
        model.find('/', slash + 1) == std::string::npos;
    if (!name) return {};
    ASSIGN_OR_RETURN(const bool folder, file_exists(model.substr(0, slash)));
    if (folder) return {};
    return error(
        BATCHLLM_ERROR_IO,
        "%s: there is no such directory. If it is a name on the Hugging Face Hub: nothing is "
        "downloaded; hf download %s --local-dir DIR gets the model, then use --model DIR",
        model.c_str(), model.c_str());
}

Status check_first_window(const Window &window, bool whole_file) {
    if (window.rows() > 0 || window.failed.empty()) return {};
    const auto all = [&](auto holds) {
        return std::all_of(window.failed.begin(), window.failed.end(), holds);
    };
    const auto is_null = [](const FailedRow &row) {
        return std::string_view(row.error.code) == "ROW_NULL";
    };
    const auto given = std::find_if_not(window.failed.begin(), window.failed.end(), is_null);
    if (given == window.failed.end()) return {};
    const RowError &first = given->error;
    if (all([&](const FailedRow &row) {
            return is_null(row) || (row.of_the_model && row.error.message == first.message);
        })) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "no row can run: %s", first.message.c_str());
    }
    constexpr size_t least = 8; // with fewer lines, the errors belong to the rows
    if (whole_file && window.failed.size() >= least &&
        all([](const auto &row) { return std::string_view(row.error.code) == "ROW_JSON"; })) {
        return error(
            BATCHLLM_ERROR_INVALID_ARGUMENT,
            "no row can run: no line is JSON (the first: %s); the input has one JSON object per "
            "line, and `python -m batchllm run` reads CSV, Parquet and Arrow",
            first.message.c_str());
    }
    return {};
}

std::string missing_columns_text(const std::vector<std::string> &missing, bool resumed) {
    if (missing.empty()) return "";
    std::string names;
    for (const std::string &name : missing)
        names += (names.empty() ? "" : " or ") + in_quotes(name);
    return (resumed ? "--columns: no row of this run has the key "
                    : "--columns: no row has the key ") +
           names;
}

std::vector<std::string> failure_lines(const std::vector<FailedRow> &failed) {
    constexpr size_t most = 20;
    struct Kind {
        int64_t line;
        int64_t rows;
    };
    std::map<std::pair<std::string, std::string>, size_t> places;
    std::vector<std::pair<const RowError *, Kind>> kinds;
    for (const FailedRow &row : failed) {
        const auto [place, fresh] =
            places.try_emplace({row.error.code, row.error.message}, kinds.size());
        if (fresh) kinds.push_back({&row.error, {row.line, 0}});
        Kind &kind = kinds[place->second].second;
        kind.line = std::min(kind.line, row.line);
        ++kind.rows;
    }
    std::sort(kinds.begin(), kinds.end(),
              [](const auto &a, const auto &b) { return a.second.line < b.second.line; });
    std::vector<std::string> lines;
    int64_t rest = 0;
    for (const auto &[error, kind] : kinds) {
        if (lines.size() == most) {
            rest += kind.rows;
            continue;
        }
        const std::string more =
            kind.rows > 1 ? " and " + format_count(kind.rows - 1) + " more" : std::string();
        lines.push_back("input line " + std::to_string(kind.line) + more + ": " + error->code +
                        ": " + error->message);
    }
    if (rest > 0) lines.push_back(format_count(rest) + " more rows failed for other reasons");
    return lines;
}

} // namespace batchllm::cli
