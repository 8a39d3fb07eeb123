// What the parts of a step cost on a device: either measured once on the device and stored in a
// file, or a built-in description with a name. StepCost (step_cost.h) turns the numbers into
// seconds.
//
// A file is JSON with exactly these keys; kv_fraction, gated_tokens, those of experts, of fp8 and
// of exchange may be absent. The format number defines what the figures mean and how they were obtained; files with
// another format are rejected:
//
//     {"format": 4, "name": "NVIDIA H200", "gpu": true, "memory_bytes": 150754820096, "kv_fraction": 0.9, "page_tokens": 64, "step_tokens": 16384,
//      "batches_in_flight": 2, "products": [[32, 7.1e13], [128, 2.7e14], ...], "product_us": 2, "memory_bandwidth": 3e12,
//      "attention_flops": 5.2e14, "attention_bandwidth": 4.4e12, "attention_overlap": 0.3,
//      "attention_us": 20, "merge_ns": 1.4, "step_us": 60, "host_us": 335, "host_token_us": 0.18,
//      "experts": [[16, 6.4e13], ...], "routing_us": 20, "routing_ns": 0.3, "expert_step_tokens": 8192,
//      "gated_tokens": 1024, "fp8_products": [[256, 8e14], ...], "fp8_experts": [[64, 4e14], ...], "exchange_us": 9,
//      "link_bandwidth": 3.05e11}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/state_memory.h"
#include "base/status.h"

namespace batchllm {

// Increase it when the meaning or the derivation of the figures changes.
inline constexpr int64_t device_costs_format = 4;

// For elements of two bytes.
struct DeviceCosts {
    // A product of `rows` rows with a matrix, without its launch.
    struct Product {
        double rows = 0;
        double flops = 0; // per second: 2 * rows * matrix elements / seconds
    };

    std::string name; // for display
    bool gpu = false;
    int64_t memory_bytes = 0;             // of the device
    double kv_fraction = gpu_kv_fraction; // of the memory that weights leave, unless an option sets
                                          // it
    int32_t page_tokens = 0;              // of the backend
    int64_t step_tokens = 0;
    int32_t batches_in_flight = 1;
    std::vector<Product> products;  // by increasing rows; seconds are interpolated linearly
    double product_us = 0;          // per launch
    double memory_bandwidth = 0;    // bytes per second, for norms, activations and the like
    double attention_flops = 0;     // per second, for many queries on the same keys
    double attention_bandwidth = 0; // bytes per second, for keys and values that only one query
                                    // reads
    double attention_overlap = 0;   // the larger of the two times hides this share of the smaller
    double attention_us = 0;        // per launch
    double merge_ns = 0; // per query and head with keys read separately, if four heads share keys
    double step_us = 0;  // per step on the device, whatever is in it
    double host_us = 0;  // per step on the host, hidden if steps overlap
    double host_token_us = 0; // per token of a step, on the host
    // For the experts of a layer: rows per expert, and flops per second of all experts. Empty: each
    // expert takes as long as a product of its rows, and all are one launch.
    std::vector<Product> experts;
    double routing_us = 0; // per layer with experts: choosing them and sorting tokens by expert
    double routing_ns = 0; // the same, per token and chosen expert
    int64_t expert_step_tokens = 0; // for models with experts; 0: step_tokens
    // The same in e4m3, of weights and inputs. Empty: the device has no such products, or they are not known.
    std::vector<Product> fp8_products, fp8_experts;
    // In steps of at least this many tokens, a feed-forward's activation is part of the product of
    // gate and up, so its bytes are not moved; 0: in no step.
    int64_t gated_tokens = 0;
    // Between the devices of one engine (tensor_parallel). A sum over n devices takes exchange_us, and the time in which
    // each sends 2 (n - 1) / n times the bytes of its own part of the sum; of 2 devices in steps of owned_tokens or more
    // half of that, since products send the rest (docs/lab/tensor-parallel.md). 0 bytes per second: not known.
    double exchange_us = 0;
    double link_bandwidth = 0;

    static constexpr double owned_tokens = 1024;

    // For a model with experts (sparse) or without, unless an option sets it.
    int64_t tokens_of_step(bool sparse) const {
        return sparse && expert_step_tokens > 0 ? expert_step_tokens : step_tokens;
    }
};

// The names of the built-in descriptions: "h200, h100".
std::string device_names();
// A built-in description. The error for an unknown name lists those that exist.
Result<DeviceCosts> named_device_costs(std::string_view name);
// The same, or a file: a name with a slash or ending in ".json" is a path.
Result<DeviceCosts> find_device_costs(const std::string &name);

// Of a device that computes: the built-in description of its name, or else one that is derived from an H200's by the
// device's rates (those that are unknown are the H200's), or that of a processor.
DeviceCosts costs_of_device(const ComputeDevice &device);

// An H200's rates of experts and of products in fp8 -> those of a device whose products are so many times as fast, and whose
// memory is: experts with few rows take as long as reading their weights.
void scale_unmeasured(double products, double memory, DeviceCosts *costs);

Result<DeviceCosts> parse_device_costs(std::string text, const std::string &file);
std::string device_costs_text(const DeviceCosts &costs);

} // namespace batchllm
