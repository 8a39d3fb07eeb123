// A backend on a device -> how long the parts of a step take there (device_costs.h), measured with
// a few dozen batches of a model with random weights. This takes a few seconds on a GPU.
//
// Each device is measured once. The result is cached in the user's cache directory, beside the GEMM
// tuning, as "costs-BACKEND-DEVICE-TYPE.json". If the file cannot be read or has another format,
// the device is measured again. If it cannot be written, the result is not cached. Delete the file
// to force a new measurement.
#pragma once

#include <string>

#include "backend/sim/device_costs.h"
#include "runtime/options.h"

namespace batchllm {

struct ProbedDevice {
    DeviceCosts costs;
    bool kept = false; // it comes from the cache
};

// Measures options.backend ("auto": cuda if available, else cpu) on the first of options.devices.
Result<ProbedDevice> probe_device(const EngineOptions &options);

// The costs that probe_device finds. They are kept for the life of the process, because while an
// engine runs, its device has no memory left for another backend.
Result<DeviceCosts> costs_here(const EngineOptions &options);

// The measurement itself, on a backend for probe_model(). The contents of the pages do not matter.
Result<DeviceCosts> measure_device(Backend *backend, const Model &model);

// Four layers of Llama 3 8B's shape or, for a CPU, two layers of a tenth of that size. All weights
// come from one random matrix.
struct ProbeModel {
    Model model;
    std::vector<uint16_t> values;
};
Result<std::unique_ptr<ProbeModel>> probe_model(bool cpu);

} // namespace batchllm
