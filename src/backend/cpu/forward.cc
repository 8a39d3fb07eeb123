#include "backend/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/feed_forward.h"
#include "backend/cpu/forward_tasks.h"
#include "base/visit.h"

namespace batchllm::cpu {
Result<std::unique_ptr<Forward>> Forward::create(const Model &model, const Kernels &kernels,
                                                 ThreadPool *pool, int64_t step_tokens,
                                                 bool reproducible, Rank rank) {
    std::unique_ptr<Forward> forward(
        new Forward(model, kernels, pool, step_tokens, reproducible, rank));
    ASSIGN_OR_RETURN(forward->linear_,
                     Linear::create(kernels.element, pool, reproducible, &kernels));
    ASSIGN_OR_RETURN(forward->weights_, pack_weights(model, forward->linear_.get()));
    RETURN_IF_ERROR(forward->allocate());
    return forward;
}

Status Forward::allocate() {
    const int64_t rows = Linear::rounded_rows(step_tokens_);
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t hidden = model_.hidden;
    int64_t qkv = 0, queries = 0, attended = 0, width = 0, head_dim = 0;
    bool delta = bool(rank_), expert_sums = false;
    for (const Layer &layer : model_.layers) {
        const int64_t mixed = std::visit(
            Visitor{[](const NoMixer &) { return int64_t{0}; },
                    [&](const Attention &a) {
                        if (!a.latent) {
                            qkv = std::max(qkv, a.q.rows() + 2 * a.kv_size() + a.gate.rows());
                        }
                        queries = std::max(queries, a.heads * int64_t{padded_head_dim(a.head_dim)});
                        head_dim = std::max<int64_t>(head_dim, a.head_dim);
                        return a.result_size();
                    },
                    [](const LinearAttention &linear) { return linear.values_size(); },
                    [](const ShortConvolution &convolution) { return convolution.channels(); }},
            layer.mixer);
        attended = std::max(attended, mixed);
        const FeedForward *feed_forward = layer.feed_forward();
        const Experts *experts = layer.experts();
        if (feed_forward != nullptr) width = std::max<int64_t>(width, feed_forward->width);
        delta = delta || layer.after_attention || layer.after_feed_forward || layer.after_input ||
                layer.residual_scale != 1 || experts != nullptr;
        expert_sums = expert_sums || (experts != nullptr && experts->after);
    }
    width = std::max<int64_t>(width, model_.layer_inputs.width);
    for (const Rope &rope : model_.ropes) {
        angles_begin_.push_back(angles_);
        angles_ += rope.dims() / 2;
    }
    const char *what = "a step's buffers";
    ASSIGN_OR_RETURN(cosine_, Buffer::create(step_tokens_ * angles_ * 4, what));
    ASSIGN_OR_RETURN(sine_, Buffer::create(step_tokens_ * angles_ * 4, what));
    ASSIGN_OR_RETURN(residual_, Buffer::create(step_tokens_ * hidden * 4, what));
    if (delta) {
        ASSIGN_OR_RETURN(delta_, Buffer::create(step_tokens_ * hidden * 4, what));
    }
    if (expert_sums) {
        ASSIGN_OR_RETURN(expert_sums_, Buffer::create(step_tokens_ * hidden * 4, what));
    }
    ASSIGN_OR_RETURN(input_, Buffer::create(rows * hidden * element, what));
    ASSIGN_OR_RETURN(qkv_, Buffer::create(step_tokens_ * qkv * 4, what));
    ASSIGN_OR_RETURN(queries_, Buffer::create(step_tokens_ * queries * element, what));
    ASSIGN_OR_RETURN(attended_, Buffer::create(rows * attended * element, what));
    ASSIGN_OR_RETURN(activated_, Buffer::create(rows * width * element, what));
    experts_ = std::make_unique<ExpertLayers>(kernels_, linear_.get(), pool_);
    RETURN_IF_ERROR(experts_->allocate(model_, step_tokens_));
    linear_attention_ = std::make_unique<LinearAttentionLayers>(
        kernels_, linear_.get(), pool_, states_, state_work_, reproducible_, rank_);
    RETURN_IF_ERROR(linear_attention_->allocate(model_, step_tokens_));
    convolutions_ =
        std::make_unique<ConvolutionLayers>(kernels_, linear_.get(), pool_, states_, state_work_);
    RETURN_IF_ERROR(convolutions_->allocate(model_, step_tokens_));
    latents_ = std::make_unique<LatentLayers>(kernels_, linear_.get(), pool_);
    RETURN_IF_ERROR(latents_->allocate(model_, step_tokens_));
    if (model_.layer_inputs) {
        const int64_t inputs = model_.layer_inputs.projection.rows();
        ASSIGN_OR_RETURN(layer_inputs_, Buffer::create(step_tokens_ * inputs * 4, what));
    }
    zeros_.assign(static_cast<size_t>(head_dim), 0.0f);
    choose_work();
    return {};
}

// All layers with the same window and head shape share a worklist, except for the last layer, which
// has its own. Layers with a state have none.
void Forward::choose_work() {
    const size_t last = model_.layers.size() - 1;
    for (size_t i = 0; i <= last; ++i) {
        const Attention *attention = model_.layers[i].attention();
        work_of_.push_back(work_.size());
        if (attention == nullptr) continue;
        const CpuWorklistOptions options{attention->window,
                                         attention->chunked,
                                         attention->gqa_ratio(),
                                         attention->kv_heads,
                                         pool_->size(),
                                         reproducible_ ? kStretchKeys : 0,
                                         model_.pictures_see_themselves};
        const auto found = std::find_if(work_.begin(), work_.end(), [&](const Work &work) {
            return i < last && work.options == options;
        });
        work_of_.back() = static_cast<size_t>(found - work_.begin());
        if (found == work_.end()) work_.push_back({options, i == last, {}});
    }
}

Status Forward::take_pages(KvPages pages) {
    pages_ = std::move(pages);
    attention_ = std::make_unique<PagedAttention>(kernels_, pages_, pool_);
    return {};
}

void Forward::set_adapter(int32_t slot, std::shared_ptr<const CpuAdapter> adapter) {
    const auto size = static_cast<size_t>(slot) + 1;
    if (adapters_.size() < size) adapters_.resize(size);
    adapters_[size - 1] = std::move(adapter);
}

// The tokens' adapters, which the products of all rows have from now on.
void Forward::find_adapters(const TokenBatch &batch, const std::vector<int32_t> &wanted) {
    adapter_of_.clear();
    wanted_adapter_.clear();
    for (const ContextNode &node : batch.nodes) {
        if (node.adapter < 0 || node.token_count == 0) continue;
        adapter_of_.resize(batch.tokens.size(), nullptr);
        std::fill_n(adapter_of_.begin() + node.token_begin, node.token_count,
                    adapters_[static_cast<size_t>(node.adapter)].get());
    }
    if (!adapter_of_.empty()) {
        for (const int32_t token : wanted) wanted_adapter_.push_back(adapter_of_[token]);
    }
    linear_->set_adapters(adapter_of_);
}

void Forward::prepare(const TokenBatch &batch, const std::vector<int32_t> &wanted) {
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    node_of_.resize(static_cast<size_t>(tokens));
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        std::fill_n(node_of_.begin() + node.token_begin, node.token_count, static_cast<int32_t>(n));
    }
    wanted_rows_ = static_cast<int64_t>(wanted.size());
    row_of_.assign(static_cast<size_t>(tokens), -1);
    for (size_t i = 0; i < wanted.size(); ++i) row_of_[wanted[i]] = static_cast<int32_t>(i);

    for (Work &work : work_) {
        build_worklist(batch, work.wanted_only ? row_of_ : std::vector<int32_t>(), work.options,
                       &work.list);
    }
    if (model_.state_size() > 0) state_work_.prepare(batch);
    find_adapters(batch, wanted);
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) embed(batch, t);
    });
}

void Forward::norm(const PackedNorm &norm, const float *x, int64_t rows, std::byte *out) {
    const int32_t hidden = model_.hidden;
    const int64_t row_bytes = hidden * dtype_bytes(kernels_.element);
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            const float *row = x + r * hidden;
            std::byte *to = out + r * row_bytes;
            switch (norm.kind) {
            case NormKind::none:
                kernels_.store_elements(row, 1, hidden, hidden, to);
                break;
            case NormKind::rms:
                kernels_.rms_norm(row, norm.weight.data(), norm.epsilon, hidden, to);
                break;
            case NormKind::layer:
                kernels_.layer_norm(row, norm.weight.data(), norm.bias.data(), norm.epsilon, hidden,
                                    to);
                break;
            }
        }
    });
}

// Of a base-2 softmax.
float Forward::query_scale(const Attention &attention, int32_t position) const {
    const auto scale = static_cast<float>(1.4426950408889634 * attention.scale);
    if (attention.long_scale == 0) return scale;
    const int32_t periods = (position + attention.long_shift) / attention.long_period;
    return scale * (1 + attention.long_scale * std::log(1 + static_cast<float>(periods)));
}

Forward::Place Forward::place_of(const TokenBatch &batch, const Attention &attention,
                                 int32_t token) const {
    const ContextNode &node = batch.nodes[node_of_[token]];
    const int32_t place = batch.positions[token] - node.start;
    const int32_t page =
        batch.pages[attention.kv_group].page(node_of_[token], place / pages_.page_tokens());
    const int32_t slot = place % kGroupTokens;
    return {page, place % pages_.page_tokens() / kGroupTokens, slot,
            slot == 0 ? node.length - place : kGroupTokens};
}

// Writes one token's queries, scaled for a base-2 softmax, and its keys and values to their page.
void Forward::write_token(const TokenBatch &batch, const Attention &attention,
                          const PackedAttention &weights, int32_t token) {
    const int32_t head_dim = attention.head_dim;
    const int32_t padded = padded_head_dim(head_dim);
    const int32_t ratio = attention.gqa_ratio();
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    const int64_t element = dtype_bytes(kernels_.element);
    const float scale = query_scale(attention, batch.positions[token]);
    float *head = qkv_.floats() + token * weights.qkv.rows;

    // Between queries.
    const int32_t stride = attention.gated && !attention.gate ? 2 * head_dim : head_dim;
    const bool turned = attention.norm_turned;
    const bool shares = rank_ && attention.norm_whole;
    if (!turned) {
        norm_heads(weights.q_norm, attention.norm_whole, head, attention.heads, head_dim, stride,
                   shares ? shared_norms_[static_cast<size_t>(token)] : 0);
    }
    for (int64_t h = 0; h < attention.heads; ++h, head += stride) {
        turn(attention, token, head);
        if (turned) norm_in_place(weights.q_norm, head, head_dim);
        const int64_t row = (h / ratio * tokens + token) * ratio + h % ratio;
        kernels_.store_elements(head, scale, head_dim, padded,
                                queries_.data() + row * padded * element);
    }

    if (attention.kv_layer >= 0) return;
    const auto [page, group, slot, unused] = place_of(batch, attention, token);
    if (!turned) {
        norm_heads(weights.k_norm, attention.norm_whole, head, attention.kv_heads, head_dim,
                   head_dim, shares ? shared_norms_[static_cast<size_t>(tokens + token)] : 0);
    }
    for (int32_t h = 0; h < attention.kv_heads; ++h, head += head_dim) {
        turn(attention, token, head);
        if (turned) norm_in_place(weights.k_norm, head, head_dim);
        kernels_.store_key(head, head_dim, padded, slot, pages_.keys(attention, page, h, group));
    }
    norm_heads(weights.v_norm, false, head, attention.kv_heads, head_dim, head_dim);
    for (int32_t h = 0; h < attention.kv_heads; ++h, head += head_dim) {
        std::byte *values = pages_.values(attention, page, h, group);
        kernels_.store_value(head, head_dim, padded, slot, values);
        // Clears the places of the group that have no token yet: a page's last owner may have left
        // a NaN there, which a weight of zero would not suppress.
        for (int32_t empty = unused; empty < kGroupTokens; ++empty) {
            kernels_.store_value(zeros_.data(), head_dim, padded, empty, values);
        }
    }
}

// The same of a layer with latents, whose plain parts of queries are in place.
void Forward::write_latent(const TokenBatch &batch, const Attention &attention,
                           const PackedLatent &weights, int32_t token, float scale) {
    const Latent &latent = attention.latent;
    const int32_t padded = padded_head_dim(attention.head_dim);
    const int64_t element = dtype_bytes(kernels_.element);
    float *head = latents_->query(token) + latent.plain;
    for (int64_t h = 0; h < attention.heads; ++h, head += latent.query_dim()) {
        turn(attention, token, head);
        const int64_t row = token * int64_t{attention.heads} + h;
        kernels_.store_elements(head, scale, latent.turned, padded - latent.rank,
                                queries_.data() + (row * padded + latent.rank) * element);
    }
    float *key = latents_->latent(token);
    norm_in_place(weights.norm, key, latent.rank);
    turn(attention, token, key + latent.rank);
    const auto [page, group, slot, unused] = place_of(batch, attention, token);
    std::byte *keys = pages_.keys(attention, page, 0, group);
    kernels_.store_key(key, attention.head_dim, padded, slot, keys);
    for (int32_t empty = unused; empty < kGroupTokens; ++empty) {
        kernels_.store_key(zeros_.data(), attention.head_dim, padded, empty, keys);
    }
}

void Forward::write_heads(const TokenBatch &batch, const Attention &attention,
                          const PackedAttention &weights) {
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) {
            write_token(batch, attention, weights, static_cast<int32_t>(t));
        }
    });
}

// Stores x W^T + bias in `to`, [rows, hidden].
Status Forward::product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                        const Vector &bias, Store store, float *to) {
    const int64_t hidden = model_.hidden;
    return linear_->run(matrix, x, rows, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            store(tile.data + r * tile.width, bias_at(bias, tile.column),
                  static_cast<int32_t>(tile.width), to + (tile.row + r) * hidden + tile.column);
        }
    });
}

// to += scale * after(from). from: overwritten
void Forward::add_normed(const PackedNorm &after, float scale, int64_t rows, Buffer *from,
                         Buffer *to) {
    const int32_t hidden = model_.hidden;
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t r = task * kTokensOfTask; r < last; ++r) {
            float *delta = from->floats() + r * hidden;
            norm_in_place(after, delta, hidden);
            kernels_.add_scaled(delta, scale, hidden, to->floats() + r * hidden);
        }
    });
}

// numbers: [rows, hidden], summed over all ranks.
Status Forward::sum(int64_t rows, Buffer *numbers) {
    Laps laps;
    RETURN_IF_ERROR(rank_.sum({numbers->floats(), static_cast<size_t>(rows * model_.hidden)}));
    laps.lap(&seconds_.exchange);
    return {};
}

// residual += scale * after(x W^T + bias). If the result is only added, the product's tasks add it.
// rank: of a sum over ranks; none: each rank computes it all.
Status Forward::add_product(const PackedMatrix &matrix, const std::byte *x, int64_t rows,
                            const Vector &bias, const PackedNorm &after, float scale, Rank rank) {
    if (!after && scale == 1 && !rank) {
        return product(matrix, x, rows, bias, kernels_.add_bias, residual_.floats());
    }
    RETURN_IF_ERROR(product(matrix, x, rows, bias, kernels_.copy_bias, delta_.floats()));
    if (rank) RETURN_IF_ERROR(sum(rows, &delta_));
    add_normed(after, scale, rows, &delta_, &residual_);
    return {};
}

Status Forward::attend(const TokenBatch &batch, size_t layer, const Attention &attention,
                       const std::vector<int32_t> *wanted, int64_t rows) {
    const auto &weights = std::get<PackedAttention>(weights_.layers[layer].mixer);
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    Laps laps;
    RETURN_IF_ERROR(linear_->run(weights.qkv, input_.data(), tokens, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, bias_at(weights.qkv_bias, tile.column),
                               static_cast<int32_t>(tile.width),
                               qkv_.floats() + (tile.row + r) * weights.qkv.rows + tile.column);
        }
    }));
    laps.lap(&seconds_.qkv);
    if (rank_ && attention.norm_whole) {
        RETURN_IF_ERROR(share_norms(attention, weights, tokens));
    }
    write_heads(batch, attention, weights);
    laps.lap(&seconds_.rope);
    // In the last layer the results are only for the wanted tokens.
    if (layer + 1 != model_.layers.size() || wanted_rows_ != 0) {
        RETURN_IF_ERROR(attention_->run(batch, work_[work_of_[layer]].list, attention,
                                        weights.sinks, queries_.data(), attended_.data()));
    }
    if (attention.gated) gate_heads(attention, weights, wanted, rows);
    laps.lap(&seconds_.attention);
    return {};
}

Status Forward::attend_latents(const TokenBatch &batch, size_t layer, const Attention &attention,
                               int64_t rows) {
    const auto &weights = std::get<PackedLatent>(weights_.layers[layer].mixer);
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    Laps laps;
    std::vector<float> scales;
    for (const int32_t position : batch.positions) {
        scales.push_back(query_scale(attention, position));
    }
    RETURN_IF_ERROR(
        latents_->project(attention, weights, input_.data(), tokens, scales, queries_.data()));
    laps.lap(&seconds_.qkv);
    pool_->parallel_for(task_count(tokens), [&](int64_t task, int32_t) {
        const int64_t last = std::min(tokens, (task + 1) * kTokensOfTask);
        for (int64_t t = task * kTokensOfTask; t < last; ++t) {
            write_latent(batch, attention, weights, static_cast<int32_t>(t),
                         scales[static_cast<size_t>(t)]);
        }
    });
    laps.lap(&seconds_.rope);
    if (layer + 1 == model_.layers.size() && wanted_rows_ == 0) return {};
    RETURN_IF_ERROR(attention_->run(batch, work_[work_of_[layer]].list, attention, {},
                                    queries_.data(), latents_->made()));
    laps.lap(&seconds_.attention);
    RETURN_IF_ERROR(latents_->results(attention, weights, rows, attended_.data()));
    laps.lap(&seconds_.output);
    return {};
}

template <typename Net>
Status Forward::attend_linearly(size_t layer, const Net &net, int64_t tokens,
                                const std::vector<int32_t> *wanted, int64_t rows) {
    const auto &weights = std::get<PackedLinearAttention>(weights_.layers[layer].mixer);
    Laps laps;
    RETURN_IF_ERROR(linear_attention_->run(net, weights, layer, input_.data(), tokens));
    RETURN_IF_ERROR(linear_attention_->results(net, weights, wanted, rows, attended_.data()));
    laps.lap(&seconds_.linear_attention);
    return {};
}

Status Forward::convolve(size_t layer, const ShortConvolution &convolution, int64_t tokens,
                         const std::vector<int32_t> *wanted) {
    const auto &weights = std::get<PackedConvolution>(weights_.layers[layer].mixer);
    Laps laps;
    RETURN_IF_ERROR(convolutions_->project(weights, input_.data(), tokens));
    laps.lap(&seconds_.qkv);
    convolutions_->convolve(convolution, weights, layer, wanted == nullptr ? nullptr : &row_of_,
                            attended_.data());
    laps.lap(&seconds_.convolution);
    return {};
}

Status Forward::mix(const TokenBatch &batch, size_t index, const std::vector<int32_t> *wanted,
                    int64_t rows) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    const auto linearly = [&](const auto &net) {
        return attend_linearly(index, net, tokens, wanted, rows);
    };
    return std::visit(
        Visitor{[](const NoMixer &) { return Status(); },
                [&](const Attention &a) {
                    return a.latent ? attend_latents(batch, index, a, rows)
                                    : attend(batch, index, a, wanted, rows);
                },
                [&](const DeltaNet &net) { return linearly(net); },
                [&](const ChannelDeltaNet &net) { return linearly(net); },
                [&](const Mamba2 &mamba) { return linearly(mamba); },
                [&](const ShortConvolution &c) { return convolve(index, c, tokens, wanted); }},
        model_.layers[index].mixer);
}

// Keeps only the wanted rows of the residual stream and of the input of a parallel block's
// feed-forward. In ascending order, so that a row is never overwritten before it has moved.
void Forward::gather(const std::vector<int32_t> &wanted, bool parallel) {
    const int64_t hidden = model_.hidden;
    const int64_t row_bytes = hidden * dtype_bytes(kernels_.element);
    for (int64_t r = 0; r < wanted_rows_; ++r) {
        if (wanted[r] == r) continue;
        std::memcpy(residual_.floats() + r * hidden, residual_.floats() + wanted[r] * hidden,
                    static_cast<size_t>(hidden) * sizeof(float));
        if (!parallel) continue;
        std::memcpy(input_.data() + r * row_bytes, input_.data() + wanted[r] * row_bytes,
                    static_cast<size_t>(row_bytes));
    }
}

Status Forward::run_layer(const TokenBatch &batch, size_t index,
                          const std::vector<int32_t> &wanted) {
    const Layer &layer = model_.layers[index];
    const PackedLayer &weights = weights_.layers[index];
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size());
    const bool last = index + 1 == model_.layers.size();
    const int64_t rows = last ? wanted_rows_ : tokens;
    const std::vector<int32_t> *of = last ? &wanted : nullptr;
    Laps laps;
    if (layer.mixes()) {
        if (!layer.beside) {
            norm(weights.before_attention, residual_.floats(), tokens, input_.data());
            laps.lap(&seconds_.norm);
        }
        RETURN_IF_ERROR(mix(batch, index, of, rows));
    }
    if (rows == 0) return {};
    if (last) gather(wanted, layer.parallel);
    if (last) linear_->set_adapters(wanted_adapter_);
    laps = Laps();
    if (layer.mixes()) {
        RETURN_IF_ERROR(add_product(weights.o, attended_.data(), rows, weights.o_bias,
                                    weights.after_attention, layer.residual_scale, rank_));
        laps.lap(&seconds_.output);
    }
    if (layer.feeds()) {
        if (!layer.parallel) {
            norm(weights.before_feed_forward, residual_.floats(), rows, input_.data());
            laps.lap(&seconds_.norm);
        }
        RETURN_IF_ERROR(feed(index, rows));
    }
    laps = Laps();
    if (model_.layer_inputs) {
        RETURN_IF_ERROR(add_layer_input(index, rows, of));
    }
    scale_residual(weights.scalar, rows);
    laps.lap(&seconds_.layer_inputs);
    return {};
}

Status Forward::run(const TokenBatch &batch, const std::vector<int32_t> &wanted) {
    if (static_cast<int64_t>(batch.tokens.size()) > step_tokens_) {
        return error(BATCHLLM_ERROR_INTERNAL, "cpu backend: a batch of %zu tokens, at most %lld",
                     batch.tokens.size(), static_cast<long long>(step_tokens_));
    }
    Laps laps;
    RETURN_IF_ERROR(find_pictures(batch));
    prepare(batch, wanted);
    if (model_.layer_inputs) RETURN_IF_ERROR(make_layer_inputs(batch));
    laps.lap(&seconds_.prepare);
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
        const bool last = layer + 1 == model_.layers.size();
        RETURN_IF_ERROR(run_layer(batch, layer, wanted));
        add_deepstack(layer, last ? wanted_rows_ : static_cast<int64_t>(batch.tokens.size()),
                      last ? &wanted : nullptr);
    }
    Laps final_laps;
    norm(weights_.final_norm, residual_.floats(), wanted_rows_, input_.data());
    final_laps.lap(&seconds_.norm);
    return {};
}

void Forward::add_hidden(int64_t i, std::span<float> sum) const {
    Tensor row;
    row.dtype = kernels_.element;
    row.data = input_.data() + i * model_.hidden * dtype_bytes(kernels_.element);
    row.rows = 1;
    row.columns = model_.hidden;
    std::vector<float> state(sum.size());
    read_row(row, 0, state.data());
    for (size_t d = 0; d < sum.size(); ++d) sum[d] += state[d];
}

Status Forward::logits(int64_t first, int64_t count, float *out) {
    Laps laps;
    const std::byte *x = input_.data() + first * model_.hidden * dtype_bytes(kernels_.element);
    const bool plain = model_.logits_scale == 1 && model_.logits_softcap == 0;
    if (!wanted_adapter_.empty()) {
        linear_->set_adapters(RowAdapters(wanted_adapter_).subspan(static_cast<size_t>(first)));
    }
    RETURN_IF_ERROR(linear_->run(weights_.head, x, count, [&](const Linear::Tile &tile) {
        const auto width = static_cast<int32_t>(tile.width);
        for (int64_t r = 0; r < tile.rows; ++r) {
            float *to = out + (tile.row + r) * model_.vocabulary + model_.head_begin + tile.column;
            kernels_.copy_bias(tile.data + r * tile.width, bias_at(weights_.head_bias, tile.column),
                               width, to);
            if (!plain) kernels_.cap(to, model_.logits_scale, model_.logits_softcap, width);
        }
    }));
    laps.lap(&seconds_.head);
    return {};
}

} // namespace batchllm::cpu
