#include "report/page.h"

#include <algorithm>
#include <vector>

#include "base/display.h"
#include "report/charts.h"
#include "report/icicle.h"
#include "report/markup.h"

namespace batchllm {
namespace {

constexpr size_t shown_points = 300;

struct KeyFigure {
    std::string value, name, detail;
};

std::string key_figures(const std::vector<KeyFigure> &figures) {
    std::string out = "<dl class=\"key\">";
    for (const KeyFigure &figure : figures) {
        out += "<div><dt>" + figure.name + "</dt><dd>" + figure.value + "<small>" + figure.detail +
               "</small></dd></div>";
    }
    return out + "</dl>\n";
}

std::vector<KeyFigure> figures_of_run(const JobRecord &record, const PageOptions &options) {
    const batchllm_stats &stats = record.stats();
    const int64_t rows = stats.rows_done + record.rows_refused();
    const int64_t failed = stats.rows_failed + record.rows_refused();
    const double seconds = options.seconds > 0 ? options.seconds : stats.run_seconds;
    const double rate = seconds > 0 ? static_cast<double>(rows) / seconds : 0;
    std::vector<KeyFigure> figures;
    figures.push_back(
        {format_count(rows), "rows",
         failed == 0 ? "no errors" : format_count(failed) + (failed == 1 ? " error" : " errors")});
    figures.push_back(
        {short_count(static_cast<double>(stats.logical_prompt_tokens)), "prompt tokens",
         short_count(static_cast<double>(stats.processed_prompt_tokens)) + " computed"});
    figures.push_back({percent_text(stats.saving_ratio), "saved by sharing",
                       short_count(static_cast<double>(stats.shared_prompt_tokens)) + " tokens"});
    figures.push_back({short_count(static_cast<double>(stats.completion_tokens)),
                       "tokens generated", format_count(stats.steps) + " batches"});
    figures.push_back(
        {seconds_text(seconds), "time", record.engine().modelled ? "of this program" : "in all"});
    figures.push_back({rate >= 100 ? format_count(static_cast<int64_t>(rate)) : fixed(rate, 1),
                       "rows/s",
                       short_count(seconds > 0 ? static_cast<double>(stats.logical_prompt_tokens +
                                                                     stats.completion_tokens) /
                                                     seconds
                                               : 0) +
                           " tokens/s"});
    return figures;
}

std::vector<KeyFigure> figures_of_plan(const JobRecord &record) {
    const PlannedSums &sums = record.planned();
    const int64_t saved = sums.logical_tokens - sums.processed_tokens;
    const double ratio = sums.logical_tokens > 0
                             ? static_cast<double>(saved) / static_cast<double>(sums.logical_tokens)
                             : 0;
    const int64_t failed = record.rows_refused();
    return {
        {format_count(sums.rows), "rows",
         failed == 0 ? "planned" : format_count(failed) + " more cannot be run"},
        {short_count(static_cast<double>(sums.logical_tokens)), "prompt tokens",
         short_count(static_cast<double>(sums.processed_tokens)) + " to compute"},
        {percent_text(ratio), "saved by sharing",
         short_count(static_cast<double>(saved)) + " tokens"},
        {format_count(sums.groups), "groups", format_count(sums.grouped_rows) + " rows in them"},
        {format_count(sums.longest_prefix), "longest prefix", "tokens"},
        {format_count(sums.largest_group), "largest group", "rows"}};
}

std::string subtitle(const JobRecord &record) {
    if (!record.ran()) return "A plan: what rows share, before they are run";
    const EngineFacts &engine = record.engine();
    std::string text = engine.model.empty() ? "" : engine.model + " on ";
    text += engine.backend + ", " + engine.device;
    if (engine.compute_type != "none") text += ", " + engine.compute_type;
    if (engine.devices > 1) text += ", " + std::to_string(engine.devices) + " devices";
    return escaped(text);
}

std::string sharing_section(const JobRecord &record) {
    const std::string icicle = draw_icicle(record.tree());
    std::string out = "<section><h2>What rows share</h2>\n";
    if (icicle.empty()) return out + "<p>No two rows share a prefix.</p></section>\n";
    out += "<p>Each rectangle is a stretch of tokens that rows begin with, below the one that it "
           "continues: "
           "as wide as its share of the rows, with its first words.</p>\n";
    return out + icicle + list_prefixes(record.tree()) + "</section>\n";
}

std::string batches_section(const JobRecord &record) {
    const std::vector<CurvePoint> points = record.curve().points(shown_points);
    if (points.empty()) return "";
    const EngineFacts &engine = record.engine();
    const batchllm_stats &stats = record.stats();
    const auto batches = static_cast<double>(std::max<int64_t>(1, record.curve().batches()));
    std::string out = "<section><h2>Batches over time</h2>\n<p>" +
                      format_count(record.curve().batches()) + " batches, " +
                      percent_text(record.mean_fill()) + " full in the mean; " +
                      percent_text(static_cast<double>(record.small_batches()) / batches) +
                      " of them less than half full.";
    if (engine.modelled) out += " Time is the simulated device's.";
    out += "</p>\n" + draw_batches(points, engine.step_tokens);
    out += "\n<h3>KV pages</h3>\n<p>At most " + format_count(stats.kv_pages_peak) + " of " +
           format_count(stats.kv_pages_total) + " pages (" +
           format_bytes(static_cast<double>(stats.kv_pages_peak) *
                        static_cast<double>(stats.kv_page_bytes)) +
           " of " +
           format_bytes(static_cast<double>(stats.kv_pages_total) *
                        static_cast<double>(stats.kv_page_bytes)) +
           ") were in use; " + format_count(stats.preemptions) + " preemptions, " +
           format_count(stats.recomputed_tokens) + " tokens computed again.";
    if (stats.state_slots_total > 0) {
        const auto bytes_of = [&](int64_t slots) {
            return format_bytes(static_cast<double>(slots) *
                                static_cast<double>(stats.state_slot_bytes));
        };
        out += " Of the states of layers that have one, at most " +
               format_count(stats.state_slots_peak) + " of " +
               format_count(stats.state_slots_total) + " slots (" +
               bytes_of(stats.state_slots_peak) + " of " + bytes_of(stats.state_slots_total) +
               ") were in use.";
    }
    out += "</p>\n";
    return out + draw_pages(points, stats.kv_pages_total) + "</section>\n";
}

std::string length_figure(const LengthCounts &lengths, const char *heading, const char *name) {
    if (lengths.count() == 0) return "";
    return std::string("<figure><figcaption><b>") + heading + "</b> median " +
           format_count(lengths.quantile(0.5)) + ", 95 % within " +
           format_count(lengths.quantile(0.95)) + ", longest " + format_count(lengths.most()) +
           " tokens</figcaption>" + draw_lengths(lengths, name) + "</figure>";
}

std::string lengths_section(const JobRecord &record) {
    const std::string prompts = length_figure(record.prompts(), "Prompts", "lengths of prompts");
    const std::string outputs = length_figure(record.outputs(), "Outputs", "lengths of outputs");
    if (prompts.empty() && outputs.empty()) return "";
    return "<section><h2>Lengths</h2>\n<div class=\"pair\">" + prompts + outputs +
           "</div></section>\n";
}

} // namespace

std::string make_page(JobRecord *record, const PageOptions &options) {
    record->decode_words();
    const std::string title = escaped_within(options.title, 120);
    std::string out = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
                      title + "</title>\n<style>" + page_style + "</style></head>\n<body><main>\n";
    out += "<header><h1>" + title + "</h1><p>" + subtitle(*record) + "</p></header>\n";
    out += key_figures(record->ran() ? figures_of_run(*record, options) : figures_of_plan(*record));
    if (!record->complete()) {
        out +=
            "<p class=\"advice\"><b>Not complete.</b> Memory ran out for parts of this report; the "
            "job itself is not affected.</p>\n";
    }
    if (!record->advice().empty()) {
        out += "<p class=\"advice\"><b>Advice.</b> " + escaped(record->advice()) + "</p>\n";
    }
    out += sharing_section(*record) + batches_section(*record) + prediction_section(*record) +
           time_section(*record, options) + lengths_section(*record) + outcome_section(*record) +
           groups_section(*record) + figures_section(*record, options);
    const uint32_t version = batchllm_version();
    return out + "<footer>Written by libbatchllm " + std::to_string(version >> 16) + "." +
           std::to_string(version >> 8 & 0xFF) + "." + std::to_string(version & 0xFF) +
           "</footer>\n</main></body></html>\n";
}

} // namespace batchllm
