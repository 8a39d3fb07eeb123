// The angles of a step's positions, for each rope of the model.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "backend/backend.h"
#include "device/device.h"
#include "model/model.h"
#include "step/input.h"

namespace batchllm::cuda {

class RopeTables {
  public:
    // rows: of the largest step.
    Status allocate(const Model &model, int64_t rows);

    // Host: adds the positions on all axes, where some rope of the model has more than one. tokens: rounded up.
    Status stage(const TokenBatch &batch, int64_t tokens, StepInput *input, Staging *staging) const;
    // Device: the angles of the staged positions, kPositions or those.
    Status launch(const Model &model, const StepInput &input, int32_t tokens,
                  cudaStream_t stream) const;

    // [rows, dims / 2] cos, sin
    const float2 *angles(int32_t rope) const {
        return tables_[static_cast<size_t>(rope)].angles.as<float2>();
    }

  private:
    struct Table {
        DeviceMemory frequencies; // [dims / 2] f32
        DeviceMemory axes;        // [dims / 2] uint8_t, or none
        DeviceMemory angles;      // [rows, dims / 2] cos, sin
    };
    std::vector<Table> tables_; // as Model::ropes
    bool has_axes_ = false;
};

} // namespace batchllm::cuda
