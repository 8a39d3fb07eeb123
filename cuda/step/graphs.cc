#include "step/graphs.h"

#include <algorithm>
#include <utility>

namespace batchllm::cuda {
namespace {

constexpr size_t kMostShapes = 512; // remembered, most of them without a graph

} // namespace

void Graph::clear() {
    // One that still runs is freed when it ends.
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    exec_ = nullptr;
    graph_ = nullptr;
    nodes_.clear();
    parameters_.clear();
}

Status Graph::set_arguments(size_t mark, const void *arguments) {
    void *pointers[] = {const_cast<void *>(arguments)};
    cudaKernelNodeParams parameters = parameters_[mark];
    parameters.kernelParams = pointers;
    return check_cuda(cudaGraphExecKernelNodeSetParams(exec_, nodes_[mark], &parameters),
                      "a graph's arguments");
}

Status Graph::replay(cudaStream_t stream) {
    return check_cuda(cudaGraphLaunch(exec_, stream), "a step's graph");
}

Graph *Graphs::find(const Shape &shape, bool *due) {
    *due = false;
    if (!on) return nullptr;
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry &entry) { return entry.shape == shape; });
    if (found == entries_.end()) {
        entries_.emplace_front();
        entries_.front().shape = shape;
        if (entries_.size() > kMostShapes) entries_.pop_back();
        return nullptr;
    }
    entries_.splice(entries_.begin(), entries_, found);
    if (!entries_.front().graph) {
        *due = true;
        return nullptr;
    }
    ++replayed_;
    return &entries_.front().graph;
}

Status Graphs::begin(cudaStream_t stream) {
    // Other threads may allocate meanwhile, for other devices.
    RETURN_IF_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    capturing_ = &entries_.front().graph;
    return {};
}

Status Graphs::mark(cudaStream_t stream) {
    if (capturing_ == nullptr) return {};
    cudaStreamCaptureStatus status{};
    const cudaGraphNode_t *last = nullptr;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    RETURN_IF_CUDA(
        cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &last, nullptr, &count));
#else
    RETURN_IF_CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &last, &count));
#endif
    if (status != cudaStreamCaptureStatusActive || count != 1) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda: a graph is not one chain of launches");
    }
    cudaKernelNodeParams parameters{};
    RETURN_IF_CUDA(cudaGraphKernelNodeGetParams(last[0], &parameters));
    capturing_->nodes_.push_back(last[0]);
    capturing_->parameters_.push_back(parameters);
    return {};
}

Result<Graph *> Graphs::end(cudaStream_t stream) {
    Graph *graph = std::exchange(capturing_, nullptr); // one that fails has ended too
    RETURN_IF_CUDA(cudaStreamEndCapture(stream, &graph->graph_));
    RETURN_IF_CUDA(cudaGraphInstantiate(&graph->exec_, graph->graph_, 0));
    ++captured_;
    int64_t kept = 0;
    for (Entry &entry : entries_) {
        if (entry.graph && ++kept > kMostGraphs) entry.graph.clear();
    }
    return graph;
}

void Graphs::give_up(cudaStream_t stream) {
    // Whatever the stream says of itself: until a capture has ended, nothing can be freed.
    if (capturing_ != nullptr) {
        cudaGraph_t broken = nullptr;
        cudaStreamEndCapture(stream, &broken);
        if (broken != nullptr) cudaGraphDestroy(broken);
    }
    cudaGetLastError(); // a failed capture is not the context's end
    capturing_ = nullptr;
    on = false;
    entries_.clear();
}

void Graphs::clear() { entries_.clear(); }

} // namespace batchllm::cuda
