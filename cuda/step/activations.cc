#include "step/activations.h"

#include <utility>

namespace batchllm::cuda {

namespace {

constexpr std::pair<Activations::Room Activations::*, StepBuffer> kRooms[] = {
    {&Activations::residual, StepBuffer::residual},
    {&Activations::normed, StepBuffer::normed},
    {&Activations::normed_whole, StepBuffer::normed_whole},
    {&Activations::normed_scales, StepBuffer::normed_scales}};

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

} // namespace

int64_t Activations::shared_bytes(const StepBuffers &of) {
    int64_t bytes = 0;
    for (const auto &[room, buffer] : kRooms) bytes += aligned(of[buffer]);
    return bytes;
}

Status Activations::allocate(const StepBuffers &of, std::byte *shared, std::byte *of_logits) {
    const char *what = "activations", *scales = "scales";
    for (const auto &[room, buffer] : kRooms) {
        Room &one = this->*room;
        if (shared != nullptr) {
            one.at = of[buffer] > 0 ? shared : nullptr;
            shared += aligned(of[buffer]);
        } else {
            ASSIGN_OR_RETURN(one.own, zeroed_memory(of[buffer], what));
            one.at = one.own.data();
        }
    }
    ASSIGN_OR_RETURN(last, zeroed_memory(of[StepBuffer::last], "the residual stream"));
    ASSIGN_OR_RETURN(qkv, zeroed_memory(of[StepBuffer::first], what));
    ASSIGN_OR_RETURN(attended, zeroed_memory(of[StepBuffer::attended], what));
    for (const auto &[memory, buffer] :
         {std::pair(&latent_normed, StepBuffer::latent_normed),
          std::pair(&latent_of_down, StepBuffer::latent_of_down),
          std::pair(&latent_queries, StepBuffer::latent_queries), // padding stays zero
          std::pair(&latent_made, StepBuffer::latent_made)}) {
        ASSIGN_OR_RETURN(*memory, zeroed_memory(of[buffer], what));
    }
    ASSIGN_OR_RETURN(delta, zeroed_memory(of[StepBuffer::delta], what));
    ASSIGN_OR_RETURN(gate_up, zeroed_memory(of[StepBuffer::gate_up], what));
    ASSIGN_OR_RETURN(activated, zeroed_memory(of[StepBuffer::activated], what));
    ASSIGN_OR_RETURN(layer_inputs, zeroed_memory(of[StepBuffer::layer_inputs], "layer inputs"));
    ASSIGN_OR_RETURN(attended_scales, zeroed_memory(of[StepBuffer::attended_scales], scales));
    ASSIGN_OR_RETURN(activated_scales, zeroed_memory(of[StepBuffer::activated_scales], scales));
    ASSIGN_OR_RETURN(taken, zeroed_memory(of[StepBuffer::taken], what));
    ASSIGN_OR_RETURN(expanded, zeroed_memory(of[StepBuffer::expanded], "expanded weights"));
    logits.at = of_logits;
    if (of_logits == nullptr) {
        ASSIGN_OR_RETURN(logits.own, zeroed_memory(of[StepBuffer::logits], "logits"));
        logits.at = logits.own.data();
        ASSIGN_OR_RETURN(others_logits, zeroed_memory(of[StepBuffer::others_logits], "logits"));
    }
    ASSIGN_OR_RETURN(all_logits, zeroed_memory(of[StepBuffer::all_logits], "logits"));
    static_assert(sizeof(SampleResult) == sample_bytes);
    ASSIGN_OR_RETURN(samples, zeroed_memory(of[StepBuffer::samples], "samples"));
    logits_rows = of.logits_rows;
    return {};
}

Result<bool> Activations::reserve_samples(int64_t rows, cudaStream_t stream) {
    const auto bytes = rows * static_cast<int64_t>(sizeof(SampleResult));
    if (samples.bytes() >= bytes) return false;
    ASSIGN_OR_RETURN(DeviceMemory larger, DeviceMemory::create(2 * bytes, "samples"));
    if (samples.bytes() > 0) { // the batch before may be fed from it
        RETURN_IF_CUDA(cudaMemcpyAsync(larger.data(), samples.data(),
                                       static_cast<size_t>(samples.bytes()),
                                       cudaMemcpyDeviceToDevice, stream));
    }
    RETURN_IF_CUDA(cudaStreamSynchronize(stream));
    samples = std::move(larger);
    return true;
}

} // namespace batchllm::cuda
