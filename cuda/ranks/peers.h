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

#include "base/dtype.h"

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

// x: [count], which becomes the sum, of f32 rounded once. f32, bf16, f16 or int32; x and the parts at multiples of 16 bytes.
cudaError_t launch_peer_sum(const PeerSum &sum, DType type, void *x, int64_t count,
                            cudaStream_t stream);
cudaError_t launch_peer_sum(const PeerSum &sum, int32_t *x, int64_t count, cudaStream_t stream);

// Of the same rows each rank has made some columns, which are put together. Columns begin at multiples of 4, and where the last
// are no multiple of 4 there is room for more.
struct PeerColumns {
    struct Part {
        const float *from = nullptr; // [rows, columns], stride apart
        int64_t stride = 0;
        int32_t begin = 0, columns = 0;
    };
    int32_t ranks = 0, rows = 0;
    std::array<Part, kMostPeers> parts{};
    float *to = nullptr; // [rows, columns of all], stride apart
    int64_t stride = 0;
};
cudaError_t launch_put_together(const PeerColumns &columns, cudaStream_t stream);

// For a kernel: to write what it writes to other ranks too.
struct PeerCopies {
    int32_t count = 0;
    bool residual = false;
    std::array<int64_t, kMostPeers - 1> away{}; // bytes from this rank's place to another's
};

struct PeerBuffers {
    PeerSignals signals;
    int64_t bytes = 0; // of each of the two buffers
    std::array<void *, 2> own{};
    std::array<PeerSum, 2> sums{};
    size_t turn = 0; // the buffer of the next sum
    // What else was asked for; that of others is as far away as copies say.
    std::byte *more = nullptr, *logits = nullptr;
    PeerCopies copies;
    bool owns_rows = false; // each rank can own rows: all ranks said so, and read them alike

    std::array<int64_t, kMostPeers> away{}; // bytes from what is here to a rank's
    std::byte *of_rank(int32_t rank, std::byte *here) const {
        return here + away[static_cast<size_t>(rank)];
    }
};

} // namespace batchllm::cuda
