// batchllm_adapter_*: adapters that rows name.
#include <cstdio>
#include <cstring>

#include "api/boundary.h"
#include "api/engine.h"
#include "model/adapter_files.h"

using namespace batchllm;
using api::guard;
using api::guard_out;
using api::need;

namespace {

void set_identity(const AdapterHash &hash, int64_t file_bytes, batchllm_adapter_info *info) {
    info->file_bytes = file_bytes;
    info->salt = AdapterSource::salt_of(hash);
    std::snprintf(info->identity, sizeof info->identity, "%016llx%016llx",
                  static_cast<unsigned long long>(hash[1]),
                  static_cast<unsigned long long>(hash[0]));
}

} // namespace

extern "C" {

int32_t batchllm_adapter_load(batchllm_engine *engine, const char *name, const char *path,
                              batchllm_adapter **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("name", name));
        RETURN_IF_ERROR(need("path", path));
        auto handle = std::make_unique<batchllm_adapter>();
        if (engine != nullptr) {
            ASSIGN_OR_RETURN(handle->source, engine->engine->load_adapter(name, path));
        } else {
            ASSIGN_OR_RETURN(handle->source, identify_adapter(name, path));
        }
        *out = handle.release();
        return {};
    });
}

void batchllm_adapter_destroy(batchllm_adapter *adapter) { delete adapter; }

int32_t batchllm_adapter_get_info(const batchllm_adapter *adapter, batchllm_adapter_info *info) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("adapter", adapter));
        RETURN_IF_ERROR(need("info", info));
        const AdapterSource &source = *adapter->source;
        batchllm_adapter_info full{};
        full.matrices = source.matrices;
        full.largest_rank = source.largest_rank;
        full.memory_bytes = source.memory_bytes;
        set_identity(source.hash, source.file_bytes, &full);
        return api::copy_out("info", &full, sizeof full, info);
    });
}

int32_t batchllm_adapter_identify(const char *path, batchllm_adapter_info *info) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("path", path));
        RETURN_IF_ERROR(need("info", info));
        ASSIGN_OR_RETURN(const auto source, identify_adapter(path, path));
        batchllm_adapter_info full{};
        set_identity(source->hash, source->file_bytes, &full);
        return api::copy_out("info", &full, sizeof full, info);
    });
}

} // extern "C"
