// The page's sections that are tables: time, finish reasons and errors, the slowest groups, all
// figures.
#include <algorithm>
#include <vector>

#include "base/display.h"
#include "report/finish_name.h"
#include "report/markup.h"
#include "report/page.h"

namespace batchllm {
namespace {

constexpr int shown_words = 130; // columns

// A bar that fills this share of its cell, with the text beside it.
std::string bar_cell(double share, const char *kind) {
    return "<td class=\"bar\"><i class=\"" + std::string(kind) +
           "\" style=\"width:" + fixed(100 * std::clamp(share, 0.0, 1.0), 1) + "%\"></i></td>";
}

std::string words_of(const GroupRun &run) {
    if (!run.words.empty()) return escaped_within(run.words, shown_words);
    const auto numbers = [](const std::vector<int32_t> &tokens) {
        std::string text;
        for (const int32_t token : tokens) {
            text.append(text.empty() ? "" : " ").append(std::to_string(token));
        }
        return text;
    };
    const std::string last = run.last_tokens.empty() ? "" : " ... " + numbers(run.last_tokens);
    return escaped_within("[" + numbers(run.first_tokens) + last + "]", shown_words);
}

// Exact figures under their names in --stats, for people and for programs.
class Figures {
  public:
    Figures &add(const char *name, int64_t value) { return row(name, format_count(value)); }
    Figures &add_ratio(const char *name, double value) { return row(name, fixed(value, 6)); }
    Figures &add_seconds(const char *name, double value) { return row(name, fixed(value, 3)); }
    std::string table() const { return "<table class=\"figures\">" + rows_ + "</table>"; }

  private:
    Figures &row(const char *name, const std::string &value) {
        rows_ += "<tr><th>" + std::string(name) + "</th><td class=\"n\" data-figure=\"" + name +
                 "\">" + value + "</td></tr>\n";
        return *this;
    }
    std::string rows_;
};

double job_seconds(const JobRecord &record, const PageOptions &options) {
    return options.seconds > 0 ? options.seconds : record.stats().run_seconds;
}

void add_run_figures(const JobRecord &record, const PageOptions &options, Figures *figures) {
    const batchllm_stats &stats = record.stats();
    figures->add("rows_done", stats.rows_done + record.rows_refused())
        .add("rows_failed", stats.rows_failed + record.rows_refused())
        .add("rows_deduplicated", stats.rows_deduplicated)
        .add("groups", stats.groups)
        .add("logical_prompt_tokens", stats.logical_prompt_tokens)
        .add("processed_prompt_tokens", stats.processed_prompt_tokens)
        .add("shared_prompt_tokens", stats.shared_prompt_tokens)
        .add_ratio("saving_ratio", stats.saving_ratio)
        .add("recomputed_tokens", stats.recomputed_tokens)
        .add("completion_tokens", stats.completion_tokens)
        .add("constrained_results", stats.constrained_results)
        .add("cut_off_results", stats.cut_off_results)
        .add("steps", stats.steps)
        .add("preemptions", stats.preemptions)
        .add("pages_peak", stats.kv_pages_peak)
        .add("pages_total", stats.kv_pages_total)
        .add("page_bytes", stats.kv_page_bytes)
        .add_seconds("total", job_seconds(record, options))
        .add_seconds("run", stats.run_seconds)
        .add_seconds("backend", stats.backend_seconds);
    if (stats.row_pictures > 0) {
        figures->add("in_rows", stats.row_pictures)
            .add("computed", stats.picture_loads)
            .add_seconds("prepare_seconds", stats.picture_prepare_seconds);
    }
    if (stats.draft_tokens > 0) {
        figures->add("draft_tokens", stats.draft_tokens)
            .add("draft_tokens_accepted", stats.draft_tokens_accepted);
    }
    if (stats.adapters > 0) {
        figures->add("used", stats.adapters)
            .add("loads", stats.adapter_loads)
            .add("load_bytes", stats.adapter_load_bytes)
            .add_seconds("wait_seconds", stats.adapter_wait_seconds);
    }
    if (stats.state_slots_total > 0) {
        figures->add("slots_peak", stats.state_slots_peak)
            .add("slots_total", stats.state_slots_total)
            .add("slot_bytes", stats.state_slot_bytes);
    }
}

void add_plan_figures(const JobRecord &record, Figures *figures) {
    const PlannedSums &sums = record.planned();
    const int64_t saved = sums.logical_tokens - sums.processed_tokens;
    figures->add("rows", sums.rows)
        .add("rows_failed", record.rows_refused())
        .add("groups", sums.groups)
        .add("grouped_rows", sums.grouped_rows)
        .add("logical_prompt_tokens", sums.logical_tokens)
        .add("processed_prompt_tokens", sums.processed_tokens)
        .add("shared_prompt_tokens", saved)
        .add_ratio("saving_ratio",
                   sums.logical_tokens > 0
                       ? static_cast<double>(saved) / static_cast<double>(sums.logical_tokens)
                       : 0)
        .add("longest_prefix", sums.longest_prefix)
        .add("largest_group", sums.largest_group)
        .add_seconds("plan", sums.seconds);
}

void add_predicted_figures(const batchllm_prediction &of, Figures *figures) {
    figures->add_seconds("predicted_seconds", of.seconds)
        .add("predicted_steps", of.steps)
        .add("predicted_processed_prompt_tokens", of.processed_prompt_tokens)
        .add("predicted_completion_tokens", of.completion_tokens)
        .add("predicted_kv_pages_peak", of.kv_pages_peak)
        .add_ratio("predicted_saving_ratio", of.saving_ratio);
}

} // namespace

std::string time_section(const JobRecord &record, const PageOptions &options) {
    if (!record.ran()) return "";
    const batchllm_stats &stats = record.stats();
    const EngineFacts &engine = record.engine();
    std::string out = "<section><h2>Time</h2>\n";
    if (engine.modelled) {
        out += "<p>" + seconds_text(stats.backend_seconds) +
               " on the device that the sim backend models; this program took " +
               seconds_text(job_seconds(record, options)) + ".</p>\n";
    }
    struct Phase {
        const char *name;
        double seconds;
        const char *detail;
    };
    const Phase phases[] = {
        {"load", stats.load_seconds, "the model"},
        {"tokenize", stats.tokenize_seconds + options.tokenize_seconds, "text to tokens"},
        {"plan", stats.plan_seconds + options.plan_seconds, "finding what rows share"},
        {"schedule", stats.schedule_seconds, "filling batches"},
        {"backend", engine.modelled ? 0 : stats.backend_seconds, "in the model"},
        {"run", stats.run_seconds, "in steps, all together"},
        {"total", job_seconds(record, options), "the job"},
    };
    double most = 1e-9;
    for (const Phase &phase : phases) most = std::max(most, phase.seconds);
    out += "<table>";
    for (const Phase &phase : phases) {
        if (phase.seconds <= 0) continue;
        out += "<tr><th>" + std::string(phase.name) + "</th><td class=\"soft\">" + phase.detail +
               "</td>" + number_cell(seconds_text(phase.seconds)) +
               bar_cell(phase.seconds / most, "time") + "</tr>\n";
    }
    return out + "</table><p class=\"note\">Tokenizing and planning run beside the steps where "
                 "they can, so the lines do "
                 "not add up.</p></section>\n";
}

std::string outcome_section(const JobRecord &record) {
    int64_t all = 0;
    for (const auto &[reason, results] : record.finish_reasons()) all += results;
    if (all == 0) return "";
    std::string out = "<section><h2>How rows ended</h2>\n<table>";
    for (const auto &[reason, results] : record.finish_reasons()) {
        const double share = static_cast<double>(results) / static_cast<double>(all);
        const bool failed = reason == BATCHLLM_FINISH_ERROR;
        out += "<tr><th>" + std::string(finish_name(reason)) + "</th>" +
               number_cell(format_count(results)) + number_cell(percent_text(share)) +
               bar_cell(share, failed ? "bad" : "good") + "</tr>\n";
    }
    out += "</table>\n";
    if (record.failures().empty()) return out + "</section>\n";
    std::vector<std::pair<std::string, const FailureKind *>> kinds;
    for (const auto &[kind, failure] : record.failures()) kinds.emplace_back(kind, &failure);
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const auto &a, const auto &b) { return a.second->rows > b.second->rows; });
    out += "<h3>Errors by kind</h3>\n<table><thead><tr><th>kind</th><th "
           "class=\"n\">rows</th><th>the first: row, and "
           "why</th></tr></thead><tbody>";
    for (const auto &[kind, failure] : kinds) {
        out += "<tr><td class=\"kind\">" + escaped(kind) + "</td>" +
               number_cell(format_count(failure->rows)) + "<td>" + std::to_string(failure->tag) +
               ": " + escaped(failure->message) + "</td></tr>\n";
    }
    return out + "</tbody></table></section>\n";
}

std::string groups_section(const JobRecord &record) {
    if (record.slowest().empty()) return "";
    std::string out =
        "<section><h2>Slowest groups</h2>\n<p>From the time that a group was queued for a device "
        "to "
        "its last row's result, waiting included" +
        std::string(record.engine().modelled ? ", on the simulated device's clock" : "") +
        ".</p>\n<table class=\"groups\"><thead><tr><th>begins ... and ends</th><th "
        "class=\"n\">rows</th><th class=\"n\">prefix"
        "</th><th class=\"n\">prompts</th><th class=\"n\">generated</th><th class=\"n\">longest "
        "output</th>"
        "<th class=\"n\">began at</th><th class=\"n\">took</th></tr></thead><tbody>";
    for (const GroupRun &run : record.slowest()) {
        out += "<tr><td class=\"words\">" + words_of(run) + "</td>" +
               number_cell(format_count(run.rows)) + number_cell(format_count(run.prefix_tokens)) +
               number_cell(format_count(run.prompt_tokens)) +
               number_cell(format_count(run.generated)) +
               number_cell(format_count(run.longest_output)) +
               number_cell(seconds_text(run.started)) + number_cell(seconds_text(run.seconds)) +
               "</tr>\n";
    }
    return out + "</tbody></table><p class=\"note\">Lengths are in tokens.</p></section>\n";
}

std::string figures_section(const JobRecord &record, const PageOptions &options) {
    Figures figures;
    if (record.ran()) {
        add_run_figures(record, options, &figures);
    } else {
        add_plan_figures(record, &figures);
    }
    if (record.prediction() != nullptr) add_predicted_figures(*record.prediction(), &figures);
    std::string facts;
    for (const auto &[name, value] : record.facts()) {
        facts += "<tr><th>" + escaped(name) + "</th><td>" + escaped(value) + "</td></tr>\n";
    }
    return "<section><h2>Figures</h2>\n<div class=\"pair\">" + figures.table() +
           (facts.empty() ? "" : "<table class=\"facts\">" + facts + "</table>") +
           "</div></section>\n";
}

} // namespace batchllm
