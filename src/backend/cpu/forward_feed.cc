// A layer's feed-forward: its own, or its experts and their shared expert.
#include <algorithm>
#include <cmath>

#include "backend/cpu/feed_forward.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/forward_tasks.h"
#include "base/visit.h"

namespace batchllm::cpu {

// delta = the shared expert of each row, times its gate, normed; zero if there is no shared expert.
Status Forward::shared_expert(size_t index, int64_t rows) {
    const SharedExperts *both = model_.layers[index].shared();
    const PackedLayer &weights = weights_.layers[index];
    const int64_t hidden = model_.hidden;
    if (both == nullptr) {
        std::fill_n(delta_.floats(), rows * hidden, 0.0f);
        return {};
    }
    RETURN_IF_ERROR(activate(both->shared, weights.feed_forward, kernels_, input_.data(), rows,
                             linear_.get(), activated_.data()));
    RETURN_IF_ERROR(product(weights.feed_forward.down, activated_.data(), rows,
                            weights.feed_forward.down_bias, kernels_.copy_bias, delta_.floats()));
    // Otherwise what the experts add is summed with it.
    if (both->experts.after) RETURN_IF_ERROR(sum(rows, &delta_));
    if (both->gate) {
        RETURN_IF_ERROR(
            linear_->run(weights.shared_gate, input_.data(), rows, [&](const Linear::Tile &tile) {
                for (int64_t r = 0; r < tile.rows; ++r) {
                    const float gate = 1 / (1 + std::exp(-tile.data[r]));
                    float *row = delta_.floats() + (tile.row + r) * hidden;
                    for (int64_t i = 0; i < hidden; ++i) row[i] *= gate;
                }
            }));
    }
    if (weights.after_shared) norm_rows(weights.after_shared, rows, delta_.floats());
    return {};
}

// delta += the experts of each row, routed and normed.
Status Forward::add_experts(size_t index, const Experts &experts, int64_t rows) {
    const PackedExperts &weights = weights_.layers[index].experts;
    const int64_t hidden = model_.hidden;
    if (experts.before) norm(weights.router_norm, residual_.floats(), rows, input_.data());
    RETURN_IF_ERROR(experts_->route(experts, weights, input_.data(), rows));
    if (experts.before) norm(weights.before, residual_.floats(), rows, input_.data());
    if (!experts.after) {
        return experts_->run(experts, weights, input_.data(), rows, hidden, delta_.floats());
    }
    std::fill_n(expert_sums_.floats(), rows * hidden, 0.0f);
    RETURN_IF_ERROR(
        experts_->run(experts, weights, input_.data(), rows, hidden, expert_sums_.floats()));
    RETURN_IF_ERROR(sum(rows, &expert_sums_));
    add_normed(weights.after, 1, rows, &expert_sums_, &delta_);
    return {};
}

Status Forward::feed_dense(size_t index, const FeedForward &feed_forward, int64_t rows) {
    const PackedLayer &weights = weights_.layers[index];
    Laps laps;
    RETURN_IF_ERROR(activate(feed_forward, weights.feed_forward, kernels_, input_.data(), rows,
                             linear_.get(), activated_.data()));
    laps.lap(&seconds_.gate_up);
    RETURN_IF_ERROR(add_product(weights.feed_forward.down, activated_.data(), rows,
                                weights.feed_forward.down_bias, weights.after_feed_forward,
                                model_.layers[index].residual_scale, rank_));
    laps.lap(&seconds_.down);
    return {};
}

Status Forward::feed_experts(size_t index, const Experts &experts, int64_t rows) {
    Laps laps;
    RETURN_IF_ERROR(shared_expert(index, rows));
    RETURN_IF_ERROR(add_experts(index, experts, rows));
    if (!experts.after) RETURN_IF_ERROR(sum(rows, &delta_));
    add_normed(weights_.layers[index].after_feed_forward, model_.layers[index].residual_scale, rows,
               &delta_, &residual_);
    laps.lap(&seconds_.experts);
    return {};
}

// Adds the output of what the layer feeds for this input to the residual stream.
Status Forward::feed(size_t index, int64_t rows) {
    return std::visit(
        Visitor{[](const NoFeed &) { return Status(); },
                [&](const FeedForward &alone) { return feed_dense(index, alone, rows); },
                [&](const Experts &alone) { return feed_experts(index, alone, rows); },
                [&](const SharedExperts &both) { return feed_experts(index, both.experts, rows); }},
        model_.layers[index].feed);
}

} // namespace batchllm::cpu
