// The page's section that compares what was predicted for the job with what happened.
#include "base/display.h"
#include "report/markup.h"
#include "report/page.h"

namespace batchllm {
namespace {

struct Line {
    const char *name;
    std::string predicted, achieved;
    double expected = 0, found = 0; // 0: no difference is shown
};

std::string off_by(double expected, double found) {
    if (expected <= 0 || found <= 0) return "";
    const double share = 100 * (expected / found - 1);
    return (share >= 0 ? "+" : "") + fixed(share, 1) + " %";
}

std::vector<Line> lines_of(const batchllm_prediction &of, const batchllm_stats &stats,
                           double seconds) {
    const auto count = [](const char *name, int64_t expected, int64_t found) {
        return Line{name, format_count(expected), format_count(found),
                    static_cast<double>(expected), static_cast<double>(found)};
    };
    const auto bytes = [](int64_t pages, int64_t page_bytes) {
        return static_cast<double>(pages) * static_cast<double>(page_bytes);
    };
    const double expected = bytes(of.kv_pages_peak, of.kv_page_bytes);
    const double found = bytes(stats.kv_pages_peak, stats.kv_page_bytes);
    return {
        {"seconds in steps", seconds_text(of.seconds), seconds_text(seconds), of.seconds, seconds},
        count("steps", of.steps, stats.steps),
        count("prompt tokens computed", of.processed_prompt_tokens, stats.processed_prompt_tokens),
        count("tokens generated", of.completion_tokens, stats.completion_tokens),
        {"KV pages, most in use", format_bytes(expected), format_bytes(found), expected, found},
        {"saved by sharing", percent_text(of.saving_ratio), percent_text(stats.saving_ratio),
         of.saving_ratio, stats.saving_ratio}};
}

} // namespace

std::string prediction_section(const JobRecord &record) {
    const batchllm_prediction *of = record.prediction();
    if (of == nullptr) return "";
    const batchllm_stats &stats = record.stats();
    const bool modelled = record.engine().modelled;
    const bool ran = record.ran();
    std::string out = "<section><h2>Prediction</h2>\n<p>For " + escaped(of->device);
    if (of->devices > 1) out += ", " + std::to_string(of->devices) + " of them";
    out += ", before anything ran: every row is taken to run to its most tokens, as nobody knows "
           "where a model ends.";
    if (ran && modelled) out += " The job ran on the sim backend: its seconds are modelled too.";
    out += "</p>\n<table><thead><tr><th></th><th class=\"n\">predicted</th>";
    if (ran) out += "<th class=\"n\">achieved</th><th class=\"n\">off by</th>";
    out += "</tr></thead><tbody>";
    for (const Line &line :
         lines_of(*of, stats, modelled ? stats.backend_seconds : stats.run_seconds)) {
        out += "<tr><th>" + std::string(line.name) + "</th>" + number_cell(line.predicted);
        if (ran) out += number_cell(line.achieved) + number_cell(off_by(line.expected, line.found));
        out += "</tr>\n";
    }
    out += "</tbody></table><p class=\"note\">Of the predicted seconds " +
           seconds_text(of->linear_seconds) + " are products, " +
           seconds_text(of->attention_seconds) + " attention, " + seconds_text(of->other_seconds) +
           " the rest, on all devices.</p></section>\n";
    return out;
}

} // namespace batchllm
