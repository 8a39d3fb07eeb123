// CUDA graphs of a step's launches, one for each shape of step: captured when a shape comes the second
// time, replayed from then on, the least recently used one dropped when there are too many.
//
// A replay repeats the captured launches with their arguments, which is right for all that read the
// step from addresses that stay (step/input.h). The launches marked while they were captured are given
// this step's arguments instead.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "device/device.h"

namespace batchllm::cuda {

class Graph {
  public:
    Graph() = default;
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;
    ~Graph() { clear(); }

    explicit operator bool() const { return exec_ != nullptr; }
    size_t marked() const { return nodes_.size(); }

    // The marked launch's arguments, for replays from now on: one struct, as the kernel takes it.
    Status set_arguments(size_t mark, const void *arguments);
    Status replay(cudaStream_t stream);

  private:
    friend class Graphs;
    void clear();

    cudaGraph_t graph_ = nullptr; // owns the nodes
    cudaGraphExec_t exec_ = nullptr;
    std::vector<cudaGraphNode_t> nodes_;
    std::vector<cudaKernelNodeParams> parameters_;
};

class Graphs {
  public:
    struct Shape {
        int64_t tokens, wanted;
        bool gather;
        std::vector<uint8_t> states;    // StepStates::form()
        std::vector<uint8_t> attention; // StepAttention::form()
        uint16_t adapters;              // StepAdapters::form()
        bool operator==(const Shape &) const = default;
    };
    static constexpr int64_t kMostGraphs = 64;

    bool on = false;

    // The shape's graph. Null: the step is to be launched; if `due`, between begin() and end(), which
    // then has the graph.
    Graph *find(const Shape &shape, bool *due);
    // Capturing does not touch the device: the launches in between run when the graph is replayed.
    Status begin(cudaStream_t stream);
    // The launch before this is given other arguments at each replay.
    Status mark(cudaStream_t stream);
    bool capturing() const { return capturing_ != nullptr; }
    Result<Graph *> end(cudaStream_t stream);
    // After a failure in between: steps are launched from now on.
    void give_up(cudaStream_t stream);
    void clear(); // the addresses have changed
    // Those of such shapes: other kernels are launched from now on. The next step of such a shape is not due: what is
    // timed when it is first launched cannot be captured.
    template <typename Of> void clear(const Of &of) {
        entries_.remove_if([&](const Entry &entry) { return of(entry.shape); });
    }

    int64_t captured() const { return captured_; }
    int64_t replayed() const { return replayed_; }

  private:
    struct Entry {
        Shape shape;
        Graph graph;
    };
    std::list<Entry> entries_; // last used first
    Graph *capturing_ = nullptr;
    int64_t captured_ = 0, replayed_ = 0;
};

} // namespace batchllm::cuda
