#include "cli/prediction.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/display.h"
#include "cli/progress.h"

namespace batchllm::cli {
namespace {

const char *none_if_empty(const std::string &text) { return text.empty() ? nullptr : text.c_str(); }

batchllm_predict_options options_of(const PredictionChoice &choice) {
    batchllm_predict_options options;
    batchllm_predict_options_init(&options, sizeof options);
    options.device = none_if_empty(choice.device);
    options.expected_tokens = choice.expected_tokens;
    return options;
}

Status need_model(const InputOptions &in) {
    if (!in.model.empty()) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "a prediction needs the model: --model DIR");
}

} // namespace

batchllm_engine_options engine_options_of(const InputOptions &in, const EngineChoice &choice) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.threads = in.threads;
    options.model_dir = none_if_empty(in.model);
    options.backend = choice.backend.c_str();
    options.devices = none_if_empty(choice.devices);
    options.compute_type = choice.compute_type.c_str();
    options.backend_options = none_if_empty(choice.backend_options);
    options.kv_memory_bytes = choice.kv_memory_bytes;
    options.kv_memory_fraction = choice.kv_memory_fraction;
    options.step_tokens = choice.step_tokens;
    options.max_request_tokens = choice.max_request_tokens;
    options.max_requests = choice.max_requests;
    options.reproducible = choice.reproducible ? 1 : 0;
    options.adapter_memory_bytes = choice.adapter_memory_bytes;
    options.enlarge = in.enlarge;
    options.levels = in.levels;
    return options;
}

Result<batchllm_prediction> predict_window(const Window &window, const InputOptions &in,
                                           const EngineChoice &engine,
                                           const PredictionChoice &choice) {
    RETURN_IF_ERROR(need_model(in));
    SamplingOptions scored;
    scored.max_tokens = 1;
    const auto count = static_cast<size_t>(window.rows());
    std::vector<batchllm_params> params;
    std::vector<ParameterViews> pointers(count);
    params.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const bool generated = static_cast<int64_t>(i) < window.generated;
        params.push_back(view_params(generated ? *window.params[i] : scored, &pointers[i]));
        params.back().constraint = nullptr;
    }
    batchllm_prediction predicted = {};
    predicted.struct_size = sizeof predicted;
    batchllm_engine_options options = engine_options_of(in, engine);
    options.pictures = window.pictures;
    const batchllm_predict_options predicting = options_of(choice);
    RETURN_IF_ERROR(call_status(batchllm_plan_predict(
        window.plan.get(), window.tokens.data(), window.offsets.data(), params.data(),
        static_cast<int64_t>(count), &options, &predicting, &predicted)));
    return predicted;
}

Result<double> check_prediction(const InputOptions &in, const EngineChoice &engine,
                                const PredictionChoice &choice) {
    const bool chosen = !choice.device.empty();
    if (!chosen && (in.model.empty() || in.levels != 0)) return 0.0; // nothing would use it
    const int64_t offsets[] = {0};
    batchllm_plan *empty = nullptr;
    RETURN_IF_ERROR(
        call_status(batchllm_plan_create(0, nullptr, offsets, nullptr, nullptr, nullptr, &empty)));
    Window window;
    window.plan.reset(empty);
    if (chosen) {
        ASSIGN_OR_RETURN(const batchllm_prediction nothing,
                         predict_window(window, in, engine, choice));
        return nothing.common_prefix_cost;
    }
    const auto nothing = predict_window(window, in, EngineChoice(), {.device = "h200"});
    if (nothing.ok()) return nothing->common_prefix_cost;
    if (is_failure_of_process(nothing.status().code())) return nothing.status();
    return 0.0;
}

void append_prediction(JsonObject *object, std::string *out, const batchllm_prediction &of) {
    object->key("predicted");
    JsonObject predicted(out);
    predicted.field("device", static_cast<const char *>(of.device))
        .field("devices", of.devices)
        .field("seconds", of.seconds)
        .field("linear_seconds", of.linear_seconds)
        .field("attention_seconds", of.attention_seconds)
        .field("other_seconds", of.other_seconds)
        .field("rows", of.rows)
        .field("steps", of.steps)
        .field("processed_prompt_tokens", of.processed_prompt_tokens)
        .field("saving_ratio", of.saving_ratio)
        .field("recomputed_tokens", of.recomputed_tokens)
        .field("completion_tokens", of.completion_tokens)
        .field("preemptions", of.preemptions)
        .field("kv_pages_peak", of.kv_pages_peak)
        .field("kv_pages_total", of.kv_pages_total)
        .field("kv_peak_bytes", of.kv_pages_peak * of.kv_page_bytes)
        .field("weight_bytes", of.weight_bytes)
        .field("four_bit_bytes", of.four_bit_bytes);
    if (of.adapters > 0) {
        predicted.field("adapters", of.adapters)
            .field("adapter_loads", of.adapter_loads)
            .field("adapter_load_bytes", of.adapter_load_bytes)
            .field("adapter_seconds", of.adapter_seconds);
    }
    predicted.close();
}

std::string prediction_text(const batchllm_prediction &of) {
    const double seconds = std::max(of.seconds, 1e-9);
    const auto gib = [&](int64_t pages) {
        return static_cast<double>(pages) * static_cast<double>(of.kv_page_bytes) / (1 << 30);
    };
    char took[32], text[512];
    std::snprintf(took, sizeof took, seconds < 10 ? "%.2f s" : "%.1f s", seconds);
    std::snprintf(text, sizeof text,
                  "predicted       %s on %s%s: %s steps, %.1f rows/s\n"
                  "                for %s tokens generated; rows that end earlier take less\n"
                  "                keys and values %.2f GiB of %.2f, %.1f %% of prompts saved\n",
                  seconds < 120 ? took : format_duration(seconds).c_str(),
                  static_cast<const char *>(of.device),
                  of.devices > 1 ? (", " + std::to_string(of.devices) + " devices").c_str() : "",
                  format_count(of.steps).c_str(), static_cast<double>(of.rows) / seconds,
                  format_count(of.completion_tokens).c_str(), gib(of.kv_pages_peak),
                  gib(of.kv_pages_total), 100 * of.saving_ratio);
    std::string all = text;
    all += "                weights " + format_bytes(static_cast<double>(of.weight_bytes)) +
           (of.four_bit_bytes > 0
                ? ", of which " + format_bytes(static_cast<double>(of.four_bit_bytes)) +
                      " stay in four bits"
                : "") +
           "\n";
    if (of.adapters == 0) return all;
    std::snprintf(text, sizeof text,
                  "                adapters %s, loaded %s times (%s), %.1f %% of the time\n",
                  format_count(of.adapters).c_str(), format_count(of.adapter_loads).c_str(),
                  format_bytes(static_cast<double>(of.adapter_load_bytes)).c_str(),
                  100 * of.adapter_seconds / (seconds * std::max(of.devices, 1)));
    return all + text;
}

} // namespace batchllm::cli
