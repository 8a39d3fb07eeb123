#include "runtime/backend_choice.h"

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

Result<LoadedModel> load_cpu(const EngineOptions &options) {
    LoadedModel loaded;
    ASSIGN_OR_RETURN(loaded.model, load_model(options.model_dir));
    loaded.config = std::make_unique<ModelConfig>(loaded.model->config);
    ASSIGN_OR_RETURN(loaded.backend, make_cpu_backend(*loaded.model, options.backend_options));
    return loaded;
}

} // namespace

Result<LoadedModel> load_model_and_backend(const EngineOptions &options) {
    if (options.backend == "sim") return load_sim(options);
    RETURN_IF_ERROR(need_model_dir(options));
    if (options.backend == "cuda") {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                     "backend \"cuda\": this version of the library has none; use \"cpu\"");
    }
    return load_cpu(options);
}

} // namespace batchllm
