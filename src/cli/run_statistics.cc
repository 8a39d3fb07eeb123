// What a run did: stats.json, the report, and the last line on stderr.
#include <cstdio>
#include <sys/resource.h>

#include "base/display.h"
#include "base/file.h"
#include "cli/json_text.h"
#include "cli/prediction.h"
#include "cli/run_job.h"

namespace batchllm::cli {
namespace {

int64_t peak_resident_bytes() {
    struct rusage usage;
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} * 1024 : 0;
}

} // namespace

// Predicts a window's rows before they run. Without a plan of its own, a window cannot be
// predicted.
Status RunJob::predict(const Window &window) {
    if (options_.prediction.device.empty() || window.plan == nullptr) return {};
    ASSIGN_OR_RETURN(const batchllm_prediction predicted,
                     predict_window(window, options_.in, options_.engine, options_.prediction));
    predicted_.struct_size = sizeof predicted_;
    RETURN_IF_ERROR(call_status(batchllm_prediction_add(&predicted_, &predicted)));
    if (report_.wanted()) {
        RETURN_IF_ERROR(call_status(batchllm_report_add_prediction(report_.handle(), &predicted)));
    }
    return {};
}

Status RunJob::write_stats(double seconds) const {
    if (options_.stats.empty() || engine_ == nullptr) return {};
    batchllm_stats stats = {};
    stats.struct_size = sizeof stats;
    RETURN_IF_ERROR(call_status(batchllm_engine_stats(engine_.get(), &stats)));
    batchllm_info info = {};
    info.struct_size = sizeof info;
    RETURN_IF_ERROR(call_status(batchllm_engine_info(engine_.get(), 0, &info)));
    const auto rate = [&](int64_t tokens) {
        return stats.run_seconds > 0 ? static_cast<double>(tokens) / stats.run_seconds : 0;
    };
    std::string out;
    JsonObject object(&out);
    object.field("rows", rows_known_)
        .field("rows_done", rows_done())
        .field("rows_failed", rows_failed())
        .field("rows_resumed", output_.info().rows_done)
        .field("rows_deduplicated", stats.rows_deduplicated)
        .field("rows_planned_before", reused_rows_)
        .field("windows", windows_)
        .field("groups", stats.groups)
        .field("logical_prompt_tokens", stats.logical_prompt_tokens)
        .field("processed_prompt_tokens", stats.processed_prompt_tokens)
        .field("shared_prompt_tokens", stats.shared_prompt_tokens)
        .field("saving_ratio", stats.saving_ratio)
        .field("recomputed_tokens", stats.recomputed_tokens)
        .field("completion_tokens", stats.completion_tokens)
        .field("constrained_results", stats.constrained_results)
        .field("cut_off_results", stats.cut_off_results)
        .field("steps", stats.steps)
        .field("preemptions", stats.preemptions)
        .field("tokens_per_second", rate(stats.logical_prompt_tokens + stats.completion_tokens))
        .field("completion_tokens_per_second", rate(stats.completion_tokens))
        .field("backend", info.backend)
        .field("device", info.device)
        .field("compute_type", info.compute_type);
    object.key("seconds");
    JsonObject phases(&out);
    phases.field("total", seconds)
        .field("load", stats.load_seconds)
        .field("tokenize", tokenize_seconds_ + stats.tokenize_seconds)
        .field("plan", plan_seconds_ + stats.plan_seconds)
        .field("schedule", stats.schedule_seconds)
        .field("backend", stats.backend_seconds)
        .field("run", stats.run_seconds);
    phases.close();
    object.key("kv");
    JsonObject kv(&out);
    kv.field("pages_total", stats.kv_pages_total)
        .field("pages_peak", stats.kv_pages_peak)
        .field("page_bytes", stats.kv_page_bytes)
        .field("peak_bytes", stats.kv_pages_peak * stats.kv_page_bytes);
    kv.close();
    if (stats.state_slots_total > 0) {
        object.key("states");
        JsonObject states(&out);
        states.field("slots_total", stats.state_slots_total)
            .field("slots_peak", stats.state_slots_peak)
            .field("slot_bytes", stats.state_slot_bytes)
            .field("peak_bytes", stats.state_slots_peak * stats.state_slot_bytes);
        states.close();
    }
    if (stats.row_pictures > 0) {
        object.key("pictures");
        JsonObject pictures(&out);
        pictures.field("in_rows", stats.row_pictures)
            .field("computed", stats.picture_loads)
            .field("prepare_seconds", stats.picture_prepare_seconds)
            .field("wait_seconds", stats.picture_wait_seconds);
        pictures.close();
    }
    if (stats.draft_tokens > 0) {
        object.key("drafts");
        JsonObject drafts(&out);
        drafts.field("proposed", stats.draft_tokens).field("accepted", stats.draft_tokens_accepted);
        drafts.close();
    }
    if (stats.adapters > 0) {
        object.key("adapters");
        JsonObject adapters(&out);
        adapters.field("used", stats.adapters)
            .field("loads", stats.adapter_loads)
            .field("load_bytes", stats.adapter_load_bytes)
            .field("peak_bytes", stats.adapter_bytes_peak)
            .field("wait_seconds", stats.adapter_wait_seconds);
        adapters.close();
    }
    if (predicted_.rows > 0) append_prediction(&object, &out, predicted_);
    object.field("peak_memory_bytes", peak_resident_bytes());
    object.close();
    return write_file(options_.stats, out + "\n");
}

Status RunJob::write_report(double seconds) {
    if (!report_.wanted()) return {};
    RETURN_IF_ERROR(report_.add_fact("Input", options_.in.input));
    RETURN_IF_ERROR(report_.add_fact("Output", options_.output));
    RETURN_IF_ERROR(report_.add_fact("Model", options_.in.model));
    RETURN_IF_ERROR(report_.add_fact("Windows", format_count(windows_)));
    const int64_t before = output_.info().rows_done;
    if (before > 0) {
        RETURN_IF_ERROR(report_.add_fact("Rows of earlier runs",
                                         format_count(before) + ", which are not in this report"));
    }
    if (interrupted()) RETURN_IF_ERROR(report_.add_fact("State", "interrupted"));
    return report_.write("Job: " + heading_of(options_.in.input),
                         {seconds, tokenize_seconds_, plan_seconds_});
}

void RunJob::keep_failure(int64_t line, const RowError &error) {
    if (line >= failed_line_) return;
    failed_line_ = line;
    failure_ = "The first error: input line " + std::to_string(line) + ": " + error.code + ": " +
               error.message;
}

std::string RunJob::summary(double seconds) const {
    batchllm_stats stats = {};
    stats.struct_size = sizeof stats;
    if (engine_ == nullptr || batchllm_engine_stats(engine_.get(), &stats) != BATCHLLM_OK)
        return "";
    const batchllm_journal_info &info = output_.info();
    std::string before;
    if (info.rows_done > 0) before = "; done before: " + format_count(info.rows_done);
    if (info.failed_done > 0) before += ", " + format_count(info.failed_done) + " with an error";
    char text[512];
    std::snprintf(
        text, sizeof text,
        "%s rows in %s (%s errors%s). Prompts: %s tokens, %s computed, %.1f %% saved by sharing. "
        "Generated: %s tokens.",
        format_count(info.rows_written).c_str(), format_duration(seconds).c_str(),
        format_count(info.failed_written).c_str(), before.c_str(),
        format_count(stats.logical_prompt_tokens).c_str(),
        format_count(stats.processed_prompt_tokens).c_str(), 100 * stats.saving_ratio,
        format_count(stats.completion_tokens).c_str());
    std::string summary = text;
    if (stats.cut_off_results > 0) {
        summary += " Cut off: " + format_count(stats.cut_off_results) + " of " +
                   format_count(stats.constrained_results) + " results with a constraint.";
    }
    return summary;
}

} // namespace batchllm::cli
