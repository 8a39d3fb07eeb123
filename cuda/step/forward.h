// One token batch through the model on the device, up to the logits of the tokens that want them.
//
// The residual stream is added to by the products themselves (y += scale x W^T), so that a layer is: norm,
// QKV, rope and KV write, attention, O, norm, gate and up, activation, down; or half of that. Where a norm stands after a
// sublayer, its product is a delta, which one launch normalises, adds and passes on to the next norm.
// After the last layer's attention only the wanted tokens go on. What the experts of a layer make is a delta
// too, beside which the shared expert's stands.
//
// Where a layer's matrix is in e4m3, so is what it is multiplied with: written with its scales by the norm or
// the activation that makes it, and by a launch of its own after attention, in which no block has all of a
// row. Where cuBLASLt cannot add such a product to the residual stream, it is a delta too.
//
// Numbers of tokens and wanted tokens are rounded up (padded_rows): the rows beyond the batch are
// computed from token 0 or from what is left of another step, write no keys, and are never read. Steps
// of one rounded shape are the same launches, which graphs replay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gated_product.h"
#include "backend/gpu/step_buffers.h"
#include "device/profile.h"
#include "device/staging.h"
#include "linear/linear.h"
#include "sampling/sampling.h"
#include "step/attention.h"
#include "step/experts.h"
#include "step/graphs.h"
#include "step/input.h"
#include "step/states.h"
#include "step/weights.h"

namespace batchllm::cuda {

struct ForwardOptions {
    DType element = DType::bf16;
    DType residual = DType::bf16; // element's type or f32
    DType state = DType::f32;     // of layers with a state; or bf16
    bool kv_e4m3 = false;         // keys and values in their pages
    int64_t step_tokens = 0;
    bool tune = true;
    std::string tuning_cache; // a path; none; "": the default
    std::string device;       // its name
    AttentionOptions attention;
    GroupedKernel experts = GroupedKernel::sm80;
    bool graphs = true;
    bool random_weights = false;
    bool skewed_routing = false; // of random weights
    bool profile = false;
    bool reproducible = false; // a token's results are the same bits in any step
    Quantize quantize = Quantize::stored;
    bool fast_accumulation = false; // of products in e4m3
    bool gated_product = true; // gate and up in one launch with the activation, where there is one
    uint64_t seed = 0;
    int32_t threads = 0;

    DType kv_type() const { return kv_e4m3 ? DType::e4m3 : element; }
    // In steps of least_gated_tokens or more, of the layers that takes_gated() allows.
    bool has_gated_products() const {
        return gated_product && experts == GroupedKernel::sm90 && !reproducible &&
               element != DType::f32;
    }
};

// What buffers depend on, but for matrices in e4m3.
StepForm step_form(const Model &model, const ForwardOptions &options);

class Forward {
  public:
    static Result<std::unique_ptr<Forward>> create(const Model &model,
                                                   const ForwardOptions &options);

    // Keys and values of the layers of one KV group.
    int64_t page_bytes() const { return plane_bytes_ * model_.kv_planes(); }
    DType kv_type() const { return options_.kv_type(); }
    // A key's place in its plane is a 32-bit number.
    int64_t most_pages() const;
    Status take_pages(int64_t pages);
    // Of a request's state; 0: the model has none.
    int64_t slot_bytes() const { return states_.slot_bytes(); }
    Status take_slots(int64_t slots) { return states_.take_slots(slots); }

    // Host: adds the batch to the staging buffer. wanted: tokens whose logits are wanted, ascending.
    // rows: of logits.
    Status stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t rows,
                 Staging *staging);
    // Device: enqueues everything up to the last layer's result. The staged batch has been sent.
    Status run(const Staging &staging, cudaStream_t stream);
    // Logits of wanted tokens [first, first + count), first a multiple of logits_rows(), count at most
    // logits_rows(): f32 at logits(), logits_stride() apart. After run.
    Status compute_logits(int64_t first, int64_t count, cudaStream_t stream);
    // sums[i], of hidden floats: of the last norm's rows of the wanted tokens in spans[i]. After run.
    Status sum_hidden(const SumSpan *spans, int32_t count, float *sums, cudaStream_t stream);
    int64_t logits_rows() const { return logits_rows_; }
    int64_t logits_stride() const { return weights_.head.rows; }
    float *logits() const { return logits_.as<float>(); }
    // [rows] what the batch sampled, by logits row, for the next one's fed tokens.
    SampleResult *samples() const { return samples_.as<SampleResult>(); }

    // Chooses the algorithms of all numbers of rows, which is otherwise done as they come.
    Status prepare(cudaStream_t stream);
    // The linear layers alone, on whatever the buffers hold: for measuring their rate. Each product is
    // cuBLASLt's (but experts'), whatever launch a step makes it in.
    Status run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream);

    // The type of elements, and what the products are in.
    std::string compute_type() const;
    // Something that people should know, or "".
    const std::string &warning() const { return warning_; }
    Profile &profile() { return profile_; }
    // [experts] turns of each in the layer with experts that ran last. After all that was enqueued.
    Result<std::vector<int64_t>> expert_turns() const { return experts_.turns_of_each(); }
    const Graphs &graphs() const { return graphs_; }
    const Worklist &worklist() const { return attention_.worklist(); }

  private:
    Forward(const Model &model, const ForwardOptions &options);
    Status load();
    void warn_of_widened(int64_t count, const std::string &why);
    Status allocate();
    Status check_widths() const;
    Status allocate_activations(const StepBuffers &buffers);
    StepForm form() const; // with what is in e4m3
    Status allocate_ropes();
    Status allocate_kv_scales();
    Status make_linear();
    // Whether a layer's matrix can be in e4m3; whether its product can be added to the residual stream.
    bool takes(int64_t rows, int64_t columns, Scaling scaling, bool ends) const;
    bool adds(const Matrix &w) const;
    int64_t most_asked() const; // rows
    Status prepare_in_order();
    Status reserve(cudaStream_t stream);
    Status launch(cudaStream_t stream);
    Status replay(Graph *graph, cudaStream_t stream);
    Status layer(size_t index, cudaStream_t stream);
    // The end of a layer's mixer. wanted: the rows, of all; null: the first.
    Status output(size_t index, const int32_t *wanted, void *residual, int64_t rows,
                  cudaStream_t stream);
    Status keys_and_values(size_t layer, cudaStream_t stream);
    Status attend(size_t layer, cudaStream_t stream);
    // A layer with a state, up to its last product.
    Status recurrent(size_t layer, cudaStream_t stream);
    AttentionTensors attention_tensors(size_t layer) const;
    // The layer's plane of the pool, and where in it the batch's tokens go.
    std::byte *kv_of(size_t layer) const {
        return kv_.data() + model_.layers[layer].attention.kv_plane * plane_bytes_ * pages_;
    }
    const int32_t *slots_of(size_t layer) const {
        return input_.at<int32_t>(kSlots) + model_.layers[layer].attention.kv_group * tokens_;
    }
    void choose_planes();
    Status stage_slots(const TokenBatch &batch, Staging *staging);
    Status feed_forward(size_t layer, void *residual, int64_t rows, cudaStream_t stream);
    bool in_one_product(size_t layer, int64_t rows) const; // gate, up and the activation
    Status activate(size_t layer, const Input &x, int64_t rows, cudaStream_t stream);
    Status shared_expert(size_t layer, const Input &x, int64_t rows, cudaStream_t stream);
    Status route(size_t layer, const Input &x, int64_t rows, cudaStream_t stream);
    Status sparse_feed_forward(size_t layer, void *residual, int64_t rows, cudaStream_t stream);
    Status make_layer_inputs(cudaStream_t stream);
    Status add_layer_input(size_t layer, void *residual, int64_t rows, cudaStream_t stream);
    // The norm that a layer begins with, and how what it makes is scaled.
    static const DeviceNorm &first_norm(const DeviceLayer &w) {
        return w.mixes() ? w.before_attention : w.before_feed_forward;
    }
    static Scaling first_scaling(const DeviceLayer &w) {
        return w.mixes() ? w.qkv.scaling : scaling_of_feed_forward(w);
    }
    // What follows layer `index`: the next one's first norm, or the last of all.
    const DeviceNorm &norm_after(size_t index) const {
        return index + 1 == weights_.layers.size() ? weights_.final_norm
                                                   : first_norm(weights_.layers[index + 1]);
    }
    Scaling scaling_after(size_t index) const {
        return index + 1 == weights_.layers.size() ? Scaling::none
                                                   : first_scaling(weights_.layers[index + 1]);
    }
    // The product that ends a sublayer, added to the residual stream, and the norm that follows.
    struct Ending {
        const Matrix &w;
        Input x;
        const float *bias;
        const DeviceNorm &after;
        float scale;
        const DeviceNorm *next; // null: what was normed before stays
        Scaling next_scaling;
        Part part;
        const float *keep = nullptr; // [1] multiplies the sum; null: 1
    };
    Status finish(const Ending &ending, void *residual, int64_t rows, cudaStream_t stream);
    // Its second half, where delta_ has the sublayer's result.
    AddNormArguments addition(const Ending &ending, void *residual, int64_t rows) const;
    Status norm(const DeviceNorm &norm, Scaling scaling, void *residual, int64_t count,
                cudaStream_t stream);
    // Where what a norm passes on is: where there is none, and the types are the same, in the residual
    // stream itself.
    bool copies_nothing(const DeviceNorm &norm, Scaling scaling) const {
        return !norm && options_.residual == options_.element && scaling == Scaling::none;
    }
    Input normed(const DeviceNorm &norm, const void *residual, Scaling scaling) const {
        return {copies_nothing(norm, scaling) ? residual : normed_.data(),
                normed_scales_.as<float>()};
    }
    DType input_type(Scaling scaling) const {
        return scaling == Scaling::none ? options_.element : DType::e4m3;
    }
    // For a launch that writes so many rows; turns: of hidden elements.
    RowScales scales_of(const DeviceMemory &memory, Scaling scaling, int64_t rows) const {
        if (scaling == Scaling::turns) return {memory.as<float>(), 1, model_.hidden / kScaleBlock};
        return {memory.as<float>(), scaling == Scaling::blocks ? padded_rows(rows) : 0};
    }
    // How the norm before a feed-forward scales what it passes on, and where that goes in 16 bits as well.
    static Scaling scaling_of_feed_forward(const DeviceLayer &w) {
        return w.experts.in_e4m3() ? Scaling::turns : w.gate_up.scaling;
    }
    Whole whole_of(Scaling scaling) const {
        return {scaling == Scaling::turns ? normed_whole_.data() : nullptr, options_.element};
    }
    // Attention's result as its product takes it: of the rows in `wanted`, or of all.
    Result<Input> attended(const Matrix &w, const int32_t *wanted, int64_t rows,
                           cudaStream_t stream);

    // A product of each layer, from buffer to buffer, as all but the last layer run it.
    struct Product {
        const Matrix &w;
        Input x;
        void *y;
        DType y_type;
        bool accumulate;
        float alpha = 1; // of what is added to y
    };
    // QKV and O, gate and up, down, the router, and the input block's two; those that the layer has.
    std::vector<Product> products(const DeviceLayer &weights) const;

    const Model &model_;
    ForwardOptions options_;
    // Of a page in a plane of the pool, whose planes stand one after the other. A multiple of what each
    // layer stores there; a layer of a fraction of it reads and writes as if pages had numbers so many
    // times as large: [KV groups] page_scale_.
    int64_t plane_bytes_ = 0;
    std::vector<int32_t> page_scale_;
    DeviceWeights weights_;
    std::string warning_;
    std::unique_ptr<Linear> linear_;
    Profile profile_;

    int64_t rows_ = 0; // that the buffers hold: step_tokens, padded
    int64_t logits_rows_ = 0;
    int64_t pages_ = 0;
    // As wide as the widest layer needs.
    DeviceMemory residual_;     // [rows, hidden] of the residual's type
    DeviceMemory last_;         // [rows, hidden] the same, of the wanted tokens
    DeviceMemory normed_;       // [rows, hidden] elements
    DeviceMemory normed_whole_; // the same for routers, where normed_ is in e4m3 for their experts
    DeviceMemory qkv_;          // [rows, qkv.rows], then attended rows in e4m3
    DeviceMemory attended_;     // [rows, o.columns]
    DeviceMemory
        delta_; // [rows, hidden] of the residual's type, where norms stand after a sublayer
    DeviceMemory gate_up_;   // [rows, 2 width], or without a gate [rows, width]
    DeviceMemory activated_; // [rows, width]
    // Scales of what is in e4m3 of these: [rows], or [width / kScaleBlock, rows], or for experts
    // [rows, width / kScaleBlock].
    DeviceMemory normed_scales_, attended_scales_, activated_scales_;
    DeviceMemory layer_inputs_; // [rows, layers * LayerInputs::width]
    DeviceMemory logits_;       // [logits_rows, padded vocabulary] f32
    DeviceMemory kv_;           // [planes][pages]...
    DeviceMemory kv_scales_;    // of keys and values in e4m3, the layers' k_scale and v_scale
    DeviceMemory samples_;      // [logits rows] SampleResult
    struct RopeTable {
        DeviceMemory frequencies; // [dims / 2] f32
        DeviceMemory angles;      // [rows, dims / 2] cos, sin
    };
    std::vector<RopeTable> ropes_; // as Model::ropes
    StepAttention attention_;
    std::vector<size_t> attending_; // layers with attention
    StepStates states_;
    StepExperts experts_;

    // Of the staged step, rounded up.
    int64_t tokens_ = 0, wanted_ = 0;
    bool gather_ = false; // not all tokens are wanted
    int64_t sample_rows_ = 0;
    StepInput input_;
    Graphs graphs_;
};

} // namespace batchllm::cuda
