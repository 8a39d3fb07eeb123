#include "cuda_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "backend/batch_rows.h"
#include "backend/gpu/gated_product.h"
#include "backend/kv_type.h"
#include "backend/smaller_pool.h"
#include "backend/state_memory.h"
#include "backend/tower_pack.h"
#include "backend_options.h"

namespace batchllm::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Flops per second of a multiprocessor's tensor cores for each of its clocks: dense products in 16 bits with sums in f32.
double flops_of_clock(const cudaDeviceProp &properties) {
    if (properties.major == 8) return properties.minor == 0 ? 2048 : 1024;
    if (properties.major == 9) return 4096;
    return properties.major == 10 ? 8192 : 1024;
}

ComputeDevice facts_of(const cudaDeviceProp &properties, int device) {
    ComputeDevice facts{DeviceKind::gpu, properties.name, 0, 0};
    int kilohertz = 0, memory_kilohertz = 0, bus_bits = 0;
    const auto read = [&](int *to, cudaDeviceAttr what) {
        return cudaDeviceGetAttribute(to, what, device) == cudaSuccess;
    };
    if (read(&kilohertz, cudaDevAttrClockRate)) {
        facts.product_flops =
            properties.multiProcessorCount * 1e3 * kilohertz * flops_of_clock(properties);
    }
    if (read(&memory_kilohertz, cudaDevAttrMemoryClockRate) &&
        read(&bus_bits, cudaDevAttrGlobalMemoryBusWidth)) { // two transfers each clock
        facts.memory_bandwidth = 2e3 * memory_kilohertz * bus_bits / 8;
    }
    return facts;
}

} // namespace

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(const Model &model,
                                                         const BackendOptions &options,
                                                         DeviceRank rank,
                                                         std::vector<HeadPart> head_parts) {
    ASSIGN_OR_RETURN(const int device, read_device(options.devices));
    ASSIGN_OR_RETURN(const cudaDeviceProp properties, open_device(device));
    ASSIGN_OR_RETURN(CudaOptions read, read_options(model, options, properties));
    read.forward.rank = rank;
    read.forward.head_parts = std::move(head_parts);

    std::unique_ptr<CudaBackend> backend(new CudaBackend());
    backend->device_ = device;
    ASSIGN_OR_RETURN(backend->stream_, Stream::create());
    ASSIGN_OR_RETURN(backend->copies_, Stream::create());
    for (Slot &slot : backend->slots_) {
        ASSIGN_OR_RETURN(slot.sent, Event::create(false));
        ASSIGN_OR_RETURN(slot.begin, Event::create(true));
        ASSIGN_OR_RETURN(slot.forwarded, Event::create(true));
        ASSIGN_OR_RETURN(slot.masked, Event::create(true));
        ASSIGN_OR_RETURN(slot.end, Event::create(true));
    }
    for (Slot &slot : backend->slots_) {
        RETURN_IF_ERROR(slot.staging.reserve(staging_bytes(read.forward.step_tokens)));
        RETURN_IF_ERROR(slot.samples.reserve(read.forward.step_tokens));
    }
    ASSIGN_OR_RETURN(backend->forward_, Forward::create(model, read.forward));

    BackendInfo &info = backend->info_;
    info.name = "cuda";
    info.compute_type = backend->forward_->compute_type() +
                        name_of_kv_type(read.forward.kv_type()) + name_of_states(read.states);
    info.device = std::string(properties.name) + ", device " + std::to_string(device);
    info.computes_on = facts_of(properties, device);
    info.weight_bytes = backend->forward_->parts().weights.memory.bytes();
    info.products_in_fp8 = backend->forward_->parts().weights.scaled();
    info.vocabulary = model.vocabulary;
    info.hidden = model.hidden;
    info.page_tokens = kPageKeys;
    info.page_bytes = backend->forward_->parts().kv.page_bytes();
    info.step_tokens = read.forward.step_tokens;
    info.reproducible = options.reproducible;
    info.batches_in_flight = read.overlap ? kSlots : 1;
    info.gated_tokens = read.forward.has_gated_products() ? least_gated_tokens : 0;
    info.warning = backend->forward_->warning();
    if (const StepTower *tower = backend->forward_->tower()) {
        info.picture_slots = StepPictures::kSlots;
        info.picture_tokens = backend->forward_->parts().pictures.most_tokens();
        info.picture_patches = tower->most_patches();
        info.weight_bytes += tower->weight_bytes();
    }
    info.no_pictures = backend->forward_->no_pictures();
    info.kv_windows = model.kv_windows();
    RETURN_IF_ERROR(backend->take_memory(options, read.states.slots));
    RETURN_IF_ERROR(backend->take_adapter_room(options.adapter_memory_bytes));
    RETURN_IF_CUDA(cudaDeviceSynchronize());
    return backend;
}

// Allocates memory for states, then for keys and values.
Status CudaBackend::take_memory(const BackendOptions &options, int64_t state_slots) {
    ASSIGN_OR_RETURN(const int64_t bytes, pool_bytes(options, beside_adapters()));
    const auto kv_groups = static_cast<int64_t>(info_.kv_windows.size());
    const MemoryNeeds needs{forward_->parts().states.slot_bytes(),
                            info_.page_bytes * kv_groups / kPageKeys, info_.step_tokens};
    ASSIGN_OR_RETURN(const MemoryShares shares, share_memory(bytes, needs, state_slots));
    if (shares.state_slots > 0) {
        RETURN_IF_ERROR(forward_->parts().states.take_slots(shares.state_slots));
        info_.state_slots = shares.state_slots;
        info_.state_bytes = needs.slot_bytes;
    }
    ASSIGN_OR_RETURN(info_.pages, count_pages(shares.bytes_left, info_.page_bytes));
    info_.pages = std::min(info_.pages, forward_->parts().kv.most_pages());
    return take_pages();
}

// Another process may have taken some of the memory since it was measured.
Status CudaBackend::take_pages() {
    SmallerPool pool(info_.pages, info_.page_bytes);
    Status status = forward_->parts().kv.take_pages(pool.pages());
    while (status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY && pool.next()) {
        status = forward_->parts().kv.take_pages(pool.pages());
    }
    RETURN_IF_ERROR(std::move(status));
    info_.pages = pool.pages();
    if (pool.smaller() && !info_.warning.empty()) info_.warning += "; ";
    info_.warning += pool.warning();
    return {};
}

// What loading adapters takes, and steps with adapters of experts.
int64_t CudaBackend::beside_adapters() const {
    const StepParts &parts = forward_->parts();
    return (int64_t{512} << 20) + parts.experts.adapter_room(parts.rows).bytes();
}

// Nothing is allocated before an adapter comes. By default adapters have what keys and values leave, up to 2 GiB.
Status CudaBackend::take_adapter_room(int64_t wanted) {
    constexpr int32_t most_slots = 65536; // a table on the host
    size_t available = 0, total = 0;
    RETURN_IF_CUDA(cudaMemGetInfo(&available, &total));
    const auto left = static_cast<int64_t>(available);
    info_.adapter_bytes =
        wanted > 0 ? wanted
                   : std::min(std::max(left - beside_adapters(), left / 2), int64_t{2} << 30);
    info_.adapter_slots = info_.adapter_bytes > 0 ? most_slots : 0;
    StepParts &parts = forward_->parts();
    parts.adapters.set_merging(&parts.weights.layers, parts.options.merge_after,
                               info_.adapter_bytes);
    return {};
}

Result<std::shared_ptr<const PackedAdapter>>
CudaBackend::pack_adapter(std::shared_ptr<const Adapter> adapter) const {
    RETURN_IF_CUDA(cudaSetDevice(device_));
    ASSIGN_OR_RETURN(std::shared_ptr<const PackedAdapter> packed,
                     forward_->parts().adapters.pack(std::move(adapter)));
    return packed;
}

Status CudaBackend::load_adapter(int32_t slot, std::shared_ptr<const PackedAdapter> packed) {
    RETURN_IF_ERROR(failed_);
    RETURN_IF_CUDA(cudaSetDevice(device_));
    return forward_->parts().adapters.load(
        slot, std::static_pointer_cast<const LaidOutAdapter>(std::move(packed)));
}

void CudaBackend::unload_adapter(int32_t slot) {
    if (cudaSetDevice(device_) == cudaSuccess) forward_->parts().adapters.unload(slot);
}

Status CudaBackend::load_pictures(std::span<const PictureLoad> pictures) {
    RETURN_IF_ERROR(failed_);
    StepTower *tower = forward_->tower();
    if (tower == nullptr) return Backend::load_pictures(pictures);
    for (const PictureLoad &load : pictures) {
        RETURN_IF_ERROR(check_picture(tower->described(), load, info_));
    }
    RETURN_IF_CUDA(cudaSetDevice(device_));
    // The tower's time is the next batch's.
    if (in_flight_ < info_.batches_in_flight && !begun_) {
        RETURN_IF_CUDA(cudaEventRecord(slots_[static_cast<size_t>(next_)].begin, stream_));
        begun_ = true;
    }
    failed_ = tower->load(pictures, copies_, stream_);
    return failed_;
}

CudaBackend::~CudaBackend() {
    // Memory must be freed on its own device, whichever one the thread has selected.
    cudaSetDevice(device_);
    if (copies_ != nullptr) cudaStreamSynchronize(copies_);
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

bool CudaBackend::feeds(const SampleInput &input) const {
    return info_.batches_in_flight > 1 && !StepSamples::needs_history(*input.params);
}

Status CudaBackend::forward(const TokenBatch &batch) {
    RETURN_IF_ERROR(failed_);
    if (in_flight_ >= info_.batches_in_flight) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: %d batches are in flight", in_flight_);
    }
    const auto feedable = [&](int32_t row) {
        return info_.batches_in_flight > 1 && last_ != nullptr && last_->samples.feeds(row);
    };
    RETURN_IF_ERROR(check_batch(batch, info_, feedable));
    Slot &slot = slots_[static_cast<size_t>(next_)];
    failed_ = forward_checked(batch, &slot);
    RETURN_IF_ERROR(failed_);
    failed_ = check_cuda(cudaEventRecord(slot.forwarded, stream_), "a step");
    RETURN_IF_ERROR(failed_);
    last_ = &slot;
    next_ = (next_ + 1) % kSlots;
    ++in_flight_;
    return {};
}

Status CudaBackend::forward_checked(const TokenBatch &batch, Slot *slot) {
    const auto start = Clock::now();
    RETURN_IF_CUDA(cudaSetDevice(device_));
    // The slot's last batch was collected: nothing reads its memory any more.
    slot->staging.clear();
    RETURN_IF_ERROR(
        slot->samples.stage(batch, info_, forward_->head().logits_rows(), &slot->staging));
    const bool begun = std::exchange(begun_, false);
    if (batch.tokens.empty()) {
        return begun ? Status() : check_cuda(cudaEventRecord(slot->begin, stream_), "a step");
    }
    RETURN_IF_ERROR(
        forward_->stage(batch, slot->samples.wanted(), slot->samples.rows(), &slot->staging));
    host_seconds_ += seconds_since(start);
    // Overlaps with the previous batch.
    RETURN_IF_ERROR(slot->staging.send(copies_));
    RETURN_IF_CUDA(cudaEventRecord(slot->sent, copies_));
    RETURN_IF_CUDA(cudaStreamWaitEvent(stream_, slot->sent, 0));
    if (!begun) RETURN_IF_CUDA(cudaEventRecord(slot->begin, stream_));
    return forward_->run(slot->staging, stream_);
}

Status CudaBackend::sample(std::span<const TokenMask> masks) {
    RETURN_IF_ERROR(failed_);
    failed_ = sample_checked(masks);
    return failed_;
}

Status CudaBackend::sample_checked(std::span<const TokenMask> masks) {
    RETURN_IF_CUDA(cudaSetDevice(device_));
    bool sent = false;
    RETURN_IF_ERROR(last_->samples.send_masks(masks, copies_, &sent));
    RETURN_IF_ERROR(last_->samples.reserve_spare(forward_->head()));
    RETURN_IF_ERROR(forward_->parts().options.rank.meet()); // nothing is allocated from here on
    if (sent) {                                             // overlaps with this batch
        RETURN_IF_CUDA(cudaEventRecord(last_->sent, copies_));
        RETURN_IF_CUDA(cudaStreamWaitEvent(stream_, last_->sent, 0));
    }
    RETURN_IF_CUDA(cudaEventRecord(last_->masked, stream_));
    RETURN_IF_ERROR(last_->samples.run(last_->staging, &forward_->head(), stream_));
    return check_cuda(cudaEventRecord(last_->end, stream_), "a step");
}

cudaError_t CudaBackend::state() const {
    if (!failed_.ok()) return cudaErrorUnknown;
    if (in_flight_ == 0) return cudaSuccess;
    const cudaError_t set = cudaSetDevice(device_);
    return set != cudaSuccess ? set : cudaEventQuery(oldest().end);
}

Status CudaBackend::collect(BatchOutput *output) {
    RETURN_IF_ERROR(failed_);
    if (in_flight_ == 0) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: no batch is in flight");
    }
    failed_ = collect_checked(output);
    RETURN_IF_ERROR(failed_);
    --in_flight_;
    return {};
}

Status CudaBackend::collect_checked(BatchOutput *output) {
    RETURN_IF_CUDA(cudaSetDevice(device_));
    Slot &slot = oldest();
    RETURN_IF_CUDA(cudaEventSynchronize(slot.end));
    // The stream reaches `begin` when the previous batch has ended, so the sum counts no time
    // twice.
    float milliseconds = 0;
    RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, slot.begin, slot.end));
    last_run_seconds_ = static_cast<double>(milliseconds) * 1e-3;
    RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, slot.forwarded, slot.masked));
    last_wait_seconds_ = static_cast<double>(milliseconds) * 1e-3;
    slot.samples.take(output);
    return forward_->parts().profile.collect();
}

} // namespace batchllm::cuda
