// batchllm_report_*: what a job did, as a page.
#include <cinttypes>
#include <cmath>
#include <limits>

#include "api/boundary.h"
#include "api/engine.h"
#include "api/plan.h"
#include "api/tokenizer.h"
#include "base/file.h"
#include "report/page.h"

using namespace batchllm;
using api::guard;
using api::guard_out;
using api::need;

struct batchllm_report {
    std::shared_ptr<JobRecord> record = std::make_shared<JobRecord>();
    std::string html; // the last that was given out
};

namespace {

batchllm_report_options default_options() {
    batchllm_report_options options{};
    options.struct_size = sizeof options;
    return options;
}

Result<PageOptions> read_options(const batchllm_report_options *options) {
    batchllm_report_options known = default_options();
    if (options != nullptr) {
        RETURN_IF_ERROR(copy_known("options", options, &known, sizeof known));
    }
    if (known.reserved != 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "options->reserved is %d: it must be 0",
                     known.reserved);
    }
    for (const double seconds : {known.seconds, known.tokenize_seconds, known.plan_seconds}) {
        if (seconds >= 0 && std::isfinite(seconds)) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%g seconds: they cannot be negative",
                     seconds);
    }
    PageOptions read;
    if (known.title != nullptr && *known.title != 0) read.title = known.title;
    read.seconds = known.seconds;
    read.tokenize_seconds = known.tokenize_seconds;
    read.plan_seconds = known.plan_seconds;
    return read;
}

// The plan's rows: the caller's, or those that a self-contained plan keeps; none when there are neither.
Result<std::vector<TokenRow>> rows_of(const Plan &plan, const int32_t *tokens,
                                      const int64_t *offsets) {
    std::vector<TokenRow> rows;
    const int64_t count = plan.row_count();
    if (offsets != nullptr) {
        RETURN_IF_ERROR(check_column("tokens", tokens, "offsets", offsets, count));
    } else if (tokens != nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "offsets is NULL and tokens is not");
    } else if (plan.tokens.empty()) {
        return rows;
    }
    const Column<int32_t> column{count, tokens, offsets};
    const int32_t *next = plan.tokens.data();
    for (int64_t i = 0; i < count; ++i) {
        const int32_t length = plan.lengths[static_cast<size_t>(i)];
        if (offsets == nullptr) {
            rows.push_back({next, length, 0});
            next += length;
            continue;
        }
        if (static_cast<int64_t>(column[i].size()) != length) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "row %" PRId64 " has %zu tokens, and the plan's has %d", i,
                         column[i].size(), length);
        }
        rows.push_back({column[i].data(), length, 0});
    }
    return rows;
}

} // namespace

extern "C" {

void batchllm_report_options_init(batchllm_report_options *options, size_t struct_size) {
    const batchllm_report_options defaults = default_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_report_create(batchllm_report **out) {
    return guard_out(out, [&]() -> Status {
        *out = std::make_unique<batchllm_report>().release();
        return {};
    });
}

void batchllm_report_destroy(batchllm_report *report) { delete report; }

int32_t batchllm_engine_set_report(batchllm_engine *engine, batchllm_report *report) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("engine", engine));
        return engine->engine->set_report(report == nullptr ? nullptr : report->record);
    });
}

int32_t batchllm_report_add_plan(batchllm_report *report, const batchllm_plan *handle,
                                 const int32_t *tokens, const int64_t *offsets,
                                 const batchllm_tokenizer *tokenizer) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("plan", handle));
        ASSIGN_OR_RETURN(const std::vector<TokenRow> rows, rows_of(handle->plan, tokens, offsets));
        TokenDecoder decoder;
        if (tokenizer != nullptr) {
            decoder = [tokenizer](std::span<const int32_t> part) {
                Result<std::string> words = tokenizer->tokenizer->decode(part, false);
                return words.ok() ? std::move(words).value() : std::string();
            };
        }
        report->record->add_plan(handle->plan, rows, decoder);
        return {};
    });
}

int32_t batchllm_report_add_prediction(batchllm_report *report,
                                       const batchllm_prediction *prediction) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("prediction", prediction));
        batchllm_prediction known{};
        RETURN_IF_ERROR(copy_known("prediction", prediction, &known, sizeof known));
        known.device[sizeof known.device - 1] = 0;
        report->record->add_prediction(known);
        return {};
    });
}

int32_t batchllm_report_add_failure(batchllm_report *report, uint64_t tag, const char *kind,
                                    const char *message) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("kind", kind));
        RETURN_IF_ERROR(need("message", message));
        report->record->add_failure(tag, kind, message);
        return {};
    });
}

int32_t batchllm_report_add_fact(batchllm_report *report, const char *name, const char *value) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("name", name));
        RETURN_IF_ERROR(need("value", value));
        if (report->record->add_fact(name, value)) return {};
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "more than %zu facts", JobRecord::facts_kept);
    });
}

int32_t batchllm_report_html(batchllm_report *report, const batchllm_report_options *options,
                             const char **html, int64_t *bytes) {
    return guard_out(html, [&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("bytes", bytes));
        ASSIGN_OR_RETURN(const PageOptions read, read_options(options));
        report->html = make_page(report->record.get(), read);
        *html = report->html.c_str();
        *bytes = static_cast<int64_t>(report->html.size());
        return {};
    });
}

int32_t batchllm_report_save(batchllm_report *report, const batchllm_report_options *options,
                             const char *path) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("path", path));
        ASSIGN_OR_RETURN(const PageOptions read, read_options(options));
        return write_file(path, make_page(report->record.get(), read));
    });
}

} // extern "C"
