#include "backend/gpu/rank_choice.h"

#include <algorithm>
#include <cstdio>
#include <limits>
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

MostRanks most_gpu_ranks(bool reproducible) {
    if (reproducible) return {2, "more devices are not reproducible"};
    return {most_ranks};
}

int64_t pool_share(const BackendOptions &options, int64_t left, double default_fraction,
                   int64_t beside_adapters) {
    if (left < 0) return left;
    const int64_t asked = options.kv_memory_bytes;
    if (asked > 0) return asked <= left ? asked : left - asked;
    const double fraction =
        options.kv_memory_fraction > 0 ? options.kv_memory_fraction : default_fraction;
    const int64_t adapters = options.adapter_memory_bytes;
    if (adapters > left) return left - adapters;
    const int64_t wasted = adapters / 16; // by a pool of them
    const int64_t beside = adapters > 0 ? left - adapters - wasted - beside_adapters : left;
    return std::min(static_cast<int64_t>(static_cast<double>(left) * fraction), beside);
}

Result<RankChoice>
choose_ranks(const Model &model, int32_t devices, const MostRanks &most, DType kept,
             const std::function<Result<int64_t>(const Model &part)> &bytes_left) {
    RankChoice best;
    int64_t best_left = std::numeric_limits<int64_t>::min();
    std::string others; // why none of those is taken
    for (int32_t ranks = 1; ranks <= std::min(devices, most_ranks); ranks *= 2) {
        if (devices % ranks != 0) break;
        if (ranks > most.ranks) {
            others += std::string("; ") + most.why;
            break;
        }
        std::unique_ptr<Model> divided;
        if (ranks > 1) {
            auto part = part_of(model, 0, ranks);
            if (!part.ok()) {
                others += "; " + part.status().message();
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
        if (left > best_left) {
            best = {ranks, leaves};
            best_left = left;
        }
        if (left >= wanted) return RankChoice{ranks, leaves + others};
        others += "; " + (left < 0 ? leaves
                                   : leaves + ", less than the " + gigabytes(wanted) + " for " +
                                         std::to_string(roomy_rows) + " rows of " +
                                         std::to_string(roomy_positions));
    }
    best.reason += (best_left < 0 ? ", the least" : ", the most") + others;
    return best;
}

} // namespace batchllm
