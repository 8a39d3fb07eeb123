// A token batch on a described device -> the seconds of its parts.
//
//     linear      products of all layers: of their rows' rate, the matrix' elements and a launch each; of a
//                 layer's experts those that have tokens, in one launch. They are read once a step, however few
//                 tokens each has
//     attention   of each layer, by what a launch does: queries that share keys (a prefix under many rows, a
//                 prompt's own chunk) are arithmetic; keys that one query reads alone are bytes; both at
//                 once, the lesser partly behind the greater; then merges of what was computed apart. Keys in
//                 fp8 that queries share are widened before: bytes of memory
//     elementwise norms, activations that are not part of a product, ropes, weighted sums of experts: bytes of
//                 memory; routing
//     logits      the head's product and sampling
//     step        what a step takes beside all that
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
    // kv_bytes: of an element of keys and values, 2, or 1 in fp8.
    StepCost(DeviceCosts costs, const Model &model, int64_t kv_bytes = 2);

    StepSeconds seconds(const TokenBatch &batch) const;
    // Of the host between two batches.
    double host_seconds(const TokenBatch &batch) const;
    // Of a query whose keys are in one node more than before, in all layers; and of a token of a prompt, in a step
    // that has 4,096 of them, or 8,192 with experts, or what fits.
    double merge_seconds() const;
    double token_seconds() const;

    const DeviceCosts &costs() const { return costs_; }

  private:
    // Products of one shape of all layers.
    struct Product {
        double elements = 0; // of the matrix
        double count = 0;
    };
    // The same of experts, of which each token goes through some.
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
    void add_layer(const Layer &layer);
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
    double elementwise_bytes_ = 0; // a token
    double gated_bytes_ = 0;       // of those, what costs_.gated_tokens spare
    double routed_ = 0;            // experts of a token, in all layers
    double routings_ = 0;          // layers with experts
    double head_ = 0, vocabulary_ = 0;
};

// PlanOptions::head_cost: what each token below a head pays for it, another merge, in tokens of a prompt; and a
// margin, so that a head that is chosen does not lose.
double head_cost(const StepCost &cost);

} // namespace batchllm
