// The backend option tensor_parallel=auto: the smallest number of devices on which a model fits and leaves room.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backend/backend.h"
#include "base/dtype.h"
#include "model/model.h"

namespace batchllm {

struct RankChoice {
    int32_t ranks = 1;
    std::string reason; // for the log
};

// Room is left by keys, values and states of so many rows of so many positions: as few as keep steps wide.
inline constexpr int64_t roomy_rows = 128, roomy_positions = 1024;
int64_t roomy_bytes(const Model &part, DType kept);

// How many GPUs can work as one for what is asked, whatever fits; why: what more than those cannot do.
struct MostRanks {
    int32_t ranks;
    const char *why = "";
};
MostRanks most_gpu_ranks(bool reproducible);

// What keys, values and states get of the bytes that weights and buffers leave on a GPU; below 0: what the options ask for
// does not fit. default_fraction: where they have none. beside_adapters: what adapters take beside their memory.
int64_t pool_share(const BackendOptions &options, int64_t left, double default_fraction,
                   int64_t beside_adapters = 0);

// devices: how many there are to choose from, in engines of equally many. bytes_left: of a device, for keys, values and
// states, beside its part and all else; negative: the part does not fit. kept: the type of keys and values. If none
// leaves room, the one that leaves most for each part.
Result<RankChoice>
choose_ranks(const Model &model, int32_t devices, const MostRanks &most, DType kept,
             const std::function<Result<int64_t>(const Model &part)> &bytes_left);

} // namespace batchllm
