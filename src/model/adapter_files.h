// A directory as PEFT writes it (adapter_config.json, adapter_model.safetensors) -> an Adapter of a
// model.
//
// Which matrices are changed, and with which rank, the tensors say; they must agree with the
// configuration. Everything is checked before it is used. The files are read, not mapped: a file
// that changes meanwhile gives an error, or an adapter with another hash.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "model/adapter.h"

namespace batchllm {

struct AdapterFiles {
    std::string directory;
    std::string config; // the text of adapter_config.json
    std::unique_ptr<std::byte[]> weights;
    size_t weight_bytes = 0;
    AdapterHash hash = {}; // of both files

    size_t bytes() const { return config.size() + weight_bytes; }
    std::string config_path() const { return directory + "/adapter_config.json"; }
    std::string weights_path() const { return directory + "/adapter_model.safetensors"; }
    std::span<const std::byte> view() const { return {weights.get(), weight_bytes}; }
};

// keep false: for the hash alone; `weights` stays null.
Result<AdapterFiles> read_adapter_files(const std::string &directory, bool keep = true);

// model must outlive the adapter. checked: files with this hash have been checked for numbers that
// are not finite.
Result<std::shared_ptr<const Adapter>> make_adapter(AdapterFiles files, const Model &model,
                                                    bool checked = false);

} // namespace batchllm
