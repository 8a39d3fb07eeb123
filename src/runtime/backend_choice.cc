#include "runtime/backend_choice.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>

#include "backend/sim/sim_backend.h"
#include "backend/tensor_parallel.h"
#include "runtime/common_prefix_cost.h"
#include "runtime/cuda_library.h"

namespace batchllm {
namespace {

using Backends = std::vector<std::unique_ptr<Backend>>;

Status need_model_dir(const EngineOptions &options) {
    if (!options.model_dir.empty()) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "model_dir is NULL or \"\": only backend \"sim\" runs without a model, not \"%s\"",
                 options.backend.c_str());
}

Result<LoadedModel> load_sim(const EngineOptions &asked) {
    LoadedModel loaded;
    if (!asked.model_dir.empty()) {
        ASSIGN_OR_RETURN(Model model, describe_model(asked.model_dir));
        loaded.model = std::make_unique<Model>(std::move(model));
    }
    EngineOptions options = asked;
    if (asked.tensor_parallel == 0) {
        ASSIGN_OR_RETURN(const RankChoice choice,
                         choose_sim_ranks(loaded.model.get(), asked.backend_options,
                                          asked.devices_to_choose_from()));
        options = take_ranks(asked, choice, &loaded);
    }
    for (size_t i = 0; i < options.first_devices().size(); ++i) {
        const BackendOptions own = options.of_backend(i);
        ASSIGN_OR_RETURN(const SimOptions read, read_sim_options(loaded.model.get(), own));
        if (read.costs && options.drafts == Drafts::where_they_pay)
            loaded.step_cost = std::make_shared<StepCost>(*read.costs);
        auto sim = std::make_unique<SimBackend>(read, own);
        loaded.common_prefix_cost = sim->common_prefix_cost();
        loaded.backends.push_back(std::move(sim));
    }
    return loaded;
}

// Loads the weights on all devices at the same time, but of several devices each one engine after another: what one
// allocates may wait for all devices of the process, and so for ranks of another that have begun an exchange without the
// rest, which wait for the allocation. Returns the error of the first device that failed, if any.
Result<Backends> make_cuda_backends(const Model &model, const EngineOptions &options) {
    const size_t count = options.first_devices().size();
    Backends backends(count);
    std::vector<Status> statuses(count);
    const auto make = [&](size_t i) {
        try {
            auto made = make_cuda_backend(model, options.of_backend(i));
            if (made.ok()) backends[i] = std::move(made).value();
            statuses[i] = made.status();
        } catch (const std::bad_alloc &) {
            statuses[i] = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
        } catch (const std::exception &fault) {
            statuses[i] = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
        }
    };
    if (options.tensor_parallel > 1) {
        for (size_t i = 0; i < count; ++i) {
            make(i);
            RETURN_IF_ERROR(statuses[i]);
        }
    } else {
        std::vector<std::jthread> others;
        others.reserve(count);
        for (size_t i = 1; i < count; ++i) {
            try {
                others.emplace_back(make, i);
            } catch (const std::system_error &) {
                make(i); // the system refuses to start a thread
            }
        }
        make(0);
    }
    for (const Status &status : statuses) RETURN_IF_ERROR(status);
    return backends;
}

Result<Backends> choose_and_make_cuda_backends(const EngineOptions &options, LoadedModel *loaded) {
    if (options.tensor_parallel > 0) return make_cuda_backends(*loaded->model, options);
    ASSIGN_OR_RETURN(const RankChoice choice,
                     choose_cuda_ranks(*loaded->model, options.backend_options,
                                       options.devices_to_choose_from()));
    return make_cuda_backends(*loaded->model, take_ranks(options, choice, loaded));
}

Result<LoadedModel> load_weights(const EngineOptions &options) {
    LoadedModel loaded;
    ASSIGN_OR_RETURN(loaded.model, load_model(options.model_dir));
    choose_frequencies(options.max_request_tokens > 0 ? options.max_request_tokens
                                                      : loaded.model->max_positions,
                       loaded.model.get());
    if (options.backend != "cpu") {
        auto cuda = choose_and_make_cuda_backends(options, &loaded);
        if (cuda.ok()) {
            loaded.backends = std::move(cuda).value();
            loaded.common_prefix_cost =
                common_prefix_cost_on(loaded.backends[0]->info(), *loaded.model);
            loaded.step_cost = step_cost_on(loaded.backends[0]->info(), *loaded.model, options);
            return loaded;
        }
        // auto: the CPU may be able to do what the device cannot, but a wrong option is an error on
        // both.
        if (options.backend == "cuda" || cuda.status().code() == BATCHLLM_ERROR_INVALID_ARGUMENT) {
            return std::move(cuda).status();
        }
        options.log(BATCHLLM_LOG_INFO, "backend auto: cpu, because: " + cuda.status().message());
    }
    const bool undecided = options.tensor_parallel == 0;
    if (undecided) loaded.ranks = 1;
    const EngineOptions own = undecided ? options.with_ranks(1) : options;
    RETURN_IF_ERROR(check_cpu_devices(own));
    ASSIGN_OR_RETURN(auto cpu, make_cpu_backend(*loaded.model, own.of_backend(0)));
    loaded.common_prefix_cost = common_prefix_cost_on(cpu->info(), *loaded.model);
    loaded.step_cost = step_cost_on(cpu->info(), *loaded.model, options);
    loaded.backends.push_back(std::move(cpu));
    return loaded;
}

} // namespace

EngineOptions take_ranks(const EngineOptions &options, const RankChoice &choice,
                         LoadedModel *loaded) {
    loaded->ranks = choice.ranks;
    options.log(BATCHLLM_LOG_INFO,
                "tensor_parallel auto: " + std::to_string(choice.ranks) + ": " + choice.reason);
    return options.with_ranks(choice.ranks);
}

std::shared_ptr<const StepCost> step_cost_on(const BackendInfo &backend, const Model &model,
                                             const EngineOptions &options) {
    const bool on_gpu = backend.computes_on.kind == DeviceKind::gpu;
    const bool wanted =
        options.drafts == Drafts::where_they_pay || (options.drafts == Drafts::on_gpu && on_gpu);
    if (!wanted) return nullptr;
    DeviceCosts costs = costs_of_device(backend.computes_on);
    costs.fp8_products.clear(); // drafts were measured with one factor for all products
    for (std::vector<DeviceCosts::Product> *rates : {&costs.products, &costs.experts}) {
        for (DeviceCosts::Product &product : *rates)
            product.flops *= backend.products_in_fp8 ? fp8_speed : 1;
    }
    const auto &extra = options.backend_options.extra;
    const bool kv_in_fp8 =
        std::find(extra.begin(), extra.end(),
                  std::pair<std::string, std::string>("kv_type", "fp8")) != extra.end();
    const CostTypes types{.kv_bytes = kv_in_fp8 ? 1 : 2};
    return std::make_shared<StepCost>(std::move(costs), model, types);
}

Status check_cpu_devices(const EngineOptions &options) {
    if (options.first_devices() == std::vector<int32_t>{0}) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "devices is \"%s\": the cpu backend has one device, 0",
                 options.backend_options.devices.c_str());
}

Result<LoadedModel> load_model_and_backend(const EngineOptions &options) {
    if (options.backend == "sim") return load_sim(options);
    RETURN_IF_ERROR(need_model_dir(options));
    return load_weights(options);
}

} // namespace batchllm
