// The least time that a job could take: its tokens in the linear layers at the best rate measured in this
// run, attention's flops at 600 TFLOP/s, and at 4.5 TB/s the keys and values, in the type that they are kept in, that
// decoding must read (a prefix once a step) and the states of delta nets, which every node of a batch with tokens reads and writes once.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "cuda_backend.h"
#include "model/model.h"

namespace batchllm {

// What a batch's attention, and its delta nets, must do at least.
struct AttentionFloor {
    double flops = 0, bytes = 0;
    double state_bytes = 0; // read and written

    AttentionFloor() = default;
    // key_bytes: of an element of keys and values.
    AttentionFloor(const Model &model, int32_t key_bytes);
    void add(const TokenBatch &batch);
    double state_seconds() const { return state_bytes / 4.5e12; }
    double seconds() const { return flops / 600e12 + bytes / 4.5e12 + state_seconds(); }

  private:
    // All layers with one window (0: none).
    struct Layers {
        int32_t window = 0;
        double pair = 0; // flops of a query and a key
        double key = 0;  // bytes of a key and its value
    };
    void add(const TokenBatch &batch, const Layers &layers);

    std::vector<Layers> layers_;
    double of_state_ = 0;       // bytes of a node's, S alone
    std::vector<int32_t> read_; // [nodes] keys that some token reads
};

// The linear layers' rate, at the number of tokens a step where it is highest.
struct LinearRate {
    double tokens_a_second = 0;
    int64_t tokens = 0;
};

// Of `all` tokens, `sampled` want logits. print: what each number of tokens takes.
Result<LinearRate> best_linear_rate(cuda::CudaBackend *backend, int64_t sampled, int64_t all,
                                    bool print);

} // namespace batchllm
