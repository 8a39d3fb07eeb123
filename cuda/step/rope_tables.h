// The angles of a step's positions, for each rope of the model.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "device/device.h"
#include "model/model.h"

namespace batchllm::cuda {

class RopeTables {
  public:
    // rows: of the largest step.
    Status allocate(const Model &model, int64_t rows);

    // Device: the angles of these positions, [tokens].
    Status launch(const Model &model, const int32_t *positions, int32_t tokens,
                  cudaStream_t stream) const;

    // [rows, dims / 2] cos, sin
    const float2 *angles(int32_t rope) const {
        return tables_[static_cast<size_t>(rope)].angles.as<float2>();
    }

  private:
    struct Table {
        DeviceMemory frequencies; // [dims / 2] f32
        DeviceMemory angles;      // [rows, dims / 2] cos, sin
    };
    std::vector<Table> tables_; // as Model::ropes
};

} // namespace batchllm::cuda
