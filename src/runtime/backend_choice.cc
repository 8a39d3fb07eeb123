#include "runtime/backend_choice.h"

#include "runtime/cuda_library.h"

namespace batchllm {
namespace {

Status need_model_dir(const EngineOptions &options) {
    if (!options.model_dir.empty()) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "model_dir is NULL: only backend \"sim\" runs without a model, not \"%s\"",
                 options.backend.c_str());
}

Result<LoadedModel> load_sim(const EngineOptions &options) {
    LoadedModel loaded;
    if (!options.model_dir.empty()) {
        ASSIGN_OR_RETURN(ModelConfig config, load_config(options.model_dir));
        loaded.config = std::make_unique<ModelConfig>(std::move(config));
    }
    ASSIGN_OR_RETURN(loaded.backend,
                     make_sim_backend(loaded.config.get(), options.backend_options));
    return loaded;
}

Result<LoadedModel> load_weights(const EngineOptions &options) {
    LoadedModel loaded;
    ASSIGN_OR_RETURN(loaded.model, load_model(options.model_dir));
    loaded.config = std::make_unique<ModelConfig>(loaded.model->config);
    if (options.backend != "cpu") {
        auto cuda = make_cuda_backend(*loaded.model, options.backend_options);
        if (cuda.ok()) {
            loaded.backend = std::move(cuda).value();
            return loaded;
        }
        // auto: what the device cannot do, the processor may; a wrong option stays wrong.
        if (options.backend == "cuda" || cuda.status().code() == BATCHLLM_ERROR_INVALID_ARGUMENT) {
            return std::move(cuda).status();
        }
        options.log(BATCHLLM_LOG_INFO, "backend auto: cpu, for " + cuda.status().message());
    }
    ASSIGN_OR_RETURN(loaded.backend, make_cpu_backend(*loaded.model, options.backend_options));
    return loaded;
}

} // namespace

Result<LoadedModel> load_model_and_backend(const EngineOptions &options) {
    if (options.backend == "sim") return load_sim(options);
    RETURN_IF_ERROR(need_model_dir(options));
    return load_weights(options);
}

} // namespace batchllm
