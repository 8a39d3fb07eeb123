#include "cli/plan_text.h"

#include <cstdio>

#include "base/display.h"

namespace batchllm::cli {
namespace {

const char *enlarge_name(int32_t enlarge) {
    return enlarge == BATCHLLM_ENLARGE_NONE    ? "none"
           : enlarge == BATCHLLM_ENLARGE_PAPER ? "paper"
                                               : "optimal";
}

} // namespace

Result<batchllm_plan_advice> plan_advice(const batchllm_plan *plan) {
    batchllm_plan_advice advice = {};
    advice.struct_size = sizeof advice;
    RETURN_IF_ERROR(call_status(batchllm_plan_get_advice(plan, &advice)));
    return advice;
}

Result<batchllm_plan_stats> plan_stats(const batchllm_plan *plan) {
    batchllm_plan_stats stats = {};
    stats.struct_size = sizeof stats;
    RETURN_IF_ERROR(call_status(batchllm_plan_get_stats(plan, &stats)));
    return stats;
}

void append_plan_stats(JsonObject *object, const batchllm_plan_stats &stats) {
    object->field("rows", stats.rows)
        .field("groups", stats.groups)
        .field("grouped_rows", stats.grouped_rows)
        .field("reused_rows", stats.reused_rows)
        .field("known_rows", stats.known_rows)
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
            (stats.levels == 0 ? "auto" : std::to_string(stats.levels)) +
            (stats.self_contained != 0 ? ", tokens inside" : "") + "\n";
    return text;
}

} // namespace batchllm::cli
