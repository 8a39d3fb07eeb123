#include "backend/cpu/attention.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace batchllm::cpu {
namespace {

// Total of the 16 sums of an in-order part.
float sum_of(const float *sums) {
    float half[kGroupTokens / 2];
    for (int i = 0; i < 8; ++i) half[i] = sums[i] + sums[i + 8];
    for (int i = 0; i < 4; ++i) half[i] += half[i + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

} // namespace

PagedAttention::PagedAttention(const Kernels &kernels, const KvPages &pages, ThreadPool *pool)
    : kernels_(kernels), pages_(pages), pool_(pool), scratch_(static_cast<size_t>(pool->size())) {}

Status PagedAttention::reserve(const CpuWorklist &list, const Attention &layer) {
    const int64_t padded = padded_head_dim(layer.head_dim);
    const int64_t value_dim = padded_head_dim(layer.value_dim());
    const int64_t element = dtype_bytes(kernels_.element);
    const size_t rows = static_cast<size_t>(list.most_queries * layer.gqa_ratio());
    for (Scratch &scratch : scratch_) {
        RETURN_IF_ERROR(scratch.queries.reserve(static_cast<int64_t>(rows) * padded * element,
                                                "attention queries"));
        RETURN_IF_ERROR(scratch.output.reserve(static_cast<int64_t>(rows) * value_dim * 4,
                                               "attention outputs"));
        if (layer.latent) {
            RETURN_IF_ERROR(
                scratch.latents.reserve(kPassKeys * value_dim * element, "attention values"));
        }
        RETURN_IF_ERROR(scratch.scores.reserve(attention_scratch_floats() * 4, "attention scores"));
        if (scratch.maximum.size() < rows) {
            scratch.maximum.resize(rows);
            scratch.sum.resize(rows * kGroupTokens);
            scratch.visible_begin.resize(rows);
            scratch.visible_end.resize(rows);
        }
        if (scratch.keys.size() < static_cast<size_t>(list.most_groups)) {
            scratch.keys.resize(static_cast<size_t>(list.most_groups));
            scratch.values.resize(static_cast<size_t>(list.most_groups));
        }
    }
    return {};
}

// Finds each part's row, and whether the part is all that the row has.
void PagedAttention::place_parts(const CpuWorklist &list) {
    some_merged_ = false;
    alone_.resize(list.queries.size());
    row_.resize(list.queries.size());
    for (int32_t r = 0; r < list.rows; ++r) {
        const bool alone = list.part_begin[r + 1] - list.part_begin[r] == 1;
        some_merged_ = some_merged_ || !alone;
        for (int32_t p = list.part_begin[r]; p < list.part_begin[r + 1]; ++p) {
            alone_[p] = alone;
            row_[p] = r;
        }
    }
    for (const AttentionQuery &query : list.queries) {
        if (!query.goes_on) continue;
        alone_[query.part] = false;
        some_merged_ = true;
    }
}

Status PagedAttention::run(const TokenBatch &batch, const CpuWorklist &list, const Attention &layer,
                           std::span<const float> sinks, const void *queries, void *output) {
    RETURN_IF_ERROR(reserve(list, layer));
    sinks_ = sinks;
    const auto value_dim = static_cast<size_t>(padded_head_dim(layer.value_dim()));
    if (zeros_.size() < value_dim) zeros_.resize(value_dim);
    place_parts(list);
    part_sums_ = list.in_order ? kGroupTokens : 1;
    const size_t parts = list.queries.size() * static_cast<size_t>(layer.heads);
    if (some_merged_) {
        RETURN_IF_ERROR(
            parts_.reserve(static_cast<int64_t>(parts * value_dim) * 4, "parts of attention"));
    }
    if (maxima_.size() < parts) {
        maxima_.resize(parts);
    }
    if (sums_.size() < parts * static_cast<size_t>(part_sums_)) {
        sums_.resize(parts * static_cast<size_t>(part_sums_));
    }
    std::byte *out = static_cast<std::byte *>(output);
    const std::byte *in = static_cast<const std::byte *>(queries);
    int32_t first = 0;
    for (const int32_t end : list.wave_end) {
        pool_->parallel_for(end - first, [&](int64_t t, int32_t thread) {
            const AttentionTask &task = list.tasks[first + t];
            for (int32_t i = task.item_begin; i < task.item_end; ++i) {
                run_item(batch, list, list.items[i], layer, task.kv_head, in, out,
                         &scratch_[thread]);
            }
        });
        first = end;
    }
    if (some_merged_) merge_parts(list, layer, out);
    return {};
}

void PagedAttention::merge_parts(const CpuWorklist &list, const Attention &layer,
                                 std::byte *output) {
    constexpr int64_t kRowsOfTask = 8;
    const int64_t padded = padded_head_dim(layer.value_dim());
    const int64_t row_bytes = layer.value_dim() * dtype_bytes(kernels_.element);
    const int64_t merge_tasks = (list.rows + kRowsOfTask - 1) / kRowsOfTask;
    pool_->parallel_for(merge_tasks, [&](int64_t task, int32_t) {
        const int64_t last = std::min<int64_t>(list.rows, (task + 1) * kRowsOfTask);
        std::vector<const float *> outputs;
        std::vector<float> maxima, sums;
        for (int64_t r = task * kRowsOfTask; r < last; ++r) {
            const int32_t first = list.part_begin[r];
            const int32_t count = list.part_begin[r + 1] - first;
            if (count == 1 && alone_[first] != 0) continue;
            // And one for a sink.
            outputs.resize(count + 1);
            maxima.resize(count + 1);
            sums.resize(count + 1);
            for (int64_t head = 0; head < layer.heads; ++head) {
                for (int32_t p = 0; p < count; ++p) {
                    const int64_t at = int64_t{first + p} * layer.heads + head;
                    outputs[p] = parts_.floats() + at * padded;
                    maxima[p] = maxima_[at];
                    const float *sum = sums_.data() + at * part_sums_;
                    sums[p] = part_sums_ == 1 ? *sum : sum_of(sum);
                }
                merge_row(outputs, maxima, sums, layer, head,
                          output + (r * layer.heads + head) * row_bytes);
            }
        }
    });
}

// Merges a head's parts. There is room for one more at the end: the sink, whose weight goes to no
// value.
void PagedAttention::merge_row(std::span<const float *> outputs, std::span<float> maxima,
                               std::span<float> sums, const Attention &layer, int64_t head,
                               void *output) const {
    auto parts = static_cast<int32_t>(outputs.size()) - 1;
    if (!sinks_.empty()) {
        outputs[parts] = zeros_.data();
        maxima[parts] = sinks_[head];
        sums[parts] = 1;
        ++parts;
    }
    kernels_.merge(parts, outputs.data(), maxima.data(), sums.data(), layer.value_dim(), output);
}

void PagedAttention::run_item(const TokenBatch &batch, const CpuWorklist &list,
                              const CpuAttentionItem &item, const Attention &layer, int32_t kv_head,
                              const std::byte *queries, std::byte *output, Scratch *scratch) {
    const int32_t ratio = layer.gqa_ratio();
    const int32_t padded = padded_head_dim(layer.head_dim);
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t token_bytes = int64_t{ratio} * padded * element;
    const std::byte *head_queries =
        queries + int64_t{kv_head} * static_cast<int64_t>(batch.tokens.size()) * token_bytes;
    const AttentionQuery *query = list.queries.data() + item.query_begin;

    // How far the node's groups are behind those of the row, in positions.
    const int32_t shift = batch.nodes[item.node].start % kGroupTokens;

    const GroupPages &pages = batch.pages[layer.kv_group];
    const int32_t page_groups = pages_.page_tokens() / kGroupTokens;
    for (int32_t g = item.key_begin / kGroupTokens; g * kGroupTokens < item.key_end; ++g) {
        const int32_t page = pages.page(item.node, g / page_groups);
        scratch->keys[g] = pages_.keys(layer, page, kv_head, g % page_groups);
        if (layer.latent) continue;
        scratch->values[g] = pages_.values(layer, page, kv_head, g % page_groups);
    }

    // Consecutive tokens of one node need no gathering.
    bool contiguous = true;
    for (int32_t q = 0; q < item.query_count; ++q) {
        contiguous = contiguous && query[q].token == query[0].token + q;
        for (int32_t r = 0; r < ratio; ++r) {
            scratch->visible_begin[q * ratio + r] = query[q].visible_begin;
            scratch->visible_end[q * ratio + r] = query[q].visible_end;
        }
    }
    AttentionCall call;
    call.queries = head_queries + query[0].token * token_bytes;
    if (!contiguous) {
        for (int32_t q = 0; q < item.query_count; ++q) {
            std::memcpy(scratch->queries.data() + q * token_bytes,
                        head_queries + query[q].token * token_bytes,
                        static_cast<size_t>(token_bytes));
        }
        call.queries = scratch->queries.data();
    }
    call.rows = item.query_count * ratio;
    call.head_dim = padded;
    call.value_dim = padded_head_dim(layer.value_dim());
    call.key_groups = scratch->keys.data();
    call.value_groups = layer.latent ? nullptr : scratch->values.data();
    call.values = scratch->latents.data();
    call.key_begin = item.key_begin;
    call.key_end = item.key_end;
    call.visible_begin = scratch->visible_begin.data();
    call.visible_end = scratch->visible_end.data();
    call.maximum = scratch->maximum.data();
    call.sum = scratch->sum.data();
    call.output = scratch->output.floats();
    call.scratch = scratch->scores.floats();
    call.softcap = layer.softcap * 1.44269504088896341f;
    if (!list.in_order) {
        kernels_.attention(call);
    } else {
        begin_parts(item, query, layer, kv_head, shift, &call);
        kernels_.attention_in_order(call);
    }
    end_parts(item, query, layer, kv_head, shift, call, output);
}

// Sets what the kernel continues from: nothing, or what an ancestor's item has left.
void PagedAttention::begin_parts(const CpuAttentionItem &item, const AttentionQuery *query,
                                 const Attention &layer, int32_t kv_head, int32_t shift,
                                 AttentionCall *call) const {
    const int64_t ratio = layer.gqa_ratio();
    const int64_t values = ratio * call->value_dim;
    for (int64_t q = 0; q < item.query_count; ++q) {
        float *maximum = call->maximum + q * ratio;
        float *sum = call->sum + q * ratio * kGroupTokens;
        float *output = call->output + q * values;
        if (!query[q].goes_on) {
            std::fill_n(maximum, ratio, -std::numeric_limits<float>::infinity());
            std::fill_n(sum, ratio * kGroupTokens, 0.0f);
            std::fill_n(output, values, 0.0f);
            continue;
        }
        const int64_t at = int64_t{query[q].part} * layer.heads + kv_head * ratio;
        std::copy_n(maxima_.data() + at, ratio, maximum);
        std::copy_n(parts_.floats() + at * call->value_dim, values, output);
        const float *from = sums_.data() + at * kGroupTokens;
        for (int64_t i = 0; i < ratio * kGroupTokens; ++i) {
            sum[i] = from[i - i % kGroupTokens + (i + shift) % kGroupTokens];
        }
    }
}

// Moves the kernel's results to their destination: the parts, or merged at once into the output.
void PagedAttention::end_parts(const CpuAttentionItem &item, const AttentionQuery *query,
                               const Attention &layer, int32_t kv_head, int32_t shift,
                               const AttentionCall &call, std::byte *output) {
    const int32_t ratio = layer.gqa_ratio();
    const int64_t element = dtype_bytes(kernels_.element);
    const int64_t padded = call.value_dim;
    if (part_sums_ != 1) { // to the places that the positions have in their row
        for (int64_t row = 0; row < call.rows; ++row) {
            float *sums = call.sum + row * kGroupTokens;
            std::rotate(sums, sums + (kGroupTokens - shift) % kGroupTokens, sums + kGroupTokens);
        }
    }
    for (int32_t q = 0; q < item.query_count; ++q) {
        const int64_t part = query[q].part;
        const int64_t head = int64_t{kv_head} * ratio;
        const float *result = call.output + int64_t{q} * ratio * padded;
        const float *sum = call.sum + q * ratio * part_sums_;
        if (alone_[part] != 0) {
            for (int32_t r = 0; r < ratio; ++r) {
                const float *outputs[] = {result + int64_t{r} * padded, nullptr};
                float maxima[] = {call.maximum[q * ratio + r], 0};
                float sums[] = {part_sums_ == 1 ? sum[r] : sum_of(sum + r * part_sums_), 0};
                const int64_t row = int64_t{row_[part]} * layer.heads + head + r;
                merge_row(outputs, maxima, sums, layer, head + r,
                          output + row * layer.value_dim() * element);
            }
            continue;
        }
        const int64_t at = part * layer.heads + head;
        std::memcpy(parts_.floats() + at * padded, result,
                    static_cast<size_t>(int64_t{ratio} * padded * 4));
        std::copy_n(call.maximum + q * ratio, ratio, maxima_.data() + at);
        std::copy_n(sum, ratio * part_sums_, sums_.data() + at * part_sums_);
    }
}

} // namespace batchllm::cpu
