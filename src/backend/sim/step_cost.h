// A token batch on a described device -> the seconds of its parts.
//
//     linear      products of all layers: each takes its matrix' elements at the rate for its rows, and a launch.
//                 A layer's experts that have tokens take one launch together, and are read once a step, however
//                 few tokens each has
//     attention   one launch a layer: queries that share keys (a prefix under many rows, a prompt's own chunk)
//                 take arithmetic; keys that one query reads alone take bandwidth. Both run at once, so the
//                 larger time partly hides the smaller. Then results that were computed apart are merged. Keys
//                 in fp8 that queries share are widened first, at the memory's bandwidth
//     elementwise norms, activations that are not part of a product, ropes, weighted sums of experts, at the
//                 memory's bandwidth; routing
//     logits      the head's product and sampling
//     step        a fixed time for each step
//
// A node of the batch is read once for all queries below it, as the kernels do.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "backend/sim/device_costs.h"

namespace batchllm {

struct StepSeconds {
    double linear = 0, attention = 0, elementwise = 0, logits = 0, step = 0;

    double total() const { return linear + attention + elementwise + logits + step; }
    StepSeconds &operator+=(const StepSeconds &other);
};

class StepCost {
  public:
    // kv_bytes: of an element of keys and values: 2, or 1 in fp8.
    StepCost(DeviceCosts costs, const Model &model, int64_t kv_bytes = 2);

    StepSeconds seconds(const TokenBatch &batch) const;
    // The host's time between two batches.
    double host_seconds(const TokenBatch &batch) const;
    // Of a query whose keys are in one node more than before, in all layers; and of a token of a prompt, in a step
    // that has 4,096 of them, or 8,192 with experts, or what fits.
    double merge_seconds() const;
    double token_seconds() const;

    const DeviceCosts &costs() const { return costs_; }

  private:
    // The products of one shape in all layers.
    struct Product {
        double elements = 0; // of the matrix
        double count = 0;
    };
    // The same for experts, of which each token goes through `chosen`.
    struct Experts {
        double elements = 0; // of one expert's matrix
        double experts = 0, chosen = 0;
        double count = 0;
    };
    // All layers that attend with one window and one shape of heads.
    struct Layers {
        int32_t window = 0, heads = 0, kv_heads = 0, head_dim = 0;
        double count = 0;
    };
    void add_layer(const Layer &layer, double hidden);
    void add_product(double elements);
    void add_experts(const Experts &experts);
    double product_seconds(double rows, double elements) const;
    double expert_seconds(double tokens, const Experts &experts) const;
    double attention_seconds(const TokenBatch &batch, const Layers &layers) const;
    double merge_seconds_of(const Layers &layers) const;

    DeviceCosts costs_;
    double kv_bytes_;
    std::vector<Product> products_;
    std::vector<Experts> experts_;
    std::vector<Layers> layers_;
    double elementwise_bytes_ = 0; // per token
    double gated_bytes_ = 0;       // those of them that costs_.gated_tokens saves
    double routed_ = 0;            // experts of a token, in all layers
    double routings_ = 0;          // layers with experts
    double head_ = 0, vocabulary_ = 0;
};

// PlanOptions::head_cost: what each token below a head pays for it: one more merge, in tokens of a prompt, times a
// margin, so that a chosen head does not lose.
double head_cost(const StepCost &cost);

} // namespace batchllm
