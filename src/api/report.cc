// batchllm_report_*: what a job did, as a page.
#include <cmath>

#include "api/boundary.h"
#include "api/engine.h"
#include "api/plan.h"
#include "api/tokenizer.h"
#include "base/file.h"
#include "image/decode_row.h"
#include "report/page.h"

using namespace batchllm;
using api::guard;
using api::guard_out;
using api::need;

struct batchllm_report {
    std::shared_ptr<JobRecord> record = std::make_shared<JobRecord>();
    std::string html; // the last one returned
};

namespace {

batchllm_report_options default_report_options() {
    batchllm_report_options options{};
    options.struct_size = sizeof options;
    return options;
}

Result<PageOptions> read_options(const batchllm_report_options *options) {
    ASSIGN_OR_RETURN(const batchllm_report_options known,
                     api::over_defaults(options, default_report_options()));
    RETURN_IF_ERROR(api::need_zero("options->reserved", known.reserved));
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

std::vector<TokenRow> token_rows(const api::PlanRows &rows) {
    std::vector<TokenRow> made;
    for (int64_t i = 0; i < rows.column.n; ++i) {
        const std::span<const int32_t> row = rows.column[i];
        made.push_back({row.data(), static_cast<int32_t>(row.size()), 0});
    }
    return made;
}

} // namespace

extern "C" {

void batchllm_report_options_init(batchllm_report_options *options, size_t struct_size) {
    const batchllm_report_options defaults = default_report_options();
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
        ASSIGN_OR_RETURN(const api::EngineUse use, api::EngineUse::begin(engine));
        return engine->engine->set_report(report == nullptr ? nullptr : report->record);
    });
}

int32_t batchllm_report_add_plan(batchllm_report *report, const batchllm_plan *handle,
                                 const int32_t *tokens, const int64_t *offsets,
                                 const batchllm_tokenizer *tokenizer) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("report", report));
        RETURN_IF_ERROR(need("plan", handle));
        ASSIGN_OR_RETURN(const auto kept, api::rows_of(handle->plan, tokens, offsets));
        std::vector<TokenRow> rows;
        if (kept) rows = token_rows(*kept);
        TokenDecoder decoder;
        if (tokenizer != nullptr) {
            decoder = [tokenizer](std::span<const int32_t> part) {
                Result<std::string> words = decode_row(*tokenizer->tokenizer, part);
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
        ASSIGN_OR_RETURN(const batchllm_prediction known,
                         api::checked_prediction("prediction", prediction));
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
