// Sums of what all ranks have made, by kernels that read the others' memory: over NVLink, without NCCL.
//
// Each rank has two buffers that the others can read. For a sum, a rank makes its part in one of them and signals that it is
// there; whoever adds the parts up waits for all signals. The next sum takes the other buffer. So a buffer is not written
// again before all ranks have read it: whoever has signalled the sum after has read it before. A step begins with a signal
// that all wait for, and then with the first buffer.
#pragma once

#include <array>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace batchllm::cuda {

inline constexpr int32_t kMostPeers = 8;

// Where ranks say that they have come. Each count is how often.
struct PeerSignals {
    int32_t ranks = 0, own = 0;
    uint32_t *own_count = nullptr;           // [1] of this rank
    uint32_t *counts = nullptr;              // [ranks] of all, here
    std::array<uint32_t *, kMostPeers> to{}; // this rank's among the counts of each
    const uint32_t *ended = nullptr;         // [1] in host memory; not 0: some rank will not come
};
// This rank has come: what was enqueued before can be read by all.
cudaError_t launch_signal(const PeerSignals &signals, cudaStream_t stream);
// Waits until all have come as often.
cudaError_t launch_wait(const PeerSignals &signals, cudaStream_t stream);

// For a kernel: waits, then reads the parts and adds them up in the order of ranks.
struct PeerSum {
    int32_t ranks = 0; // 0: there is none
    std::array<const void *, kMostPeers> parts{};
    const uint32_t *own_count = nullptr, *counts = nullptr, *ended = nullptr; // PeerSignals'
};

struct PeerBuffers {
    PeerSignals signals;
    std::array<void *, 2> own{};
    std::array<PeerSum, 2> sums{};

    explicit operator bool() const { return signals.ranks > 0; }
};

} // namespace batchllm::cuda
