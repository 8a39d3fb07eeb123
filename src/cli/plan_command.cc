// batchllm plan: input rows -> a plan file.
#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <tuple>

#include "base/display.h"
#include "base/file.h"
#include "base/printable.h"
#include "cli/api.h"
#include "cli/job_mistakes.h"
#include "cli/json_text.h"
#include "cli/output_paths.h"
#include "cli/plan_text.h"
#include "cli/prediction.h"
#include "cli/progress.h"
#include "cli/report_file.h"
#include "cli/row_pictures.h"
#include "cli/window.h"

namespace batchllm::cli {
namespace {

// The advice with the first words of what rows have in common; "" if there is none.
Result<std::string> advice_of(const Window &window, const batchllm_tokenizer *tokenizer) {
    ASSIGN_OR_RETURN(const batchllm_plan_advice advice, plan_advice(window.plan.get()));
    std::string text = advice.text;
    if (advice.kind == BATCHLLM_ADVICE_NONE) return text;
    // The library names the plan's row; the user knows the line of the input.
    const std::string row = "row " + std::to_string(advice.row) + ")";
    const std::string line = std::to_string(window.lines[static_cast<size_t>(advice.row)]);
    const size_t at = text.find(row);
    if (at != std::string::npos) text.replace(at, row.size(), "input line " + line + ")");
    if (tokenizer == nullptr) return text;
    const int64_t first = window.offsets[static_cast<size_t>(advice.row)] + advice.begin;
    const int32_t *begin = window.tokens.data() + first;
    const int32_t *end = begin + std::min<int64_t>(12, advice.end - advice.begin);
    const auto is_picture = [](int32_t id) { return id >= 1 << 30; };
    if (is_picture(*begin)) return text + " What they have in common begins with a picture.";
    const int64_t offsets[2] = {0, std::find_if(begin, end, is_picture) - begin};
    batchllm_column *decoded = nullptr;
    RETURN_IF_ERROR(
        call_status(batchllm_tokenizer_decode(tokenizer, 1, begin, offsets, 0, 1, &decoded)));
    const ColumnHandle owner(decoded);
    const std::string_view words(decoded->text, static_cast<size_t>(decoded->offsets[1]));
    return text + " What they have in common begins " + in_quotes(words) + ".";
}

// By settings, then by tokens.
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

// Rows that need the hidden state of every token. An engine computes each of them separately,
// whatever prefix the plan gives it; only equal rows are computed once.
struct WholeRows {
    int64_t rows = 0;
    int64_t tokens = 0;
    int64_t equal = 0; // rows equal to an earlier one, in tokens and parameters
};

WholeRows count_whole_rows(const Window &window) {
    WholeRows found;
    std::set<LessRow::Key, LessRow> seen;
    for (size_t i = 0; i < window.lines.size(); ++i) {
        const SamplingOptions &wish = *window.params[i];
        if (wish.pooling != BATCHLLM_POOLING_MEAN) continue; // set only for embedded rows
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

Status write_plan_report(const PlanCommandOptions &options, const Window &window,
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

// A model that is given only for a prediction needs no tokenizer if the rows are tokens.
Result<TokenizerHandle> open_tokenizer(const PlanCommandOptions &options) {
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

Status make_plan_file(const PlanCommandOptions &options, const std::atomic<bool> &interrupted,
                      int64_t *failed) {
    RETURN_IF_ERROR(check_model_name(options.in.model));
    ASSIGN_OR_RETURN(LineReader input,
                     LineReader::open(options.in.input, options.in.max_line_bytes, &interrupted));
    const NamedPath outputs[] = {
        {"--output", options.output}, {"--stats", options.stats}, {"--report", options.report}};
    std::vector<NamedPath> read = options.in.files;
    read.push_back({"--previous", options.previous == options.output ? "" : options.previous});
    RETURN_IF_ERROR(check_output_paths(
        {options.in.input, options.in.model, options.in.adapters.directories(), read, "", ""},
        outputs));
    ASSIGN_OR_RETURN(const double common_prefix_cost,
                     check_prediction(options.in, options.engine, options.prediction));
    ASSIGN_OR_RETURN(const TokenizerHandle tokenizer, open_tokenizer(options));
    RowReaderOptions row_options;
    row_options.defaults = std::make_shared<SamplingOptions>(options.in.sampling);
    row_options.columns = options.in.columns;
    row_options.ignore_unknown_keys = options.in.ignore_unknown_keys;
    ASSIGN_OR_RETURN(AdapterCache adapters, AdapterCache::open(options.in.adapters, nullptr));
    row_options.adapters = &adapters;
    if (options.in.prompt.used()) {
        row_options.table = std::make_shared<TableRenderer>(options.in.prompt);
    }
    ASSIGN_OR_RETURN(const PicturesHandle pictures,
                     open_pictures(options.in.model, options.in.input, options.in.images));
    WindowOptions windows; // a single window: the plan covers the whole input
    windows.tokens = INT64_MAX;
    windows.rows = INT64_MAX;
    windows.threads = options.in.threads;
    windows.keep_plan_tokens = options.self_contained;
    windows.enlarge = options.in.enlarge;
    windows.levels = options.in.levels;
    windows.common_prefix_cost = common_prefix_cost;
    windows.previous_plan = options.previous;
    windows.model = options.in.model;
    windows.pictures = pictures.get();
    WindowBuilder builder(&input, std::move(row_options), std::move(windows), tokenizer.get(),
                          nullptr, &interrupted);
    ASSIGN_OR_RETURN(const std::unique_ptr<Window> window, builder.next());
    if (interrupted.load()) return error(BATCHLLM_ERROR_STOPPED, "interrupted");
    RETURN_IF_ERROR(check_first_window(*window, true));
    for (const std::string &line : failure_lines(window->failed)) report(line);
    const std::string missing = missing_columns_text(window->missing_columns, false);
    if (!missing.empty()) report(missing);
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
    Status written;
    if (!options.stats.empty()) {
        written = write_plan_stats(options.stats, stats, whole, *failed, window->tokenize_seconds,
                                   predicted);
    }
    RETURN_IF_ERROR(both(written, write_plan_report(options, *window, tokenizer.get(), predicted)));
    std::string text = describe(stats);
    if (!options.previous.empty()) {
        text += "reused          " + format_count(stats.reused_rows) + " rows, of " +
                format_count(stats.known_rows) + " that the previous plan has\n";
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

} // namespace

int plan_command(const PlanCommandOptions &options, const std::atomic<bool> &interrupted) try {
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

} // namespace batchllm::cli
