// batchllm_plan_predict: how long a plan's rows will take.
#include "runtime/predict.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string_view>

#include "api/boundary.h"
#include "api/pictures.h"
#include "api/plan.h"
#include "report/prediction_sum.h"

using namespace batchllm;
using api::guard;
using api::need;

namespace {

batchllm_predict_options default_predict_options() {
    batchllm_predict_options options{};
    options.struct_size = sizeof options;
    return options;
}

Result<PredictOptions> read_options(const batchllm_predict_options *options) {
    ASSIGN_OR_RETURN(const batchllm_predict_options known,
                     api::over_defaults(options, default_predict_options()));
    RETURN_IF_ERROR(api::need_zero("options->reserved", known.reserved));
    if (known.expected_tokens < 0 || known.expected_tokens > INT32_MAX) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "expected_tokens is %" PRId64 ": it must be 0 to 2^31 - 1",
                     known.expected_tokens);
    }
    PredictOptions read;
    const std::string_view device = known.device == nullptr ? "" : known.device;
    if (device != "here") read.device = device;
    read.expected_tokens = known.expected_tokens;
    return read;
}

batchllm_prediction as_struct(const Prediction &prediction) {
    const batchllm_stats &stats = prediction.stats;
    batchllm_prediction full{};
    full.struct_size = sizeof full;
    full.devices = prediction.devices;
    full.rows = stats.rows;
    full.steps = stats.steps;
    full.logical_prompt_tokens = stats.logical_prompt_tokens;
    full.processed_prompt_tokens = stats.processed_prompt_tokens;
    full.recomputed_tokens = stats.recomputed_tokens;
    full.completion_tokens = stats.completion_tokens;
    full.preemptions = stats.preemptions;
    full.kv_pages_peak = stats.kv_pages_peak;
    full.kv_pages_total = stats.kv_pages_total;
    full.kv_page_bytes = stats.kv_page_bytes;
    full.saving_ratio = stats.saving_ratio;
    full.common_prefix_cost = prediction.common_prefix_cost;
    full.seconds = stats.backend_seconds;
    full.linear_seconds = prediction.parts.linear;
    full.attention_seconds = prediction.parts.attention;
    full.other_seconds = prediction.parts.total() - full.linear_seconds - full.attention_seconds -
                         prediction.parts.adapters;
    full.weight_bytes = prediction.weights.all;
    full.four_bit_bytes = prediction.weights.in_four_bits;
    full.adapters = stats.adapters;
    full.adapter_loads = stats.adapter_loads;
    full.adapter_load_bytes = stats.adapter_load_bytes;
    full.adapter_seconds = prediction.parts.adapters;
    size_t length = std::min(prediction.device.size(), sizeof full.device - 1);
    while (length > 0 && length < prediction.device.size() &&
           (static_cast<unsigned char>(prediction.device[length]) & 0xc0) == 0x80) {
        --length; // back up to the start of the character that does not fit
    }
    std::memcpy(full.device, prediction.device.data(), length);
    return full;
}

} // namespace

Result<batchllm_prediction> api::checked_prediction(const char *name,
                                                    const batchllm_prediction *given) {
    batchllm_prediction known{};
    RETURN_IF_ERROR(copy_known(name, given, &known, sizeof known));
    if (const char *figure = wrong_figure(known)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s->%s: it must be finite, and at least 0",
                     name, figure);
    }
    known.device[sizeof known.device - 1] = 0;
    return known;
}

extern "C" {

void batchllm_predict_options_init(batchllm_predict_options *options, size_t struct_size) {
    const batchllm_predict_options defaults = default_predict_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_plan_predict(const batchllm_plan *plan, const int32_t *tokens,
                              const int64_t *offsets, const batchllm_params *params,
                              int64_t params_count, const batchllm_engine_options *engine_options,
                              const batchllm_predict_options *options, batchllm_prediction *out) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("plan", plan));
        RETURN_IF_ERROR(need("engine_options", engine_options));
        RETURN_IF_ERROR(need("out", out));
        batchllm_engine_options known = default_engine_options();
        RETURN_IF_ERROR(copy_known("engine_options", engine_options, &known, sizeof known));
        ASSIGN_OR_RETURN(EngineOptions engine, read_engine_options(known));
        if (known.pictures != nullptr) engine.pictures = known.pictures->library;
        ASSIGN_OR_RETURN(const PredictOptions read, read_options(options));
        ASSIGN_OR_RETURN(const auto rows, api::rows_of(plan->plan, tokens, offsets));
        if (!rows) {
            return error(BATCHLLM_ERROR_STATE,
                         "the plan does not keep its rows' tokens: give them, or make it with "
                         "self_contained");
        }
        ASSIGN_OR_RETURN(const ParamsColumn column,
                         ParamsColumn::open(params, params_count, rows->column.n));
        ASSIGN_OR_RETURN(const Prediction prediction,
                         predict(plan->plan, rows->column, column, engine, read));
        const batchllm_prediction full = as_struct(prediction);
        return api::copy_out("out", &full, sizeof full, out);
    });
}

int32_t batchllm_prediction_add(batchllm_prediction *sum, const batchllm_prediction *part) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("sum", sum));
        RETURN_IF_ERROR(need("part", part));
        ASSIGN_OR_RETURN(batchllm_prediction known, api::checked_prediction("sum", sum));
        ASSIGN_OR_RETURN(const batchllm_prediction added, api::checked_prediction("part", part));
        add_up(added, &known);
        return api::copy_out("sum", &known, sizeof known, sum);
    });
}

} // extern "C"
