// Sums of what all ranks have made, by kernels that read and write the others' memory: over NVLink, without NCCL.
//
// Each rank has two buffers that the others can read and write. For a sum of few rows, a rank makes its part in one of
// them and signals that it is there; whoever adds the parts up, which all do, waits for all signals. The next sum takes
// the other buffer. So a buffer is not written again before all ranks have read it: whoever has signalled the sum after
// has read it before. A step begins with a signal that all wait for, and then with the first buffer.
//
// Of many rows each rank owns some. The product that makes a rank's part writes each owner's rows to that owner, which
// takes no time beside the arithmetic. After the signal the owner alone adds up what is now all in its own memory, has
// the residual stream of these rows, norms them, and writes the result to all. Another signal, which all wait for, says
// that it is there. Half as many bytes as otherwise cross the link while nothing else runs.
#pragma once

#include <array>
#include <cstddef>
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
// The same, then waits until all have come as often.
cudaError_t launch_meeting(const PeerSignals &signals, cudaStream_t stream);

// For a kernel: waits, then reads the parts and adds them up in the order of ranks.
struct PeerSum {
    int32_t ranks = 0; // 0: there is none
    std::array<const void *, kMostPeers> parts{};
    const uint32_t *own_count = nullptr, *counts = nullptr, *ended = nullptr; // PeerSignals'
};

// For a kernel: to write what it writes to other ranks too.
struct PeerCopies {
    int32_t count = 0;
    bool residual = false;
    std::array<int64_t, kMostPeers - 1> away{}; // bytes from this rank's place to another's
};

struct PeerBuffers {
    PeerSignals signals;
    std::array<void *, 2> own{};
    std::array<PeerSum, 2> sums{};
    std::byte *more =
        nullptr; // what else was asked for; that of others is as far away as copies say
    PeerCopies copies;
    bool owns_rows = false; // each rank can own rows: all ranks said so, and read them alike

    explicit operator bool() const { return signals.ranks > 0; }
};

} // namespace batchllm::cuda
