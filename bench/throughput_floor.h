// The floor of a job: the least time that it could take, the sum of
// - its tokens in the linear layers, at the best rate of cuBLASLt's products in this run (throughput_linear.h);
// - attention's flops for the prompts' tokens at 600 TFLOP/s;
// - the keys and values that decoding reads, at the device's bandwidth (4.5 TB/s of an H200's 4.8; the
//   same share of another's) and in the type that they are stored in. All rows of a step that decode
//   after a prefix read it once;
// - the states of delta nets, read and written once per step by every node with tokens in it, at the
//   same rate.
//
// A prefix of many rows is bound by its arithmetic instead, since each row's query meets each key.
// With this arithmetic, the time to decode over a node in a step is the greater of its bytes at that
// bandwidth and its flops at 600 TFLOP/s. And a step with few tokens is bound by the weights, which it
// reads once; of experts, those that some token is expected to choose. Three forms are printed: without these, as in figures up to 2026-11-23, with the
// arithmetic, and with both.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"

namespace batchllm {

// The least work that the attention of batches, and their delta nets, must do.
struct AttentionFloor {
    double flops = 0;         // for the tokens of prompts
    double bytes = 0;         // read by decode tokens
    double decode_excess = 0; // seconds by which decode's flops take longer than its bytes
    double state_bytes = 0;   // read and written
    double bandwidth = 4.5e12;

    AttentionFloor() = default;
    // key_bytes: bytes of an element of keys and values. bandwidth: bytes a second.
    AttentionFloor(const Model &model, int32_t key_bytes, double bandwidth);
    void add(const TokenBatch &batch);
    double state_seconds() const { return state_bytes / bandwidth; }
    double seconds() const { return flops / kFlops + bytes / bandwidth + state_seconds(); }

  private:
    static constexpr double kFlops = 600e12;

    // All layers with the same window (0: none).
    struct Layers {
        int32_t window = 0;
        double pair = 0;        // flops of a query and a key
        double decode_pair = 0; // the same, of decode
        double key = 0;         // bytes of a key and its value
    };
    // The part of a node that decode tokens see.
    struct Seen {
        int32_t keys = 0;  // keys that some token sees
        int64_t pairs = 0; // keys that each token sees, summed over tokens
    };
    void add(const TokenBatch &batch, const Layers &layers);

    std::vector<Layers> layers_;
    double of_state_ = 0;    // bytes of a node's state, S only
    std::vector<Seen> seen_; // [nodes]
};

// The weights that a step must read.
class WeightsRead {
  public:
    // all_bytes: that all of the model's weights take.
    WeightsRead(const Model &model, int64_t all_bytes);
    double bytes(int64_t tokens) const;

  private:
    double always_ = 0, experts_ = 0; // bytes
    double chosen_ = 0;               // share of a layer's experts that a token chooses
};

} // namespace batchllm
