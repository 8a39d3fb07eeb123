#include "ranks/rank_group.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace batchllm::cuda {
namespace {

// While a thread calls NCCL. It then asks whether the group has failed: so either it sees that, or who aborts sees it.
struct Inside {
    explicit Inside(std::atomic<int32_t> *threads) : count(*threads) { ++count; }
    Inside(const Inside &) = delete;
    Inside &operator=(const Inside &) = delete;
    ~Inside() { --count; }

    std::atomic<int32_t> &count;
};

} // namespace

std::mutex &launching() {
    static std::mutex of_process;
    return of_process;
}

Status RankGroup::check(int result, const char *what, int32_t rank) const {
    if (result == Nccl::success) return {};
    if (failed()) return other_failed();
    return error(BATCHLLM_ERROR_DEVICE, "nccl: %s in %s, device %d",
                 nccl_->get_error_string(result), what, devices_[static_cast<size_t>(rank)]);
}

Result<bool> RankGroup::access_each_other(const std::vector<int> &devices) {
    for (const int from : devices) {
        for (const int to : devices) {
            int can = 1;
            if (from != to) RETURN_IF_CUDA(cudaDeviceCanAccessPeer(&can, from, to));
            if (can == 0) return false;
        }
    }
    return true;
}

Result<std::unique_ptr<RankGroup>> RankGroup::create(const std::vector<int> &devices, bool peers) {
    std::unique_ptr<RankGroup> group(new RankGroup(devices));
    ASSIGN_OR_RETURN(group->ended_, PinnedMemory::create(sizeof(uint32_t), "signals"));
    *group->ended_.as<uint32_t>() = 0;
    ASSIGN_OR_RETURN(const bool access, access_each_other(devices));
    group->peers_ = peers && access && devices.size() <= kMostPeers;
    if (!group->peers_ || devices.size() > 2) RETURN_IF_ERROR(group->make_communicators());
    return group;
}

Status RankGroup::make_communicators() {
    ASSIGN_OR_RETURN(nccl_, Nccl::load());
    std::vector<NcclCommunicator *> all(devices_.size());
    const int made = nccl_->comm_init_all(all.data(), ranks(), devices_.data());
    if (made != Nccl::success) {
        return error(BATCHLLM_ERROR_DEVICE, "nccl: %s in making communicators",
                     nccl_->get_error_string(made));
    }
    communicators_ = std::move(all);
    return run_ranks(this, [&](int32_t rank) { return warm_up(rank); });
}

// Each way in which NCCL does it is set up at its first use, which must be neither in a graph nor when memory is full.
Status RankGroup::warm_up(int32_t rank) {
    constexpr int64_t most = int64_t{64} << 20;
    RETURN_IF_CUDA(cudaSetDevice(devices_[static_cast<size_t>(rank)]));
    ASSIGN_OR_RETURN(const DeviceMemory memory, zeroed_memory(most, "communicators"));
    ASSIGN_OR_RETURN(const Stream stream, Stream::create());
    Status tried = try_exchanges(rank, memory.data(), most, stream);
    if (!tried.ok()) fail(); // first: to free the memory waits for the exchanges of all devices
    return tried;
}

Status RankGroup::try_exchanges(int32_t rank, std::byte *memory, int64_t most,
                                cudaStream_t stream) {
    RETURN_IF_ERROR(meet());
    for (int64_t bytes = 1024; bytes <= most; bytes *= 16) {
        RETURN_IF_ERROR(add(rank, memory, bytes / 4, Nccl::of_f32, stream));
    }
    RETURN_IF_ERROR(add(rank, memory, most / 4, Nccl::of_f32, stream));
    const auto count = static_cast<size_t>(ranks());
    const int64_t part = most / (2 * ranks());
    std::vector<Bytes> to(count), from(count);
    for (size_t r = 0; r < count; ++r) {
        std::byte *own = memory + static_cast<int64_t>(r) * part;
        to[r] = {own, part};
        from[r] = {own + most / 2, part};
    }
    RETURN_IF_ERROR(swap(rank, to, from, stream));
    RETURN_IF_CUDA(cudaStreamSynchronize(stream));
    return meet();
}

// Signals are in the last bytes of what is shared: the counts of all ranks, then the own one.
Status RankGroup::allocate(int32_t rank, int64_t bytes, Shared *shared) const {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = devices_[static_cast<size_t>(rank)];
    RETURN_IF_CUDA(cudaMemPoolCreate(&shared->pool, &properties));
    for (const int other : devices_) {
        if (other == properties.location.id) continue;
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = other;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        RETURN_IF_CUDA(cudaMemPoolSetAccess(shared->pool, &access, 1));
    }
    ASSIGN_OR_RETURN(const Stream stream, Stream::create());
    void *data = nullptr;
    RETURN_IF_CUDA(
        cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes), shared->pool, stream));
    shared->data = static_cast<std::byte *>(data);
    RETURN_IF_CUDA(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream));
    return check_cuda(cudaStreamSynchronize(stream), "buffers for other ranks");
}

Result<PeerBuffers *> RankGroup::share_buffers(int32_t rank, SharedAsk ask) {
    if (!peers_) return nullptr;
    asked_[static_cast<size_t>(rank)] = std::move(ask);
    RETURN_IF_ERROR(meet());
    const SharedLayout layout = shared_layout(asked_);
    Shared &own = shared_[static_cast<size_t>(rank)];
    RETURN_IF_ERROR(allocate(rank, layout.total, &own));
    RETURN_IF_ERROR(meet());
    PeerBuffers &all = buffers_[static_cast<size_t>(rank)];
    all.bytes = layout.second;
    all.more = own.data + layout.more;
    all.logits = own.data + layout.logits;
    all.owns_rows = layout.owns_rows;
    for (size_t r = 0; r < shared_.size(); ++r) {
        all.away[r] =
            reinterpret_cast<intptr_t>(shared_[r].data) - reinterpret_cast<intptr_t>(own.data);
        if (&shared_[r] == &own) continue;
        all.copies.away[static_cast<size_t>(all.copies.count++)] = all.away[r];
    }
    PeerSignals &signals = all.signals;
    signals.ranks = ranks();
    signals.own = rank;
    signals.ended = ended_.as<uint32_t>();
    const auto counts_of = [&](const Shared &shared) {
        return reinterpret_cast<uint32_t *>(shared.data + layout.signals);
    };
    for (size_t r = 0; r < shared_.size(); ++r) {
        signals.to[r] = counts_of(shared_[r]) + rank;
        for (int64_t i = 0; i < 2; ++i) {
            all.sums[static_cast<size_t>(i)].parts[r] = shared_[r].data + i * layout.second;
        }
    }
    signals.counts = counts_of(own);
    signals.own_count = signals.counts + kMostPeers;
    for (size_t i = 0; i < 2; ++i) {
        all.own[i] = own.data + static_cast<int64_t>(i) * layout.second;
        all.sums[i].ranks = ranks();
        all.sums[i].own_count = signals.own_count;
        all.sums[i].counts = signals.counts;
        all.sums[i].ended = signals.ended;
    }
    return &all;
}

RankGroup::~RankGroup() {
    if (aborting_.joinable()) aborting_.join();
    for (const Shared &shared : shared_) {
        if (shared.data != nullptr) cudaFree(shared.data);
        if (shared.pool != nullptr) cudaMemPoolDestroy(shared.pool);
    }
    if (aborted_) return;
    for (NcclCommunicator *one : communicators_) nccl_->comm_destroy(one);
}

void RankGroup::fail() {
    Meeting::fail();
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    if (ended_) std::atomic_ref<uint32_t>(*ended_.as<uint32_t>()).store(1);
    if (communicators_.empty()) return;
    // The last of the communicators is not aborted before all graphs with exchanges are destroyed, which is after this
    // failure has been reported.
    try {
        aborting_ = std::thread([this] { abort(); });
    } catch (const std::exception &) { // the system refuses to start a thread
        abort();
    }
}

void RankGroup::abort() {
    // It frees what calls of NCCL use. A call that waits for a rank that never comes is ended by nothing else.
    using Clock = std::chrono::steady_clock;
    const auto latest = Clock::now() + std::chrono::seconds(3);
    while (inside_ > 0 && Clock::now() < latest) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (NcclCommunicator *one : communicators_) nccl_->comm_abort(one);
}

Status RankGroup::add(int32_t rank, void *x, int64_t count, int type, cudaStream_t stream) {
    const Inside inside(&inside_);
    if (failed()) return other_failed();
    return check(nccl_->all_reduce(x, x, static_cast<size_t>(count), type, Nccl::sum,
                                   communicators_[static_cast<size_t>(rank)], stream),
                 "a sum over devices", rank);
}

// In pieces that the buffers hold, which take turns.
Status RankGroup::add_by_peers(int32_t rank, void *x, int64_t bytes, const LaunchSum &launch,
                               cudaStream_t stream) {
    if (failed()) return other_failed();
    PeerBuffers &own = buffers_[static_cast<size_t>(rank)];
    if (own.bytes == 0) {
        return error(BATCHLLM_ERROR_INTERNAL, "device %d of %d: a sum before buffers are shared",
                     rank, ranks());
    }
    for (int64_t at = 0; at < bytes; at += own.bytes) {
        const int64_t piece = std::min(own.bytes, bytes - at);
        std::byte *from = static_cast<std::byte *>(x) + at;
        RETURN_IF_CUDA(cudaMemcpyAsync(own.own[own.turn], from, static_cast<size_t>(piece),
                                       cudaMemcpyDeviceToDevice, stream));
        RETURN_IF_CUDA(launch_signal(own.signals, stream));
        RETURN_IF_CUDA(launch(own.sums[own.turn], from, piece));
        own.turn ^= 1;
    }
    return {};
}

Status RankGroup::sum(int32_t rank, void *x, int64_t count, DType type, cudaStream_t stream) {
    const int64_t each = dtype_bytes(type);
    if (sums_by_peers(count * each)) {
        const auto launch = [&](const PeerSum &sum, void *some, int64_t bytes) {
            return launch_peer_sum(sum, type, some, bytes / each, stream);
        };
        return add_by_peers(rank, x, count * each, launch, stream);
    }
    const int of = type == DType::f32    ? Nccl::of_f32
                   : type == DType::bf16 ? Nccl::of_bf16
                                         : Nccl::of_f16;
    return add(rank, x, count, of, stream);
}

Status RankGroup::sum(int32_t rank, int32_t *x, int64_t count, cudaStream_t stream) {
    constexpr auto each = static_cast<int64_t>(sizeof(int32_t));
    if (sums_by_peers(count * each)) {
        const auto launch = [&](const PeerSum &sum, void *some, int64_t bytes) {
            return launch_peer_sum(sum, static_cast<int32_t *>(some), bytes / each, stream);
        };
        return add_by_peers(rank, x, count * each, launch, stream);
    }
    return add(rank, x, count, Nccl::of_int32, stream);
}

Status RankGroup::swap(int32_t rank, std::span<const Bytes> to, std::span<const Bytes> from,
                       cudaStream_t stream) {
    const Inside inside(&inside_);
    if (failed()) return other_failed();
    NcclCommunicator *own = communicators_[static_cast<size_t>(rank)];
    int result = nccl_->group_start();
    for (int32_t r = 0; r < ranks() && result == Nccl::success; ++r) {
        const auto at = static_cast<size_t>(r);
        if (r == rank) continue;
        if (to[at].count > 0) {
            result = nccl_->send(to[at].data, static_cast<size_t>(to[at].count), Nccl::of_bytes, r,
                                 own, stream);
        }
        if (from[at].count > 0 && result == Nccl::success) {
            result = nccl_->recv(from[at].data, static_cast<size_t>(from[at].count), Nccl::of_bytes,
                                 r, own, stream);
        }
    }
    const int ended = nccl_->group_end();
    return check(result == Nccl::success ? ended : result, "an exchange between devices", rank);
}

} // namespace batchllm::cuda
