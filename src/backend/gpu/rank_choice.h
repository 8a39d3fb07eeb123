// The backend option tensor_parallel=auto: the smallest number of devices on which a model fits and leaves room.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

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

// devices: how many there are to choose from, in engines of equally many. bytes_left: of a device, for keys, values and
// states, beside its part and all else; negative: the part does not fit. kept: the type of keys and values. If none
// leaves room, the one that leaves most for each part.
Result<RankChoice>
choose_ranks(const Model &model, int32_t devices, DType kept,
             const std::function<Result<int64_t>(const Model &part)> &bytes_left);

} // namespace batchllm
