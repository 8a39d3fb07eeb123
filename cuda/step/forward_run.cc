// A token batch staged on the host, and run: as a graph that is replayed, or as the launches of a step.
#include <algorithm>

#include "step/forward.h"

namespace batchllm::cuda {

Status Forward::stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t rows,
                      Staging *staging) {
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    const auto wanted_tokens = static_cast<int64_t>(wanted.size());
    tokens_ = padded_rows(tokens);
    wanted_ = padded_rows(wanted_tokens);
    gather_ = wanted_tokens < tokens;
    sample_rows_ = rows;
    RETURN_IF_ERROR(input_.stage<int32_t>(kTokens, batch.tokens, tokens_, 0, staging));
    RETURN_IF_ERROR(input_.stage<int32_t>(kPositions, batch.positions, tokens_, 0, staging));
    RETURN_IF_ERROR(input_.stage<int32_t>(kWanted, wanted, wanted_, 0, staging));
    RETURN_IF_ERROR(stage_slots(batch, staging));
    RETURN_IF_ERROR(states_.stage(batch, &input_, staging));
    return attention_.stage(batch, &input_, staging);
}

// Where each token's keys and values go, in each KV group; the rows beyond the batch go nowhere.
Status Forward::stage_slots(const TokenBatch &batch, Staging *staging) {
    const auto count = static_cast<int64_t>(batch.pages.size()) * tokens_;
    ASSIGN_OR_RETURN(int32_t *const all, input_.stage_room<int32_t>(kSlots, count, staging));
    std::fill_n(all, count, -1);
    for (size_t g = 0; g < batch.pages.size(); ++g) {
        int32_t *const slots = all + static_cast<int64_t>(g) * tokens_;
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            for (int32_t i = 0; i < node.token_count; ++i) {
                const int32_t key = node.length - node.token_count + i;
                const int32_t page =
                    batch.pages[g].page(static_cast<int32_t>(n), key / kPageKeys) * page_scale_[g];
                slots[node.token_begin + i] = page * kPageKeys + key % kPageKeys;
            }
        }
    }
    return {};
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
    Graph *graph =
        graphs_.find({tokens_, wanted_, gather_, states_.form(), attention_.form()}, &due);
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
    size_t mark = 0;
    for (auto layer = attending_.begin(); mark < graph->marked(); ++layer) {
        const AttentionArguments arguments =
            attention_.arguments(*layer, attention_tensors(*layer), input_);
        for (int launches = attention_.widens(*layer) ? 2 : 1; launches > 0; --launches) {
            RETURN_IF_ERROR(graph->set_arguments(mark++, &arguments));
        }
    }
    return graph->replay(stream);
}

} // namespace batchllm::cuda
