// The backend's name -> a backend for each device, and the model that they need.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "model/model.h"
#include "runtime/options.h"

namespace batchllm {

struct LoadedModel {
    // For sim the description alone, without weights; null for sim without a directory.
    std::unique_ptr<Model> model;
    std::vector<std::unique_ptr<Backend>> backends; // [EngineOptions::devices]; borrow the model
    double head_cost = 0;                           // head_cost_on(), or a described device's
};

// Fails if they are not the devices that the cpu backend has.
Status check_cpu_devices(const EngineOptions &options);

// auto: cuda if its library and the devices are found, else cpu.
Result<LoadedModel> load_model_and_backend(const EngineOptions &options);

} // namespace batchllm
