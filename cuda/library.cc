#include <cstring>
#include <exception>
#include <new>

#include "backend/cuda_library.h"
#include "backend/tensor_parallel.h"
#include "cuda_backend.h"
#include "tensor_parallel_backend.h"

namespace {

int32_t create(const batchllm_cuda_layout &theirs, const batchllm::Model &model,
               const batchllm::BackendOptions &options, std::unique_ptr<batchllm::Backend> *backend,
               std::string *message) {
    const batchllm_cuda_layout ours = batchllm::cuda_layout();
    if (std::strcmp(theirs.interface_text, ours.interface_text) != 0 ||
        std::memcmp(&theirs.version, &ours.version,
                    sizeof ours - offsetof(batchllm_cuda_layout, version)) != 0) {
        *message = "the library is of another version";
        return BATCHLLM_ERROR_BACKEND_UNAVAILABLE;
    }
    const auto take = [&](auto made) {
        if (made.ok()) {
            *backend = std::move(made).value();
        } else {
            *message = made.status().message();
        }
        return made.status().code();
    };
    const auto ranks = batchllm::tensor_parallel_of(options);
    if (ranks.ok() && *ranks > 1) {
        return take(batchllm::cuda::TensorParallelBackend::create(model, options, *ranks));
    }
    return take(batchllm::cuda::CudaBackend::create(model, options));
}

} // namespace

__attribute__((visibility("default"))) int32_t
batchllm_cuda_backend_create_v1(const batchllm_cuda_layout *layout, const batchllm::Model *model,
                                const batchllm::BackendOptions *options,
                                std::unique_ptr<batchllm::Backend> *backend, std::string *message) {
    try {
        return create(*layout, *model, *options, backend, message);
    } catch (const std::bad_alloc &) {
        return BATCHLLM_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception &fault) {
        *message = fault.what();
        return BATCHLLM_ERROR_INTERNAL;
    } catch (...) {
        return BATCHLLM_ERROR_INTERNAL;
    }
}
