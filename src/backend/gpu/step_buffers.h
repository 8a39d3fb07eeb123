// How much device memory the CUDA backend uses for its steps, given the model's shape: buffers as
// wide as the widest layer requires. The backend allocates these sizes (cuda/step), derives its
// default step size from them, and predictions give the rest to pages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "model/model.h"

namespace batchllm {

// Attention's kernels round head_dim up to this.
constexpr int32_t padded_head_dim(int32_t head_dim) {
    return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 512;
}
// Of latents, which are keys of [padded_rank, latent_turned] elements: the plain part and the turned one, each padded.
inline constexpr int32_t latent_turned = 64;
constexpr int32_t padded_rank(int32_t rank) { return rank <= 64 ? 64 : rank <= 256 ? 256 : 512; }
// Elements of a head's keys, and of its values.
inline int32_t padded_key_dim(const Attention &a) {
    return a.latent ? padded_rank(a.latent.rank) + latent_turned : padded_head_dim(a.head_dim);
}
inline int32_t padded_value_dim(const Attention &a) {
    return a.latent ? padded_rank(a.latent.rank) : padded_head_dim(a.head_dim);
}
// Whether a prompt's tokens may attend in the plain form, to keys and values that are made of latents for every head in each
// step (cuda/latent/latent.h), and the size of such heads.
inline constexpr int32_t latent_head_dim = 256;
bool expands_latents(const Attention &a);
// Elements that a token keeps.
inline int64_t padded_kept(const Attention &a) {
    return (a.latent ? 1 : 2) * int64_t{a.kv_heads} * padded_key_dim(a);
}
// Rows of the first matrix of a layer's mixer, and columns of its last: for queries, keys, values
// and gates with padded heads; for all inputs of linear attention; or for a short convolution's B,
// C and x. 0: the layer has no mixer.
int64_t first_rows(const Mixer &mixer);
int64_t last_columns(const Mixer &mixer);
// Rows of the head, a multiple of 16; 0: the model has none.
int64_t head_rows(const Model &model);
// Of rows that have the logits of all tokens, a multiple of 16.
int64_t vocabulary_stride(const Model &model);

// Layers whose attention has the same shape share a worklist.
struct AttentionShape {
    int32_t window = 0;   // positions; 0: all
    bool chunked = false; // as Attention's
    int32_t heads = 0, kv_heads = 0;
    int32_t head_dim = 0;  // padded
    int32_t value_dim = 0; // padded; less than head_dim: latents
    size_t kv_group = 0;   // of one of its layers

    bool latent() const { return value_dim != head_dim; }
    int64_t out_size() const { return int64_t{heads} * value_dim; }
};
struct AttentionShapes {
    std::vector<AttentionShape> all;
    std::vector<size_t> of_layer; // [layers] index of its shape; SIZE_MAX: the layer has none
};
AttentionShapes attention_shapes(const Model &model);
// StepForm::partials of reproducible steps (key_segments.h).
int64_t reproducible_partials(const Model &model);

// How many widened pages a layer of such a shape needs room for, if keys and values are in e4m3.
int64_t widened_pages(const AttentionShape &shape);
int64_t widened_bytes(const AttentionShape &shape);

// How the model is computed, to the extent that buffers depend on it.
struct StepForm {
    DType element = DType::bf16;  // of activations
    DType residual = DType::bf16; // of the residual stream
    // How many attention partials each token has room for. A token of a worklist that neither
    // splits nor shares needs one for every two nodes of its context if there are more than two;
    // the maximum is four nodes (a common head, its group's prefix, its prompt if it has several
    // samples, and its own tokens), so 2, and in chunks one more. A worklist that needs more than there is room for is
    // rebuilt in that way, separately for each shape of attention. The layers use the room one
    // after another. Of latents, whose results are long, there is room for half as many (step_buffers.cc),
    // which must still be enough for such a worklist: see the assertion below.
    int64_t partials = 6;
    bool state_chunks = true;  // layers with a state process prompts in chunks
    bool plain_latents = true; // expands_latents() counts
    // For layers with matrices in e4m3: the scales of a row before them, and whether a result is
    // not added to the residual stream by its product.
    int64_t normed_scales = 0, attended_scales = 0, activated_scales = 0;
    bool deltas = false;
    bool experts_in_e4m3 = false;
    // Elements of the largest of the layers' matrices that are in four bits, which wide steps expand.
    int64_t expanded = 0;
    // Columns of the widest matrix whose columns are packed in another order, in which its input is copied; 0: none.
    int64_t taken = 0;
};
static_assert(StepForm().partials / 2 >= 2);
// bf16 has the range of f32. f16 does not, and residual streams outgrow it.
constexpr DType residual_type(DType element) {
    return element == DType::bf16 ? DType::bf16 : DType::f32;
}

enum class StepBuffer : uint8_t {
    // Activations.
    residual,     // [rows, hidden] of the residual's type
    last,         // the same, of the wanted tokens
    normed,       // the same, for the wanted tokens
    normed_whole, // the same, for routers of layers with experts in e4m3
    first,        // [rows, first_rows()]
    attended,     // [rows, last_columns()]
    delta, // [rows, hidden] of the residual's type; of ranks twice, where experts have a norm of their own
    gate_up,      // [rows, 2 width], or without a gate [rows, width]
    activated,    // [rows, width]
    layer_inputs, // [rows, layers * LayerInputs::width]
    normed_scales,
    attended_scales,
    activated_scales,
    expanded, // [StepForm::expanded]
    taken,    // [rows, StepForm::taken]
    angles,   // for all ropes [rows, dims / 2] cos, sin
    logits,   // [logits_rows, head_rows()] f32
    // Of ranks: each has all tokens' logits of its share of the rows, and, where it does not read them from the others'
    // memory, before that those that the others made.
    all_logits,    // [logits_rows / ranks, vocabulary_stride()] f32
    others_logits, // for each rank [logits_rows / ranks, its head_rows()]; not in total()
    shared,        // twice [shared_rows(), hidden] of the residual's type (cuda/ranks/peers.h)
    samples,       // [rows]
    // Latents.
    latent_normed,   // [rows, q_rank]
    latent_of_down,  // [rows, heads * query_dim]
    latent_queries,  // [rows, heads * padded keys]
    latent_made,     // [rows, heads * padded values]
    latent_expanded, // [pages][heads][keys, values][tokens of a page][latent_head_dim]
    // Attention.
    partial_out, // [partials * rows, heads, padded] f32; of latents half of these rows
    partial_lse, // [partials * rows, heads]
    arrivals,    // [rows, kv_heads], then [4]
    // Layers with a state that process prompts in chunks; not short convolutions.
    delta_mixed,   // [rows, channels]
    delta_keys,    // [rows, value_heads, key_dim] delta nets only
    delta_weights, // [rows, value_heads, tokens of a chunk] delta nets only
    delta_gates,   // [rows, value_heads, 2] f32
    // Delta nets that decay by channel.
    gate_inputs,    // of z, then of a: [2][rows, gate_rank]
    channel_decays, // a: [rows, value_heads, key_dim]
    channel_gates,  // z: [rows, values_size]
    // Experts. turns: rows * chosen.
    router_logits,    // [rows, experts and the shared expert's gate] f32
    turns,            // four of [turns]
    turn_counts,      // [blocks, experts]
    expert_tiles,     // of turns, then their number
    expert_activated, // [turns, width]
    expert_scales,    // [turns, width / 128, rounded up]
    expert_made,      // [turns, hidden]
    // Data that is sent to the device. Sizes are those of a first step; they grow.
    sections,     // kTokens, kPositions, kPages and kWanted of a StepInput
    slots,        // kSlots
    lists,        // four for each shape of attention
    state_items,  // [rows]
    state_levels, // of as many levels as most steps have at most
    state_chunks, // [rows]
    staging,      // for all batches in flight
    workspace,    // for cuBLASLt
    count
};

struct StepBuffers {
    std::array<int64_t, static_cast<size_t>(StepBuffer::count)> bytes{};
    int64_t logits_rows = 0; // for how many rows logits are computed at a time
    int64_t partials = 0;    // rows of attention partials; of latents partial_out has half of them

    int64_t &operator[](StepBuffer buffer) { return bytes[static_cast<size_t>(buffer)]; }
    int64_t operator[](StepBuffer buffer) const { return bytes[static_cast<size_t>(buffer)]; }
    int64_t total() const;
    // The sum of those that grow with the tokens in a step, as on one device.
    int64_t growing() const;
};

// What the sizes above consist of; cuda/step checks them against its types.
inline constexpr int64_t sample_bytes = 12;
inline constexpr int64_t section_token_bytes = 16, list_token_bytes = 128;
inline constexpr int64_t state_item_bytes = 20, state_level_bytes = 24, state_chunk_bytes = 8;
inline constexpr int64_t state_chunk_tokens = 64, first_state_levels = 64;
inline constexpr int64_t routed_tokens = 32, expert_tile_rows = 128, expert_tile_bytes = 16;
inline constexpr int64_t scaled_elements = 128, gpu_page_tokens = 64;
inline constexpr int64_t step_batches = 2; // in flight
inline constexpr int64_t linear_workspace = int64_t{64} << 20;

// Of buffers that ranks share: a rank's share of a step's rows is rounded up.
inline constexpr int64_t owned_row_step = 64;
constexpr int64_t shared_rows(int64_t rows, int32_t ranks) { return rows + ranks * owned_row_step; }
// What a rank takes beside its part and total(), where NCCL exchanges: others_logits, and what NCCL takes, by the pages left on
// H100s with 2.28.9. peers: devices access each other's memory, so that two need no NCCL.
int64_t rank_bytes(const StepBuffers &buffers, int32_t ranks, bool peers);

constexpr int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// For one batch in flight.
int64_t staging_bytes(int64_t step_tokens);

// rows: in a step, padded.
StepBuffers step_buffers(const Model &model, const StepForm &form, int64_t rows);

// Whether the default for tokens per step is the one of experts, whatever the memory: not where keys and values are latents.
bool has_sparse_steps(const Model &model);

// The default for tokens per step: as many as have buffers in a small part of the device's memory,
// since larger steps are usually faster (docs/lab/engine.md, docs/lab/latents.md).
inline constexpr int64_t most_step_tokens = 16384;
int64_t default_step_tokens(const Model &model, const StepForm &form, int64_t memory_bytes);

} // namespace batchllm
