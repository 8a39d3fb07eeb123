// How far a job is -> a bar on a terminal, plain lines elsewhere, or JSON lines; all on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

namespace batchllm::cli {

enum class ProgressMode : uint8_t { none, bar, lines, json };

// "auto" is bar if stderr is a terminal, else lines.
ProgressMode progress_mode(const std::string &name);

struct JobProgress {
    int64_t rows_done = 0;    // in the output, earlier runs' included
    int64_t rows_failed = 0;  // how many of them failed
    int64_t rows_known = 0;   // read from the input so far
    bool input_ended = false; // rows_known is all there are
    int64_t input_bytes = 0;  // read so far
    int64_t input_total = -1; // -1: a pipe
    int64_t tokens_done = 0;  // prompt tokens computed and tokens generated, by this run
    int64_t tokens_left = 0;  // of the rows known
    int64_t rows_running = 0;
    int64_t pages_used = 0;
    int64_t pages_total = 0;
};

class ProgressDisplay {
  public:
    explicit ProgressDisplay(ProgressMode mode);

    // Shows the progress if it is due, or at once if `last`.
    void update(const JobProgress &progress, bool last);

    // A line of text for the user, above the bar. Nothing in JSON mode and with none.
    void note(const std::string &text);

    // Seconds left, from the tokens that are left and the recent rate; -1: not known.
    double seconds_left(const JobProgress &progress) const;

  private:
    struct Sample {
        double seconds;
        int64_t tokens;
    };
    double elapsed() const;
    double rate() const; // recent tokens a second
    std::string bar_line(const JobProgress &progress) const;
    std::string json_line(const JobProgress &progress) const;
    void clear_bar();

    ProgressMode mode_;
    std::chrono::steady_clock::time_point start_;
    double shown_ = -1e9; // when last shown
    bool bar_shown_ = false;
    std::deque<Sample> samples_; // the last minute
};

// "1h02m", "3m05s", "12s".
std::string format_duration(double seconds);

} // namespace batchllm::cli
