#include "step/forward.h"

#include <algorithm>

#include "elementwise/elementwise.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kLogitsBytes = int64_t{256} << 20;

} // namespace

Forward::Forward(const Model &model, const ForwardOptions &options)
    : config_(model.config), options_(options), padded_dim_(padded_head_dim(model.config.head_dim)),
      qkv_rows_((int64_t{model.config.heads} + 2 * model.config.kv_heads) * padded_dim_),
      attention_(model.config, options.element, options.attention) {
    profile_.on = options.profile;
    // Plain attention reads the nodes by launch, not by worklist; events are not captured.
    graphs_.on = options.graphs && options.attention.fused && !options.profile &&
                 options.element != DType::f32;
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
    // Rows beyond a batch are computed too, from whatever is here.
    ASSIGN_OR_RETURN(frequencies_, zeroed_memory(c.head_dim / 2 * int64_t{4}, "rope frequencies"));
    ASSIGN_OR_RETURN(residual_, zeroed_memory(rows_ * c.hidden * residual, "the residual stream"));
    ASSIGN_OR_RETURN(last_, zeroed_memory(rows_ * c.hidden * residual, "the residual stream"));
    ASSIGN_OR_RETURN(normed_, zeroed_memory(rows_ * c.hidden * element, "activations"));
    ASSIGN_OR_RETURN(qkv_, zeroed_memory(rows_ * qkv_rows_ * element, "activations"));
    ASSIGN_OR_RETURN(attended_,
                     zeroed_memory(rows_ * c.heads * padded_dim_ * element, "activations"));
    ASSIGN_OR_RETURN(gate_up_, zeroed_memory(rows_ * 2 * c.intermediate * element, "activations"));
    ASSIGN_OR_RETURN(activated_, zeroed_memory(rows_ * c.intermediate * element, "activations"));
    ASSIGN_OR_RETURN(rope_table_,
                     zeroed_memory(rows_ * c.head_dim / 2 * int64_t{8}, "rope angles"));
    ASSIGN_OR_RETURN(logits_, zeroed_memory(logits_rows_ * vocabulary * 4, "logits"));
    ASSIGN_OR_RETURN(samples_,
                     zeroed_memory(rows_ * static_cast<int64_t>(sizeof(SampleResult)), "samples"));
    // What most steps need.
    for (const StepSection section : {kTokens, kPositions, kPages, kWanted, kSlots}) {
        RETURN_IF_ERROR(input_.make(section, 16 * rows_));
    }
    RETURN_IF_ERROR(attention_.allocate(rows_, &input_));
    const std::vector<float> frequencies = rope_inverse_frequencies(c.rope, c.head_dim);
    RETURN_IF_CUDA(cudaMemcpy(frequencies_.data(), frequencies.data(),
                              frequencies.size() * sizeof(float), cudaMemcpyHostToDevice));
    // Nothing is in gate_up_ or logits_ when a product's algorithms are timed, but what it is to write.
    const DeviceMemory &scratch = gate_up_.bytes() > logits_.bytes() ? gate_up_ : logits_;
    std::string path = options_.tuning_cache;
    const std::string stamp = Linear::stamp(options_.device);
    if (path.empty()) path = default_tuning_path(stamp + ".txt");
    if (path == "none" || !options_.tune) path.clear();
    TuningCache cache(path, stamp, &warning_);
    ASSIGN_OR_RETURN(Linear linear,
                     Linear::create(options_.element, options_.tune ? scratch.data() : nullptr,
                                    scratch.bytes(), std::move(cache)));
    linear_ = std::make_unique<Linear>(std::move(linear));
    return {};
}

int64_t Forward::page_bytes() const {
    return int64_t{config_.layers} * config_.kv_heads * 2 * kPageKeys * padded_dim_ *
           dtype_bytes(options_.element);
}

Status Forward::take_pages(int64_t pages) {
    // Padding of heads stays zero for ever.
    ASSIGN_OR_RETURN(kv_, zeroed_memory(pages * page_bytes(), "the KV pages"));
    pages_ = pages;
    return {};
}

Status Forward::stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t rows,
                      Staging *staging) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    const auto wanted_tokens = static_cast<int64_t>(wanted.size());
    tokens_ = padded_rows(tokens);
    wanted_ = padded_rows(wanted_tokens);
    gather_ = wanted_tokens < tokens;
    sample_rows_ = rows;
    kv_slots_.resize(batch.tokens.size());
    for (const ContextNode &node : batch.nodes) {
        for (int32_t i = 0; i < node.token_count; ++i) {
            const int32_t key = node.length - node.token_count + i;
            kv_slots_[static_cast<size_t>(node.token_begin + i)] =
                batch.pages[static_cast<size_t>(node.page_begin + key / kPageKeys)] * kPageKeys +
                key % kPageKeys;
        }
    }
    RETURN_IF_ERROR(input_.stage<int32_t>(kTokens, batch.tokens, tokens_, 0, staging));
    RETURN_IF_ERROR(input_.stage<int32_t>(kPositions, batch.positions, tokens_, 0, staging));
    RETURN_IF_ERROR(input_.stage<int32_t>(kPages, batch.pages, staging));
    RETURN_IF_ERROR(input_.stage<int32_t>(kWanted, wanted, wanted_, 0, staging));
    RETURN_IF_ERROR(input_.stage<int32_t>(kSlots, kv_slots_, tokens_, -1, staging));
    return attention_.stage(batch, &input_, staging);
}

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

// Memory for the step, where it needs more than any before it. Graphs know the old addresses.
Status Forward::reserve(cudaStream_t stream) {
    ASSIGN_OR_RETURN(bool moved, input_.reserve(stream));
    const auto bytes = sample_rows_ * static_cast<int64_t>(sizeof(SampleResult));
    if (samples_.bytes() < bytes) {
        ASSIGN_OR_RETURN(DeviceMemory samples, DeviceMemory::create(2 * bytes, "samples"));
        if (samples_.bytes() > 0) { // the batch before may be fed from it
            RETURN_IF_CUDA(cudaMemcpyAsync(samples.data(), samples_.data(),
                                           static_cast<size_t>(samples_.bytes()),
                                           cudaMemcpyDeviceToDevice, stream));
        }
        RETURN_IF_CUDA(cudaStreamSynchronize(stream));
        samples_ = std::move(samples);
        moved = true;
    }
    if (moved) graphs_.clear();
    return {};
}

Status Forward::run(const Staging &staging, cudaStream_t stream) {
    RETURN_IF_ERROR(reserve(stream));
    RETURN_IF_ERROR(profile_.mark(Part::begin, stream));
    RETURN_IF_ERROR(input_.fill(staging, stream));
    bool due = false;
    Graph *graph = graphs_.find({tokens_, wanted_, gather_}, &due);
    if (graph == nullptr && due) {
        // What cannot be captured can still be launched.
        Status captured = graphs_.begin(stream);
        if (captured.ok()) captured = launch(stream);
        if (captured.ok()) {
            Result<Graph *> made = graphs_.end(stream);
            if (made.ok()) {
                graph = *made;
            } else {
                captured = made.status();
            }
        }
        if (!captured.ok()) graphs_.give_up(stream);
    }
    return graph != nullptr ? replay(graph, stream) : launch(stream);
}

Status Forward::replay(Graph *graph, cudaStream_t stream) {
    for (size_t i = 0; i < graph->marked(); ++i) {
        const AttentionArguments arguments = attention_.arguments(i, attention_tensors(i), input_);
        RETURN_IF_ERROR(graph->set_arguments(i, &arguments));
    }
    return graph->replay(stream);
}

Status Forward::launch(cudaStream_t stream) {
    RETURN_IF_CUDA(launch_embed(
        options_.element, options_.residual, weights_.embedding, input_.at<int32_t>(kTokens),
        samples(), static_cast<int32_t>(tokens_), config_.hidden, residual_.data(), stream));
    RETURN_IF_CUDA(launch_rope_table(input_.at<int32_t>(kPositions), frequencies_.as<float>(),
                                     static_cast<int32_t>(tokens_), config_.head_dim / 2,
                                     rope_table_.as<float2>(), stream));
    RETURN_IF_ERROR(profile_.mark(Part::input, stream));
    for (size_t i = 0; i < weights_.layers.size(); ++i) RETURN_IF_ERROR(layer(i, stream));
    return {};
}

std::byte *Forward::kv_of(size_t layer) const {
    return kv_.data() + static_cast<int64_t>(layer) * pages_ * (page_bytes() / config_.layers);
}

AttentionTensors Forward::attention_tensors(size_t layer) const {
    return {qkv_.data(), attended_.data(), kv_of(layer)};
}

Status Forward::layer(size_t index, cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[index];
    RETURN_IF_ERROR(norm(residual_.data(), nullptr, w.input_norm, tokens_, stream));
    RETURN_IF_ERROR(
        linear_->run(w.qkv, normed_.data(), tokens_, qkv_.data(), options_.element, false, stream));
    RETURN_IF_ERROR(profile_.mark(Part::qkv, stream));
    const RopeArguments rope{options_.element,
                             qkv_.data(),
                             w.qkv_bias,
                             w.q_norm,
                             w.k_norm,
                             static_cast<float>(config_.norm_epsilon),
                             rope_table_.as<float2>(),
                             input_.at<int32_t>(kSlots),
                             kv_of(index),
                             static_cast<int32_t>(tokens_),
                             config_.heads,
                             config_.kv_heads,
                             config_.head_dim,
                             padded_dim_};
    RETURN_IF_CUDA(launch_rope(rope, stream));
    RETURN_IF_ERROR(profile_.mark(Part::rope, stream));

    const bool last = index + 1 == weights_.layers.size();
    if (last && wanted_ == 0) return {};
    RETURN_IF_ERROR(attention_.launch(index, attention_tensors(index), input_, stream));
    RETURN_IF_ERROR(graphs_.mark(stream));
    RETURN_IF_ERROR(profile_.mark(Part::attention, stream));

    void *residual = residual_.data();
    const void *attended = attended_.data();
    int64_t rows = tokens_;
    if (last && gather_) {
        const int32_t *wanted = input_.at<int32_t>(kWanted);
        const auto count = static_cast<int32_t>(wanted_);
        RETURN_IF_CUDA(launch_gather(residual_.data(), wanted, last_.data(), count,
                                     config_.hidden * dtype_bytes(options_.residual), stream));
        RETURN_IF_CUDA(launch_gather(
            attended_.data(), wanted, qkv_.data(), count,
            int64_t{config_.heads} * padded_dim_ * dtype_bytes(options_.element), stream));
        residual = last_.data();
        attended = qkv_.data();
        rows = wanted_;
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

std::array<Forward::Product, 4> Forward::products(const DeviceLayer &w) const {
    const DType element = options_.element, residual = options_.residual;
    return {{{w.qkv, normed_.data(), qkv_.data(), element, false},
             {w.o, attended_.data(), residual_.data(), residual, true},
             {w.gate_up, normed_.data(), gate_up_.data(), element, false},
             {w.down, activated_.data(), residual_.data(), residual, true}}};
}

Status Forward::prepare(cudaStream_t stream) {
    for (int64_t rows = 1; rows <= rows_; rows = padded_rows(rows) + 1) {
        for (const Product &p : products(weights_.layers[0])) {
            RETURN_IF_ERROR(linear_->prepare(p.w, p.x, rows, p.y_type, p.accumulate, stream));
        }
        if (rows > logits_rows_) continue;
        RETURN_IF_ERROR(
            linear_->prepare(weights_.lm_head, normed_.data(), rows, DType::f32, false, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
}

Status Forward::run_linear(int64_t tokens, int64_t wanted, cudaStream_t stream) {
    for (const DeviceLayer &w : weights_.layers) {
        const bool last = &w == &weights_.layers.back();
        for (const Product &p : products(w)) { // but for QKV, the last layer's are of the wanted
            const int64_t rows = last && &p.w != &w.qkv ? wanted : tokens;
            RETURN_IF_ERROR(linear_->run(p.w, p.x, rows, p.y, p.y_type, p.accumulate, stream));
        }
    }
    for (int64_t first = 0; first < wanted; first += logits_rows_) {
        RETURN_IF_ERROR(linear_->run(weights_.lm_head, normed_.data(),
                                     std::min(logits_rows_, wanted - first), logits_.data(),
                                     DType::f32, false, stream));
    }
    return {};
}

} // namespace batchllm::cuda
