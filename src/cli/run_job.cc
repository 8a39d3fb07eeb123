#include "cli/run_job.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <vector>

#include "base/display.h"
#include "base/file.h"
#include "cli/job_mistakes.h"
#include "cli/json_text.h"
#include "cli/prediction.h"
#include "cli/result_view.h"
#include "cli/row_pictures.h"

namespace batchllm::cli {
namespace {

constexpr int64_t wait_milliseconds = 50;
constexpr int64_t add_rows = 16384; // parameters are laid out for this many rows at a time

// user: whether the line may show a bar.
void log_to_stderr(void *user, int32_t level, const char *message) {
    const char *names[] = {"error", "warning", "info", "debug"};
    const char *clear = *static_cast<const bool *>(user) ? "\r\x1b[K" : "";
    std::fprintf(stderr, "%sbatchllm: %s: %s\n", clear, names[std::clamp(level, 0, 3)], message);
}

// The body's result, or a Status for the exception that it throws. Allocates nothing: both texts
// are short enough to be stored inside a std::string.
template <typename Body> Status status_of(Body body) {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    }
}

} // namespace

RunJob::RunJob(const RunOptions &options, OutputOptions output_options, OutputFile output,
               const std::atomic<bool> *interrupted)
    : options_(options), output_options_(std::move(output_options)), output_(std::move(output)),
      done_(output_.done()), interrupted_(interrupted), display_(progress_mode(options.progress)),
      bar_(progress_mode(options.progress) == ProgressMode::bar),
      start_(std::chrono::steady_clock::now()), rows_known_(output_.info().rows_done) {}

Status RunJob::create_engine() {
    const std::string tokenizer_path = options_.in.model + "/tokenizer.json";
    ASSIGN_OR_RETURN(const bool has_tokenizer,
                     options_.in.model.empty() ? false : file_exists(tokenizer_path));
    if (has_tokenizer) {
        batchllm_tokenizer *tokenizer = nullptr;
        RETURN_IF_ERROR(
            call_status(batchllm_tokenizer_create(options_.in.model.c_str(), &tokenizer)));
        tokenizer_.reset(tokenizer);
    }
    batchllm_engine_options options = engine_options_of(options_.in, options_.engine);
    options.log_level = options_.log_level;
    options.log = log_to_stderr;
    options.log_user = &bar_;
    options.seed = options_.seed;
    ASSIGN_OR_RETURN(pictures_,
                     open_pictures(options_.in.model, options_.in.input, options_.in.images));
    options.pictures = pictures_.get();
    if (!options_.timeline.empty()) options.timeline_path = options_.timeline.c_str();
    batchllm_engine *engine = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_engine_create(&options, &engine)));
    engine_.reset(engine);
    for (int64_t i = 0; i < batchllm_engine_label_count(engine); ++i) {
        output_options_.labels.emplace_back(batchllm_engine_label(engine, i));
    }
    constraints_.emplace(engine);
    ASSIGN_OR_RETURN(adapters_, AdapterCache::open(options_.in.adapters, engine));
    ASSIGN_OR_RETURN(report_, ReportFile::open(options_.report));
    return call_status(batchllm_engine_set_report(engine, report_.handle()));
}

// Creates the command line's constraint, for rows without one, before any row is read.
Status RunJob::make_default_constraint(SamplingOptions *defaults) {
    if (defaults->constraint_text.kind == 0) return {};
    Result<SharedConstraint> made = constraints_->get(defaults->constraint_text);
    if (made.ok()) {
        defaults->constraint = std::move(made).value();
        return {};
    }
    Status status = std::move(made).status();
    if (is_failure_of_process(status.code())) return status;
    for (const NamedPath &file : options_.in.files) {
        const std::string_view option = file.option;
        if (option == "--json-schema" || option == "--grammar") {
            return std::move(status).within(std::string(option) + ": " + file.path);
        }
    }
    return status;
}

Status RunJob::run(LineReader input) {
    if (output_.info().rows_lost > 0) {
        warn(format_count(output_.info().rows_lost) +
             " output lines were not in the state file; their rows are run again");
    }
    // A device must be measured before the engine takes its memory.
    if (!options_.prediction.device.empty()) {
        RETURN_IF_ERROR(
            check_prediction(options_.in, options_.engine, options_.prediction).status());
    }
    RETURN_IF_ERROR(create_engine());
    if (pictures_ != nullptr) RETURN_IF_ERROR(output_.use_pictures(pictures_.get()));
    if (!options_.plan.empty()) {
        RETURN_IF_ERROR(load_previous_plan(options_.plan, tokenizer_.get()).status());
    }
    const auto defaults = std::make_shared<SamplingOptions>(options_.in.sampling);
    RETURN_IF_ERROR(make_default_constraint(defaults.get()));
    RETURN_IF_ERROR(adapters_->load_named(options_.in.adapters, options_.in.threads));
    if (!options_.in.adapters.used.empty()) {
        ASSIGN_OR_RETURN(defaults->adapter, adapters_->find(options_.in.adapters.used));
        RETURN_IF_ERROR(adapters_->load(*defaults->adapter));
    }
    RETURN_IF_ERROR(check_options(engine_.get(), *defaults));
    RowReaderOptions row_options;
    row_options.defaults = defaults;
    row_options.constraints = &*constraints_;
    row_options.adapters = &*adapters_;
    row_options.columns = options_.in.columns;
    row_options.ignore_unknown_keys = options_.in.ignore_unknown_keys;
    if (options_.in.prompt.used()) {
        row_options.table = std::make_shared<TableRenderer>(options_.in.prompt);
    }
    WindowOptions windows;
    windows.tokens = options_.window_tokens;
    windows.rows = options_.window_rows;
    windows.threads = options_.in.threads;
    windows.enlarge = options_.in.enlarge;
    windows.levels = options_.in.levels;
    batchllm_info info = {};
    info.struct_size = sizeof info;
    RETURN_IF_ERROR(call_status(batchllm_engine_info(engine_.get(), 0, &info)));
    windows.common_prefix_cost = info.common_prefix_cost;
    windows.previous_plan = options_.plan;
    windows.model = options_.in.model;
    windows.pictures = pictures_.get();
    const bool whole_file = input.regular();
    WindowSource source(std::move(input), std::move(row_options), std::move(windows),
                        tokenizer_.get(), &done_);
    ASSIGN_OR_RETURN(std::unique_ptr<Window> first, first_window(&source, whole_file));
    if (interrupted()) return {};
    // Not earlier: a misspelt model or template must not destroy an existing output.
    if (const Status begun = output_.start(); !begun.ok()) {
        if (output_.info().started != 0) return begun;
        // The lines of rows that failed could not be dropped.
        return Status(begun.code(), begun.message() +
                                        "\nbatchllm: the output is unchanged; run again with "
                                        "--resume --retry-failed to go on");
    }
    Status status = status_of([&] {
        if (first != nullptr) RETURN_IF_ERROR(add_window(std::move(*first)));
        return run_windows(&source);
    });
    // Finished rows are written, whatever has happened since.
    if (!status.ok() && status.code() != BATCHLLM_ERROR_IO) {
        const Status written = status_of([&] { return write_results(); });
        if (!written.ok()) status = written;
    }
    display_.update(progress(source), true);
    const Status synced = output_.sync();
    return status.ok() ? synced : status;
}

// Reads the first rows before there is an output, to find mistakes that affect all rows, or in a
// template. Null: the user has interrupted.
Result<std::unique_ptr<Window>> RunJob::first_window(WindowSource *source, bool whole_file) {
    std::unique_ptr<Window> window;
    while (window == nullptr && !interrupted()) {
        ASSIGN_OR_RETURN(window, source->take(wait_milliseconds));
    }
    // In a resumed job, the rows that can run may already be done.
    if (window != nullptr && output_.info().rows_done == 0) {
        RETURN_IF_ERROR(check_first_window(*window, whole_file));
    }
    return window;
}

// Whether so few rows wait in the engine that the next window should be added.
bool RunJob::wants_window() const {
    return !input_ended_ && last_.rows_waiting <= window_rows_ / 8;
}

Status RunJob::run_windows(WindowSource *source) {
    while (!interrupted()) {
        const bool idle = last_.rows_waiting + last_.rows_running == 0;
        if (idle && input_ended_) break;
        if (wants_window()) {
            ASSIGN_OR_RETURN(std::unique_ptr<Window> window,
                             source->take(idle ? wait_milliseconds : 0));
            if (window != nullptr) {
                RETURN_IF_ERROR(add_window(std::move(*window)));
                display_.update(progress(*source), false);
                continue;
            }
            if (idle) continue;
        }
        last_.struct_size = sizeof last_;
        RETURN_IF_ERROR(call_status(batchllm_step(engine_.get(), &last_)));
        RETURN_IF_ERROR(write_results());
        display_.update(progress(*source), false);
    }
    return {};
}

Status RunJob::add_window(Window window) {
    ++windows_;
    input_ended_ = window.last;
    missing_columns_ = std::move(window.missing_columns);
    window_rows_ = window.rows();
    rows_known_ += window.rows() + static_cast<int64_t>(window.failed.size());
    input_bytes_ = window.input_bytes;
    reused_rows_ += window.reused_rows;
    tokenize_seconds_ += window.tokenize_seconds;
    plan_seconds_ += window.plan_seconds;
    RETURN_IF_ERROR(write_failed(window));
    if (window.rows() == 0) {
        if (window.number == 1) note_no_plan("there are no rows to plan");
        return {};
    }
    if (window.number == 1 && window.plan_unused) {
        warn(options_.plan +
             ": nothing of this plan fits the first rows, so they are planned again. Was it "
             "made of other rows, or with another --template, --fields or --enlarge?");
    }
    RETURN_IF_ERROR(predict(window));
    for (size_t i = 0; i < window.lines.size(); ++i) {
        if (static_cast<int64_t>(i) < window.generated) {
            window.records[i].most_tokens = window.params[i]->most_tokens();
            window.records[i].prompt_logprobs = window.params[i]->prompt_logprobs;
            open_most_tokens_ += window.records[i].most_tokens;
        }
        records_.emplace(window.lines[i], std::move(window.records[i]));
    }
    RETURN_IF_ERROR(add_generated(window));
    RETURN_IF_ERROR(add_scored(window));
    if (window.plan != nullptr) {
        RETURN_IF_ERROR(call_status(batchllm_engine_use_plan(engine_.get(), window.plan.get())));
    }
    RETURN_IF_ERROR(call_status(batchllm_build_groups(engine_.get())));
    last_.rows_waiting += window.rows(); // until the next step reports it
    return save_plan(window);
}

Status RunJob::add_generated(const Window &window) {
    std::vector<batchllm_params> params;
    std::vector<ParameterViews> pointers;
    for (int64_t begin = 0; begin < window.generated; begin += add_rows) {
        const int64_t end = std::min(begin + add_rows, window.generated);
        const auto *first = &window.params[static_cast<size_t>(begin)];
        const bool same =
            std::all_of(first, first + (end - begin), [&](const auto &p) { return p == *first; });
        const int64_t count = same ? 1 : end - begin;
        params.clear();
        pointers.resize(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) {
            params.push_back(view_params(*first[i], &pointers[static_cast<size_t>(i)]));
        }
        RETURN_IF_ERROR(call_status(batchllm_add_tokens(
            engine_.get(), end - begin, window.tokens.data(), window.offsets.data() + begin,
            window.lines.data() + begin, params.data(), count)));
    }
    return {};
}

Status RunJob::add_scored(const Window &window) {
    // Rows with the same adapter at a time.
    for (int64_t begin = window.generated; begin < window.rows();) {
        const SharedAdapter &adapter = window.params[static_cast<size_t>(begin)]->adapter;
        int64_t end = begin + 1;
        while (end < window.rows() && window.params[static_cast<size_t>(end)]->adapter == adapter) {
            ++end;
        }
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        if (adapter != nullptr) params.adapter = adapter->handle.get();
        RETURN_IF_ERROR(call_status(batchllm_add_score_tokens(
            engine_.get(), end - begin, window.tokens.data(), window.offsets.data() + begin,
            window.continuations.data(), window.continuation_offsets.data(),
            window.continuation_rows.data() + (begin - window.generated),
            window.lines.data() + begin, &params)));
        begin = end;
    }
    return {};
}

void RunJob::warn(const std::string &text) {
    if (options_.log_level < BATCHLLM_LOG_WARNING) return;
    log_to_stderr(&bar_, BATCHLLM_LOG_WARNING, text.c_str());
}

void RunJob::note_no_plan(const std::string &why) {
    if (options_.save_plan.empty()) return;
    warn("--save-plan: " + options_.save_plan + ": not written, as " + why);
}

// A window of a resumed job has only the remaining rows, and different boundaries. Its plan would
// replace one from an earlier run that covers all rows.
Status RunJob::save_plan(const Window &window) {
    if (options_.save_plan.empty()) return {};
    if (const int64_t done = output_.info().rows_done; done > 0) {
        if (window.number == 1) {
            note_no_plan(format_count(done) +
                         " rows of the job are done already and would be missing from it");
        }
        return {};
    }
    std::string path = options_.save_plan;
    if (window.number > 1) path.append(".").append(std::to_string(window.number));
    if (window.plan != nullptr) {
        return call_status(batchllm_plan_save(window.plan.get(), path.c_str()));
    }
    batchllm_plan *plan = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_engine_get_plan(engine_.get(), &plan)));
    const PlanHandle owner(plan);
    return call_status(batchllm_plan_save(plan, path.c_str()));
}

Status RunJob::write_batch() {
    if (batch_.empty()) return {};
    const int64_t before = output_.info().rows_written;
    Status status = status_of([&] { return output_.append(batch_); });
    // If memory ran out before anything was written, the lines wait for another try. On other
    // errors they are dropped, so that no line is written twice.
    const bool retry =
        status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY && output_.info().rows_written == before;
    if (!retry) batch_.clear();
    return status;
}

Status RunJob::write_failed(const Window &window) {
    constexpr size_t flush_bytes = size_t{1} << 20;
    for (const FailedRow &row : window.failed) {
        append_failure(batch_.text(), row.line, row.record, row.error);
        keep_failure(row.line, row.error);
        RETURN_IF_ERROR(report_.add_failure(row.line, row.error.code, row.error.message));
        batch_.commit_line(row.line, true);
        if (batch_.bytes() > flush_bytes) RETURN_IF_ERROR(write_batch());
    }
    return write_batch();
}

// Takes finished rows from the engine and writes them, one line each.
Status RunJob::write_results() {
    batchllm_results *raw = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_poll(engine_.get(), 0, &raw)));
    const ResultsHandle results(raw);
    batch_.drop_uncommitted();
    for (int64_t first = 0; first < results->count;) {
        const uint64_t tag = results->tags[first];
        int64_t count = 1;
        while (first + count < results->count && results->tags[first + count] == tag) ++count;
        const auto record = records_.find(tag);
        if (record == records_.end()) {
            return error(BATCHLLM_ERROR_INTERNAL, "a second result for input line %llu",
                         static_cast<unsigned long long>(tag));
        }
        const auto line = static_cast<int64_t>(tag);
        append_result(batch_.text(), output_options_, line, record->second, *results, first, count);
        const int64_t failed = first_failed(*results, first, count);
        if (failed >= 0 && line < failed_line_) keep_failure(line, error_of(*results, failed));
        batch_.commit_line(line, failed >= 0);
        completion_tokens_ += results->token_offsets[first + count] - results->token_offsets[first];
        finished_most_tokens_ += record->second.most_tokens;
        open_most_tokens_ -= record->second.most_tokens;
        records_.erase(record);
        first += count;
    }
    return write_batch();
}

// The engine counts, for every row, the most tokens that it may generate. Most rows end earlier,
// and the remaining ones are expected to fall short of their maximum by the same share as finished
// ones.
int64_t RunJob::expected_tokens_left() const {
    if (finished_most_tokens_ == 0) return last_.tokens_left;
    const double unused =
        1 - static_cast<double>(completion_tokens_) / static_cast<double>(finished_most_tokens_);
    const auto less =
        static_cast<int64_t>(static_cast<double>(open_most_tokens_) * std::clamp(unused, 0.0, 1.0));
    const auto rows = static_cast<int64_t>(records_.size()); // each row computes at least one token
    return std::max({last_.tokens_left - less, std::min(rows, last_.tokens_left), int64_t{0}});
}

JobProgress RunJob::progress(const WindowSource &source) const {
    JobProgress now;
    now.rows_done = rows_done();
    now.rows_failed = rows_failed();
    now.rows_known = rows_known_;
    now.input_ended = input_ended_;
    now.input_bytes = input_bytes_;
    now.input_total = source.input_file_bytes();
    now.tokens_done = last_.tokens_done;
    now.tokens_left = expected_tokens_left();
    now.rows_running = last_.rows_running;
    now.pages_used = last_.pages_used;
    now.pages_total = last_.pages_total;
    return now;
}

int RunJob::finish(Status status) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const std::string again =
        output_.info().resumable != 0 ? "; run again with --resume to go on" : "";
    if (!status.ok()) {
        if (output_.info().started == 0) return report(status.message());
        const std::string rows = format_count(rows_done());
        return report(status.message() + "\nbatchllm: stopped after " + rows + " rows" + again);
    }
    if (output_.info().started == 0) {
        report("interrupted before any row was run");
        return exit_interrupted;
    }
    const bool complete = input_ended_ && records_.empty();
    const Status stats = write_stats(seconds);
    const Status written = both(stats, write_report(seconds));
    const std::string text = summary(seconds);
    if (!text.empty()) display_.note(text);
    if (!failure_.empty()) display_.note(failure_);
    const std::string others = adapters_.has_value() ? adapters_->other_models() : "";
    if (!others.empty()) display_.note(others);
    const std::string missing =
        missing_columns_text(missing_columns_, output_.info().rows_done > 0);
    if (!missing.empty()) warn(missing);
    if (!written.ok()) {
        return report(written.message() + (complete ? " (the output is complete)" : again));
    }
    if (!complete && interrupted()) {
        const std::string rows = format_count(rows_done());
        report("interrupted after " + rows + " rows" + again);
        return exit_interrupted;
    }
    if (!complete) {
        return report("the engine lost " + format_count(static_cast<int64_t>(records_.size())) +
                      " rows");
    }
    return rows_failed() > 0 ? exit_row_errors : exit_ok;
}

} // namespace batchllm::cli
