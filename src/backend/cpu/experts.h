// The experts of a layer: routes every token, then computes each expert for its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weights.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

// A token's logits [experts] -> its experts, ascending, and their weights, router.chosen of each.
// correction, expert_scale: [experts], or empty.
void choose_experts(const Router &router, const Vector &correction, const Vector &expert_scale,
                    const float *logits, int32_t experts, int32_t *chosen, float *weights);

// linear, kernels and pool are borrowed.
class ExpertLayers {
  public:
    ExpertLayers(const Kernels &kernels, Linear *linear, ThreadPool *pool)
        : kernels_(kernels), linear_(linear), pool_(pool) {}

    // Allocates room for this many tokens in any layer of the model; nothing if no layer has
    // experts.
    Status allocate(const Model &model, int64_t step_tokens);

    // Chooses the tokens' experts. x: the router's input, [rounded_rows(tokens), hidden] elements.
    Status route(const Experts &experts, const PackedExperts &weights, const std::byte *x,
                 int64_t tokens);
    // Of tokens that have been routed: out += for each, the weighted sum of its experts, in a fixed
    // order of experts, so that the sum does not depend on other tokens. x: the experts' input, as
    // the router's; out: [tokens, hidden].
    Status run(const Experts &experts, const PackedExperts &weights, const std::byte *x,
               int64_t tokens, int64_t hidden, float *out);

  private:
    void sort_by_expert(int64_t experts, int64_t chosen, int64_t tokens);
    void find_adapters(RowAdapters adapters, int64_t begin, int64_t end);
    Status run_expert(const FeedForward &expert, const PackedFeedForward &weights,
                      bool weighs_input, const std::byte *x, int64_t begin, int64_t end,
                      int64_t hidden, float *out);

    const Kernels &kernels_;
    Linear *linear_;
    ThreadPool *pool_;
    Buffer logits_;               // [tokens, experts] float
    Buffer gathered_;             // [rows, hidden] elements: the input of an expert
    Buffer activated_;            // [rows, width] elements
    std::vector<int32_t> chosen_; // [tokens, chosen]
    std::vector<float> weights_;  // [tokens, chosen]
    // The pairs of a token and one of its experts, sorted by expert and token. Those of expert e
    // are [begin_[e], begin_[e + 1]).
    struct Turn {
        int32_t token;
        float weight;
    };
    std::vector<Turn> turns_;
    std::vector<int64_t> begin_;                    // [experts + 1]
    std::vector<const CpuAdapter *> turn_adapters_; // of an expert's tokens
};

} // namespace batchllm::cpu
