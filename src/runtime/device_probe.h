// A backend on a device -> how long the parts of a step take on the device (device_costs.h), measured
// with a few dozen batches of a model of random weights. This takes a few seconds on a GPU.
//
// Each device is measured once. The result is kept in the user's cache, beside the tuning of products,
// as "costs-BACKEND-DEVICE-TYPE.json", and used from then on. If the file cannot be read, or is of another
// format, the device is measured again; if it cannot be written, the result is not kept. Delete it to measure
// again.
#pragma once

#include <string>

#include "backend/sim/device_costs.h"
#include "runtime/options.h"

namespace batchllm {

struct ProbedDevice {
    DeviceCosts costs;
    bool kept = false; // read from the cache
};

// Measures options.backend ("auto": cuda if there is one, else cpu) on the first of options.devices.
Result<ProbedDevice> probe_device(const EngineOptions &options);

// The costs that probe_device finds. This process remembers them, because while an engine runs, its device
// has no memory left for another backend.
Result<DeviceCosts> costs_here(const EngineOptions &options);

// The measurement itself, on a backend for probe_model(). It does not matter what the pages hold.
Result<DeviceCosts> measure_device(Backend *backend, const Model &model);

// Four layers of Llama 3 8B's shape, or for a CPU two of a tenth of it, all with weights from one random matrix.
struct ProbeModel {
    Model model;
    std::vector<uint16_t> values;
};
Result<std::unique_ptr<ProbeModel>> probe_model(bool cpu);

} // namespace batchllm
