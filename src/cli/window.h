// Input lines -> windows: bounded parts of the job, tokenized and planned, ready for the engine.
//
// A window ends at a number of prompt tokens or of rows, whichever comes first, so that memory does
// not depend on the length of the input. While the engine runs one window, a thread reads,
// tokenizes and plans the next; at most one finished window waits to be taken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/api.h"
#include "cli/line_reader.h"
#include "cli/output_file.h"
#include "cli/row.h"
#include "cli/table_rows.h"

namespace batchllm::cli {

struct WindowOptions {
    int64_t tokens = int64_t{32} << 20; // prompt tokens
    int64_t rows = int64_t{256} << 10;
    int32_t threads = 0; // for tokenizing
    bool keep_plan_tokens = false;
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    int32_t levels = 0;
    double common_prefix_cost = 0;         // batchllm_plan_options
    std::string previous_plan;             // of --plan; empty: none
    std::string model;                     // directory, for error texts; empty: none
    batchllm_pictures *pictures = nullptr; // borrowed; null: rows have none
};

struct FailedRow {
    int64_t line = 0;
    RowRecord record;
    RowError error;
    bool of_the_model = false; // the model lacks what this row, and any like it, needs
};

// Rows [0, generated) are generated, the others scored. A row's tag is its line number.
struct Window {
    int64_t number = 0; // starts at 1
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets = {0};                         // [rows + 1]
    std::vector<uint64_t> lines;                                // [rows]
    std::vector<RowRecord> records;                             // [rows]
    std::vector<std::shared_ptr<const SamplingOptions>> params; // [rows]
    int64_t generated = 0;
    std::vector<int32_t> continuations;
    std::vector<int64_t> continuation_offsets = {0};
    std::vector<int64_t> continuation_rows = {0}; // [scored rows + 1]
    std::vector<std::shared_ptr<const batchllm_column>>
        held;                                    // until the engine has the rows' pictures
    const batchllm_pictures *pictures = nullptr; // WindowOptions'
    std::vector<FailedRow> failed;
    PlanHandle plan; // null: no rows, or stopped
    int64_t reused_rows = 0;
    bool plan_unused = false; // --plan names a plan with groups, but nothing of it fits these rows
    int64_t input_bytes = 0;  // bytes of input up to the window's end
    bool last = false;
    std::vector<std::string> missing_columns; // of the last window: InputRowReader's
    double tokenize_seconds = 0;
    double plan_seconds = 0;

    int64_t rows() const { return static_cast<int64_t>(lines.size()); }
};

// A plan file for rows tokenized by this tokenizer (null: unknown). Errors name the file.
Result<PlanHandle> load_previous_plan(const std::string &path, const batchllm_tokenizer *tokenizer);

// Builds windows one after another. Used by one thread.
class WindowBuilder {
  public:
    // tokenizer null: text rows fail. done: rows to leave out; may be null. All are borrowed.
    WindowBuilder(LineReader *input, RowReaderOptions row_options, WindowOptions options,
                  const batchllm_tokenizer *tokenizer, const DoneLines *done,
                  const std::atomic<bool> *stop);

    Result<std::unique_ptr<Window>> next();

  private:
    Status read_rows();
    Status render_rows();
    Status tokenize_rows();
    Status apply_chat_template(bool parse_special, std::vector<InputRow> *rows);
    Status encode_pictures(bool chat, uint32_t flags, std::vector<InputRow> *rows);
    Status tokenize_with(uint32_t flags, std::vector<InputRow> *rows);
    Status tokenize_scores(std::vector<InputRow> *rows);
    RowError no_tokenizer(const char *key) const;
    void add_row(InputRow row, Window *window);
    Status plan(Window *window);
    Result<const batchllm_plan *> previous_plan(int64_t number);

    LineReader *input_;
    InputRowReader rows_;
    std::shared_ptr<TableRenderer> table_; // null: rows have their own prompts
    WindowOptions options_;
    const batchllm_tokenizer *tokenizer_;
    const DoneLines *done_;
    const std::atomic<bool> *stop_;

    bool input_ended_ = false;
    int64_t windows_ = 0;
    std::vector<InputRow> chunk_;  // read, not yet tokenized
    std::deque<InputRow> ready_;   // tokenized, not yet in a window
    std::deque<FailedRow> failed_; // for the current window
    double tokenize_seconds_ = 0;
    PlanHandle previous_;
    std::string previous_path_;
};

// A thread that runs a builder. If no thread can be started, the caller of take() does the work.
class WindowSource {
  public:
    // input is owned; for the rest see WindowBuilder.
    WindowSource(LineReader input, RowReaderOptions row_options, WindowOptions options,
                 const batchllm_tokenizer *tokenizer, const DoneLines *done);
    WindowSource(const WindowSource &) = delete;
    WindowSource &operator=(const WindowSource &) = delete;
    ~WindowSource(); // stops the thread after the work that it has begun

    // The next window; null if it is not ready within this time, or after the last one. Rethrows
    // exceptions of the builder.
    Result<std::unique_ptr<Window>> take(int64_t milliseconds);
    int64_t input_file_bytes() const { return input_.file_bytes(); }
    std::atomic<bool> &stop() { return stop_; }

  private:
    void work();
    void build_until_last();

    LineReader input_;
    std::atomic<bool> stop_{false};
    WindowBuilder builder_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::unique_ptr<Window> window_;
    Status failure_;
    std::exception_ptr exception_; // what ended the thread
    bool finished_ = false;
    std::thread thread_;
};

} // namespace batchllm::cli
