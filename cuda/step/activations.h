// What a step writes on the way from tokens to samples, each as wide as the widest layer needs. Rows beyond a batch are
// computed too, from whatever is here.
#pragma once

#include "backend/gpu/step_buffers.h"
#include "device/device.h"
#include "sampling/sampling.h"

namespace batchllm::cuda {

struct Activations {
    // Memory of its own, or that other ranks can access.
    struct Room {
        DeviceMemory own;
        std::byte *at = nullptr;

        std::byte *data() const { return at; }
        template <typename T> T *as() const { return reinterpret_cast<T *>(at); }
    };
    Room residual;     // [rows, hidden] of the residual's type
    Room normed;       // [rows, hidden] elements
    Room normed_whole; // the same for routers, where normed is in e4m3 for their experts
    Room normed_scales;
    DeviceMemory last;     // [rows, hidden] of the residual's type, of the wanted tokens
    DeviceMemory qkv;      // [rows, qkv.rows], then attended rows in e4m3
    DeviceMemory attended; // [rows, o.columns]
    DeviceMemory latent_normed, latent_of_down, latent_queries, latent_made; // as StepBuffer's
    DeviceMemory
        delta; // [rows, hidden] of the residual's type, where norms stand after a sublayer;
               // twice where ranks add up two at the same time
    DeviceMemory gate_up;   // [rows, 2 width], or without a gate [rows, width]
    DeviceMemory activated; // [rows, width]
    // Scales of what is in e4m3 of these: [rows], or [width / kScaleBlock, rows], or for experts
    // [rows, width / kScaleBlock]. So are normed_scales.
    DeviceMemory attended_scales, activated_scales;
    DeviceMemory expanded; // of a matrix in four bits, elements
    DeviceMemory
        taken; // [rows, columns of a matrix in four bits] elements, in the order of its columns
    DeviceMemory layer_inputs; // [rows, layers * LayerInputs::width]
    Room logits; // [logits_rows, padded vocabulary] f32; that of ranks the others read
    DeviceMemory all_logits, others_logits; // as StepBuffer's
    DeviceMemory samples; // [logits rows] SampleResult, which the next batch's fed tokens read
    int64_t logits_rows = 0;

    std::byte *second_delta() const { return delta.data() + delta.bytes() / 2; }

    // shared, of_logits: null, or shared_bytes() and room for logits that other ranks can access.
    Status allocate(const StepBuffers &of, std::byte *shared, std::byte *of_logits);
    static int64_t shared_bytes(const StepBuffers &of);
    // Room for so many samples. True: they have moved, and the stream was waited for.
    Result<bool> reserve_samples(int64_t rows, cudaStream_t stream);
};

} // namespace batchllm::cuda
