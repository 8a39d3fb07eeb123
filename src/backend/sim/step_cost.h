// A token batch on a described device -> the seconds of its parts.
//
//     linear      products of all layers. Each takes its matrix elements at the rate for its rows,
//     and a launch. Matrices that stay in four bits take a known part of that, those in e4m3 have rates of their own.
//                 The experts of a layer that have tokens share one launch, and are read once per
//                 step, however
//                 few tokens each has
//     attention   one launch per layer. Queries that share keys (a prefix under many rows, a
//     prompt's own chunk)
//                 cost arithmetic; keys that only one query reads cost bandwidth. Both run at once,
//                 so the larger
//                 time partly hides the smaller. Then results that were computed separately are
//                 merged. Keys in
//                 fp8 that queries share are first widened, at the memory's bandwidth.
//                 Of latents prompts expand all keys that they see, if that costs less (the plain form); other tokens'
//                 queries go into the latents' space, and their results out of it
//     states      of layers that have one: what they read and write of each token, at the memory's bandwidth, and of each
//                 row with tokens its state, read and written once
//     elementwise norms, activations that are not part of a product, ropes, weighted sums of
//     experts, rounding to e4m3, all at the
//                 memory's bandwidth; and routing
//     adapters    what they add to products. On a GPU launches, what they read and write of each
//                 token, and their weights once; on a CPU their weights for each token
//     logits      the head's product and sampling
//     exchange    between devices that compute parts of a model: two sums over all of them in a layer, none hidden
//                 behind products, and the logits that each needs for its share of the rows
//     step        a fixed time for each step
//     pictures    the tower's products for all patches and tokens, and its attention's arithmetic; before the next step
//
// A node of the batch is read once for all queries below it, as the kernels do.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/packed_fit.h"
#include "backend/gpu/scaled_fit.h"
#include "backend/sim/device_costs.h"

namespace batchllm {

struct StepSeconds {
    double linear = 0, attention = 0, states = 0, elementwise = 0, logits = 0, exchange = 0,
           step = 0, adapters = 0;

    double total() const {
        return linear + attention + states + elementwise + logits + exchange + step + adapters;
    }
    StepSeconds &operator+=(const StepSeconds &other);
};

// What a step with tokens of an adapter has to do on one device.
struct AdapterCost {
    double matrices =
        0; // that it changes; those of a layer's experts, of which a launch has all, are one
    double elements = 0;    // of A and B, that a token needs: of its experts' only
    double token_bytes = 0; // of inputs and results
};

class AdapterCosts {
  public:
    // ranks: devices that compute parts of the model. Each is taken to have an equal share.
    AdapterCosts(const Model &model, int32_t ranks);

    // adapter: of this model, not of a part of it.
    AdapterCost of(const Adapter &adapter) const;

  private:
    struct OfExpert {
        double share;        // of tokens
        const Tensor *first; // the first expert's matrix of the kind
    };
    std::unordered_map<const Tensor *, OfExpert> of_experts_;
    double ranks_;
};

// In which types a model is computed and kept, as far as time depends on it.
struct CostTypes {
    int64_t kv_bytes = 2;                 // per element of keys and values: 2, or 1 in fp8
    DType states = DType::f32;            // of the matrices of states
    Quantize quantize = Quantize::stored; // on a GPU
};

class StepCost {
  public:
    // model: may be a part of one.
    StepCost(DeviceCosts costs, const Model &model, const CostTypes &types = {});

    // adapters: of each slot that the batch names.
    StepSeconds seconds(const TokenBatch &batch, std::span<const AdapterCost> adapters = {}) const;
    // From now on, rows that decode choose the same experts if most of their context is the same, so that fewer are read;
    // otherwise each token chooses for itself. Only bench/predict asks for it, to be compared with jobs of bench/throughput:
    // with their random weights attention averages a context, which makes such rows alike. Predictions for users, whose
    // models are trained, do not assume it (docs/lab/jobs.md, "Routing of random weights").
    void choose_by_context() { by_context_ = true; }
    // Of a tower's run over these pictures.
    double picture_seconds(std::span<const PictureLoad> pictures) const;
    // The host's time between two batches.
    double host_seconds(const TokenBatch &batch) const;
    // For a query whose keys are in one more node, over all layers; and for one token of a prompt,
    // in a step of 4,096 of them (8,192 with experts), or as many as fit.
    double merge_seconds() const;
    double token_seconds() const;

    const DeviceCosts &costs() const { return costs_; }

  private:
    enum class Form : uint8_t {
        plain,
        packed,
        scaled
    }; // in the compute type, in four bits, in e4m3
    // The products of one shape in all layers.
    struct Product {
        double elements = 0; // in the matrix
        Form form = Form::plain;
        double count = 0;
    };
    // The same for experts. Each token goes through `chosen` of them.
    struct ExpertProduct {
        double elements = 0; // in one expert's matrix
        double experts = 0, chosen = 0;
        Form form = Form::plain;
        double count = 0;
    };
    // How a layer's matrices are kept: its mixer's first and last, what it feeds all tokens to, and experts.
    struct LayerForms {
        Form first{}, last{}, gate_up{}, down{}, experts_gate_up{}, experts_down{};
    };
    // All attention layers with one window and one head shape.
    struct AttentionLayers {
        int32_t window = 0, heads = 0, kv_heads = 0;
        int32_t key_dim = 0, value_dim = 0; // padded on a GPU
        int64_t kept = 0;                   // elements of a token's keys and values
        double share = 1;                   // of attention_flops, for heads of this size
        // Of latents on a GPU: elements of the matrix between a latent and all heads (elsewhere it is one of the layer's
        // products), and bytes that its products with a token's queries and results move.
        double up = 0, up_bytes = 0;
        // Where prompts may attend to latents in the plain form: flops of a query and a key, and of expanding a key, as if at
        // attention_flops. 0: they may not.
        double plain_pair = 0, expansion = 0;
        bool chunked = false; // as Attention's
        double count = 0;
    };
    void add_tower(const Tower &tower);
    LayerForms forms_of(const Model &model, size_t layer) const;
    void add_layer(const Layer &layer, const LayerForms &forms, double hidden);
    void add_mixer(const Layer &layer, const LayerForms &forms, double hidden);
    void add_product(double elements, Form form = Form::plain);
    void add_experts(const Experts &experts, const LayerForms &forms, double hidden);
    AttentionLayers layers_of(const Attention &attention) const;
    void add_attention(const AttentionLayers &one);
    void add_state(double numbers, double token_bytes);
    double adapter_seconds(const TokenBatch &batch, std::span<const AdapterCost> adapters) const;
    double product_seconds(double rows, const Product &product) const;
    // choices: how often experts are chosen, by one token or by several alike.
    double expert_seconds(double tokens, double choices, const ExpertProduct &product) const;
    double attention_seconds(const TokenBatch &batch, const AttentionLayers &layers) const;
    double absorbing_seconds(double tokens, const AttentionLayers &layers) const;
    double state_seconds(const TokenBatch &batch) const;
    double merging_seconds(double merges, double partials, const AttentionLayers &layers) const;
    double exchange_seconds(double tokens, double wanted) const;

    DeviceCosts costs_;
    CostTypes types_;
    std::vector<Product> products_;
    std::vector<ExpertProduct> expert_products_;
    bool by_context_ = false;
    std::vector<AttentionLayers> attention_;
    double elementwise_bytes_ = 0; // per token
    double gated_bytes_ = 0;       // the part of these that costs_.gated_tokens saves
    double routed_ = 0;            // experts per token, over all layers
    double routings_ = 0;          // number of layers with experts
    double state_layers_ = 0;      // that have a state
    double state_bytes_ = 0;       // of a row's, in all of them
    double state_token_bytes_ = 0; // read and written of a token there
    double head_ = 0;              // elements of the device's rows of the head
    double vocabulary_ = 0;        // of the whole model
    double ranks_ = 1;
    double summed_ = 0; // numbers per token that are summed over all devices
    double sums_ = 0;
    // A tower's products of patches and of tokens, and its layers that see whole pictures or windows of so many patches.
    std::vector<Product> patch_products_, token_products_;
    double patch_flops_ = 0; // of a layer's attention, for a patch and one that it sees
    double whole_layers_ = 0, window_layers_ = 0, window_patches_ = 0;
};

// How much faster products are in fp8 on a GPU; merges are not (docs/performance.md).
inline constexpr double fp8_speed = 1.45;

// PlanOptions::common_prefix_cost: what a common prefix costs each token below it, namely one more
// merge, in tokens of a prompt, times a margin, so that a chosen common prefix never loses.
double common_prefix_cost(const StepCost &cost);
// The same; with products in fp8 it is in proportion to that in 16 bits, as it was measured.
double common_prefix_cost(DeviceCosts costs, const Model &model, bool products_in_fp8);

} // namespace batchllm
