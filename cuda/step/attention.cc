#include "step/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/attention.h"
#include "step/weights.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kSlotsPerToken = 6; // room for partials

} // namespace

StepAttention::StepAttention(const ModelConfig &config, DType element,
                             const AttentionOptions &options)
    : config_(config), element_(element), options_(options),
      padded_dim_(padded_head_dim(config.head_dim)),
      q_stride_((int64_t{config.heads} + 2 * config.kv_heads) * padded_dim_),
      out_stride_(int64_t{config.heads} * padded_dim_),
      scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))) {
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
        const int32_t size = config_.window(layer);
        if (std::any_of(windows_.begin(), windows_.end(),
                        [&](const Window &window) { return window.size == size; })) {
            continue;
        }
        const size_t sections = kLists + 4 * windows_.size();
        windows_.emplace_back();
        windows_.back().size = size;
        windows_.back().sections = sections;
    }
}

Status StepAttention::allocate(int64_t rows, StepInput *input) {
    if (element_ == DType::f32) return {};
    rows_ = rows;
    slots_ = kSlotsPerToken * rows;
    ASSIGN_OR_RETURN(partial_out_, zeroed_memory(slots_ * config_.heads * padded_dim_ * 4,
                                                 "attention's partials"));
    ASSIGN_OR_RETURN(partial_lse_,
                     zeroed_memory(slots_ * config_.heads * 4, "attention's partials"));
    ASSIGN_OR_RETURN(arrivals_,
                     zeroed_memory((rows * config_.kv_heads + 4) * 4, "attention's counters"));
    // What most steps need: the lists are as long as contexts make them.
    for (const Window &window : windows_) {
        for (size_t part = 0; part < 4; ++part) {
            RETURN_IF_ERROR(input->make(window.sections + part, 128 * rows));
        }
    }
    return {};
}

const StepAttention::Window &StepAttention::window_of(size_t layer) const {
    const int32_t size = config_.window(static_cast<int32_t>(layer));
    return *std::find_if(windows_.begin(), windows_.end(),
                         [&](const Window &window) { return window.size == size; });
}

// ---- Host ----

Status StepAttention::stage(const TokenBatch &batch, StepInput *input, Staging *staging) {
    if (element_ == DType::f32 || !options_.fused) {
        node_of_.resize(batch.tokens.size());
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            std::fill_n(node_of_.begin() + batch.nodes[n].token_begin, batch.nodes[n].token_count,
                        static_cast<int32_t>(n));
        }
    }
    tokens_ = static_cast<int32_t>(batch.tokens.size());
    if (element_ == DType::f32) return stage_plain(batch, input, staging);
    nodes_.clear();
    for (const ContextNode &node : batch.nodes) {
        nodes_.push_back({node.parent, node.start, node.length, node.token_begin, node.token_count,
                          node.page_begin});
    }
    for (Window &window : windows_) RETURN_IF_ERROR(stage_worklist(&window, input, staging));
    return {};
}

Status StepAttention::stage_plain(const TokenBatch &batch, StepInput *input, Staging *staging) {
    plain_nodes_.clear();
    for (const ContextNode &node : batch.nodes) {
        plain_nodes_.push_back({node.parent, node.start, node.length, node.page_begin});
    }
    RETURN_IF_ERROR(input->stage<PlainNode>(kNodes, plain_nodes_, staging));
    return input->stage<int32_t>(kNodeOf, node_of_, staging);
}

Status StepAttention::stage_worklist(Window *window, StepInput *input, Staging *staging) {
    WorklistOptions options;
    options.heads = config_.heads;
    options.kv_heads = config_.kv_heads;
    options.head_dim = padded_dim_;
    options.window = window->size;
    options.sms = options_.sms;
    options_.family->set_costs(&options);
    options.share = options_.share;
    Worklist &list = window->list;
    build_worklist(nodes_, tokens_, options, &list);
    if (list.slots > slots_) { // more partials than there is room for: split nothing
        options.matrix_split = options.stream_split = 1e-9;
        build_worklist(nodes_, tokens_, options, &list);
    }
    if (list.slots > slots_) {
        options.share = false;
        build_worklist(nodes_, tokens_, options, &list);
    }
    if (list.slots > slots_) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %d partial rows, room for %lld",
                     list.slots, static_cast<long long>(slots_));
    }
    if (!options_.fused) split_by_kind(window);
    RETURN_IF_ERROR(input->stage<AttentionItem>(window->sections, list.items, staging));
    RETURN_IF_ERROR(input->stage<AttentionRow>(window->sections + 1, list.rows, staging));
    RETURN_IF_ERROR(input->stage<PartialRange>(window->sections + 2, list.partials, staging));
    return input->stage<int32_t>(window->sections + 3, list.merged, staging);
}

// Prefixes that several requests read together, decode, prefill: the items in this order, each kind in
// the order that it had.
void StepAttention::split_by_kind(Window *window) const {
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

AttentionArguments StepAttention::arguments(size_t layer, const AttentionTensors &tensors,
                                            const StepInput &input) const {
    const Window &window = window_of(layer);
    AttentionArguments a{};
    a.type = element_ == DType::bf16 ? AttentionType::bf16 : AttentionType::f16;
    a.heads = config_.heads;
    a.kv_heads = config_.kv_heads;
    a.head_dim = padded_dim_;
    a.scale = scale_;
    a.window = window.size;
    a.q = tensors.q;
    a.q_stride = q_stride_;
    a.out = tensors.out;
    a.out_stride = out_stride_;
    a.kv = tensors.kv;
    a.pages = input.at<int32_t>(kPages);
    a.items = input.at<AttentionItem>(window.sections);
    a.matrix_items = window.list.matrix_items;
    a.stream_items = window.list.stream_items;
    a.matrix_ctas = window.list.matrix_ctas;
    a.matrix_by_head = window.list.matrix_by_head;
    a.rows = input.at<AttentionRow>(window.sections + 1);
    a.partials = input.at<PartialRange>(window.sections + 2);
    a.merged = input.at<int32_t>(window.sections + 3);
    a.merged_count = static_cast<int32_t>(window.list.merged.size());
    a.partial_out = partial_out_.as<float>();
    a.partial_lse = partial_lse_.as<float>();
    a.arrivals = arrivals_.as<int32_t>();
    a.queues = a.arrivals + rows_ * config_.kv_heads;
    return a;
}

Status StepAttention::launch(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                             cudaStream_t stream) const {
    if (element_ == DType::f32) return launch_plain(layer, tensors, input, stream);
    AttentionArguments a = arguments(layer, tensors, input);
    if (options_.fused) {
        return check_cuda(options_.family->launch(a, options_.sms, stream), "attention");
    }
    // Partials count from launch to launch; the last merges what is left to be merged.
    const AttentionItem *items = a.items;
    const int32_t merged = a.merged_count, all = a.matrix_items + a.stream_items;
    for (const Window::Launch &some : window_of(layer).launches) {
        a.items = items + some.begin;
        a.matrix_items = some.matrix_items;
        a.stream_items = some.stream_items;
        a.matrix_ctas = some.stream_items == 0   ? options_.sms
                        : some.matrix_items == 0 ? 0
                                                 : options_.sms / 2;
        const bool last = some.begin + a.matrix_items + a.stream_items == all;
        a.merged_count = last ? merged : 0;
        RETURN_IF_CUDA(options_.family->launch(a, options_.sms, stream));
    }
    return {};
}

Status StepAttention::launch_plain(size_t layer, const AttentionTensors &tensors,
                                   const StepInput &input, cudaStream_t stream) const {
    const PlainAttentionArguments arguments{tokens_,
                                            config_.heads,
                                            config_.kv_heads,
                                            padded_dim_,
                                            scale_,
                                            config_.window(static_cast<int32_t>(layer)),
                                            static_cast<const float *>(tensors.q),
                                            q_stride_,
                                            static_cast<float *>(tensors.out),
                                            static_cast<const float *>(tensors.kv),
                                            input.at<int32_t>(kPages),
                                            input.at<PlainNode>(kNodes),
                                            input.at<int32_t>(kNodeOf),
                                            input.at<int32_t>(kPositions)};
    return check_cuda(launch_plain_attention(arguments, stream), "attention");
}

} // namespace batchllm::cuda
