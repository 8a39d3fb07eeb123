#include "backend/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "backend/cpu/feed_forward.h"
#include "model/stored_float.h"

namespace batchllm::cpu {
namespace {

// weight * x, of n elements. row: [n]
void weigh(const Kernels &kernels, const std::byte *x, float weight, int64_t n, float *row,
           std::byte *out) {
    for (int64_t i = 0; i < n; ++i) row[i] = stored_float(x, i, kernels.element);
    const auto count = static_cast<int32_t>(n);
    kernels.store_elements(row, weight, count, count, out);
}

constexpr float lowest = -std::numeric_limits<float>::infinity();

// Logits -> scores, in place.
void score(RouterKind kind, std::span<float> logits) {
    if (kind == RouterKind::sigmoid) {
        for (float &x : logits) x = 1 / (1 + std::exp(-x));
        return;
    }
    const float most = *std::max_element(logits.begin(), logits.end());
    float sum = 0;
    for (float &x : logits) sum += x = std::exp(x - most);
    for (float &x : logits) x /= sum;
}

// Excludes the groups that may not be chosen.
void drop_groups(const Router &router, std::span<float> by) {
    const size_t groups = static_cast<size_t>(router.groups);
    const size_t size = by.size() / groups;
    std::vector<float> sums(groups);
    for (size_t g = 0; g < groups; ++g) {
        float first = lowest, second = lowest;
        for (const float x : by.subspan(g * size, size)) {
            second = std::max(second, std::min(first, x));
            first = std::max(first, x);
        }
        sums[g] = router.group_best == 1 ? first : first + second;
    }
    for (int32_t kept = 0; kept < router.chosen_groups; ++kept) {
        *std::max_element(sums.begin(), sums.end()) = lowest;
    }
    for (size_t g = 0; g < groups; ++g) {
        if (sums[g] == lowest) continue;
        std::fill_n(by.begin() + static_cast<std::ptrdiff_t>(g * size), size, lowest);
    }
}

// The highest logit, but for `first` (-1: none), and its weight.
int32_t mix_one(float jitter, std::span<const float> logits, int32_t first, float *weight) {
    int32_t best = -1;
    for (size_t e = 0; e < logits.size(); ++e) {
        if (static_cast<int32_t>(e) == first) continue;
        if (best < 0 || logits[e] > logits[static_cast<size_t>(best)]) {
            best = static_cast<int32_t>(e);
        }
    }
    const float most = logits[static_cast<size_t>(best)];
    float sum = 0;
    for (size_t e = 0; e < logits.size(); ++e) {
        const float x = logits[e];
        if (static_cast<int32_t>(e) == first) continue;
        if ((most - x) / std::max(std::fabs(x), most) > 2 * jitter) continue;
        sum += std::exp(x - most);
    }
    *weight = 1 / sum;
    return best;
}

void mix_experts(float jitter, std::span<const float> logits, int32_t *chosen, float *weights) {
    chosen[0] = mix_one(jitter, logits, -1, weights);
    chosen[1] = mix_one(jitter, logits, chosen[0], weights + 1);
    if (chosen[0] < chosen[1]) return;
    std::swap(chosen[0], chosen[1]);
    std::swap(weights[0], weights[1]);
}

} // namespace

void choose_experts(const Router &router, const Vector &correction, const Vector &expert_scale,
                    const float *logits, int32_t experts, int32_t *chosen, float *weights) {
    if (router.kind == RouterKind::sparse_mixer) {
        const std::span all(logits, static_cast<size_t>(experts));
        return mix_experts(router.jitter, all, chosen, weights);
    }
    std::vector<float> scores(logits, logits + experts);
    score(router.kind, scores);
    // Of inputs' weights only the logits' order counts, also where their sigmoids are equal.
    std::vector<float> by = router.weighs_input ? std::vector(logits, logits + experts) : scores;
    for (size_t e = 0; e < correction.size(); ++e) by[e] += correction[e];
    for (float &x : by) {
        if (std::isnan(x)) x = lowest; // so that they have an order
    }
    if (router.groups > router.chosen_groups) drop_groups(router, by);
    std::vector<int32_t> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + router.chosen, order.end(),
                      [&](int32_t a, int32_t b) {
                          return by[static_cast<size_t>(a)] != by[static_cast<size_t>(b)]
                                     ? by[static_cast<size_t>(a)] > by[static_cast<size_t>(b)]
                                     : a < b;
                      });
    std::sort(order.begin(), order.begin() + router.chosen);
    float sum = 0;
    for (int32_t i = 0; i < router.chosen; ++i) {
        chosen[i] = order[static_cast<size_t>(i)];
        weights[i] = scores[static_cast<size_t>(chosen[i])];
        sum += weights[i];
    }
    const float least = router.epsilon + 1e-20f; // avoids a division by zero
    const float scale = router.normalised ? router.scale / (sum + least) : router.scale;
    for (int32_t i = 0; i < router.chosen; ++i) {
        weights[i] *= scale;
        if (!expert_scale.empty()) weights[i] *= expert_scale[static_cast<size_t>(chosen[i])];
    }
}

Status ExpertLayers::allocate(const Model &model, int64_t step_tokens) {
    size_t experts = 0;
    int64_t width = 0;
    int32_t chosen = 0;
    for (const Layer &layer : model.layers) {
        const Experts *of_layer = layer.experts();
        if (of_layer == nullptr) continue;
        experts = std::max(experts, of_layer->each.size());
        width = std::max<int64_t>(width, of_layer->each[0].width);
        chosen = std::max(chosen, of_layer->router.chosen);
    }
    if (experts == 0) return {};
    const int64_t rows = Linear::rounded_rows(step_tokens);
    const int64_t element = dtype_bytes(kernels_.element);
    const char *what = "a step's buffers of experts";
    ASSIGN_OR_RETURN(logits_,
                     Buffer::create(step_tokens * static_cast<int64_t>(experts) * 4, what));
    ASSIGN_OR_RETURN(gathered_, Buffer::create(rows * model.hidden * element, what));
    ASSIGN_OR_RETURN(activated_, Buffer::create(rows * width * element, what));
    const auto turns = static_cast<size_t>(step_tokens * chosen);
    chosen_.resize(turns);
    weights_.resize(turns);
    turns_.resize(turns);
    begin_.resize(experts + 1);
    return {};
}

Status ExpertLayers::route(const Experts &experts, const PackedExperts &weights, const std::byte *x,
                           int64_t tokens) {
    const auto count = static_cast<int64_t>(experts.each.size());
    const int64_t chosen = experts.router.chosen;
    const float scale = experts.router.logits_scale;
    RETURN_IF_ERROR(linear_->run(weights.router, x, tokens, [&](const Linear::Tile &tile) {
        const float *bias = bias_at(weights.router_bias, tile.column);
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float *from = tile.data + r * tile.width;
            float *to = logits_.floats() + (tile.row + r) * count + tile.column;
            for (int64_t e = 0; e < tile.width; ++e) {
                to[e] = scale * from[e] + (bias != nullptr ? bias[e] : 0.0f);
            }
        }
    }));
    constexpr int64_t tokens_of_task = 64;
    pool_->parallel_for((tokens + tokens_of_task - 1) / tokens_of_task, [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * tokens_of_task);
        for (int64_t t = task * tokens_of_task; t < last; ++t) {
            choose_experts(experts.router, weights.correction, weights.expert_scale,
                           logits_.floats() + t * count, static_cast<int32_t>(count),
                           chosen_.data() + t * chosen, weights_.data() + t * chosen);
        }
    });
    return {};
}

void ExpertLayers::sort_by_expert(int64_t experts, int64_t chosen, int64_t tokens) {
    std::fill_n(begin_.begin(), experts + 1, 0);
    const int64_t turns = tokens * chosen;
    for (int64_t i = 0; i < turns; ++i) ++begin_[static_cast<size_t>(chosen_[i]) + 1];
    std::partial_sum(begin_.begin(), begin_.begin() + experts + 1, begin_.begin());
    for (int64_t i = 0; i < turns; ++i) {
        int64_t &place = begin_[static_cast<size_t>(chosen_[i])];
        turns_[static_cast<size_t>(place++)] = {static_cast<int32_t>(i / chosen), weights_[i]};
    }
    // Each has moved to the beginning of the next.
    std::copy_backward(begin_.begin(), begin_.begin() + experts, begin_.begin() + experts + 1);
    begin_[0] = 0;
}

// Sets those of the tokens of turns [begin, end).
void ExpertLayers::find_adapters(RowAdapters adapters, int64_t begin, int64_t end) {
    if (adapters.empty()) return;
    turn_adapters_.clear();
    for (int64_t i = begin; i < end; ++i) {
        turn_adapters_.push_back(
            adapters[static_cast<size_t>(turns_[static_cast<size_t>(i)].token)]);
    }
    linear_->set_adapters(turn_adapters_);
}

Status ExpertLayers::run_expert(const FeedForward &expert, const PackedFeedForward &weights,
                                bool weighs_input, const std::byte *x, int64_t begin, int64_t end,
                                int64_t hidden, float *out) {
    const int64_t row_bytes = hidden * dtype_bytes(kernels_.element);
    std::vector<float> row(static_cast<size_t>(weighs_input ? hidden : 0));
    for (int64_t i = begin; i < end; ++i) {
        Turn &turn = turns_[static_cast<size_t>(i)];
        const std::byte *from = x + turn.token * row_bytes;
        std::byte *to = gathered_.data() + (i - begin) * row_bytes;
        if (weighs_input) {
            weigh(kernels_, from, std::exchange(turn.weight, 1.0F), hidden, row.data(), to);
        } else {
            std::memcpy(to, from, static_cast<size_t>(row_bytes));
        }
    }
    RETURN_IF_ERROR(activate(expert, weights, kernels_, gathered_.data(), end - begin, linear_,
                             activated_.data()));
    return linear_->run(
        weights.down, activated_.data(), end - begin, [&](const Linear::Tile &tile) {
            for (int64_t r = 0; r < tile.rows; ++r) {
                const Turn &turn = turns_[static_cast<size_t>(begin + tile.row + r)];
                float *to = out + turn.token * hidden + tile.column;
                const auto width = static_cast<int32_t>(tile.width);
                kernels_.add_scaled(tile.data + r * tile.width, turn.weight, width, to);
                if (const float *bias = bias_at(weights.down_bias, tile.column)) {
                    kernels_.add_scaled(bias, turn.weight, width, to);
                }
            }
        });
}

Status ExpertLayers::run(const Experts &experts, const PackedExperts &weights, const std::byte *x,
                         int64_t tokens, int64_t hidden, float *out) {
    const auto count = static_cast<int64_t>(experts.each.size());
    sort_by_expert(count, experts.router.chosen, tokens);
    const RowAdapters adapters = linear_->adapters();
    Status status;
    for (int64_t e = 0; e < count; ++e) {
        const int64_t begin = begin_[static_cast<size_t>(e)];
        const int64_t end = begin_[static_cast<size_t>(e) + 1];
        if (begin == end || !status.ok()) continue;
        const auto i = static_cast<size_t>(e);
        find_adapters(adapters, begin, end);
        status = run_expert(experts.each[i], weights.each[i], experts.router.weighs_input, x, begin,
                            end, hidden, out);
    }
    linear_->set_adapters(adapters);
    return status;
}

} // namespace batchllm::cpu
