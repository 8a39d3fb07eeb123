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
    // Plain attention reads the nodes by launch, not by worklist; events are not captured.
    graphs_.on = options.graphs && options.fused_attention && !options.profile &&
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
    // What most steps need. Attention's lists are as long as contexts make them.
    for (const Section section : {kTokens, kPositions, kPages, kWanted, kSlots}) {
        RETURN_IF_ERROR(input_.make(section, 16 * rows_));
    }
    for (size_t i = 0; i < windows_.size() && options_.element != DType::f32; ++i) {
        for (size_t part = 0; part < 4; ++part) {
            RETURN_IF_ERROR(input_.make(kLists + 4 * i + part, 128 * rows_));
        }
    }
    RETURN_IF_ERROR(make(&samples_, rows_ * static_cast<int64_t>(sizeof(SampleResult)), "samples"));
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
    ASSIGN_OR_RETURN(kv_, DeviceMemory::create(pages * page_bytes(), "the KV pages"));
    pages_ = pages;
    // Padding of heads stays zero for ever.
    return check_cuda(cudaMemset(kv_.data(), 0, static_cast<size_t>(kv_.bytes())), "the KV pages");
}

// ---- Host ----

// values, then the rest up to count.
template <typename T> Status Forward::stage_section(size_t index, std::span<const T> values,
                                                    int64_t count, T rest, Staging *staging) {
    ASSIGN_OR_RETURN(const int64_t place, staging->add<T>(count));
    T *to = staging->at<T>(place);
    std::fill(std::copy(values.begin(), values.end(), to), to + count, rest);
    input_.set(index, place, count * static_cast<int64_t>(sizeof(T)));
    return {};
}

Status Forward::stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t rows,
                      Staging *staging) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    const auto wanted_tokens = static_cast<int64_t>(wanted.size());
    tokens_ = padded_rows(tokens);
    wanted_ = padded_rows(wanted_tokens);
    plain_tokens_ = tokens;
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
    const auto section = [&](size_t index, std::span<const int32_t> values, int64_t count,
                             int32_t rest) {
        return stage_section(index, values, count, rest, staging);
    };
    RETURN_IF_ERROR(section(kTokens, batch.tokens, tokens_, 0));
    RETURN_IF_ERROR(section(kPositions, batch.positions, tokens_, 0));
    RETURN_IF_ERROR(section(kPages, batch.pages, static_cast<int64_t>(batch.pages.size()), 0));
    RETURN_IF_ERROR(section(kWanted, wanted, wanted_, 0));
    RETURN_IF_ERROR(section(kSlots, kv_slots_, tokens_, -1));
    if (options_.element == DType::f32) {
        plain_nodes_.clear();
        node_of_.resize(batch.tokens.size());
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            plain_nodes_.push_back({node.parent, node.start, node.length, node.page_begin});
            std::fill_n(node_of_.begin() + node.token_begin, node.token_count,
                        static_cast<int32_t>(n));
        }
        RETURN_IF_ERROR(stage_section<PlainNode>(
            kNodes, plain_nodes_, static_cast<int64_t>(plain_nodes_.size()), {}, staging));
        return section(kNodeOf, node_of_, tokens, 0);
    }
    attention_nodes_.clear();
    for (const ContextNode &node : batch.nodes) {
        attention_nodes_.push_back({node.parent, node.start, node.length, node.token_begin,
                                    node.token_count, node.page_begin});
    }
    for (size_t i = 0; i < windows_.size(); ++i) RETURN_IF_ERROR(stage_worklist(i, staging));
    return {};
}

Status Forward::stage_worklist(size_t index, Staging *staging) {
    Window &window = windows_[index];
    const auto tokens = static_cast<int32_t>(kv_slots_.size());
    WorklistOptions options;
    options.heads = config_.heads;
    options.kv_heads = config_.kv_heads;
    options.head_dim = padded_dim_;
    options.window = window.size;
    options.sms = options_.sms;
    options_.attention->set_costs(&options);
    options.share = options_.share_attention;
    build_worklist(attention_nodes_, tokens, options, &window.list);
    if (window.list.slots > slots_) { // more partials than there is room for: split nothing
        options.matrix_split = options.stream_split = 1e-9;
        build_worklist(attention_nodes_, tokens, options, &window.list);
    }
    if (window.list.slots > slots_) {
        options.share = false;
        build_worklist(attention_nodes_, tokens, options, &window.list);
    }
    if (window.list.slots > slots_) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %d partial rows, room for %lld",
                     window.list.slots, static_cast<long long>(slots_));
    }
    if (!options_.fused_attention) split_by_kind(&window);
    const auto add = [&]<typename T>(size_t part, const std::vector<T> &values) {
        return stage_section<T>(kLists + 4 * index + part, values,
                                static_cast<int64_t>(values.size()), {}, staging);
    };
    RETURN_IF_ERROR(add(0, window.list.items));
    RETURN_IF_ERROR(add(1, window.list.rows));
    RETURN_IF_ERROR(add(2, window.list.partials));
    return add(3, window.list.merged);
}

// Prefixes that several requests read together, decode, prefill: the items in this order, each kind in
// the order that it had.
void Forward::split_by_kind(Window *window) {
    node_of_.resize(kv_slots_.size());
    for (size_t n = 0; n < attention_nodes_.size(); ++n) {
        std::fill_n(node_of_.begin() + attention_nodes_[n].token_begin,
                    attention_nodes_[n].token_count, static_cast<int32_t>(n));
    }
    Worklist &list = window->list;
    std::vector<AttentionItem> items;
    window->launches.clear();
    for (const int kind : {0, 1, 2}) {
        Window::Launch launch{static_cast<int32_t>(items.size()), 0, 0};
        for (size_t i = 0; i < list.items.size(); ++i) {
            const AttentionItem &item = list.items[i];
            const auto first = list.rows.begin() + item.row_begin;
            const auto node = [&](const AttentionRow &row) {
                return node_of_[static_cast<size_t>(row.token)];
            };
            const bool matrix = i < static_cast<size_t>(list.matrix_items);
            const bool together =
                std::any_of(first, first + item.row_count,
                            [&](const AttentionRow &row) { return node(row) != node(*first); });
            if (kind != (together ? 0 : matrix ? 2 : 1)) continue;
            ++(matrix ? launch.matrix_items : launch.stream_items);
            items.push_back(item);
        }
        if (launch.matrix_items + launch.stream_items > 0) window->launches.push_back(launch);
    }
    list.items = std::move(items);
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
        const AttentionArguments arguments = attention_arguments(i);
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
    RETURN_IF_ERROR(attention(index, stream));
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

AttentionArguments Forward::attention_arguments(size_t layer) const {
    const int32_t size = config_.window(static_cast<int32_t>(layer));
    const auto found = std::find_if(windows_.begin(), windows_.end(),
                                    [&](const Window &window) { return window.size == size; });
    const size_t lists = kLists + 4 * static_cast<size_t>(found - windows_.begin());
    AttentionArguments a{};
    a.type = options_.element == DType::bf16 ? AttentionType::bf16 : AttentionType::f16;
    a.heads = config_.heads;
    a.kv_heads = config_.kv_heads;
    a.head_dim = padded_dim_;
    a.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    a.window = size;
    a.q = qkv_.data();
    a.q_stride = qkv_rows_;
    a.out = attended_.data();
    a.out_stride = int64_t{config_.heads} * padded_dim_;
    a.kv = kv_of(layer);
    a.pages = input_.at<int32_t>(kPages);
    a.items = input_.at<AttentionItem>(lists);
    a.matrix_items = found->list.matrix_items;
    a.stream_items = found->list.stream_items;
    a.matrix_ctas = found->list.matrix_ctas;
    a.matrix_by_head = found->list.matrix_by_head;
    a.rows = input_.at<AttentionRow>(lists + 1);
    a.partials = input_.at<PartialRange>(lists + 2);
    a.merged = input_.at<int32_t>(lists + 3);
    a.merged_count = static_cast<int32_t>(found->list.merged.size());
    a.partial_out = partial_out_.as<float>();
    a.partial_lse = partial_lse_.as<float>();
    a.arrivals = arrivals_.as<int32_t>();
    a.queues = a.arrivals + rows_ * config_.kv_heads;
    return a;
}

Status Forward::attention(size_t index, cudaStream_t stream) {
    if (options_.element == DType::f32) return plain_attention(index, stream);
    AttentionArguments a = attention_arguments(index);
    if (options_.fused_attention) {
        RETURN_IF_CUDA(options_.attention->launch(a, options_.sms, stream));
        return graphs_.mark(stream);
    }
    // Partials count from launch to launch; the last merges what is left to be merged.
    const AttentionItem *items = a.items;
    const int32_t merged = a.merged_count, all = a.matrix_items + a.stream_items;
    for (const Window &window : windows_) {
        if (window.size != a.window) continue;
        for (const Window::Launch &some : window.launches) {
            a.items = items + some.begin;
            a.matrix_items = some.matrix_items;
            a.stream_items = some.stream_items;
            if (a.matrix_items + a.stream_items == 0) continue;
            a.matrix_ctas = some.stream_items == 0   ? options_.sms
                            : some.matrix_items == 0 ? 0
                                                     : options_.sms / 2;
            const bool last = some.begin + a.matrix_items + a.stream_items == all;
            a.merged_count = last ? merged : 0;
            RETURN_IF_CUDA(options_.attention->launch(a, options_.sms, stream));
        }
    }
    return {};
}

Status Forward::plain_attention(size_t index, cudaStream_t stream) {
    const PlainAttentionArguments arguments{static_cast<int32_t>(plain_tokens_),
                                            config_.heads,
                                            config_.kv_heads,
                                            padded_dim_,
                                            1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                                            config_.window(static_cast<int32_t>(index)),
                                            qkv_.as<float>(),
                                            qkv_rows_,
                                            attended_.as<float>(),
                                            reinterpret_cast<const float *>(kv_of(index)),
                                            input_.at<int32_t>(kPages),
                                            input_.at<PlainNode>(kNodes),
                                            input_.at<int32_t>(kNodeOf),
                                            input_.at<int32_t>(kPositions)};
    return check_cuda(launch_plain_attention(arguments, stream), "attention");
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

Status Forward::prepare(cudaStream_t stream) {
    const DeviceLayer &w = weights_.layers[0];
    const DType element = options_.element;
    for (int64_t rows = 1; rows <= rows_; rows = padded_rows(rows) + 1) {
        RETURN_IF_ERROR(linear_->prepare(w.qkv, normed_.data(), rows, element, false, stream));
        RETURN_IF_ERROR(
            linear_->prepare(w.o, attended_.data(), rows, options_.residual, true, stream));
        RETURN_IF_ERROR(linear_->prepare(w.gate_up, normed_.data(), rows, element, false, stream));
        RETURN_IF_ERROR(
            linear_->prepare(w.down, activated_.data(), rows, options_.residual, true, stream));
        if (rows > logits_rows_) continue;
        RETURN_IF_ERROR(
            linear_->prepare(weights_.lm_head, normed_.data(), rows, DType::f32, false, stream));
    }
    return check_cuda(cudaStreamSynchronize(stream), "products");
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
