// A token batch's context nodes -> the attention of every layer of the step.
//
// Staged once a step: a worklist (attention/worklist.h) for each shape of attention that layers have,
// which all layers of that shape reuse; in f32, whose attention is plain, the nodes themselves. Layers of
// one shape may be in several KV groups: a worklist says where in a group's list of pages its keys are, and
// groups of one window have lists of one layout.
//
// Keys and values in e4m3: before a layer's attention a launch of its own may widen pages that it reads as
// 16-bit ones, into room that the layers use one after another.
//
// Latents: some tokens of a step, the last ones, may attend in the plain form (step/plain_latents.h), by launches of their own.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention/family.h"
#include "attention/plain.h"
#include "backend/backend.h"
#include "backend/gpu/step_buffers.h"
#include "device/staging.h"
#include "model/model.h"
#include "step/input.h"
#include "step/plain_latents.h"

namespace batchllm::cuda {

struct AttentionOptions {
    bool share = true;         // false: every query reads its prefix for itself
    bool fused = true;         // false: one launch a kind of item
    bool reproducible = false; // a token's attention is the same bits in any batch
    int32_t sms = 0;
    const AttentionFamily *family = nullptr; // of the device
};

// What a layer's attention reads and writes, in elements.
struct AttentionTensors {
    const void *q;                // [tokens, (heads + 2 kv_heads) * padded], the queries first, or
                                  // alone where the layer has no keys and values of its own; then
                                  // the gates, where it has any
    void *out;                    // [tokens, heads * padded]
    const void *kv;               // the layer's pages
    const float *sinks = nullptr; // [heads], or null
    const float *k_scale = nullptr,
                *v_scale = nullptr; // [kv_heads] where they are in e4m3, or null
};

class StepAttention {
  public:
    // model: kept. kv_type: of keys and values in their pages, element or e4m3.
    StepAttention(const Model &model, DType element, DType kv_type,
                  const AttentionOptions &options);

    // Memory for steps of up to `rows` tokens, which `buffers` are of.
    Status allocate(int64_t rows, const StepBuffers &buffers, StepInput *input);

    // page_scale: [KV groups] page numbers that a layer's pages lie apart.
    void set_page_scale(std::vector<int32_t> scale) { page_scale_ = std::move(scale); }

    // Host: adds to the staging buffer what attention needs besides kPositions.
    Status stage(const TokenBatch &batch, StepInput *input, Staging *staging);

    // Whether the layer's attention takes widened pages in this step; of each shape of attention.
    bool widens(size_t layer) const { return !shape_of(layer).list.widened.empty(); }
    const std::vector<uint8_t> &form() const { return form_; }
    // Device: one launch, of arguments(), which makes them.
    Status launch_widening(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                           cudaStream_t stream) const;
    // Device: of latents, after launch(): one launch, of arguments().
    Status launch_merging(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                          cudaStream_t stream) const;
    // The first of the tokens that attend to latents in the plain form. From 0 to the number of the batch's tokens; that or more
    // than is asked about: none.
    int32_t first_plain() const { return plain_.first; }
    bool plain() const { return plain_.first < tokens_; }
    int32_t tokens() const { return tokens_; }
    // Device: those of a layer, from its pages on. matrices: the heads' [512, plain] and [value_dim, 512]. tensors: of these
    // tokens, heads of latent_head_dim.
    Status launch_plain_latents(size_t layer, const AttentionTensors &tensors, const void *keys,
                                const void *values, int64_t q_stride, const StepInput &input,
                                cudaStream_t stream) const;
    // Device: enqueues the layer's attention. Fused, it is one launch, of arguments().
    Status launch(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                  cudaStream_t stream) const;
    AttentionArguments arguments(size_t layer, const AttentionTensors &tensors,
                                 const StepInput &input) const;

    // The first layer's.
    const Worklist &worklist() const { return shapes_[0].list; }

  private:
    // The layers that share a worklist: what it depends on, and the step's list.
    struct Shape : AttentionShape {
        size_t sections = 0; // the first of its five
        int32_t room = 0;    // widened pages that wide_ holds
        Worklist list;
        // Not fused: launches, each with some of the items.
        struct Launch {
            int32_t begin, matrix_items, stream_items;
        };
        std::vector<Launch> launches;
    };

    const Shape &shape_of(size_t layer) const { return shapes_[shape_of_[layer]]; }
    const Attention &attention_of(size_t layer) const { return *model_.layers[layer].attention(); }
    // From one token's queries to the next one's; their keys, values and gates between, where the layer has any.
    int64_t q_stride(size_t layer) const {
        const Shape &shape = shape_of(layer);
        const Attention &a = attention_of(layer);
        if (shape.latent()) return int64_t{shape.heads} * shape.head_dim;
        const int64_t heads = (a.gated ? 2 : 1) * int64_t{shape.heads};
        return (heads + (a.kv_layer < 0 ? 2 * shape.kv_heads : 0)) * shape.head_dim;
    }
    // Whether it is latents in tiles, as sm90 has them.
    bool tiles(const Shape &shape) const {
        return shape.latent() && shape.head_dim == 576 && is_sm90(options_.family);
    }
    void find_plain_latents();
    Status allocate_wide();
    Status stage_pages(const TokenBatch &batch, StepInput *input, Staging *staging);
    void find_together(const TokenBatch &batch);
    Status stage_last_seen(const TokenBatch &batch, StepInput *input, Staging *staging) const;
    Status stage_plain(const TokenBatch &batch, StepInput *input, Staging *staging);
    void set_shape(const Shape &shape, WorklistOptions *options) const;
    // Of nodes_, with so many tokens.
    Status stage_worklist(Shape *shape, int32_t tokens, StepInput *input, Staging *staging);
    Status stage_expanded(StepInput *input, Staging *staging);
    AttentionArguments arguments(const Shape &shape, const StepInput &input) const;
    void read_nodes(const TokenBatch &batch, size_t kv_group);
    const int32_t *pages_of(size_t layer, const StepInput &input) const {
        const auto group = static_cast<size_t>(attention_of(layer).kv_group);
        return input.at<int32_t>(kPages) + pages_begin_[group];
    }
    void split_by_kind(Shape *shape) const;
    Status launch_plain(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                        cudaStream_t stream) const;

    const Model &model_;
    DType element_, kv_type_;
    AttentionOptions options_;
    std::vector<Shape> shapes_;
    std::vector<size_t> shape_of_; // [layers] of those with attention
    std::vector<int32_t> page_scale_;
    int64_t rows_ = 0;         // that there is memory for
    int64_t slots_ = 0;        // partial rows
    int64_t kv_heads_ = 0;     // of the layer with most
    DeviceMemory partial_out_; // [slots, heads, padded] f32
    DeviceMemory partial_lse_; // [slots, heads] base 2
    DeviceMemory arrivals_;    // [rows, kv_heads_], then queues [4]: zero between launches
    DeviceMemory wide_;        // a layer's widened pages
    // Keys and values of heads, of a layer's latents, and the attention of tokens that read them; latents_: null if none do.
    const Attention *latents_ = nullptr;
    DeviceMemory expanded_;
    int64_t expanded_room_ = 0; // pages
    Shape plain_shape_;
    size_t expanded_section_ = 0; // plain_.expanded, then 0, 1, 2...

    // Of the staged step.
    int32_t tokens_ = 0; // as the batch has them, not padded
    size_t node_count_ = 0;
    PlainLatents plain_;
    std::vector<uint8_t> form_; // [shapes] widens()
    std::vector<AttentionNode> nodes_;
    std::vector<int64_t> pages_begin_;   // [KV groups] in kPages
    std::vector<int32_t> node_of_;       // [tokens]
    std::vector<SeenTogether> together_; // pictures whose tokens see each other
};

} // namespace batchllm::cuda
