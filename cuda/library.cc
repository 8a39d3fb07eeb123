#include <cstring>
#include <exception>
#include <new>

#include "backend/cuda_library.h"
#include "backend/tensor_parallel.h"
#include "cuda_backend.h"
#include "tensor_parallel_backend.h"

namespace {

// Runs what a caller that was built with the same core asks for. Returns an error's code, with its text in *message.
template <typename Act>
int32_t answer(const batchllm_cuda_layout &theirs, std::string *message, const Act &act) {
    const batchllm_cuda_layout ours = batchllm::cuda_layout();
    if (std::strcmp(theirs.interface_text, ours.interface_text) != 0 ||
        std::memcmp(&theirs.version, &ours.version,
                    sizeof ours - offsetof(batchllm_cuda_layout, version)) != 0) {
        *message = "the library is of another version";
        return BATCHLLM_ERROR_BACKEND_UNAVAILABLE;
    }
    try {
        const batchllm::Status status = act();
        *message = status.message();
        return status.code();
    } catch (const std::bad_alloc &) {
        return BATCHLLM_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception &fault) {
        *message = fault.what();
        return BATCHLLM_ERROR_INTERNAL;
    } catch (...) {
        return BATCHLLM_ERROR_INTERNAL;
    }
}

template <typename Made, typename To> batchllm::Status take(Made made, To *to) {
    if (made.ok()) *to = std::move(made).value();
    return made.status();
}

} // namespace

__attribute__((visibility("default"))) int32_t
batchllm_cuda_backend_create_v1(const batchllm_cuda_layout *layout, const batchllm::Model *model,
                                const batchllm::BackendOptions *options,
                                std::unique_ptr<batchllm::Backend> *backend, std::string *message) {
    using namespace batchllm::cuda;
    return answer(*layout, message, [&] {
        const auto ranks = batchllm::tensor_parallel_of(*options);
        if (ranks.ok() && *ranks > 1) {
            return take(TensorParallelBackend::create(*model, *options, *ranks), backend);
        }
        return take(CudaBackend::create(*model, *options), backend);
    });
}

__attribute__((visibility("default"))) int32_t
batchllm_cuda_choose_ranks_v1(const batchllm_cuda_layout *layout, const batchllm::Model *model,
                              const batchllm::BackendOptions *options,
                              const std::vector<int32_t> *devices, batchllm::RankChoice *choice,
                              std::string *message) {
    return answer(*layout, message, [&] {
        return take(batchllm::cuda::choose_ranks_here(*model, *options, *devices), choice);
    });
}
