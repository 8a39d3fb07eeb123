// The program's commands: options in, exit code out. Errors go to stderr.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"
#include "cli/output_paths.h"
#include "cli/row.h"
#include "cli/table_rows.h"

namespace batchllm::cli {

constexpr int exit_ok = 0;
constexpr int exit_fatal = 1;
constexpr int exit_row_errors = 3;
constexpr int exit_interrupted = 130;

struct InputOptions {
    std::string input;
    std::string model; // directory; empty: none
    SamplingOptions sampling;
    AdapterOptions adapters;
    std::vector<std::string> images; // folders of pictures
    TemplateOptions prompt;
    std::vector<NamedPath> files;     // whose text is the value of an option: a template, a schema
    std::vector<std::string> columns; // keys that pass through to the results
    bool ignore_unknown_keys = false;
    int64_t max_line_bytes = int64_t{256} << 20;
    int32_t threads = 0;
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    int32_t levels = 0;
};

// What runs the rows, and with how much memory.
struct EngineChoice {
    std::string backend = "auto";
    std::string backend_options;
    std::string devices;
    std::string compute_type = "auto";
    // values of the backend options of these names
    std::string quantize, kv_type, tensor_parallel, drafts;
    int64_t kv_memory_bytes = 0;
    double kv_memory_fraction = 0;
    int64_t step_tokens = 0;
    int64_t max_request_tokens = 0;
    int64_t max_requests = 0;
    int64_t adapter_memory_bytes = 0;
    bool reproducible = false;
};

// The device to predict time for.
struct PredictionChoice {
    std::string device; // "h200", "h100", a file, or "here" for this machine's; empty: none
    int64_t expected_tokens = 0;
};

struct RunOptions {
    InputOptions in;
    EngineChoice engine;
    PredictionChoice prediction;
    std::string output;
    bool resume = false;
    bool retry_failed = false; // with resume
    bool force = false;
    uint64_t seed = 0;
    int64_t window_tokens = int64_t{32} << 20;
    int64_t window_rows = int64_t{256} << 10;
    std::string plan;
    std::string save_plan;
    std::string timeline;
    std::string stats;
    std::string report;
    std::string progress = "auto";
    int32_t log_level = BATCHLLM_LOG_WARNING;
};

struct PlanCommandOptions {
    InputOptions in;
    EngineChoice engine; // the one that would run the rows
    PredictionChoice prediction;
    std::string output;
    std::string stats;
    std::string report;
    std::string previous;
    bool self_contained = false;
};

struct InspectOptions {
    std::string path;
    bool json = false;
    int64_t groups = 10; // how many are listed, largest first
};

struct TokenizeOptions {
    std::string model; // directory or tokenizer.json
    bool no_special = false;
    bool no_parse_special = false;
    bool decode = false;
    bool keep_special = false;
    std::vector<std::string> images; // folders of pictures
    int32_t threads = 0;
    int64_t max_line_bytes = int64_t{256} << 20;
};

struct DemoOptions {
    std::string backend = "auto";
};

// interrupted: set by SIGINT and SIGTERM.
int run_command(const RunOptions &options, const std::atomic<bool> &interrupted);
int plan_command(const PlanCommandOptions &options, const std::atomic<bool> &interrupted);
int inspect_command(const InspectOptions &options);
int tokenize_command(const TokenizeOptions &options, const std::atomic<bool> &interrupted);
int demo_command(const DemoOptions &options, const std::atomic<bool> &interrupted);

// Prints "batchllm: message" on stderr and returns exit_fatal.
int report(const std::string &message);

// The same for the exception being handled. Allocates nothing, because memory may have run out.
int report_exception() noexcept;

} // namespace batchllm::cli
