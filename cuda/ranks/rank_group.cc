#include "ranks/rank_group.h"

#include "device/device.h"

namespace batchllm::cuda {

Status RankGroup::check(int result, const char *what) const {
    if (result == Nccl::success) return {};
    if (failed()) return other_failed();
    return error(BATCHLLM_ERROR_DEVICE, "nccl: %s in %s", nccl_.get_error_string(result), what);
}

Result<std::unique_ptr<RankGroup>> RankGroup::create(const std::vector<int> &devices) {
    ASSIGN_OR_RETURN(const Nccl *nccl, Nccl::load());
    const auto ranks = static_cast<int32_t>(devices.size());
    std::unique_ptr<RankGroup> group(new RankGroup(*nccl, ranks));
    std::vector<NcclCommunicator *> all(devices.size());
    RETURN_IF_ERROR(group->check(nccl->comm_init_all(all.data(), ranks, devices.data()),
                                 "making communicators"));
    group->communicators_ = std::move(all);
    RETURN_IF_ERROR(run_ranks(group.get(), [&](int32_t rank) {
        return group->warm_up(rank, devices[static_cast<size_t>(rank)]);
    }));
    return group;
}

// Each way in which NCCL does it is set up at its first use, which must be neither in a graph nor when memory is full.
Status RankGroup::warm_up(int32_t rank, int device) {
    constexpr int64_t most = int64_t{64} << 20;
    RETURN_IF_CUDA(cudaSetDevice(device));
    ASSIGN_OR_RETURN(const DeviceMemory memory, zeroed_memory(most, "communicators"));
    ASSIGN_OR_RETURN(const Stream stream, Stream::create());
    RETURN_IF_ERROR(meet());
    for (int64_t bytes = 1024; bytes <= most; bytes *= 16) {
        RETURN_IF_ERROR(sum(rank, memory.data(), bytes / 4, DType::f32, stream));
    }
    RETURN_IF_ERROR(sum(rank, memory.data(), most / 4, DType::f32, stream));
    const auto count = static_cast<size_t>(ranks());
    const int64_t part = most / (2 * ranks());
    std::vector<Bytes> to(count), from(count);
    for (size_t r = 0; r < count; ++r) {
        std::byte *own = memory.data() + static_cast<int64_t>(r) * part;
        to[r] = {own, part};
        from[r] = {own + most / 2, part};
    }
    RETURN_IF_ERROR(swap(rank, to, from, stream));
    RETURN_IF_CUDA(cudaStreamSynchronize(stream));
    return meet();
}

RankGroup::~RankGroup() {
    if (aborted_) return;
    for (NcclCommunicator *one : communicators_) nccl_.comm_destroy(one);
}

void RankGroup::fail() {
    Meeting::fail();
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    for (NcclCommunicator *one : communicators_) nccl_.comm_abort(one);
}

Status RankGroup::add(int32_t rank, void *x, int64_t count, int type, cudaStream_t stream) {
    if (failed()) return other_failed();
    return check(nccl_.all_reduce(x, x, static_cast<size_t>(count), type, Nccl::sum,
                                  communicators_[static_cast<size_t>(rank)], stream),
                 "a sum over devices");
}

Status RankGroup::sum(int32_t rank, void *x, int64_t count, DType type, cudaStream_t stream) {
    const int of = type == DType::f32    ? Nccl::of_f32
                   : type == DType::bf16 ? Nccl::of_bf16
                                         : Nccl::of_f16;
    return add(rank, x, count, of, stream);
}

Status RankGroup::sum(int32_t rank, int32_t *x, int64_t count, cudaStream_t stream) {
    return add(rank, x, count, Nccl::of_int32, stream);
}

Status RankGroup::swap(int32_t rank, std::span<const Bytes> to, std::span<const Bytes> from,
                       cudaStream_t stream) {
    if (failed()) return other_failed();
    NcclCommunicator *own = communicators_[static_cast<size_t>(rank)];
    int result = nccl_.group_start();
    for (int32_t r = 0; r < ranks() && result == Nccl::success; ++r) {
        const auto at = static_cast<size_t>(r);
        if (r == rank) continue;
        if (to[at].count > 0) {
            result = nccl_.send(to[at].data, static_cast<size_t>(to[at].count), Nccl::of_bytes, r,
                                own, stream);
        }
        if (from[at].count > 0 && result == Nccl::success) {
            result = nccl_.recv(from[at].data, static_cast<size_t>(from[at].count), Nccl::of_bytes,
                                r, own, stream);
        }
    }
    const int ended = nccl_.group_end();
    return check(result == Nccl::success ? ended : result, "an exchange between devices");
}

} // namespace batchllm::cuda
