#include "cli/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/display.h"
#include "cli/json_text.h"

namespace batchllm::cli {
namespace {

constexpr double bar_seconds = 0.2;
constexpr double json_seconds = 1;
constexpr double line_seconds = 10;
constexpr double rate_seconds = 60; // the rate is averaged over this time
constexpr int bar_cells = 24;

// A closed or broken stderr is no reason to stop a job.
void write_stderr(const std::string &text) {
    size_t written = 0;
    while (written < text.size()) {
        const ssize_t part = ::write(STDERR_FILENO, text.data() + written, text.size() - written);
        if (part <= 0) return;
        written += static_cast<size_t>(part);
    }
}

size_t terminal_columns() {
    struct winsize size;
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col;
}

// The tokens in rows that have not been read yet, estimated from the bytes read so far.
double unread_tokens(const JobProgress &progress) {
    if (progress.input_ended || progress.input_total < 0 || progress.input_bytes <= 0) return 0;
    const double unread =
        static_cast<double>(std::max<int64_t>(progress.input_total - progress.input_bytes, 0));
    return unread * static_cast<double>(progress.tokens_done + progress.tokens_left) /
           static_cast<double>(progress.input_bytes);
}

// The share of the work that is done, 0 to 1; -1: unknown.
double share_done(const JobProgress &progress) {
    if (!progress.input_ended && progress.input_total < 0) return -1;
    const auto done = static_cast<double>(progress.tokens_done);
    const double all = done + static_cast<double>(progress.tokens_left) + unread_tokens(progress);
    return all <= 0 ? (progress.input_ended ? 1 : 0) : done / all;
}

} // namespace

ProgressMode progress_mode(const std::string &name) {
    if (name == "none") return ProgressMode::none;
    if (name == "json") return ProgressMode::json;
    if (name == "bar") return ProgressMode::bar;
    if (name == "lines") return ProgressMode::lines;
    return ::isatty(STDERR_FILENO) == 1 ? ProgressMode::bar : ProgressMode::lines;
}

std::string format_duration(double seconds) {
    const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 3.6e9)));
    char text[48];
    if (whole >= 3600) {
        std::snprintf(text, sizeof text, "%lldh%02lldm", static_cast<long long>(whole / 3600),
                      static_cast<long long>(whole / 60 % 60));
    } else if (whole >= 60) {
        std::snprintf(text, sizeof text, "%lldm%02llds", static_cast<long long>(whole / 60),
                      static_cast<long long>(whole % 60));
    } else {
        std::snprintf(text, sizeof text, "%llds", static_cast<long long>(whole));
    }
    return text;
}

ProgressDisplay::ProgressDisplay(ProgressMode mode)
    : mode_(mode), start_(std::chrono::steady_clock::now()) {}

double ProgressDisplay::elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double ProgressDisplay::rate() const {
    if (samples_.size() < 2) return 0;
    const double seconds = samples_.back().seconds - samples_.front().seconds;
    return seconds <= 0
               ? 0
               : static_cast<double>(samples_.back().tokens - samples_.front().tokens) / seconds;
}

double ProgressDisplay::seconds_left(const JobProgress &progress) const {
    const double tokens = static_cast<double>(progress.tokens_left) + unread_tokens(progress);
    if (rate() <= 0 || share_done(progress) < 0)
        return tokens <= 0 && progress.input_ended ? 0 : -1;
    return tokens / rate();
}

void ProgressDisplay::clear_bar() {
    if (bar_shown_) write_stderr("\r\x1b[K");
    bar_shown_ = false;
}

void ProgressDisplay::note(const std::string &text) {
    if (mode_ == ProgressMode::none || mode_ == ProgressMode::json) return;
    clear_bar();
    write_stderr(text + "\n");
}

void ProgressDisplay::update(const JobProgress &progress, bool last) {
    if (mode_ == ProgressMode::none) return;
    const double now = elapsed();
    const double interval = mode_ == ProgressMode::bar    ? bar_seconds
                            : mode_ == ProgressMode::json ? json_seconds
                                                          : line_seconds;
    if (samples_.empty() || now - samples_.back().seconds > bar_seconds || last) {
        samples_.push_back({now, progress.tokens_done});
        while (samples_.size() > 2 && now - samples_.front().seconds > rate_seconds) {
            samples_.pop_front();
        }
    }
    if (!last && now - shown_ < interval) return;
    // A plain line before there is anything to report would be noise.
    const bool first = shown_ < 0;
    shown_ = now;
    switch (mode_) {
    case ProgressMode::none:
        break;
    case ProgressMode::json:
        write_stderr(json_line(progress) + "\n");
        break;
    case ProgressMode::lines:
        if (!first || last) write_stderr(bar_line(progress) + "\n");
        break;
    case ProgressMode::bar:
        clear_bar();
        write_stderr(bar_line(progress).substr(0, terminal_columns() - 1));
        bar_shown_ = true;
        if (last) write_stderr("\n");
        bar_shown_ = !last;
        break;
    }
}

std::string ProgressDisplay::bar_line(const JobProgress &progress) const {
    std::string line;
    const double share = share_done(progress);
    if (mode_ == ProgressMode::bar && share >= 0) {
        const auto filled = static_cast<size_t>(share * bar_cells);
        line.append("[").append(filled, '#').append(bar_cells - filled, '.').append("] ");
    }
    char text[160];
    if (share >= 0) {
        std::snprintf(text, sizeof text, "%3.0f%%  ", std::floor(share * 100));
        line += text;
    }
    line += format_count(progress.rows_done);
    if (progress.input_ended) line.append("/").append(format_count(progress.rows_known));
    line += " rows";
    if (progress.rows_failed > 0)
        line.append(" (").append(format_count(progress.rows_failed)).append(" errors)");
    line.append("  ").append(format_count(std::llround(rate()))).append(" tok/s");
    if (progress.pages_total > 0) {
        std::snprintf(text, sizeof text, "  %s running  KV %.0f%%",
                      format_count(progress.rows_running).c_str(),
                      100.0 * static_cast<double>(progress.pages_used) /
                          static_cast<double>(progress.pages_total));
        line += text;
    }
    const double left = seconds_left(progress);
    line.append("  ").append(format_duration(elapsed()));
    if (left > 0) line.append(", ").append(format_duration(left)).append(" left");
    return line;
}

std::string ProgressDisplay::json_line(const JobProgress &progress) const {
    std::string out;
    JsonObject object(&out);
    object.field("rows_done", progress.rows_done)
        .field("rows_failed", progress.rows_failed)
        .field("rows_known", progress.rows_known)
        .field("rows_running", progress.rows_running)
        .field("input_ended", progress.input_ended)
        .field("tokens_done", progress.tokens_done)
        .field("tokens_left", progress.tokens_left)
        .field("tokens_per_second", rate())
        .field("pages_used", progress.pages_used)
        .field("pages_total", progress.pages_total)
        .field("seconds", elapsed());
    const double share = share_done(progress);
    const double left = seconds_left(progress);
    // NaN is written as null: unknown.
    object.field("share_done", share < 0 ? std::nan("") : share)
        .field("seconds_left", left < 0 ? std::nan("") : left);
    object.close();
    return out;
}

} // namespace batchllm::cli
