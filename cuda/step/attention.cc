#include "step/attention.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "attention/attention.h"
#include "attention/worklist_by_position.h"
#include "latent/latent.h"
#include "step/weights.h"

namespace batchllm::cuda {

StepAttention::StepAttention(const Model &model, DType element, DType kv_type,
                             const AttentionOptions &options)
    : model_(model), element_(element), kv_type_(kv_type), options_(options),
      page_scale_(model.kv_groups.size(), 1) {
    AttentionShapes shapes = attention_shapes(model_);
    shape_of_ = std::move(shapes.of_layer);
    for (const AttentionShape &known : shapes.all) {
        Shape shape;
        static_cast<AttentionShape &>(shape) = known;
        shape.sections = kLists + 5 * shapes_.size();
        shapes_.push_back(std::move(shape));
    }
    find_plain_latents();
}

// Where all layers with latents can attend in the plain form.
void StepAttention::find_plain_latents() {
    if (element_ == DType::f32 || !is_sm90(options_.family)) return;
    for (const Layer &layer : model_.layers) {
        const Attention *a = layer.attention();
        if (a == nullptr || !a->latent) continue;
        const bool same = latents_ == nullptr || (a->heads == latents_->heads &&
                                                  a->latent.plain == latents_->latent.plain &&
                                                  a->kv_group == latents_->kv_group);
        latents_ = a;
        if (same && expands_latents(*a)) continue;
        latents_ = nullptr;
        return;
    }
    if (latents_ == nullptr) return;
    plain_shape_.heads = plain_shape_.kv_heads = latents_->heads;
    plain_shape_.head_dim = plain_shape_.value_dim = latent_head_dim;
    plain_shape_.kv_group = static_cast<size_t>(latents_->kv_group);
    plain_shape_.sections = kLists + 5 * shapes_.size();
    expanded_section_ = plain_shape_.sections + 5;
}

Status StepAttention::allocate(int64_t rows, const StepBuffers &buffers, StepInput *input) {
    if (element_ == DType::f32) return {};
    rows_ = rows;
    slots_ = buffers.partials;
    for (const Shape &shape : shapes_) kv_heads_ = std::max<int64_t>(kv_heads_, shape.kv_heads);
    if (latents_ != nullptr) {
        kv_heads_ = std::max<int64_t>(kv_heads_, latents_->heads);
        ASSIGN_OR_RETURN(expanded_, zeroed_memory(buffers[StepBuffer::latent_expanded],
                                                  "keys and values of latents"));
        expanded_room_ = expanded_.bytes() / kv_page_bytes(latents_->heads, latent_head_dim, 2);
    }
    const char *what = "attention's partials";
    ASSIGN_OR_RETURN(partial_out_, zeroed_memory(buffers[StepBuffer::partial_out], what));
    ASSIGN_OR_RETURN(partial_lse_, zeroed_memory(buffers[StepBuffer::partial_lse], what));
    ASSIGN_OR_RETURN(arrivals_,
                     zeroed_memory(buffers[StepBuffer::arrivals], "attention's counters"));
    // What most steps need: the lists are as long as contexts make them.
    const int64_t lists = 4 * static_cast<int64_t>(shapes_.size());
    for (const Shape &shape : shapes_) {
        for (size_t part = 0; part < 4; ++part) {
            RETURN_IF_ERROR(input->make(shape.sections + part, buffers[StepBuffer::lists] / lists));
        }
    }
    return allocate_wide();
}

Status StepAttention::allocate_wide() {
    if (kv_type_ != DType::e4m3) return {};
    int64_t most = 0;
    for (Shape &shape : shapes_) {
        WorklistOptions options;
        set_shape(shape, &options);
        if (!options.wide_from_scratch || options_.reproducible) continue;
        static_assert(kPageKeys == gpu_page_tokens);
        shape.room = static_cast<int32_t>(widened_pages(shape));
        most = std::max(most, widened_bytes(shape));
    }
    if (most == 0) return {};
    ASSIGN_OR_RETURN(wide_, DeviceMemory::create(most, "widened keys and values"));
    return {};
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
    plain_.first = tokens_ = static_cast<int32_t>(batch.tokens.size());
    find_together(batch);
    RETURN_IF_ERROR(stage_pages(batch, input, staging));
    if (element_ == DType::f32) return stage_plain(batch, input, staging);
    form_.clear();
    for (Shape &shape : shapes_) {
        nodes_.clear();
        read_nodes(batch, shape.kv_group);
        int32_t tokens = tokens_;
        if (shape.latent() && latents_ != nullptr) {
            // Tokens that see each other are numbered as in the batch.
            const int64_t room = together_.empty() ? expanded_room_ : 0;
            plain_.choose(latents_->latent, tokens_, room, &nodes_);
            tokens = plain_.first;
        }
        RETURN_IF_ERROR(stage_worklist(&shape, tokens, input, staging));
        form_.push_back(shape.list.widened.empty() ? 0 : 1);
    }
    return latents_ != nullptr ? stage_expanded(input, staging) : Status();
}

// Always, since what is not staged is copied from wherever it was last.
Status StepAttention::stage_expanded(StepInput *input, Staging *staging) {
    nodes_ = plain_.nodes;
    RETURN_IF_ERROR(stage_worklist(&plain_shape_, tokens_ - plain_.first, input, staging));
    const auto pages = static_cast<int64_t>(plain_.expanded.size());
    ASSIGN_OR_RETURN(int32_t * to,
                     input->stage_room<int32_t>(expanded_section_, 2 * pages, staging));
    to = std::copy(plain_.expanded.begin(), plain_.expanded.end(), to);
    std::iota(to, to + pages, 0);
    return {};
}

// The KV groups' lists, one after the other.
Status StepAttention::stage_pages(const TokenBatch &batch, StepInput *input, Staging *staging) {
    pages_begin_.clear();
    int64_t pages = 0;
    for (const GroupPages &group : batch.pages) {
        pages_begin_.push_back(pages);
        pages += static_cast<int64_t>(group.list.size());
    }
    ASSIGN_OR_RETURN(int32_t * to, input->stage_room<int32_t>(kPages, pages, staging));
    for (size_t g = 0; g < batch.pages.size(); ++g) {
        const std::vector<int32_t> &list = batch.pages[g].list;
        int32_t *const end = std::copy(list.begin(), list.end(), to);
        if (page_scale_[g] > 1) {
            std::for_each(to, end, [&](int32_t &page) { page *= page_scale_[g]; });
        }
        to = end;
    }
    return {};
}

// The nodes as a KV group has their pages.
void StepAttention::read_nodes(const TokenBatch &batch, size_t kv_group) {
    const std::vector<NodePages> &pages = batch.pages[kv_group].nodes;
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        nodes_.push_back({node.parent, node.start, node.length, node.token_begin, node.token_count,
                          pages[n].begin, pages[n].first});
    }
}

void StepAttention::find_together(const TokenBatch &batch) {
    together_.clear();
    if (!model_.pictures_see_themselves) return;
    for (const PictureTokens &picture : batch.pictures) {
        together_.push_back({picture.token_begin, picture.token_count});
    }
}

// [tokens] their own positions, or those of their pictures' last tokens
Status StepAttention::stage_last_seen(const TokenBatch &batch, StepInput *input,
                                      Staging *staging) const {
    if (!model_.pictures_see_themselves) return {};
    std::vector<int32_t> last = batch.positions;
    for (const SeenTogether &tokens : together_) {
        const auto first = last.begin() + tokens.token_begin;
        std::fill_n(first, tokens.token_count, first[tokens.token_count - 1]);
    }
    return input->stage<int32_t>(kLastSeen, last, staging);
}

// [shapes][nodes]
Status StepAttention::stage_plain(const TokenBatch &batch, StepInput *input, Staging *staging) {
    nodes_.clear();
    node_count_ = batch.nodes.size();
    for (const Shape &shape : shapes_) read_nodes(batch, shape.kv_group);
    RETURN_IF_ERROR(input->stage<AttentionNode>(kNodes, nodes_, staging));
    RETURN_IF_ERROR(stage_last_seen(batch, input, staging));
    return input->stage<int32_t>(kNodeOf, node_of_, staging);
}

void StepAttention::set_shape(const Shape &shape, WorklistOptions *options) const {
    options->heads = shape.heads;
    options->kv_heads = shape.kv_heads;
    options->head_dim = shape.head_dim;
    const bool expanded = &shape == &plain_shape_;
    options->kv_bytes = static_cast<int32_t>(dtype_bytes(expanded ? element_ : kv_type_));
    options->widened_room = shape.room;
    options->window = shape.window;
    options->chunked = shape.chunked;
    options->sms = options_.sms;
    options_.family->set_costs(options);
    options->share = options_.share;
    if (shape.latent()) options->wide_from_scratch = false; // its kernels widen as they read
    if (tiles(shape)) set_latent_costs(options);
    options->together = together_;
}

Status StepAttention::stage_worklist(Shape *shape, int32_t tokens, StepInput *input,
                                     Staging *staging) {
    WorklistOptions options;
    set_shape(*shape, &options);
    Worklist &list = shape->list;
    const int64_t room = std::min(slots_, partial_out_.bytes() / (4 * shape->out_size()));
    if (options_.reproducible) {
        build_worklist_by_position(nodes_, tokens, options, &list);
    } else {
        build_worklist(nodes_, tokens, options, &list);
    }
    if (list.slots > room &&
        !options_.reproducible) { // more partials than there is room for: split nothing
        options.matrix_split = options.stream_split = 1e-9;
        build_worklist(nodes_, tokens, options, &list);
    }
    if (list.slots > room && !options_.reproducible) {
        options.share = false;
        build_worklist(nodes_, tokens, options, &list);
    }
    if (list.slots > room) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %d partial rows, room for %lld",
                     list.slots, static_cast<long long>(room));
    }
    const bool cut = !options_.fused && !shape->latent() && shape != &plain_shape_;
    if (cut) split_by_kind(shape);
    RETURN_IF_ERROR(input->stage<AttentionItem>(shape->sections, list.items, staging));
    RETURN_IF_ERROR(input->stage<AttentionRow>(shape->sections + 1, list.rows, staging));
    RETURN_IF_ERROR(input->stage<PartialRange>(shape->sections + 2, list.partials, staging));
    RETURN_IF_ERROR(input->stage<int32_t>(shape->sections + 3, list.merged, staging));
    return input->stage<int32_t>(shape->sections + 4, list.widened, staging);
}

// Prefixes that several requests read together, decode, prefill: the items in this order, each kind in
// the order that it had.
void StepAttention::split_by_kind(Shape *shape) const {
    Worklist &list = shape->list;
    std::vector<AttentionItem> items;
    shape->launches.clear();
    for (const int kind : {0, 1, 2}) {
        Shape::Launch launch{static_cast<int32_t>(items.size()), 0, 0};
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
        if (launch.matrix_items + launch.stream_items > 0) shape->launches.push_back(launch);
    }
    list.items = std::move(items);
}

// ---- Device ----

// What does not depend on the layer.
AttentionArguments StepAttention::arguments(const Shape &shape, const StepInput &input) const {
    AttentionArguments a{};
    a.type = element_ == DType::bf16 ? AttentionType::bf16 : AttentionType::f16;
    a.heads = shape.heads;
    a.kv_heads = shape.kv_heads;
    a.head_dim = shape.head_dim;
    a.window = shape.window;
    a.out_stride = shape.out_size();
    a.items = input.at<AttentionItem>(shape.sections);
    a.matrix_items = shape.list.matrix_items;
    a.stream_items = shape.list.stream_items;
    a.matrix_ctas = shape.list.matrix_ctas;
    a.matrix_by_head = shape.list.matrix_by_head;
    a.rows = input.at<AttentionRow>(shape.sections + 1);
    a.partials = input.at<PartialRange>(shape.sections + 2);
    a.merged = input.at<int32_t>(shape.sections + 3);
    a.merged_count = static_cast<int32_t>(shape.list.merged.size());
    a.partial_out = partial_out_.as<float>();
    a.partial_lse = partial_lse_.as<float>();
    a.arrivals = arrivals_.as<int32_t>();
    a.queues = a.arrivals + rows_ * kv_heads_;
    a.by_row = options_.reproducible ? 1 : 0;
    return a;
}

AttentionArguments StepAttention::arguments(size_t layer, const AttentionTensors &tensors,
                                            const StepInput &input) const {
    const Shape &shape = shape_of(layer);
    AttentionArguments a = arguments(shape, input);
    a.scale = static_cast<float>(attention_of(layer).scale);
    a.q = tensors.q;
    a.q_stride = q_stride(layer);
    a.out = tensors.out;
    a.kv = tensors.kv;
    a.pages = pages_of(layer, input);
    a.softcap = attention_of(layer).softcap;
    a.sinks = tensors.sinks;
    if (kv_type_ == DType::e4m3) {
        a.kv_e4m3 = 1;
        a.widened = input.at<int32_t>(shape.sections + 4);
        a.widened_count = static_cast<int32_t>(shape.list.widened.size());
        a.wide = wide_.data();
        a.k_scale = tensors.k_scale;
        a.v_scale = tensors.v_scale;
    }
    return a;
}

Status StepAttention::launch_plain_latents(size_t layer, const AttentionTensors &tensors,
                                           const void *keys, const void *values, int64_t q_stride,
                                           const StepInput &input, cudaStream_t stream) const {
    const Attention &of = attention_of(layer);
    const auto *expanded = input.at<int32_t>(expanded_section_);
    const auto pages = static_cast<int32_t>(plain_.expanded.size());
    RETURN_IF_CUDA(launch_latent_expand({tensors.kv, pages_of(layer, input), expanded, pages,
                                         of.heads, of.latent.plain, keys, values, expanded_.data(),
                                         kv_type_ == DType::e4m3, tensors.k_scale},
                                        element_, options_.sms, stream));
    AttentionArguments a = arguments(plain_shape_, input);
    a.scale = static_cast<float>(of.scale);
    a.q = tensors.q;
    a.q_stride = q_stride;
    a.out = tensors.out;
    a.kv = expanded_.data();
    a.pages = expanded + pages;
    return check_cuda(options_.family->launch(a, options_.sms, stream), "attention");
}

Status StepAttention::launch_widening(size_t layer, const AttentionTensors &tensors,
                                      const StepInput &input, cudaStream_t stream) const {
    return check_cuda(launch_widen(arguments(layer, tensors, input), options_.sms, stream),
                      "widening keys and values");
}

Status StepAttention::launch(size_t layer, const AttentionTensors &tensors, const StepInput &input,
                             cudaStream_t stream) const {
    if (element_ == DType::f32) return launch_plain(layer, tensors, input, stream);
    AttentionArguments a = arguments(layer, tensors, input);
    if (tiles(shape_of(layer))) {
        return check_cuda(launch_latent_attention_sm90(a, options_.sms, stream), "attention");
    }
    if (shape_of(layer).latent()) {
        return check_cuda(launch_latent_attention(a, options_.sms, stream), "attention");
    }
    if (options_.fused) {
        return check_cuda(options_.family->launch(a, options_.sms, stream), "attention");
    }
    // Partials count from launch to launch; the last merges what is left to be merged.
    const AttentionItem *items = a.items;
    const int32_t merged = a.merged_count, all = a.matrix_items + a.stream_items;
    for (const Shape::Launch &some : shape_of(layer).launches) {
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

Status StepAttention::launch_merging(size_t layer, const AttentionTensors &tensors,
                                     const StepInput &input, cudaStream_t stream) const {
    return check_cuda(launch_latent_merge(arguments(layer, tensors, input), options_.sms, stream),
                      "merging attention");
}

Status StepAttention::launch_plain(size_t layer, const AttentionTensors &tensors,
                                   const StepInput &input, cudaStream_t stream) const {
    const Shape &shape = shape_of(layer);
    const PlainAttentionArguments arguments{
        tokens_,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        static_cast<float>(attention_of(layer).scale),
        shape.window,
        static_cast<const float *>(tensors.q),
        q_stride(layer),
        static_cast<float *>(tensors.out),
        static_cast<const float *>(tensors.kv),
        pages_of(layer, input),
        input.at<AttentionNode>(kNodes) + shape_of_[layer] * node_count_,
        input.at<int32_t>(kNodeOf),
        input.at<int32_t>(kPositions),
        attention_of(layer).softcap,
        tensors.sinks,
        shape.latent() ? shape.value_dim : 0,
        together_.empty() ? nullptr : input.at<int32_t>(kLastSeen),
        options_.reproducible,
        shape.chunked};
    return check_cuda(launch_plain_attention(arguments, stream), "attention");
}

} // namespace batchllm::cuda
