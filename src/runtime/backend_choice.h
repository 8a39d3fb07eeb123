// The backend's name -> a backend for each device, with the model that they ask for.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"
#include "runtime/options.h"

namespace batchllm {

struct LoadedModel {
    std::unique_ptr<Model> model;                   // null for sim: it has no use for weights
    std::unique_ptr<ModelConfig> config;            // null for sim without a model directory
    std::vector<std::unique_ptr<Backend>> backends; // [EngineOptions::devices]; borrow the model
};

// auto: cuda where its library and the devices are found, else cpu.
Result<LoadedModel> load_model_and_backend(const EngineOptions &options);

} // namespace batchllm
