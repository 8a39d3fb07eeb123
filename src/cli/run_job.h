// One run of `batchllm run`: feeds windows to the engine, writes finished rows, keeps statistics.
//
// The next window is added once most rows of the previous one have started, so that steps stay full
// across windows. A row's tag is its line number, so its random numbers do not depend on its window
// or on how often the job is resumed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cli/api.h"
#include "cli/commands.h"
#include "cli/output_file.h"
#include "cli/output_row.h"
#include "cli/progress.h"
#include "cli/report_file.h"
#include "cli/window.h"

namespace batchllm::cli {

class RunJob {
  public:
    RunJob(const RunOptions &options, OutputOptions output_options, OutputFile output,
           const std::atomic<bool> *interrupted);

    // Runs until all rows are done, the user interrupts (also OK, see finish) or something fails.
    Status run(LineReader input);

    // Writes statistics and the final messages; returns the exit code.
    int finish(Status status);

  private:
    bool interrupted() const { return interrupted_->load(std::memory_order_relaxed); }
    Status create_engine();
    Status make_default_constraint(SamplingOptions *defaults);
    Result<std::unique_ptr<Window>> first_window(WindowSource *source, bool whole_file);
    Status run_windows(WindowSource *source);
    bool wants_window() const;
    Status add_window(Window window);
    Status add_generated(const Window &window);
    Status add_scored(const Window &window);
    Status write_failed(const Window &window);
    Status write_results();
    Status write_batch();
    Status write_stats(double seconds) const;
    Status write_report(double seconds);
    Status predict(const Window &window);
    Status save_plan(const Window &window);
    void warn(const std::string &text);
    void note_no_plan(const std::string &why);
    int64_t expected_tokens_left() const;
    JobProgress progress(const WindowSource &source) const;
    std::string summary(double seconds) const;
    void keep_failure(int64_t line, const RowError &error);
    // Of this run and earlier ones.
    int64_t rows_done() const { return output_.info().rows_done + output_.info().rows_written; }
    int64_t rows_failed() const {
        return output_.info().failed_done + output_.info().failed_written;
    }

    const RunOptions &options_;
    OutputOptions output_options_;
    OutputFile output_;
    const DoneLines done_;
    const std::atomic<bool> *interrupted_;
    ProgressDisplay display_;
    bool bar_; // display_ is a bar
    std::chrono::steady_clock::time_point start_;

    ReportFile report_;
    std::string failure_; // error of this run's first failed line, shown at the end
    int64_t failed_line_ = std::numeric_limits<int64_t>::max();
    EngineHandle engine_;
    TokenizerHandle tokenizer_;
    PicturesHandle pictures_; // null: the model reads text alone
    std::optional<ConstraintCache> constraints_;
    std::optional<AdapterCache> adapters_;
    batchllm_progress last_ = {};                     // after the engine's last step
    std::unordered_map<uint64_t, RowRecord> records_; // of rows in the engine, by line
    OutputBatch batch_;

    bool input_ended_ = false;                 // the last window has been added
    std::vector<std::string> missing_columns_; // Window
    int64_t windows_ = 0;
    int64_t window_rows_ = 0; // in the window added last
    int64_t rows_known_ = 0;  // including those of earlier runs
    int64_t input_bytes_ = 0;
    int64_t reused_rows_ = 0;
    int64_t completion_tokens_ = 0;    // of finished rows
    int64_t finished_most_tokens_ = 0; // the most tokens that they could have generated
    int64_t open_most_tokens_ = 0;     // the most tokens that the rows in the engine may generate
    batchllm_prediction predicted_ = {};
    double tokenize_seconds_ = 0;
    double plan_seconds_ = 0;
};

} // namespace batchllm::cli
