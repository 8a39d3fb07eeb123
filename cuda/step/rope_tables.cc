#include "step/rope_tables.h"

#include <utility>

#include "elementwise/rope.h"

namespace batchllm::cuda {

Status RopeTables::allocate(const Model &model, int64_t rows) {
    for (const Rope &rope : model.ropes) {
        Table table;
        const auto half = static_cast<int64_t>(rope.frequencies.size());
        ASSIGN_OR_RETURN(table.frequencies, zeroed_memory(half * 4, "rope frequencies"));
        ASSIGN_OR_RETURN(table.angles, zeroed_memory(rows * half * 8, "rope angles"));
        RETURN_IF_CUDA(cudaMemcpy(table.frequencies.data(), rope.frequencies.data(),
                                  rope.frequencies.size() * sizeof(float), cudaMemcpyHostToDevice));
        if (!rope.axes.empty()) {
            has_axes_ = true;
            ASSIGN_OR_RETURN(table.axes, DeviceMemory::create(half, "rope axes"));
            RETURN_IF_CUDA(cudaMemcpy(table.axes.data(), rope.axes.data(), rope.axes.size(),
                                      cudaMemcpyHostToDevice));
        }
        tables_.push_back(std::move(table));
    }
    return {};
}

Status RopeTables::stage(const TokenBatch &batch, int64_t tokens, StepInput *input,
                         Staging *staging) const {
    if (!has_axes_) return {};
    ASSIGN_OR_RETURN(RopePosition * to,
                     input->stage_room<RopePosition>(kRopePositions, tokens, staging));
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
        if (t < batch.rope_positions.size()) {
            to[t] = batch.rope_positions[t];
        } else {
            const int32_t position = t < batch.positions.size() ? batch.positions[t] : 0;
            to[t] = {position, position, position};
        }
    }
    return {};
}

Status RopeTables::launch(const Model &model, const StepInput &input, int32_t tokens,
                          cudaStream_t stream) const {
    for (size_t i = 0; i < tables_.size(); ++i) {
        const Table &table = tables_[i];
        const StepSection positions = table.axes ? kRopePositions : kPositions;
        RETURN_IF_CUDA(
            launch_rope_table(input.at<int32_t>(positions), table.frequencies.as<float>(), tokens,
                              model.ropes[i].dims() / 2, model.ropes[i].scale,
                              table.angles.as<float2>(), stream, table.axes.as<uint8_t>()));
    }
    return {};
}

} // namespace batchllm::cuda
