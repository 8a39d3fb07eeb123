// A directory as PEFT writes it (adapter_config.json, adapter_model.safetensors) -> an Adapter of a
// model.
//
// Which matrices are changed, and with which rank, the tensors say; they must agree with the
// configuration. Everything is checked before it is used. The files are read, not mapped: a file
// that changes meanwhile gives an error, or an adapter with another hash.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/adapter.h"

namespace batchllm {

// Memory that files are read into. What is given back is taken again: the system clears the pages of new memory, which
// takes longer than reading a file into them. Any thread.
class WeightMemory {
  public:
    struct Block {
        std::unique_ptr<std::byte[]> bytes; // not initialised
        size_t size = 0;
    };
    WeightMemory() { spare_.reserve(most_blocks); }
    Block take(size_t size); // to twice as much
    void give_back(Block block) noexcept;

  private:
    static constexpr size_t most_blocks = 64, most_bytes = size_t{512} << 20; // that are kept
    std::mutex mutex_;
    std::vector<Block> spare_;
    size_t spare_bytes_ = 0;
};

struct AdapterFiles {
    std::string directory;
    std::string config; // the text of adapter_config.json
    WeightMemory::Block weights;
    size_t weight_bytes = 0;
    AdapterHash hash = {}; // of both files

    size_t bytes() const { return config.size() + weight_bytes; }
    std::string config_path() const { return directory + "/adapter_config.json"; }
    std::string weights_path() const { return directory + "/adapter_model.safetensors"; }
    std::span<const std::byte> view() const { return {weights.bytes.get(), weight_bytes}; }
};

// memory null: for the hash alone; there are no weights.
Result<AdapterFiles> read_adapter_files(const std::string &directory, WeightMemory *memory);

// model must outlive the adapter. checked: files with this hash have been checked for numbers that
// are not finite. The last of the adapter's `bytes` are the files' weights.
Result<std::shared_ptr<Adapter>> make_adapter(AdapterFiles files, const Model &model,
                                              bool checked = false);

} // namespace batchllm
