#include "forward.h"

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "elementwise.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kLogitsBytes = int64_t{256} << 20;
constexpr int64_t kSlotsPerToken = 6; // room for attention's partials

} // namespace

Forward::Forward(const Model &model, const ForwardOptions &options)
    : config_(model.config), options_(options), padded_dim_(padded_head_dim(model.config.head_dim)),
      qkv_rows_((int64_t{model.config.heads} + 2 * model.config.kv_heads) * padded_dim_) {
    std::vector<int32_t> sizes;
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
        const int32_t window = config_.window(layer);
        if (std::find(sizes.begin(), sizes.end(), window) == sizes.end()) sizes.push_back(window);
    }
    for (const int32_t size : sizes) {
        windows_.emplace_back();
        windows_.back().size = size;
    }
    profile_.on = options.profile;
}

Result<std::unique_ptr<Forward>> Forward::create(const Model &model,
                                                 const ForwardOptions &options) {
    std::unique_ptr<Forward> forward(new Forward(model, options));
    const ModelConfig &c = model.config;
    if (c.hidden % 8 != 0 || c.intermediate % 8 != 0 || c.head_dim % 16 != 0 || c.head_dim > 256 ||
        c.gqa_ratio() > kMatrixRows || c.hidden > 32768) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: hidden_size %d and intermediate_size %d must be multiples of 8 "
                     "(hidden at most 32768), head_dim %d a multiple of 16 up to 256, and %d query "
                     "heads for one of keys at most %d",
                     c.hidden, c.intermediate, c.head_dim, c.gqa_ratio(), kMatrixRows);
    }
    ASSIGN_OR_RETURN(forward->weights_, load_weights(model, options.element, options.random_weights,
                                                     options.seed, options.threads));
    RETURN_IF_ERROR(forward->allocate());
    return forward;
}

Status Forward::allocate() {
    const ModelConfig &c = config_;
    const int64_t element = dtype_bytes(options_.element);
    const int64_t residual = dtype_bytes(options_.residual);
    rows_ = padded_rows(options_.step_tokens);
    const int64_t vocabulary = weights_.lm_head.rows;
    logits_rows_ =
        std::min(std::max<int64_t>(64, kLogitsBytes / (vocabulary * 4) / 64 * 64), rows_);
    slots_ = kSlotsPerToken * rows_;
    const auto make = [](DeviceMemory *memory, int64_t bytes, const char *what) -> Status {
        ASSIGN_OR_RETURN(*memory, DeviceMemory::create(bytes, what));
        // Rows beyond a batch are computed too, from whatever is here.
        return check_cuda(cudaMemset(memory->data(), 0, static_cast<size_t>(bytes)), what);
    };
    RETURN_IF_ERROR(make(&frequencies_, c.head_dim / 2 * int64_t{4}, "rope frequencies"));
    RETURN_IF_ERROR(make(&residual_, rows_ * c.hidden * residual, "the residual stream"));
    RETURN_IF_ERROR(make(&last_, rows_ * c.hidden * residual, "the residual stream"));
    RETURN_IF_ERROR(make(&normed_, rows_ * c.hidden * element, "activations"));
    RETURN_IF_ERROR(make(&qkv_, rows_ * qkv_rows_ * element, "activations"));
    RETURN_IF_ERROR(make(&attended_, rows_ * c.heads * padded_dim_ * element, "activations"));
    RETURN_IF_ERROR(make(&gate_up_, rows_ * 2 * c.intermediate * element, "activations"));
    RETURN_IF_ERROR(make(&activated_, rows_ * c.intermediate * element, "activations"));
    RETURN_IF_ERROR(make(&rope_table_, rows_ * c.head_dim / 2 * int64_t{8}, "rope angles"));
    RETURN_IF_ERROR(make(&logits_, logits_rows_ * vocabulary * 4, "logits"));
    if (options_.element != DType::f32) {
        RETURN_IF_ERROR(
            make(&partial_out_, slots_ * c.heads * padded_dim_ * 4, "attention's partials"));
        RETURN_IF_ERROR(make(&partial_lse_, slots_ * c.heads * 4, "attention's partials"));
        RETURN_IF_ERROR(make(&arrivals_, (rows_ * c.kv_heads + 4) * 4, "attention's counters"));
    }
    const std::vector<float> frequencies = rope_inverse_frequencies(c.rope, c.head_dim);
    RETURN_IF_CUDA(cudaMemcpy(frequencies_.data(), frequencies.data(),
                              frequencies.size() * sizeof(float), cudaMemcpyHostToDevice));
    ASSIGN_OR_RETURN(Linear linear,
                     Linear::create(options_.element, options_.tune ? logits_.data() : nullptr,
                                    logits_.bytes()));
    linear_ = std::make_unique<Linear>(std::move(linear));
    return {};
}

int64_t Forward::page_bytes() const {
    return int64_t{config_.layers} * config_.kv_heads * 2 * kPageKeys * padded_dim_ *
           dtype_bytes(options_.element);
}

Status Forward::take_pages(int64_t pages) {
    ASSIGN_OR_RETURN(kv_, DeviceMemory::create(pages * page_bytes(), "the KV pages"));
    pages_ = pages;
    // Padding of heads stays zero for ever.
    return check_cuda(cudaMemset(kv_.data(), 0, static_cast<size_t>(kv_.bytes())), "the KV pages");
}

// ---- Host ----

Status Forward::stage(const TokenBatch &batch, std::span<const int32_t> wanted, Staging *staging) {
    tokens_ = static_cast<int64_t>(batch.tokens.size());
    wanted_count_ = static_cast<int64_t>(wanted.size());
    ASSIGN_OR_RETURN(token_ids_, staging->add(std::span<const int32_t>(batch.tokens)));
    ASSIGN_OR_RETURN(positions_, staging->add(std::span<const int32_t>(batch.positions)));
    ASSIGN_OR_RETURN(page_numbers_, staging->add(std::span<const int32_t>(batch.pages)));
    ASSIGN_OR_RETURN(wanted_, staging->add(wanted));
    ASSIGN_OR_RETURN(kv_slots_, staging->add<int32_t>(tokens_));
    int32_t *slots = staging->at<int32_t>(kv_slots_);
    for (const ContextNode &node : batch.nodes) {
        for (int32_t i = 0; i < node.token_count; ++i) {
            const int32_t key = node.length - node.token_count + i;
            slots[node.token_begin + i] =
                batch.pages[static_cast<size_t>(node.page_begin + key / kPageKeys)] * kPageKeys +
                key % kPageKeys;
        }
    }
    if (options_.element == DType::f32) {
        ASSIGN_OR_RETURN(nodes_, staging->add<PlainNode>(static_cast<int64_t>(batch.nodes.size())));
        ASSIGN_OR_RETURN(node_of_, staging->add<int32_t>(tokens_));
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            staging->at<PlainNode>(nodes_)[n] = {node.parent, node.start, node.length,
                                                 node.page_begin};
            std::fill_n(staging->at<int32_t>(node_of_) + node.token_begin, node.token_count,
                        static_cast<int32_t>(n));
        }
        return {};
    }
    attention_nodes_.clear();
    for (const ContextNode &node : batch.nodes) {
        attention_nodes_.push_back({node.parent, node.start, node.length, node.token_begin,
                                    node.token_count, node.page_begin});
    }
    for (Window &window : windows_) {
        WorklistOptions options;
        options.heads = config_.heads;
        options.kv_heads = config_.kv_heads;
        options.head_dim = padded_dim_;
        options.window = window.size;
        options.sms = options_.sms;
        options.share = options_.share_attention;
        build_worklist(attention_nodes_, static_cast<int32_t>(tokens_), options, &window.list);
        if (window.list.slots > slots_) { // more partials than there is room for: split nothing
            options.matrix_split = options.stream_split = 1e-9;
            build_worklist(attention_nodes_, static_cast<int32_t>(tokens_), options, &window.list);
        }
        if (window.list.slots > slots_) {
            options.share = false;
            build_worklist(attention_nodes_, static_cast<int32_t>(tokens_), options, &window.list);
        }
        if (window.list.slots > slots_) {
            return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %d partial rows, room for %lld",
                         window.list.slots, static_cast<long long>(slots_));
        }
        ASSIGN_OR_RETURN(window.items,
                         staging->add(std::span<const AttentionItem>(window.list.items)));
        ASSIGN_OR_RETURN(window.rows,
                         staging->add(std::span<const AttentionRow>(window.list.rows)));
        ASSIGN_OR_RETURN(window.partials,
                         staging->add(std::span<const PartialRange>(window.list.partials)));
        ASSIGN_OR_RETURN(window.merged,
                         staging->add(std::span<const int32_t>(window.list.merged)));
    }
    return {};
}

// ---- Device ----

Status Forward::norm(const void *residual, const int32_t *rows, const float *weight, int64_t count,
                     cudaStream_t stream) {
    const NormArguments arguments{options_.element, options_.residual,
                                  residual,         rows,
                                  weight,           static_cast<float>(config_.norm_epsilon),
                                  normed_.data(),   static_cast<int32_t>(count),
                                  config_.hidden};
    RETURN_IF_CUDA(launch_rms_norm(arguments, stream));
    return profile_.mark(Part::norm, stream);
}

Status Forward::run(const Staging &staging, cudaStream_t stream) {
    RETURN_IF_ERROR(profile_.mark(Part::begin, stream));
    RETURN_IF_CUDA(launch_embed(options_.element, options_.residual, weights_.embedding,
                                staging.on_device<int32_t>(token_ids_),
                                static_cast<int32_t>(tokens_), config_.hidden, residual_.data(),
                                stream));
    RETURN_IF_CUDA(launch_rope_table(staging.on_device<int32_t>(positions_),
                                     frequencies_.as<float>(), static_cast<int32_t>(tokens_),
                                     config_.head_dim / 2, rope_table_.as<float2>(), stream));
    RETURN_IF_ERROR(profile_.mark(Part::input, stream));
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
        RETURN_IF_ERROR(layer(i, staging, stream));
    }
    return {};
}

Status Forward::layer(size_t index, const Staging &staging, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    RETURN_IF_ERROR(norm(residual_.data(), nullptr, w.input_norm, tokens_, stream));
    RETURN_IF_ERROR(
        linear_->run(w.qkv, normed_.data(), tokens_, qkv_.data(), options_.element, false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::qkv, stream));
    const int64_t layer_bytes = pages_ * (page_bytes() / config_.layers);
    const RopeArguments rope{options_.element,
                             qkv_.data(),
                             w.qkv_bias,
                             w.q_norm,
                             w.k_norm,
                             static_cast<float>(config_.norm_epsilon),
                             rope_table_.as<float2>(),
                             staging.on_device<int32_t>(kv_slots_),
                             kv_.data() + static_cast<int64_t>(index) * layer_bytes,
                             static_cast<int32_t>(tokens_),
                             config_.heads,
                             config_.kv_heads,
                             config_.head_dim,
                             padded_dim_};
    RETURN_IF_CUDA(launch_rope(rope, stream));
    RETURN_IF_ERROR(profile_.mark(Part::rope, stream));

    const bool last = index + 1 == weights_.layers.size();
    if (last && wanted_count_ == 0) return {};
    RETURN_IF_ERROR(attention(index, staging, stream));
    RETURN_IF_ERROR(profile_.mark(Part::attention, stream));

    void *residual = residual_.data();
    const void *attended = attended_.data();
    int64_t rows = tokens_;
    if (last && wanted_count_ < tokens_) {
        const int32_t *wanted = staging.on_device<int32_t>(wanted_);
        const auto count = static_cast<int32_t>(wanted_count_);
        RETURN_IF_CUDA(launch_gather(residual_.data(), wanted, last_.data(), count,
                                     config_.hidden * dtype_bytes(options_.residual), stream));
        RETURN_IF_CUDA(launch_gather(
            attended_.data(), wanted, qkv_.data(), count,
            int64_t{config_.heads} * padded_dim_ * dtype_bytes(options_.element), stream));
        residual = last_.data();
        attended = qkv_.data();
        rows = wanted_count_;
    }
    RETURN_IF_ERROR(linear_->run(w.o, attended, rows, residual, options_.residual, true, stream));
    RETURN_IF_CUDA(launch_add_bias(options_.residual, residual, w.o_bias,
                                   static_cast<int32_t>(rows), config_.hidden, stream));
    RETURN_IF_ERROR(profile_.mark(Part::output, stream));
    RETURN_IF_ERROR(norm(residual, nullptr, w.post_attention_norm, rows, stream));
    RETURN_IF_ERROR(feed_forward(w, residual, rows, stream));
    if (!last) return {};
    return norm(residual, nullptr, weights_.final_norm, rows, stream);
}

Status Forward::attention(size_t index, const Staging &staging, cudaStream_t stream) {
    const int64_t layer_bytes = pages_ * (page_bytes() / config_.layers);
    const std::byte *kv = kv_.data() + static_cast<int64_t>(index) * layer_bytes;
    const int32_t window = config_.window(static_cast<int32_t>(index));
    const float scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    if (options_.element == DType::f32) {
        const PlainAttentionArguments arguments{static_cast<int32_t>(tokens_),
                                                config_.heads,
                                                config_.kv_heads,
                                                padded_dim_,
                                                scale,
                                                window,
                                                qkv_.as<float>(),
                                                qkv_rows_,
                                                attended_.as<float>(),
                                                reinterpret_cast<const float *>(kv),
                                                staging.on_device<int32_t>(page_numbers_),
                                                staging.on_device<PlainNode>(nodes_),
                                                staging.on_device<int32_t>(node_of_),
                                                staging.on_device<int32_t>(positions_)};
        return check_cuda(launch_plain_attention(arguments, stream), "attention");
    }
    const auto found = std::find_if(windows_.begin(), windows_.end(),
                                    [&](const Window &w) { return w.size == window; });
    AttentionArguments a{};
    a.type = options_.element == DType::bf16 ? AttentionType::bf16 : AttentionType::f16;
    a.heads = config_.heads;
    a.kv_heads = config_.kv_heads;
    a.head_dim = padded_dim_;
    a.scale = scale;
    a.window = window;
    a.q = qkv_.data();
    a.q_stride = qkv_rows_;
    a.out = attended_.data();
    a.out_stride = int64_t{config_.heads} * padded_dim_;
    a.kv = kv;
    a.pages = staging.on_device<int32_t>(page_numbers_);
    a.items = staging.on_device<AttentionItem>(found->items);
    a.matrix_items = found->list.matrix_items;
    a.stream_items = found->list.stream_items;
    a.matrix_ctas = found->list.matrix_ctas;
    a.rows = staging.on_device<AttentionRow>(found->rows);
    a.partials = staging.on_device<PartialRange>(found->partials);
    a.merged = staging.on_device<int32_t>(found->merged);
    a.merged_count = static_cast<int32_t>(found->list.merged.size());
    a.partial_out = partial_out_.as<float>();
    a.partial_lse = partial_lse_.as<float>();
    a.arrivals = arrivals_.as<int32_t>();
    a.queues = a.arrivals + rows_ * config_.kv_heads;
    return check_cuda(launch_attention(a, options_.sms, stream), "attention");
}

Status Forward::feed_forward(const DeviceLayer &w, void *residual, int64_t rows,
                             cudaStream_t stream) {
    RETURN_IF_ERROR(linear_->run(w.gate_up, normed_.data(), rows, gate_up_.data(), options_.element,
                                 false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::gate_up, stream));
    RETURN_IF_CUDA(launch_swiglu(options_.element, gate_up_.data(), w.gate_up_bias,
                                 activated_.data(), static_cast<int32_t>(rows),
                                 config_.intermediate, stream));
    RETURN_IF_ERROR(profile_.mark(Part::swiglu, stream));
    RETURN_IF_ERROR(
        linear_->run(w.down, activated_.data(), rows, residual, options_.residual, true, stream));
    RETURN_IF_CUDA(launch_add_bias(options_.residual, residual, w.down_bias,
                                   static_cast<int32_t>(rows), config_.hidden, stream));
    return profile_.mark(Part::down, stream);
}

Status Forward::compute_logits(int64_t first, int64_t count, cudaStream_t stream) {
    const std::byte *x = normed_.data() + first * config_.hidden * dtype_bytes(options_.element);
    RETURN_IF_ERROR(
        linear_->run(weights_.lm_head, x, count, logits_.data(), DType::f32, false, stream));
    return profile_.mark(Part::logits, stream);
}

Status Forward::run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream) {
    for (size_t i = 0; i < weights_.layers.size(); ++i) {
        const DeviceLayer &w = weights_.layers[i];
        const int64_t rows = i + 1 < weights_.layers.size() ? tokens : wanted;
        RETURN_IF_ERROR(linear_->run(w.qkv, normed_.data(), tokens, qkv_.data(), options_.element,
                                     false, stream));
        RETURN_IF_ERROR(linear_->run(w.o, attended_.data(), rows, residual_.data(),
                                     options_.residual, true, stream));
        RETURN_IF_ERROR(linear_->run(w.gate_up, normed_.data(), rows, gate_up_.data(),
                                     options_.element, false, stream));
        RETURN_IF_ERROR(linear_->run(w.down, activated_.data(), rows, residual_.data(),
                                     options_.residual, true, stream));
    }
    for (int64_t first = 0; first < wanted; first += logits_rows_) {
        RETURN_IF_ERROR(linear_->run(weights_.lm_head, normed_.data(),
                                     std::min(logits_rows_, wanted - first), logits_.data(),
                                     DType::f32, false, stream));
    }
    return {};
}

} // namespace batchllm::cuda
