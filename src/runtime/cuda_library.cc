#include "runtime/cuda_library.h"

#include <dlfcn.h>

#include <string>

#include "backend/cuda_library.h"
#include "base/file.h"

namespace batchllm {
namespace {

constexpr const char *kName = "libbatchllm_cuda.so";

// The folder of the library or program that contains this code; "" if unknown.
std::string own_folder() {
    Dl_info found{};
    if (dladdr(reinterpret_cast<const void *>(&make_cuda_backend), &found) == 0 ||
        found.dli_fname == nullptr) {
        return {};
    }
    const std::string path = found.dli_fname;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

struct Library {
    CudaBackendCreate create;
    CudaChooseRanks choose_ranks;
};

Result<Library> open_library() {
    std::string path = kName;
    const std::string folder = own_folder();
    // The second one is for a build folder.
    for (const char *place : {"", "../cuda/"}) {
        const std::string beside = folder + place + kName;
        if (folder.empty()) break;
        ASSIGN_OR_RETURN(const bool there, file_exists(beside));
        if (there) {
            path = beside;
            break;
        }
    }
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char *why = dlerror();
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE, "backend \"cuda\": %s",
                     why != nullptr ? why : "the library cannot be loaded");
    }
    void *create = dlsym(library, "batchllm_cuda_backend_create_v1");
    void *choose_ranks = dlsym(library, "batchllm_cuda_choose_ranks_v1");
    if (create == nullptr || choose_ranks == nullptr) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                     "backend \"cuda\": %s is of another version", path.c_str());
    }
    return Library{reinterpret_cast<CudaBackendCreate>(create),
                   reinterpret_cast<CudaChooseRanks>(choose_ranks)};
}

} // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(const Model &model,
                                                   const BackendOptions &options) {
    ASSIGN_OR_RETURN(const Library library, open_library());
    const batchllm_cuda_layout layout = cuda_layout();
    std::unique_ptr<Backend> backend;
    std::string message;
    const int32_t code = library.create(&layout, &model, &options, &backend, &message);
    if (code != BATCHLLM_OK) return Status(code, message);
    return backend;
}

Result<RankChoice> choose_cuda_ranks(const Model &model, const BackendOptions &options,
                                     const std::vector<int32_t> &devices) {
    ASSIGN_OR_RETURN(const Library library, open_library());
    const batchllm_cuda_layout layout = cuda_layout();
    RankChoice choice;
    std::string message;
    const int32_t code =
        library.choose_ranks(&layout, &model, &options, &devices, &choice, &message);
    if (code != BATCHLLM_OK) return Status(code, message);
    return choice;
}

} // namespace batchllm
