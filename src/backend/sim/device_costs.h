// What the parts of a step cost on a device: measured once on the device and kept in a file, or one of the
// descriptions that the library knows by name. StepCost (step_cost.h) turns the numbers into seconds.
//
// A file is JSON, with every key, and no other; kv_fraction, gated_tokens and those of experts may be absent. Its
// format says what the figures mean and how they were found; files of another one are refused:
//
//     {"format": 2, "name": "NVIDIA H200", "memory_bytes": 150754820096, "kv_fraction": 0.9, "page_tokens": 64, "step_tokens": 16384,
//      "batches_in_flight": 2, "products": [[32, 7.1e13], [128, 2.7e14], ...], "product_us": 2, "memory_bandwidth": 3e12,
//      "attention_flops": 5.2e14, "attention_bandwidth": 4.4e12, "attention_overlap": 0.3,
//      "attention_us": 20, "merge_ns": 1.4, "step_us": 60, "host_us": 335, "host_token_us": 0.18,
//      "experts": [[16, 6.4e13], ...], "routing_us": 20, "routing_ns": 0.3, "expert_step_tokens": 8192,
//      "gated_tokens": 1024}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/state_memory.h"
#include "base/status.h"

namespace batchllm {

// 1, and without the key: steps took 2 GiB of memory_bytes, whatever they were, and some figures that are not measured
// were older ones of an H200. To be counted up whenever either changes.
inline constexpr int64_t device_costs_format = 2;

// Of elements of two bytes.
struct DeviceCosts {
    // A product of `rows` rows with a matrix, without the time of its launch.
    struct Product {
        double rows = 0;
        double flops = 0; // a second: 2 * rows * matrix elements / seconds
    };

    std::string name;                     // for display
    int64_t memory_bytes = 0;             // of the device
    double kv_fraction = gpu_kv_fraction; // of what weights leave, unless an option sets it
    int32_t page_tokens = 0;              // of the backend
    int64_t step_tokens = 0;
    int32_t batches_in_flight = 1;
    std::vector<Product> products;  // by rising rows; seconds are interpolated linearly
    double product_us = 0;          // of each launch
    double memory_bandwidth = 0;    // bytes a second of norms, activations and the like
    double attention_flops = 0;     // a second, of many queries on the same keys
    double attention_bandwidth = 0; // bytes a second of keys and values that one query reads
    double attention_overlap = 0;   // share of the smaller of the two times that the larger hides
    double attention_us = 0;        // of each launch
    double merge_ns = 0; // per query and head whose keys are read apart, if four heads share keys
    double step_us = 0;  // of each step on the device, whatever is in it
    double host_us = 0;  // of each step on the host, hidden where steps overlap
    double host_token_us = 0; // of each token of a step on the host
    // Of a layer's experts: rows per expert, and flops a second of all experts. Empty: each expert takes as long
    // as a product of its rows; all are one launch.
    std::vector<Product> experts;
    double routing_us = 0; // of each layer with experts: choosing them, sorting tokens by them
    double routing_ns = 0; // the same, of a token and each of its experts
    int64_t expert_step_tokens = 0; // of models with experts; 0: step_tokens
    // In steps of this many tokens or more, a feed-forward's activation is part of the product of gate and up, so
    // that its bytes are not moved; 0: in no step.
    int64_t gated_tokens = 0;

    bool on_gpu() const { return batches_in_flight > 1; }
    // For a model with or without experts, unless an option sets it.
    int64_t tokens_of_step(bool sparse) const {
        return sparse && expert_step_tokens > 0 ? expert_step_tokens : step_tokens;
    }
};

// A built-in description: "h200". An error names those that there are.
Result<DeviceCosts> named_device_costs(std::string_view name);
// The same, or a file: a name with a slash or with the ending ".json" is a path.
Result<DeviceCosts> find_device_costs(const std::string &name);

Result<DeviceCosts> parse_device_costs(std::string text, const std::string &file);
std::string device_costs_text(const DeviceCosts &costs);

} // namespace batchllm
