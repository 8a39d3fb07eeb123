// A directory as PEFT writes it (adapter_config.json, adapter_model.safetensors) -> its bytes, which tensors
// there are, and their hash. The files are read, not mapped: a file that changes meanwhile gives an error, or an
// adapter with another hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/adapter.h"
#include "model/safetensors.h"

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
    Block take(size_t size); // to an eighth more
    void give_back(Block block) noexcept;

  private:
    static constexpr size_t most_blocks = 64, most_bytes = size_t{512} << 20; // that are kept
    std::mutex mutex_;
    std::vector<Block> spare_;
    size_t spare_bytes_ = 0;
};

// Read at a time: they stay in the cache until they have been used.
inline constexpr size_t adapter_piece_bytes = 256U << 10U;

// What is read beside the hash.
enum class AdapterReading : uint8_t {
    hash,    // nothing: make_adapter() does not take such files
    check,   // which tensors there are, and whether their numbers are finite
    weights, // the same, and the tensors themselves
    again,   // the tensors of files with this hash that have been checked
};

struct AdapterFiles {
    std::string directory;
    std::string config; // the text of adapter_config.json
    AdapterReading reading = AdapterReading::hash;
    WeightMemory::Block
        weights; // tensors at their places; of AdapterReading::check the places alone
    size_t weight_bytes = 0;
    Status malformed; // why there are no tensors
    std::vector<StoredTensor> tensors;
    std::vector<bool> not_finite; // by tensor; empty: all are, or are of other types than LoRA's
    AdapterHash hash = {};        // of both files

    size_t bytes() const { return config.size() + weight_bytes; }
    bool has_bytes() const { return reading >= AdapterReading::weights; }
    std::string config_path() const { return directory + "/adapter_config.json"; }
    std::string weights_path() const { return directory + "/adapter_model.safetensors"; }
};

// memory: of the weights, if they are read. The bytes are passed over once: they are hashed and checked while they are in
// the cache.
Result<AdapterFiles> read_adapter_files(const std::string &directory, AdapterReading reading,
                                        WeightMemory *memory = nullptr);

} // namespace batchllm
