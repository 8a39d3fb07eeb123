// batchllm plan and inspect: input rows -> a plan file, and a plan file -> what it holds.
#include "base/display.h"
#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "base/file.h"
#include "base/printable.h"
#include "cli/api.h"
#include "cli/json_text.h"
#include "cli/output_paths.h"
#include "cli/prediction.h"
#include "cli/progress.h"
#include "cli/report_file.h"
#include "cli/window.h"

namespace batchllm::cli {
namespace {

const char *enlarge_name(int32_t enlarge) {
    return enlarge == BATCHLLM_ENLARGE_NONE    ? "none"
           : enlarge == BATCHLLM_ENLARGE_PAPER ? "paper"
                                               : "optimal";
}

Result<batchllm_plan_advice> plan_advice(const batchllm_plan *plan) {
    batchllm_plan_advice advice = {};
    advice.struct_size = sizeof advice;
    RETURN_IF_ERROR(call_status(batchllm_plan_get_advice(plan, &advice)));
    return advice;
}

// The advice with the first words of what rows have in common; "" where there is none.
Result<std::string> advice_of(const Window &window, const batchllm_tokenizer *tokenizer) {
    ASSIGN_OR_RETURN(const batchllm_plan_advice advice, plan_advice(window.plan.get()));
    std::string text = advice.text;
    if (advice.kind == BATCHLLM_ADVICE_NONE) return text;
    // The library counts the plan's rows; whoever reads this has the input's lines.
    const std::string row = "row " + std::to_string(advice.row) + ")";
    const std::string line = std::to_string(window.lines[static_cast<size_t>(advice.row)]);
    const size_t at = text.find(row);
    if (at != std::string::npos) text.replace(at, row.size(), "input line " + line + ")");
    if (tokenizer == nullptr) return text;
    const int64_t first = window.offsets[static_cast<size_t>(advice.row)] + advice.begin;
    const int64_t offsets[2] = {0, std::min<int64_t>(12, advice.end - advice.begin)};
    batchllm_column *decoded = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_tokenizer_decode(
        tokenizer, 1, window.tokens.data() + first, offsets, 0, 1, &decoded)));
    const ColumnHandle owner(decoded);
    const std::string_view words(decoded->text, static_cast<size_t>(decoded->offsets[1]));
    return text + " What they have in common begins " + in_quotes(words) + ".";
}

Result<batchllm_plan_stats> plan_stats(const batchllm_plan *plan) {
    batchllm_plan_stats stats = {};
    stats.struct_size = sizeof stats;
    RETURN_IF_ERROR(call_status(batchllm_plan_get_stats(plan, &stats)));
    return stats;
}

// By settings, then token by token.
struct LessRow {
    using Key = std::tuple<int32_t, int32_t, std::span<const int32_t>>;
    bool operator()(const Key &a, const Key &b) const {
        const auto &[a_first, a_second, a_tokens] = a;
        const auto &[b_first, b_second, b_tokens] = b;
        if (a_first != b_first) return a_first < b_first;
        if (a_second != b_second) return a_second < b_second;
        return std::lexicographical_compare(a_tokens.begin(), a_tokens.end(), b_tokens.begin(),
                                            b_tokens.end());
    }
};

struct GroupSummary {
    int64_t group; // number in scheduling order
    int64_t prefix_tokens;
    int64_t head_tokens;
    int64_t rows;
    int64_t first_row; // lowest row number
    int64_t saved() const { return prefix_tokens * (rows - 1); }
};

// The `count` groups that save most, most first.
Result<std::vector<GroupSummary>> largest_groups(const batchllm_plan *plan, int64_t count) {
    std::vector<GroupSummary> groups;
    const auto more = [](const GroupSummary &a, const GroupSummary &b) {
        return a.saved() != b.saved() ? a.saved() > b.saved() : a.group < b.group;
    };
    for (int64_t i = 0; i < batchllm_plan_group_count(plan); ++i) {
        batchllm_plan_group_info info = {};
        info.struct_size = sizeof info;
        RETURN_IF_ERROR(call_status(batchllm_plan_group(plan, i, &info)));
        if (info.prefix_tokens == 0 || info.row_count == 0) continue;
        groups.push_back({i, info.prefix_tokens, info.head_tokens, info.row_count,
                          *std::min_element(info.rows, info.rows + info.row_count)});
    }
    const auto kept = std::min(static_cast<size_t>(count), groups.size());
    std::partial_sort(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(kept),
                      groups.end(), more);
    groups.resize(kept);
    return groups;
}

void append_plan_stats(JsonObject *object, const batchllm_plan_stats &stats) {
    object->field("rows", stats.rows)
        .field("groups", stats.groups)
        .field("grouped_rows", stats.grouped_rows)
        .field("reused_rows", stats.reused_rows)
        .field("logical_prompt_tokens", stats.logical_tokens)
        .field("processed_prompt_tokens", stats.processed_tokens)
        .field("shared_prompt_tokens", stats.logical_tokens - stats.processed_tokens)
        .field("saving_ratio", stats.saving_ratio)
        .field("longest_prefix", stats.longest_prefix)
        .field("largest_group", stats.largest_group)
        .field("enlarge", enlarge_name(stats.enlarge))
        .field("levels", stats.levels)
        .field("self_contained", stats.self_contained != 0);
    char fingerprint[17];
    std::snprintf(fingerprint, sizeof fingerprint, "%016llx",
                  static_cast<unsigned long long>(stats.tokenizer_fingerprint));
    object->field("tokenizer_fingerprint", static_cast<const char *>(fingerprint));
}

// Rows whose every token's state is wanted: an engine computes each by itself, whatever prefix the plan
// gives it, but rows that are equal once.
struct WholeRows {
    int64_t rows = 0;
    int64_t tokens = 0;
    int64_t equal = 0; // to one before them, in tokens and in wishes
};

WholeRows count_whole_rows(const Window &window) {
    WholeRows found;
    std::set<LessRow::Key, LessRow> seen;
    for (size_t i = 0; i < window.lines.size(); ++i) {
        const SamplingOptions &wish = *window.params[i];
        if (wish.pooling != BATCHLLM_POOLING_MEAN) continue; // of rows to be embedded alone
        const auto begin = static_cast<size_t>(window.offsets[i]);
        const auto length = static_cast<size_t>(window.offsets[i + 1]) - begin;
        ++found.rows;
        found.tokens += static_cast<int64_t>(length);
        found.equal += !seen.emplace(wish.normalize, wish.dimensions,
                                     std::span(window.tokens).subspan(begin, length))
                            .second;
    }
    return found;
}

Status write_plan_stats(const std::string &path, const batchllm_plan_stats &stats,
                        const WholeRows &whole, int64_t failed, double tokenize_seconds,
                        const batchllm_prediction &predicted) {
    std::string out;
    JsonObject object(&out);
    append_plan_stats(&object, stats);
    object.field("whole_rows", whole.rows)
        .field("whole_prompt_tokens", whole.tokens)
        .field("whole_rows_equal", whole.equal);
    object.field("rows_failed", failed);
    if (predicted.rows > 0) append_prediction(&object, &out, predicted);
    object.key("seconds");
    JsonObject seconds(&out);
    seconds.field("tokenize", tokenize_seconds).field("plan", stats.seconds);
    seconds.close();
    object.close();
    return write_file(path, out + "\n");
}

Status write_plan_report(const PlanOptions &options, const Window &window,
                         const batchllm_tokenizer *tokenizer,
                         const batchllm_prediction &predicted) {
    ASSIGN_OR_RETURN(ReportFile file, ReportFile::open(options.report));
    if (!file.wanted()) return {};
    RETURN_IF_ERROR(call_status(batchllm_report_add_plan(
        file.handle(), window.plan.get(), window.tokens.data(), window.offsets.data(), tokenizer)));
    if (predicted.rows > 0) {
        RETURN_IF_ERROR(call_status(batchllm_report_add_prediction(file.handle(), &predicted)));
    }
    for (const FailedRow &row : window.failed) {
        RETURN_IF_ERROR(file.add_failure(row.line, row.error.code, row.error.message));
    }
    RETURN_IF_ERROR(file.add_fact("Input", options.in.input));
    RETURN_IF_ERROR(file.add_fact("Plan", options.output));
    RETURN_IF_ERROR(file.add_fact("Model", options.in.model));
    return file.write("Plan: " + heading_of(options.in.input), {});
}

// What a person wants to know of a plan, in lines.
std::string describe(const batchllm_plan_stats &stats) {
    const int64_t saved = stats.logical_tokens - stats.processed_tokens;
    char ratio[32];
    std::snprintf(ratio, sizeof ratio, "%.1f %%", 100 * stats.saving_ratio);
    std::string text = "rows            " + format_count(stats.rows) + "\n";
    text += "groups          " + format_count(stats.groups) + " with a shared prefix, of " +
            format_count(stats.grouped_rows) + " rows\n";
    text += "prompt tokens   " + format_count(stats.logical_tokens) + ", of which " +
            format_count(stats.processed_tokens) + " are computed\n";
    text += "saved           " + format_count(saved) + " tokens, " + ratio + "\n";
    text += "longest prefix  " + format_count(stats.longest_prefix) + " tokens\n";
    text += "largest group   " + format_count(stats.largest_group) + " rows\n";
    text += std::string("made with       enlarge ") + enlarge_name(stats.enlarge) + ", levels " +
            (stats.levels > 1 ? "many" : "one") +
            (stats.self_contained != 0 ? ", tokens inside" : "") + "\n";
    return text;
}

// A model that is named for a prediction need not have one: rows of tokens want none.
Result<TokenizerHandle> open_tokenizer(const PlanOptions &options) {
    TokenizerHandle tokenizer;
    if (options.in.model.empty()) return tokenizer;
    if (!options.prediction.device.empty()) {
        ASSIGN_OR_RETURN(const bool there, file_exists(options.in.model + "/tokenizer.json"));
        if (!there) return tokenizer;
    }
    batchllm_tokenizer *created = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_tokenizer_create(options.in.model.c_str(), &created)));
    tokenizer.reset(created);
    return tokenizer;
}

Status make_plan_file(const PlanOptions &options, const std::atomic<bool> &interrupted,
                      int64_t *failed) {
    ASSIGN_OR_RETURN(LineReader input,
                     LineReader::open(options.in.input, options.in.max_line_bytes, &interrupted));
    const NamedPath outputs[] = {
        {"--output", options.output}, {"--stats", options.stats}, {"--report", options.report}};
    RETURN_IF_ERROR(check_output_paths(options.in.input, outputs));
    RETURN_IF_ERROR(check_prediction(options.in, options.engine, options.prediction));
    ASSIGN_OR_RETURN(const TokenizerHandle tokenizer, open_tokenizer(options));
    RowReaderOptions row_options;
    row_options.defaults = std::make_shared<SamplingOptions>(options.in.sampling);
    row_options.ignore_unknown_keys = options.in.ignore_unknown_keys;
    if (options.in.prompt.used()) {
        row_options.table = std::make_shared<TableRenderer>(options.in.prompt);
    }
    WindowOptions windows; // one: the plan is of the whole input
    windows.tokens = INT64_MAX;
    windows.rows = INT64_MAX;
    windows.threads = options.in.threads;
    windows.keep_plan_tokens = options.self_contained;
    windows.enlarge = options.in.enlarge;
    windows.levels = options.in.levels;
    windows.previous_plan = options.previous;
    WindowBuilder builder(&input, std::move(row_options), std::move(windows), tokenizer.get(),
                          nullptr, &interrupted);
    ASSIGN_OR_RETURN(const std::unique_ptr<Window> window, builder.next());
    if (interrupted.load()) return error(BATCHLLM_ERROR_STOPPED, "interrupted");
    for (const FailedRow &row : window->failed) {
        report("input line " + std::to_string(row.line) + ": " + row.error.code + ": " +
               row.error.message);
    }
    *failed = static_cast<int64_t>(window->failed.size());
    if (window->plan == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: no rows to plan",
                     options.in.input.c_str());
    }
    RETURN_IF_ERROR(call_status(batchllm_plan_save(window->plan.get(), options.output.c_str())));
    ASSIGN_OR_RETURN(const batchllm_plan_stats stats, plan_stats(window->plan.get()));
    const WholeRows whole = count_whole_rows(*window);
    batchllm_prediction predicted = {};
    if (!options.prediction.device.empty()) {
        ASSIGN_OR_RETURN(predicted,
                         predict_window(*window, options.in, options.engine, options.prediction));
    }
    if (!options.stats.empty()) {
        RETURN_IF_ERROR(write_plan_stats(options.stats, stats, whole, *failed,
                                         window->tokenize_seconds, predicted));
    }
    RETURN_IF_ERROR(write_plan_report(options, *window, tokenizer.get(), predicted));
    std::string text = describe(stats);
    if (!options.previous.empty()) {
        text += "reused          " + format_count(stats.reused_rows) + " rows\n";
    }
    if (whole.rows > 0) {
        text += "computed whole  " + format_count(whole.rows) + " rows of " +
                format_count(whole.tokens) + " tokens (pooling mean): only equal ones share, " +
                format_count(whole.equal) + " of them\n";
    }
    char seconds[64];
    std::snprintf(seconds, sizeof seconds, "planned in      %.3f s\n", stats.seconds);
    text += seconds;
    if (predicted.rows > 0) text += prediction_text(predicted);
    ASSIGN_OR_RETURN(const std::string advice, advice_of(*window, tokenizer.get()));
    if (!advice.empty()) text += "advice          " + advice + "\n";
    std::fputs(text.c_str(), stderr);
    return {};
}

Status write_inspect_report(const InspectOptions &options, const batchllm_plan *plan,
                            const batchllm_prediction &predicted) {
    ASSIGN_OR_RETURN(ReportFile file, ReportFile::open(options.report));
    if (!file.wanted()) return {};
    TokenizerHandle tokenizer;
    if (!options.model.empty()) {
        batchllm_tokenizer *created = nullptr;
        RETURN_IF_ERROR(call_status(batchllm_tokenizer_create(options.model.c_str(), &created)));
        tokenizer.reset(created);
    }
    RETURN_IF_ERROR(call_status(
        batchllm_report_add_plan(file.handle(), plan, nullptr, nullptr, tokenizer.get())));
    if (predicted.rows > 0) {
        RETURN_IF_ERROR(call_status(batchllm_report_add_prediction(file.handle(), &predicted)));
    }
    RETURN_IF_ERROR(file.add_fact("Plan", options.path));
    return file.write("Plan: " + heading_of(options.path), {});
}

Status inspect(const InspectOptions &options) {
    const NamedPath outputs[] = {{"--report", options.report}};
    RETURN_IF_ERROR(check_output_paths(options.path, outputs));
    batchllm_plan *loaded = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_plan_load(options.path.c_str(), &loaded)));
    const PlanHandle plan(loaded);
    ASSIGN_OR_RETURN(const batchllm_plan_stats stats, plan_stats(loaded));
    ASSIGN_OR_RETURN(const std::vector<GroupSummary> groups,
                     largest_groups(loaded, options.groups));
    ASSIGN_OR_RETURN(const batchllm_plan_advice advice, plan_advice(loaded));
    batchllm_prediction predicted = {};
    if (!options.prediction.device.empty()) {
        InputOptions in;
        in.model = options.model;
        in.sampling.max_tokens = options.max_tokens;
        ASSIGN_OR_RETURN(predicted, predict_plan(loaded, in, options.engine, options.prediction));
    }
    RETURN_IF_ERROR(write_inspect_report(options, loaded, predicted));
    std::string text;
    if (options.json) {
        JsonObject object(&text);
        append_plan_stats(&object, stats);
        if (advice.kind != BATCHLLM_ADVICE_NONE) object.field("advice", advice.text);
        if (predicted.rows > 0) append_prediction(&object, &text, predicted);
        object.key("largest_groups");
        text += '[';
        for (size_t i = 0; i < groups.size(); ++i) {
            if (i > 0) text += ',';
            JsonObject group(&text);
            group.field("group", groups[i].group)
                .field("prefix_tokens", groups[i].prefix_tokens)
                .field("head_tokens", groups[i].head_tokens)
                .field("rows", groups[i].rows)
                .field("first_row", groups[i].first_row)
                .field("saved_tokens", groups[i].saved());
            group.close();
        }
        text += ']';
        object.close();
        text += '\n';
    } else {
        text = describe(stats);
        if (predicted.rows > 0) text += prediction_text(predicted);
        if (advice.kind != BATCHLLM_ADVICE_NONE) {
            text += "advice          " + std::string(advice.text) + "\n";
        }
        if (!groups.empty()) text += "\nlargest savings      rows   prefix  first row\n";
        for (const GroupSummary &group : groups) {
            char line[128];
            std::snprintf(line, sizeof line, "%15s %9s %8s %10s\n",
                          format_count(group.saved()).c_str(), format_count(group.rows).c_str(),
                          format_count(group.prefix_tokens).c_str(),
                          format_count(group.first_row).c_str());
            text += line;
        }
    }
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
        std::fflush(stdout) != 0) {
        return error(BATCHLLM_ERROR_IO, "stdout: cannot write");
    }
    return {};
}

} // namespace

int plan_command(const PlanOptions &options, const std::atomic<bool> &interrupted) try {
    int64_t failed = 0;
    const Status status = make_plan_file(options, interrupted, &failed);
    if (status.code() == BATCHLLM_ERROR_STOPPED) {
        report("interrupted; no plan was written");
        return exit_interrupted;
    }
    if (!status.ok()) return report(status.message());
    return failed > 0 ? exit_row_errors : exit_ok;
} catch (...) {
    return report_exception();
}

int inspect_command(const InspectOptions &options) try {
    const Status status = inspect(options);
    return status.ok() ? exit_ok : report(status.message());
} catch (...) {
    return report_exception();
}

} // namespace batchllm::cli
