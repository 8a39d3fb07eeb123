#include "runtime/head_cost.h"

#include "backend/sim/step_cost.h"

namespace batchllm {
namespace {

// How much faster products are in fp8; merges are not (docs/performance.md).
constexpr double fp8_speed = 1.45;

// Two cores with AVX-512 and BF16. merge_ns follows from the point at which heads broke even with a
// small model there (docs/lab/engine.md). On processors with slower products, merges are slower
// too.
DeviceCosts processor() {
    DeviceCosts costs;
    costs.step_tokens = 512;
    costs.products = {{512, 4.9e11}};
    costs.memory_bandwidth = 2.9e10;
    costs.attention_flops = 3.1e11;
    costs.attention_bandwidth = 3.7e10;
    costs.merge_ns = 60;
    return costs;
}

} // namespace

double head_cost_on(const BackendInfo &backend, const Model &model) {
    if (model.state_size() > 0) return 0; // what states cost at heads has not been measured
    if (backend.name == "cpu") return head_cost(StepCost(processor(), model));
    if (backend.name != "cuda" || backend.reproducible) return 0;
    Result<DeviceCosts> gpu = named_device_costs("h200");
    if (!gpu.ok()) return 0;
    const bool in_fp8 = backend.compute_type.find("fp8") != std::string::npos;
    return (in_fp8 ? fp8_speed : 1) * head_cost(StepCost(std::move(gpu).value(), model));
}

} // namespace batchllm
