// The progress of a job -> a bar on a terminal, plain lines elsewhere, or JSON lines; all on
// stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

namespace batchllm::cli {

enum class ProgressMode : uint8_t { none, bar, lines, json };

// "auto" means bar if stderr is a terminal, else lines.
ProgressMode progress_mode(const std::string &name);

struct JobProgress {
    int64_t rows_done = 0;    // in the output, including those of earlier runs
    int64_t rows_failed = 0;  // how many of those failed
    int64_t rows_known = 0;   // read from the input so far
    bool input_ended = false; // no more rows will come: rows_known is final
    int64_t input_bytes = 0;  // read so far
    int64_t input_total = -1; // -1: a pipe
    int64_t tokens_done = 0;  // prompt tokens computed plus tokens generated, by this run
    int64_t tokens_left = 0;  // of the rows known so far
    int64_t rows_running = 0;
    int64_t pages_used = 0;
    int64_t pages_total = 0;
};

class ProgressDisplay {
  public:
    explicit ProgressDisplay(ProgressMode mode);

    // Shows the progress if an update is due, or at once if `last`.
    void update(const JobProgress &progress, bool last);

    // Prints a line of text for the user above the bar. Prints nothing in the modes json and none.
    void note(const std::string &text);

    // Seconds left, from the tokens left and the recent rate; -1: unknown.
    double seconds_left(const JobProgress &progress) const;

  private:
    struct Sample {
        double seconds;
        int64_t tokens;
    };
    double elapsed() const;
    double rate() const; // recent tokens per second
    std::string bar_line(const JobProgress &progress) const;
    std::string json_line(const JobProgress &progress) const;
    void clear_bar();

    ProgressMode mode_;
    std::chrono::steady_clock::time_point start_;
    double shown_ = -1e9; // when last shown
    bool bar_shown_ = false;
    std::deque<Sample> samples_; // for the last minute
};

// "1h02m", "3m05s", "12s".
std::string format_duration(double seconds);

} // namespace batchllm::cli
