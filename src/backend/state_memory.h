// The size of a pool's memory, its division between states and KV pages, and the options for
// states.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm {

// The share of the free memory that a pool takes if the options do not set it. A GPU runs one job;
// a computer also runs other programs.
constexpr double gpu_kv_fraction = 0.9;
constexpr double cpu_kv_fraction = 0.4;

struct MemoryNeeds {
    int64_t slot_bytes = 0;  // per state; 0: the model has no state
    int64_t token_bytes = 0; // keys and values of one token
    int64_t step_tokens = 0;
};

struct MemoryShares {
    int64_t state_slots = 0;
    int64_t bytes_left = 0; // for keys and values
};

// slots: how many; 0: a default. By default, for each slot the memory of a request with a few
// hundred own tokens is left for pages, but slots get at least a sixteenth of the memory. There are
// at most twice as many slots as tokens in a step, because more requests than that never run. Fails
// if the memory is not enough for the slots, or for one.
Result<MemoryShares> share_memory(int64_t bytes, const MemoryNeeds &needs, int64_t slots);

struct StateOptions {
    int64_t slots = 0;       // 0: depends on the memory
    DType type = DType::f32; // how S of linear attention is stored between steps; or bf16
};

// Reads the backend options state_slots=VALUE and state_type=VALUE; false: the key is neither.
// Either is an error for a model without states; state_type=bf16 is also one if the states have no
// matrices, as with short convolutions. model: may be null.
Result<bool> read_state_option(const std::string &key, const std::string &value, const Model *model,
                               StateOptions *out);

// For BackendInfo::compute_type: "", or ", states in bf16".
std::string name_of_states(const StateOptions &options);

// Rejects states in bf16: they are rounded at the end of each step, so a row's bits would depend on
// where steps end.
Status check_reproducible(const StateOptions &options);

} // namespace batchllm
