// backend_options of "sim" -> numbers. Every key is optional; an unknown key or a value out of
// range is an error that names it.
//
//   key                 default        meaning
//   page_tokens         16             KV slots a page
//   pages               by memory      KV pages; else kv_memory_bytes (or 64 GiB, or what `device` has left) less the
//                                        states' / page_bytes
//   state_slots         by memory      slots for states, in a model whose layers have states
//   state_type          f32            type of their matrices; or bf16
//   kv_type             auto           two bytes an element of keys and values; or fp8: one
//   quantize            stored         with `device`: which matrices are in e4m3 there (scaled_fit.h)
//   vocabulary          the model's    ids are drawn from [0, vocabulary)
//   eos_token           the model's    id that ends a row; -1: none, every row runs to max_tokens
//   min_length          1              with max_length: a row's output length, the EOS included, is
//   max_length          0 (none)         uniform in [min_length, max_length]
//   mean_length         0 (none)       or exponential with this mean, at least min_length
//   tokens_per_second   40000          rate of the linear layers when there are many tokens
//   step_floor_us       4000           least time of the linear layers: reading the weights
//   kv_bandwidth        4e12           bytes a second at which attention reads keys and values
//   step_overhead_us    0              added to each batch, whatever is in it
//   host_us             0              the host's time between two batches
//   overlap             0              1: two batches in flight, the second with tokens that the first
//                                        samples
//   device              none           a description of a device (device_costs.h): "h200", "h100", or a file's
//                                        path. StepCost then gives the seconds, the host's too, from the
//                                        model's shape; pages, page_tokens and the tokens of a step are as on
//                                        that device, unless given. Not with tokens_per_second, step_floor_us,
//                                        kv_bandwidth, step_overhead_us or host_us; needs a model
//   common_prefix_cost           the device's   what a common prefix costs (PlanOptions::common_prefix_cost); 0: not known
//   fails_after         -1 (never)     the device fails once it has computed this many batches
//   failing_device      -1 (each)      only this one of the devices fails
//   tensor_parallel     1              so many devices compute parts of the model (model/parts.h): memory, and the
//                                        seconds of a described `device`, are those of one of them
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/rank_choice.h"
#include "backend/sim/device_memory.h"
#include "backend/sim/step_cost.h"
#include "backend/state_memory.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm {

struct SimOptions {
    int32_t page_tokens = 16;
    int64_t step_tokens = 2048; // unless the engine's options set it
    int64_t pages = 0;
    int32_t vocabulary = 128256;
    int32_t hidden = 64;
    bool pictures = false; // the model reads them
    int32_t eos_token = -1;
    int64_t min_length = 1;
    int64_t max_length = 0;
    double mean_length = 0;
    double tokens_per_second = 40000;
    double step_floor_us = 4000;
    double kv_bandwidth = 4e12;
    double step_overhead_us = 0;
    double host_us = 0;
    int32_t overlap = 0;
    double common_prefix_cost = 0;
    int64_t fails_after = -1;
    int32_t failing_device = -1;
    // From the model's shape: keys and values of one token.
    struct GroupShape {
        int32_t window = 0;
        int64_t token_bytes = 0;
    };
    std::vector<GroupShape> kv_groups;
    int32_t ranks = 1;                           // what follows, and kv_groups, is of one of them
    std::optional<StepCost> costs;               // of `device`
    std::optional<AdapterCosts> adapter_costs;   // on `device`
    WeightBytes weights;                         // on `device`
    int64_t slot_bytes = 0;                      // that a page has for it: the groups' most
    int64_t kv_memory_bytes = int64_t{64} << 30; // where options do not say
    StateOptions states;
    int64_t state_bytes = 0; // of a state slot; 0: the model has none
};

// For tensor_parallel=auto. devices: none: as many as it takes.
Result<RankChoice> choose_sim_ranks(const Model *model, const BackendOptions &options,
                                    const std::vector<int32_t> &devices,
                                    std::optional<DeviceCosts> device = {});

// model may be null: the shape of Llama-3-8B. device: what the option of that name would name.
Result<SimOptions> read_sim_options(const Model *model, const BackendOptions &options,
                                    std::optional<DeviceCosts> device = std::nullopt);

} // namespace batchllm
