#include "report/prediction_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace batchllm {
namespace {

struct Count {
    const char *name;
    int64_t batchllm_prediction::*value;
    bool summed = true;
};
constexpr Count counts[] = {
    {"rows", &batchllm_prediction::rows},
    {"steps", &batchllm_prediction::steps},
    {"logical_prompt_tokens", &batchllm_prediction::logical_prompt_tokens},
    {"processed_prompt_tokens", &batchllm_prediction::processed_prompt_tokens},
    {"recomputed_tokens", &batchllm_prediction::recomputed_tokens},
    {"completion_tokens", &batchllm_prediction::completion_tokens},
    {"preemptions", &batchllm_prediction::preemptions},
    {"kv_pages_peak", &batchllm_prediction::kv_pages_peak, false},
    {"kv_pages_total", &batchllm_prediction::kv_pages_total, false},
    {"kv_page_bytes", &batchllm_prediction::kv_page_bytes, false},
    {"weight_bytes", &batchllm_prediction::weight_bytes, false},
    {"four_bit_bytes", &batchllm_prediction::four_bit_bytes, false},
    {"adapters", &batchllm_prediction::adapters},
    {"adapter_loads", &batchllm_prediction::adapter_loads},
    {"adapter_load_bytes", &batchllm_prediction::adapter_load_bytes},
};

struct Seconds {
    const char *name;
    double batchllm_prediction::*value;
};
constexpr Seconds seconds[] = {
    {"seconds", &batchllm_prediction::seconds},
    {"linear_seconds", &batchllm_prediction::linear_seconds},
    {"attention_seconds", &batchllm_prediction::attention_seconds},
    {"other_seconds", &batchllm_prediction::other_seconds},
    {"adapter_seconds", &batchllm_prediction::adapter_seconds},
};

} // namespace

const char *wrong_figure(const batchllm_prediction &of) {
    for (const Count &count : counts) {
        if (of.*count.value < 0) return count.name;
    }
    for (const Seconds &part : seconds) {
        if (!(of.*part.value >= 0) || std::isinf(of.*part.value)) return part.name;
    }
    // Negative if more is recomputed than was shared.
    return std::isfinite(of.saving_ratio) ? nullptr : "saving_ratio";
}

void add_up(const batchllm_prediction &of, batchllm_prediction *sum) {
    if (sum->rows == 0) {
        *sum = of;
        return;
    }
    for (const Count &count : counts) {
        int64_t &all = sum->*count.value;
        if (!count.summed) continue;
        if (__builtin_add_overflow(all, of.*count.value, &all)) {
            all = std::numeric_limits<int64_t>::max();
        }
    }
    for (const Seconds &part : seconds) sum->*part.value += of.*part.value;
    sum->kv_pages_peak = std::max(sum->kv_pages_peak, of.kv_pages_peak);
    if (sum->logical_prompt_tokens > 0) {
        sum->saving_ratio = 1 - static_cast<double>(sum->processed_prompt_tokens) /
                                    static_cast<double>(sum->logical_prompt_tokens);
    }
}

} // namespace batchllm
