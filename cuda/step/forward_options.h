// With what a step is computed: types, kernels, and what is tuned or measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/gpu/step_buffers.h"
#include "experts/grouped.h"
#include "model/model.h"
#include "ranks/rank_group.h"
#include "step/attention.h"
#include "step/weights.h"

namespace batchllm::cuda {

// A rank's rows of the head.
struct HeadPart {
    int64_t begin, rows, padded; // padded: head_rows()
};

struct ForwardOptions {
    DType element = DType::bf16;
    DType residual = DType::bf16; // element's type or f32
    DType state = DType::f32;     // of layers with a state; or bf16
    bool kv_e4m3 = false;         // keys and values in their pages
    int64_t step_tokens = 0;
    bool tune = true;
    // So many steps of a range of rows take cuBLASLt's first choices before others are timed. Timing takes about
    // half as long as one of the range's steps and saves at most some 2 % of those that follow. 0: timed as they come.
    int64_t untimed_steps = 64;
    std::string tuning_cache; // a path; none; "": the default
    std::string device;       // its name
    AttentionOptions attention;
    GroupedKernel experts = GroupedKernel::sm80;
    bool graphs = true;
    bool random_weights = false;
    bool skewed_routing = false; // of random weights
    bool profile = false;
    DeviceRank rank = {};             // of a part of a model
    std::vector<HeadPart> head_parts; // [ranks]
    bool peer_sums = true;            // where devices can read each other's memory (ranks/peers.h)
    int64_t owned_rows = 1024;        // from so many tokens in a step on, each rank owns some rows
    bool reproducible = false;        // a token's results are the same bits in any step
    Quantize quantize = Quantize::stored;
    bool fast_accumulation = false; // of products in e4m3
    // Without tuning, from so many rows on, products with matrices in four bits expand them (docs/lab/four-bits.md).
    int64_t expanded_rows = 2048;
    // The same, rounded to e4m3 just before, if they may be.
    int64_t rounded_rows = 512;
    // With quantize=fp8 integers stay in four bits if the model in eight would take more than this part of the device's
    // memory; else they are rounded at load, which many rows are multiplied faster with.
    double most_in_e4m3 = 0.5;
    int64_t merge_after = 4096; // tokens of one adapter (StepAdapters::set_merging); 0: never
    bool pictures = true;       // where the model has a tower
    bool gated_product = true;  // gate and up in one launch with the activation, where there is one
    uint64_t seed = 0;
    int32_t threads = 0;

    DType kv_type() const { return kv_e4m3 ? DType::e4m3 : element; }
    // Of what a product multiplies.
    DType input_type(Scaling scaling) const {
        return scaling == Scaling::none ? element : DType::e4m3;
    }
    // In steps of least_gated_tokens or more, of the layers that takes_gated() allows.
    bool has_gated_products() const {
        return gated_product && experts == GroupedKernel::sm90 && !reproducible &&
               element != DType::f32;
    }
};

// What buffers depend on, but for matrices in e4m3.
StepForm step_form(const Model &model, const ForwardOptions &options);
// How weights are loaded on a device of so much memory; without LoadOptions::takes.
LoadOptions load_options(const Model &model, const ForwardOptions &options, size_t memory_bytes);

} // namespace batchllm::cuda
