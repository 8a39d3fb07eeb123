#include "backend/gpu/step_buffers.h"

#include <algorithm>
#include <numeric>

#include "backend/gpu/key_segments.h"
#include "base/visit.h"

namespace batchllm {
namespace {

using enum StepBuffer;

constexpr int64_t number = 4;          // bytes of an f32 or an int32
constexpr int64_t least_tokens = 4096; // per step, the minimum for the default
// With experts, larger steps gain nothing in bf16 (docs/lab/engine.md), unless keys and values are latents.
constexpr int64_t sparse_tokens = 8192;
constexpr int64_t memory_share = 36; // a step's buffers may take 1/36 of the device's memory
// The same of latents, whose prompts expand what they read once in each step: fewer steps expand less.
constexpr int64_t latents_share = 24;

constexpr int64_t logits_bytes = int64_t{256} << 20;
constexpr int64_t staged_token_bytes = 1024; // enough in most steps
constexpr int64_t least_staged = 4096;

constexpr int64_t most_widened_pages = 4096, most_widened_bytes = int64_t{512} << 20;

// Bytes of a page of this shape with two bytes per element of keys and values.
int64_t wide_page_bytes(const AttentionShape &shape) {
    return 2 * gpu_page_tokens * shape.kv_heads * shape.head_dim * 2;
}

constexpr int64_t most_latent_expanded = int64_t{1} << 30;

bool keeps_latents(const Model &model) {
    return std::any_of(model.layers.begin(), model.layers.end(), [](const Layer &layer) {
        return layer.attention() != nullptr && layer.attention()->latent;
    });
}

// Whether any sublayer's result is stored in memory before it is added to the residual stream.
bool has_deltas(const Model &model, const StepForm &form) {
    return form.deltas || model.ranks > 1 ||
           std::any_of(model.layers.begin(), model.layers.end(), [](const Layer &layer) {
               return layer.after_attention || layer.after_feed_forward || layer.after_input ||
                      layer.scalar || layer.experts() != nullptr;
           });
}

void add_activations(const Model &model, const StepForm &form, int64_t rows, StepBuffers *out) {
    const int64_t element = rows * dtype_bytes(form.element);
    const int64_t residual_row = dtype_bytes(form.residual) * model.hidden;
    int64_t most_first = 0, most_last = 0, most_gate_up = 0, most_width = 0;
    for (const Layer &layer : model.layers) {
        most_first = std::max(most_first, first_rows(layer.mixer));
        most_last = std::max(most_last, last_columns(layer.mixer));
        // With latents, that buffer also holds the gathered rows of the last product's input.
        if (layer.attention() != nullptr && layer.attention()->latent) {
            most_first = std::max(most_first, last_columns(layer.mixer));
        }
        // Where router and experts have norms of their own, it holds what these make.
        if (layer.experts() != nullptr && layer.experts()->before) {
            most_first = std::max<int64_t>(most_first, 2 * int64_t{model.hidden});
        }
        const FeedForward *feed = layer.feed_forward();
        if (feed == nullptr) continue;
        most_gate_up = std::max(most_gate_up, (feed->gate ? 2 : 1) * int64_t{feed->width});
        most_width = std::max<int64_t>(most_width, feed->width);
    }
    const int64_t part = model.layer_inputs.width;
    StepBuffers &of = *out;
    of[residual] = of[last] = rows * residual_row;
    of[normed] = element * model.hidden;
    of[first] = element * most_first;
    of[attended] = element * most_last;
    of[delta] = has_deltas(model, form) ? rows * residual_row : 0;
    const bool apart =
        std::any_of(model.layers.begin(), model.layers.end(), [](const Layer &layer) {
            return layer.experts() != nullptr && layer.experts()->after;
        });
    if (model.ranks > 1 && apart) of[delta] *= 2;
    of[gate_up] = element * std::max(most_gate_up, part);
    of[activated] = element * std::max(most_width, part);
    of[layer_inputs] = element * static_cast<int64_t>(model.layers.size()) * part;
    of[normed_whole] = form.experts_in_e4m3 ? of[normed] : 0;
    of[normed_scales] = rows * form.normed_scales * number;
    of[attended_scales] = rows * form.attended_scales * number;
    of[activated_scales] = rows * form.activated_scales * number;
    of[expanded] = form.expanded * dtype_bytes(form.element);
    of[taken] = element * form.taken;
    for (const Rope &rope : model.ropes) {
        of[angles] += rows * static_cast<int64_t>(rope.frequencies.size()) * 2 * number;
    }
    // Without a head, nothing needs logits.
    const int64_t row = std::max<int64_t>(head_rows(model), 1) * number;
    // As many on all ranks, which have some rows of the head more or less.
    const int64_t of_rank = vocabulary_stride(model) / model.ranks * number;
    const int64_t counted = model.ranks > 1 ? of_rank : row;
    of.logits_rows = std::min(std::max<int64_t>(64, logits_bytes / counted / 64 * 64), rows);
    of[logits] = of.logits_rows * row;
    if (model.ranks > 1 && model.head) {
        const int64_t share = (of.logits_rows + model.ranks - 1) / model.ranks;
        of[all_logits] = share * vocabulary_stride(model) * number;
        of[others_logits] = share * (vocabulary_stride(model) + 16 * model.ranks) * number;
    }
    of[shared] = model.ranks > 1 ? 2 * shared_rows(rows, model.ranks) * residual_row : 0;
    of[samples] = rows * sample_bytes;
}

void add_latents(const Model &model, const StepForm &form, int64_t rows, StepBuffers *out) {
    StepBuffers &of = *out;
    const int64_t element = rows * dtype_bytes(form.element);
    const auto raise = [&](StepBuffer buffer, int64_t columns) {
        of[buffer] = std::max(of[buffer], element * columns);
    };
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr || !a->latent) continue;
        raise(latent_normed, a->latent.q_down.rows());
        raise(latent_of_down, a->latent.q_down ? a->q.rows() : 0);
        raise(latent_queries, int64_t{a->heads} * padded_key_dim(*a));
        raise(latent_made, int64_t{a->heads} * padded_value_dim(*a));
        if (!form.plain_latents || form.element == DType::f32 || !expands_latents(*a)) continue;
        // Prompts of a step and three times as many tokens before them.
        const int64_t page =
            int64_t{2} * a->heads * gpu_page_tokens * latent_head_dim * dtype_bytes(form.element);
        const int64_t pages = std::min(4 * rows / gpu_page_tokens, most_latent_expanded / page);
        of[latent_expanded] = std::max(of[latent_expanded], pages * page);
    }
}

// In f32, attention has no partials and no worklist.
void add_attention(const Model &model, const StepForm &form, int64_t rows, StepBuffers *out) {
    if (form.element == DType::f32) return;
    int64_t most_out = 0, most_heads = 0, most_kv_heads = 0;
    const AttentionShapes shapes = attention_shapes(model);
    for (const AttentionShape &shape : shapes.all) {
        // Results of latents are long, and most prompts are in the plain form, whose results are half as long or less: room
        // for half as many.
        most_out = std::max(most_out, shape.out_size() / (shape.latent() ? 2 : 1));
        most_heads = std::max<int64_t>(most_heads, shape.heads);
        // In the plain form, a head of its own for each of queries.
        most_kv_heads =
            std::max<int64_t>(most_kv_heads, shape.latent() ? shape.heads : shape.kv_heads);
    }
    StepBuffers &of = *out;
    of.partials = form.partials * rows;
    of[partial_out] = of.partials * most_out * number;
    of[partial_lse] = of.partials * most_heads * number;
    of[arrivals] = (rows * most_kv_heads + 4) * number;
    of[lists] = 4 * static_cast<int64_t>(shapes.all.size()) * list_token_bytes * rows;
}

// Short convolutions need only the lists of items, levels and chunks.
void add_states(const Model &model, const StepForm &form, int64_t rows, StepBuffers *out) {
    if (model.state_size() == 0) return;
    int64_t channels = 0, keys = 0, heads = 0, delta_heads = 0;
    int64_t gate_rank = 0, decays = 0, gates = 0;
    for (const Layer &layer : model.layers) {
        if (const LinearAttention *linear = layer.linear_attention()) {
            channels = std::max(channels, linear->channels());
            heads = std::max<int64_t>(heads, linear->value_heads);
        }
        if (const auto *net = std::get_if<DeltaNet>(&layer.mixer)) {
            keys = std::max(keys, int64_t{net->value_heads} * net->key_dim);
            delta_heads = std::max<int64_t>(delta_heads, net->value_heads);
        }
        if (const auto *net = std::get_if<ChannelDeltaNet>(&layer.mixer)) {
            gate_rank = std::max<int64_t>(gate_rank, net->gate_rank);
            decays = std::max(decays, int64_t{net->value_heads} * net->key_dim);
            gates = std::max(gates, net->values_size());
        }
    }
    StepBuffers &of = *out;
    const int64_t element = rows * dtype_bytes(form.element);
    of[state_items] = rows * state_item_bytes;
    of[state_levels] = first_state_levels * state_level_bytes;
    of[gate_inputs] = 2 * element * gate_rank;
    of[channel_decays] = element * decays;
    of[channel_gates] = element * gates;
    if (!form.state_chunks) return;
    of[delta_mixed] = element * channels;
    of[delta_keys] = element * keys;
    of[delta_weights] = element * delta_heads * state_chunk_tokens;
    of[delta_gates] = rows * heads * 2 * number;
    of[state_chunks] = rows * state_chunk_bytes;
}

void add_experts(const Model &model, const StepForm &form, int64_t rows, StepBuffers *out) {
    int64_t experts = 0, chosen = 0, width = 0, row = 0;
    for (const Layer &layer : model.layers) {
        const Experts *of_layer = layer.experts();
        if (of_layer == nullptr) continue;
        const bool gated = layer.shared() != nullptr && layer.shared()->gate;
        const auto count = static_cast<int64_t>(of_layer->each.size());
        experts = std::max(experts, count);
        row = std::max(row, rounded_up(count + (gated ? 1 : 0), 16));
        chosen = std::max<int64_t>(chosen, of_layer->router.chosen);
        width = std::max<int64_t>(width, of_layer->each[0].width);
    }
    if (experts == 0) return;
    const int64_t all = rows * chosen, element = dtype_bytes(form.element);
    StepBuffers &of = *out;
    of[router_logits] = rows * row * number;
    of[turns] = 4 * all * number;
    of[turn_counts] = rounded_up(rows, routed_tokens) / routed_tokens * experts * number;
    of[expert_tiles] = (all / expert_tile_rows + experts) * expert_tile_bytes + number;
    of[expert_activated] = all * width * element;
    const int64_t groups = rounded_up(width, scaled_elements) / scaled_elements;
    of[expert_scales] = form.experts_in_e4m3 ? all * groups * number : 0;
    of[expert_made] = all * model.hidden * element;
}

} // namespace

int64_t first_rows(const Mixer &mixer) {
    return std::visit(
        Visitor{[](const NoMixer &) { return int64_t{0}; },
                [](const Attention &a) {
                    if (a.latent) {
                        return rounded_up(a.first_q().rows() + a.latent.down.rows(), 16);
                    }
                    const int64_t heads = (a.gated ? 2 : 1) * int64_t{a.heads};
                    return (heads + (a.kv_layer < 0 ? 2 * a.kv_heads : 0)) *
                           padded_head_dim(a.head_dim);
                },
                [](const LinearAttention &linear) { return rounded_up(linear.input_rows(), 16); },
                [](const ShortConvolution &convolution) {
                    return rounded_up(3 * convolution.channels(), 16);
                }},
        mixer);
}

int64_t last_columns(const Mixer &mixer) {
    return std::visit(
        Visitor{[](const NoMixer &) { return int64_t{0}; },
                [](const Attention &a) {
                    return a.latent ? a.result_size()
                                    : int64_t{a.heads} * padded_head_dim(a.head_dim);
                },
                [](const LinearAttention &linear) { return linear.values_size(); },
                [](const ShortConvolution &convolution) { return convolution.channels(); }},
        mixer);
}

int64_t vocabulary_stride(const Model &model) { return rounded_up(model.vocabulary, 16); }

int64_t head_rows(const Model &model) { return rounded_up(model.head.rows(), 16); }

bool expands_latents(const Attention &a) {
    const Latent &of = a.latent;
    return of.rank == 512 && of.turned == latent_turned &&
           ((of.plain == 192 && of.value_dim == 256) || (of.plain == 128 && of.value_dim == 128));
}

AttentionShapes attention_shapes(const Model &model) {
    AttentionShapes shapes;
    for (const Layer &layer : model.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr) {
            shapes.of_layer.push_back(SIZE_MAX);
            continue;
        }
        const AttentionShape shape{a->window,
                                   a->chunked,
                                   a->heads,
                                   a->kv_heads,
                                   padded_key_dim(*a),
                                   padded_value_dim(*a),
                                   static_cast<size_t>(a->kv_group)};
        const auto same = [&](const AttentionShape &s) {
            return s.window == shape.window && s.chunked == shape.chunked &&
                   s.heads == shape.heads && s.kv_heads == shape.kv_heads &&
                   s.head_dim == shape.head_dim && s.value_dim == shape.value_dim;
        };
        const auto found = std::find_if(shapes.all.begin(), shapes.all.end(), same);
        shapes.of_layer.push_back(static_cast<size_t>(found - shapes.all.begin()));
        if (found == shapes.all.end()) shapes.all.push_back(shape);
    }
    return shapes;
}

int64_t reproducible_partials(const Model &model) {
    const std::vector<AttentionShape> shapes = attention_shapes(model).all;
    // The page that a chunk begins within has a partial of its own.
    const bool chunks = std::any_of(shapes.begin(), shapes.end(),
                                    [](const AttentionShape &shape) { return shape.chunked; });
    return most_partials(model.max_positions) + (chunks ? 1 : 0);
}

int64_t widened_pages(const AttentionShape &shape) {
    return std::min(most_widened_pages, most_widened_bytes / wide_page_bytes(shape));
}

int64_t widened_bytes(const AttentionShape &shape) {
    return widened_pages(shape) * wide_page_bytes(shape);
}

int64_t StepBuffers::total() const {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) - (*this)[others_logits];
}

int64_t StepBuffers::growing() const {
    return total() - (*this)[logits] - (*this)[all_logits] - (*this)[state_levels] -
           (*this)[workspace] - (*this)[StepBuffer::expanded] - (*this)[shared];
}

int64_t rank_bytes(const StepBuffers &buffers, int32_t ranks, bool peers) {
    if (ranks == 1 || (ranks == 2 && peers)) return 0;
    return buffers[StepBuffer::others_logits] + (int64_t{1340} << 20);
}

int64_t staging_bytes(int64_t step_tokens) {
    return staged_token_bytes * std::max(step_tokens, least_staged);
}

StepBuffers step_buffers(const Model &model, const StepForm &form, int64_t rows) {
    StepBuffers of;
    add_activations(model, form, rows, &of);
    add_latents(model, form, rows, &of);
    add_attention(model, form, rows, &of);
    add_states(model, form, rows, &of);
    add_experts(model, form, rows, &of);
    of[sections] = 4 * section_token_bytes * rows;
    of[slots] = static_cast<int64_t>(model.kv_groups.size()) * rows * number;
    of[staging] = step_batches * staging_bytes(rows);
    of[workspace] = linear_workspace;
    return of;
}

bool has_sparse_steps(const Model &model) { return model.has_experts() && !keeps_latents(model); }

int64_t default_step_tokens(const Model &model, const StepForm &form, int64_t memory_bytes) {
    if (has_sparse_steps(model)) return sparse_tokens;
    const int64_t most = memory_bytes / (keeps_latents(model) ? latents_share : memory_share);
    int64_t tokens = most_step_tokens;
    while (tokens > least_tokens && step_buffers(model, form, tokens).growing() > most) {
        tokens /= 2;
    }
    return tokens;
}

} // namespace batchllm
