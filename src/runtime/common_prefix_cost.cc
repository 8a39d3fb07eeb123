#include "runtime/common_prefix_cost.h"

#include "backend/sim/step_cost.h"

namespace batchllm {

double common_prefix_cost_on(const BackendInfo &backend, const Model &model) {
    if (model.state_size() > 0)
        return 0; // what states cost at common prefixes has not been measured
    const ComputeDevice &device = backend.computes_on;
    if (device.kind == DeviceKind::none) return 0;
    if (device.kind == DeviceKind::gpu && backend.reproducible) return 0;
    return common_prefix_cost(costs_of_device(device), model, backend.products_in_fp8);
}

} // namespace batchllm
