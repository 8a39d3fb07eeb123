#include "tensor_parallel_backend.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "backend/gpu/step_buffers.h"
#include "backend/gpu/tower_buffers.h"
#include "backend/state_memory.h"
#include "backend_options.h"
#include "model/parts.h"
#include "step/products.h"
#include "step/supported.h"
#include "step/tower.h"

namespace batchllm::cuda {
namespace {

// Whether the tower is loaded.
bool has_pictures(const Model &model, const ForwardOptions &forward) {
    return model.tower != nullptr && forward.pictures &&
           StepTower::missing(model, forward.element) == nullptr;
}

// What the weights will take. Which matrices can be in e4m3 is asked of cuBLASLt when they are loaded: here all that may be, as
// far as their shapes go.
Result<int64_t> weight_bytes_of(const Model &part, const ForwardOptions &forward, size_t memory) {
    LoadOptions load = load_options(part, forward, memory);
    load.takes = [&](int64_t rows, int64_t columns, Scaling scaling, bool) {
        return Products::may_take(forward.element, rows, columns, scaling);
    };
    ASSIGN_OR_RETURN(const int64_t bytes, loaded_bytes(part, load));
    return bytes +
           (has_pictures(part, forward) ? tower_weight_bytes(*part.tower, forward.element) : 0);
}

// An adapter for each rank.
struct PackedForRanks final : PackedAdapter {
    std::vector<std::shared_ptr<const PackedAdapter>> of;
};

} // namespace

Result<RankChoice> choose_ranks_here(const Model &model, const BackendOptions &options,
                                     const std::vector<int32_t> &devices) {
    ASSIGN_OR_RETURN(const cudaDeviceProp properties,
                     open_device(devices.empty() ? 0 : devices.front()));
    int count = static_cast<int>(devices.size());
    std::vector<int> all(devices.begin(), devices.end());
    if (devices.empty()) {
        RETURN_IF_CUDA(cudaGetDeviceCount(&count));
        count = static_cast<int>(std::bit_floor(static_cast<unsigned>(count))); // so many of them
        all.resize(static_cast<size_t>(count));
        std::iota(all.begin(), all.end(), 0);
    }
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    ASSIGN_OR_RETURN(const CudaOptions whole, read_options(model, options, properties));
    ASSIGN_OR_RETURN(bool peers, RankGroup::access_each_other(all));
    peers = peers && whole.forward.peer_sums;
    const auto left = [&](const Model &part) -> Result<int64_t> {
        ASSIGN_OR_RETURN(const CudaOptions read, read_options(part, options, properties));
        const StepBuffers buffers =
            step_buffers(part, step_form(part, read.forward), read.forward.step_tokens);
        ASSIGN_OR_RETURN(const int64_t weights, weight_bytes_of(part, read.forward, total));
        int64_t bytes = static_cast<int64_t>(available) - weights - buffers.total() -
                        rank_bytes(buffers, part.ranks, peers);
        if (has_pictures(part, read.forward)) {
            bytes -=
                tower_bytes_on_gpu(part, read.forward.element, read.forward.residual,
                                   read.forward.step_tokens, static_cast<int64_t>(total), bytes);
        }
        return pool_share(options, bytes, gpu_kv_fraction);
    };
    const MostRanks most = most_gpu_ranks(options.reproducible);
    return choose_ranks(model, count, most, whole.forward.kv_type(), left);
}

Result<std::unique_ptr<TensorParallelBackend>>
TensorParallelBackend::create(const Model &model, const BackendOptions &options, int32_t ranks) {
    std::unique_ptr<TensorParallelBackend> backend(new TensorParallelBackend(model));
    for (int32_t r = 0; r < ranks; ++r) {
        OfRank &of = backend->ranks_.emplace_back();
        ASSIGN_OR_RETURN(of.part, part_of(model, r, ranks));
        RETURN_IF_ERROR(check_supported(*of.part));
    }
    if (options.reproducible && ranks > 2) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "cuda backend: reproducible: with tensor_parallel of at most 2; sums over "
                     "more devices have an order that depends on the batch");
    }
    ASSIGN_OR_RETURN(const std::vector<int> devices, read_devices(options.devices, ranks));
    BackendOptions own = options;
    std::string name;
    bool peers = true;
    for (size_t r = 0; r < devices.size(); ++r) {
        ASSIGN_OR_RETURN(const cudaDeviceProp properties, open_device(devices[r]));
        ASSIGN_OR_RETURN(const CudaOptions read,
                         read_options(*backend->ranks_[r].part, options, properties));
        if (r == 0) name = properties.name;
        peers = read.forward.peer_sums;
        if (name != properties.name) { // they would choose other products
            return error(BATCHLLM_ERROR_UNSUPPORTED,
                         "cuda backend: tensor_parallel=%d: devices %d and %d are of different "
                         "kinds, %s and %s",
                         ranks, devices[0], devices[r], name.c_str(), properties.name);
        }
        // The parts may be of different sizes, steps may not.
        const int64_t step_tokens = read.forward.step_tokens;
        own.step_tokens = r == 0 ? step_tokens : std::min(own.step_tokens, step_tokens);
    }
    RETURN_IF_ERROR(backend->make(own, devices, peers));
    backend->join_infos();
    return backend;
}

Status TensorParallelBackend::make(const BackendOptions &options, const std::vector<int> &devices,
                                   bool peers) {
    const std::lock_guard lock(launching()); // loading allocates
    ASSIGN_OR_RETURN(group_, RankGroup::create(devices, peers));
    std::vector<HeadPart> head_parts;
    for (const OfRank &of : ranks_) {
        head_parts.push_back({of.part->head_begin, of.part->head.rows(), head_rows(*of.part)});
    }
    RETURN_IF_ERROR(run_ranks(group_.get(), [&](int32_t rank) -> Status {
        OfRank &of = ranks_[static_cast<size_t>(rank)];
        BackendOptions own = options;
        own.devices = std::to_string(devices[static_cast<size_t>(rank)]);
        ASSIGN_OR_RETURN(of.backend,
                         CudaBackend::create(*of.part, own, {group_.get(), rank}, head_parts));
        return {};
    }));
    for (size_t r = 1; r < ranks_.size(); ++r) ranks_[r].backend->answer_with(&first());
    return {};
}

TensorParallelBackend::~TensorParallelBackend() {
    const std::lock_guard lock(launching());
    ranks_.clear(); // and their graphs, before the group
    group_.reset();
}

// Of pages, states and adapters one device's, as the options are: of the one that has most of each, and room for fewest.
void TensorParallelBackend::join_infos() {
    info_ = first().info();
    info_.device = std::to_string(ranks()) + " x " + info_.device;
    info_.computes_on.product_flops *= ranks();
    info_.computes_on.memory_bandwidth *= ranks();
    for (size_t r = 1; r < ranks_.size(); ++r) {
        const BackendInfo &other = ranks_[r].backend->info();
        info_.device.append(" and ").append(std::to_string(ranks_[r].backend->device()));
        info_.page_bytes = std::max(info_.page_bytes, other.page_bytes);
        info_.state_bytes = std::max(info_.state_bytes, other.state_bytes);
        info_.weight_bytes = std::max(info_.weight_bytes, other.weight_bytes);
        info_.pages = std::min(info_.pages, other.pages);
        info_.state_slots = std::min(info_.state_slots, other.state_slots);
        info_.adapter_bytes = std::min(info_.adapter_bytes, other.adapter_bytes);
        info_.adapter_slots = std::min(info_.adapter_slots, other.adapter_slots);
        info_.picture_tokens = std::min(info_.picture_tokens, other.picture_tokens);
        info_.picture_patches = std::min(info_.picture_patches, other.picture_patches);
        if (info_.warning.empty()) info_.warning = other.warning;
    }
    for (OfRank &of : ranks_) of.backend->limit_picture_patches(info_.picture_patches);
}

Status TensorParallelBackend::run_on_all(const std::function<Status(CudaBackend &)> &task) const {
    const std::lock_guard lock(launching());
    return run_ranks(group_.get(), [&](int32_t rank) { return task(backend_of(rank)); });
}

Status TensorParallelBackend::forward(const TokenBatch &batch) {
    return run_on_all([&](CudaBackend &backend) { return backend.forward(batch); });
}

Status TensorParallelBackend::sample(std::span<const TokenMask> masks) {
    return run_on_all([&](CudaBackend &backend) { return backend.sample(masks); });
}

bool TensorParallelBackend::ready() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const OfRank &of) { return of.backend->ready(); });
}

Status TensorParallelBackend::collect(BatchOutput *output) {
    // One that has failed leaves the others waiting.
    for (bool waits = true; waits && !group_->failed();) {
        waits = false;
        for (const OfRank &of : ranks_) {
            const cudaError_t state = of.backend->state();
            waits |= state == cudaErrorNotReady;
            if (state != cudaErrorNotReady && state != cudaSuccess) group_->fail();
        }
        if (waits) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    Status status;
    for (size_t r = ranks_.size(); r-- > 0;) { // the first rank has the results
        BatchOutput others;
        Status own = ranks_[r].backend->collect(r == 0 ? output : &others);
        if (!own.ok() && status.ok()) {
            status = std::move(own);
            group_->fail();
        }
    }
    return status;
}

Result<int64_t> TensorParallelBackend::adapter_bytes(const Adapter &adapter) const {
    int64_t most = 0;
    for (const OfRank &of : ranks_) {
        ASSIGN_OR_RETURN(const int64_t bytes,
                         of.backend->adapter_bytes(part_of(adapter, model_, *of.part)));
        most = std::max(most, bytes);
    }
    return most;
}

Result<std::shared_ptr<const PackedAdapter>>
TensorParallelBackend::pack_adapter(std::shared_ptr<const Adapter> adapter) const {
    auto packed = std::make_shared<PackedForRanks>();
    for (const OfRank &of : ranks_) {
        // The part refers to the whole's bytes.
        struct Both {
            std::shared_ptr<const Adapter> whole;
            Adapter part;
        };
        const auto both =
            std::make_shared<Both>(Both{adapter, part_of(*adapter, model_, *of.part)});
        ASSIGN_OR_RETURN(
            auto own, of.backend->pack_adapter(std::shared_ptr<const Adapter>(both, &both->part)));
        packed->of.push_back(std::move(own));
    }
    return std::shared_ptr<const PackedAdapter>(std::move(packed));
}

Status TensorParallelBackend::load_adapter(int32_t slot,
                                           std::shared_ptr<const PackedAdapter> packed) {
    const std::lock_guard lock(launching()); // merged layers may be freed
    const auto &of_ranks = static_cast<const PackedForRanks &>(*packed).of;
    for (size_t r = 0; r < ranks_.size(); ++r) {
        RETURN_IF_ERROR(ranks_[r].backend->load_adapter(slot, of_ranks[r]));
    }
    return {};
}

void TensorParallelBackend::unload_adapter(int32_t slot) {
    const std::lock_guard lock(launching());
    for (OfRank &of : ranks_) of.backend->unload_adapter(slot);
}

Status TensorParallelBackend::load_pictures(std::span<const PictureLoad> pictures) {
    return run_on_all([&](CudaBackend &backend) { return backend.load_pictures(pictures); });
}

void TensorParallelBackend::unload_picture(int32_t slot) {
    for (OfRank &of : ranks_) of.backend->unload_picture(slot);
}

AdapterUse TensorParallelBackend::adapter_use() const {
    AdapterUse most;
    for (const OfRank &of : ranks_) {
        const AdapterUse own = of.backend->adapter_use();
        most.bytes_peak = std::max(most.bytes_peak, own.bytes_peak);
        most.merged_batches = std::max(most.merged_batches, own.merged_batches);
    }
    return most;
}

} // namespace batchllm::cuda
