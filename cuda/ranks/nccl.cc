#include "ranks/nccl.h"

#include <dlfcn.h>

#include <string>
#include <type_traits>

namespace batchllm::cuda {
namespace {

constexpr const char *kName = "libnccl.so.2";
constexpr int kLeastVersion =
    21900; // lets a communicator be aborted while another thread waits for it

// The folder of the library that contains this code, "" if unknown.
std::string own_folder() {
    Dl_info found{};
    if (dladdr(reinterpret_cast<const void *>(&Nccl::load), &found) == 0 ||
        found.dli_fname == nullptr) {
        return {};
    }
    const std::string path = found.dli_fname;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

Result<Nccl> open_library() {
    void *library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    std::string why;
    if (library == nullptr) {
        if (const char *text = dlerror()) why = text;
        const std::string beside = own_folder() + "../nvidia/nccl/lib/" + kName;
        library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
        return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                     "backend \"cuda\": tensor_parallel needs NCCL (package nvidia-nccl-cu13): %s",
                     why.c_str());
    }
    Nccl found{};
    const auto find = [&](auto *to, const char *name) {
        *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(dlsym(library, name));
        return *to != nullptr;
    };
    int version = 0;
    if (find(&found.get_version, "ncclGetVersion") &&
        find(&found.get_error_string, "ncclGetErrorString") &&
        find(&found.comm_init_all, "ncclCommInitAll") &&
        find(&found.comm_destroy, "ncclCommDestroy") && find(&found.comm_abort, "ncclCommAbort") &&
        find(&found.all_reduce, "ncclAllReduce") && find(&found.send, "ncclSend") &&
        find(&found.recv, "ncclRecv") && find(&found.group_start, "ncclGroupStart") &&
        find(&found.group_end, "ncclGroupEnd") && found.get_version(&version) == Nccl::success &&
        version >= kLeastVersion) {
        return found;
    }
    return error(BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                 "backend \"cuda\": tensor_parallel needs NCCL 2.19 or later; %s is version %d",
                 kName, version);
}

} // namespace

Result<const Nccl *> Nccl::load() {
    static const Result<Nccl> library = open_library(); // stays loaded, as its threads may run on
    if (!library.ok()) return library.status();
    return &library.value();
}

} // namespace batchllm::cuda
