// The backend's name -> a backend, with the model that it asks for.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "model/model.h"
#include "runtime/options.h"

namespace batchllm {

struct LoadedModel {
    std::unique_ptr<Model> model;        // null for sim: it has no use for weights
    std::unique_ptr<ModelConfig> config; // null for sim without a model directory
    std::unique_ptr<Backend> backend;    // borrows the model
};

// auto: cuda where its library and a device are found, else cpu.
Result<LoadedModel> load_model_and_backend(const EngineOptions &options);

} // namespace batchllm
