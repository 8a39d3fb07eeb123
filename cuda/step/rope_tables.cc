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
        tables_.push_back(std::move(table));
    }
    return {};
}

Status RopeTables::launch(const Model &model, const int32_t *positions, int32_t tokens,
                          cudaStream_t stream) const {
    for (size_t i = 0; i < tables_.size(); ++i) {
        RETURN_IF_CUDA(launch_rope_table(positions, tables_[i].frequencies.as<float>(), tokens,
                                         model.ropes[i].dims() / 2, model.ropes[i].scale,
                                         tables_[i].angles.as<float2>(), stream));
    }
    return {};
}

} // namespace batchllm::cuda
