#include "backend/gpu/rank_choice.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "backend/gpu/step_buffers.h"
#include "model/parts.h"

namespace batchllm {
namespace {

std::string gigabytes(int64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GB", 1e-9 * static_cast<double>(bytes));
    return text;
}

} // namespace

int64_t roomy_bytes(const Model &part, DType kept) {
    int64_t row = part.state_size() * static_cast<int64_t>(sizeof(float));
    for (const Layer &layer : part.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr || a->kv_layer >= 0) continue;
        const int64_t seen =
            a->window > 0 ? std::min<int64_t>(a->window, roomy_positions) : roomy_positions;
        row += seen * padded_kept(*a) * dtype_bytes(kept);
    }
    return roomy_rows * row;
}

Result<RankChoice>
choose_ranks(const Model &model, int32_t devices, DType kept,
             const std::function<Result<int64_t>(const Model &part)> &bytes_left) {
    RankChoice best;
    int64_t most = -1;
    std::string smaller; // why none of those is taken
    for (int32_t ranks = 1; ranks <= std::min(devices, most_ranks); ranks *= 2) {
        if (devices % ranks != 0) break;
        std::unique_ptr<Model> divided;
        if (ranks > 1) {
            auto part = part_of(model, 0, ranks);
            if (!part.ok()) {
                smaller += "; " + part.status().message();
                break;
            }
            divided = std::move(part).value();
        }
        const Model &part = ranks > 1 ? *divided : model;
        ASSIGN_OR_RETURN(const int64_t left, bytes_left(part));
        const int64_t wanted = roomy_bytes(part, kept);
        const std::string on = std::to_string(ranks) + (ranks == 1 ? " device" : " devices");
        const std::string leaves =
            left < 0 ? on + " would need " + gigabytes(-left) + " more on each"
                     : on + (ranks == 1 ? " leaves " : " leave ") + gigabytes(left) +
                           (ranks == 1 ? "" : " on each") + " for keys, values and states";
        if (left > most) {
            best = {ranks, leaves};
            most = left;
        }
        if (left >= wanted) return RankChoice{ranks, leaves + smaller};
        smaller += "; " + (left < 0 ? leaves
                                    : leaves + ", less than the " + gigabytes(wanted) + " for " +
                                          std::to_string(roomy_rows) + " rows of " +
                                          std::to_string(roomy_positions));
    }
    best.reason += ", the most" + smaller;
    return best;
}

} // namespace batchllm
