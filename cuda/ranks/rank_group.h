// What devices of one process that work as one exchange: sums and bytes, on their streams. Ranks are threads
// (backend/ranks.h), each with a device.
//
// All ranks ask for the same exchanges in the same order. An exchange waits on the device, not on the host, for the
// others; so a rank must not do what waits for all devices of the process (allocate, free) while another may already have
// enqueued an exchange that it has not: the ranks meet() in between.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/ranks.h"
#include "base/dtype.h"
#include "device/device.h"
#include "ranks/nccl.h"
#include "ranks/peers.h"
#include "ranks/shared_layout.h"

namespace batchllm::cuda {

// Of all groups of the process. Held while a group's ranks are launched, and by what may wait for all devices (allocating,
// freeing) when other groups may be at work.
std::mutex &launching();

// Graphs with exchanges are destroyed before their group.
class RankGroup final : public Meeting {
  public:
    // A rank for each device, in their order. peers: by access to each other's memory, where devices have it (ranks/peers.h):
    // two then need no NCCL. Others do: BACKEND_UNAVAILABLE without it. What it allocates it does here.
    static Result<std::unique_ptr<RankGroup>> create(const std::vector<int> &devices, bool peers);
    // Whether all have access to each other's memory.
    static Result<bool> access_each_other(const std::vector<int> &devices);
    ~RankGroup() override;

    // Also ends the exchanges that wait on the devices, within some seconds. Does not wait for that.
    void fail() override;

    // x: [count] of f32, bf16 or f16, which becomes the sum over all ranks. All have the same bits. By peers as
    // launch_peer_sum() asks for.
    Status sum(int32_t rank, void *x, int64_t count, DType type, cudaStream_t stream);
    Status sum(int32_t rank, int32_t *x, int64_t count, cudaStream_t stream);

    struct Bytes {
        void *data;
        int64_t count; // may be 0
    };
    // By NCCL. to, from: [ranks] what goes to each rank, and where what comes from it goes.
    Status swap(int32_t rank, std::span<const Bytes> to, std::span<const Bytes> from,
                cudaStream_t stream);

    // What this rank asks for, which the others can read and write: as much for each rank as any asks for. Null where they do
    // not. All ranks ask, once and before the first sum, and meet here.
    Result<PeerBuffers *> share_buffers(int32_t rank, SharedAsk ask);
    // Whether such a sum is made by peers. More than two would each read more than by NCCL's rings, which are slow for short
    // sums alone.
    bool sums_by_peers(int64_t bytes) const {
        constexpr int64_t most_bytes = int64_t{1} << 20;
        return peers_ && (ranks() == 2 || bytes <= most_bytes);
    }

  private:
    // What the others read of a rank: its buffers, its counts of signals, its own count.
    struct Shared {
        cudaMemPool_t pool = nullptr;
        std::byte *data = nullptr;
    };
    Status allocate(int32_t rank, int64_t bytes, Shared *shared) const;

    explicit RankGroup(std::vector<int> devices)
        : Meeting(static_cast<int32_t>(devices.size())), devices_(std::move(devices)),
          shared_(devices_.size()), asked_(devices_.size()), buffers_(devices_.size()) {}
    Status make_communicators();
    Status warm_up(int32_t rank);
    Status try_exchanges(int32_t rank, std::byte *memory, int64_t most, cudaStream_t stream);
    void abort();
    Status add(int32_t rank, void *x, int64_t count, int type, cudaStream_t stream);
    using LaunchSum = std::function<cudaError_t(const PeerSum &sum, void *x, int64_t bytes)>;
    Status add_by_peers(int32_t rank, void *x, int64_t bytes, const LaunchSum &launch,
                        cudaStream_t stream);
    Status check(int result, const char *what, int32_t rank) const;

    std::vector<int> devices_;
    bool peers_ = false;                            // they access each other's memory
    const Nccl *nccl_ = nullptr;                    // null: not needed
    std::vector<NcclCommunicator *> communicators_; // [ranks], or none
    std::vector<Shared> shared_;
    std::vector<SharedAsk> asked_;     // [ranks]
    std::vector<PeerBuffers> buffers_; // [ranks]
    PinnedMemory ended_;               // PeerSignals'
    std::atomic<int32_t> inside_ = 0;  // threads that call NCCL with a communicator
    std::mutex mutex_;
    bool aborted_ = false;
    std::thread aborting_;
};

// One rank's side of a group. Without one, for a whole model, there is nothing to exchange.
struct DeviceRank {
    RankGroup *group = nullptr;
    int32_t number = 0;

    explicit operator bool() const { return group != nullptr; }
    int32_t ranks() const { return group == nullptr ? 1 : group->ranks(); }
    Status sum(void *x, int64_t count, DType type, cudaStream_t stream) const {
        return group == nullptr ? Status() : group->sum(number, x, count, type, stream);
    }
    Status meet() const { return group == nullptr ? Status() : group->meet(); }
};

} // namespace batchllm::cuda
