// Directories -> adapters that rows may name. What is known of an adapter stays in memory while it
// may be named; its matrices only as long as lanes use them, or while the adapters kept are few.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "model/adapter.h"
#include "model/adapter_files.h"
#include "model/model.h"

namespace batchllm {

class AdapterLibrary;
class AdapterModules;

struct AdapterSource {
    // Its engine's: no later one has its address. Null: of no engine.
    std::shared_ptr<const AdapterLibrary> library;
    std::string name; // how it is called: UTF-8
    std::string path;
    AdapterHash hash = {};
    int64_t file_bytes = 0;
    int64_t memory_bytes = 0; // on a device
    int32_t matrices = 0;
    int64_t largest_rank = 0;
    std::shared_ptr<const Adapter> kept; // null: it is read again
    std::vector<std::string> warnings;   // if these files are loaded for the first time

    uint64_t salt() const { return salt_of(hash); }
    static uint64_t salt_of(const AdapterHash &hash) { return hash[0] == 0 ? 1 : hash[0]; }
};

// An adapter that no row of an engine can have: what can be known of it without a model.
Result<std::shared_ptr<const AdapterSource>> identify_adapter(const std::string &name,
                                                              const std::string &path);

class AdapterLibrary : public std::enable_shared_from_this<AdapterLibrary> {
  public:
    // The model of the backends; null: there is none. Both are borrowed: once the engine is gone,
    // nothing is loaded or read any more.
    void open(const Model *model, std::vector<const Backend *> backends);
    // The backend is about to be destroyed.
    void forget(const Backend *backend);

    // Any thread. Those that stay in memory have no more than 1 GiB together; those that are read to compare what they
    // hold beside LoRA's matrices with the model no more than 512 MiB at a time, or are one.
    Result<std::shared_ptr<const AdapterSource>> load(const std::string &name,
                                                      const std::string &path);
    // Reads the adapter again. A ROW_ADAPTER error if it is not what it was. Any thread.
    Result<std::shared_ptr<const Adapter>> read(const AdapterSource &source) const;

  private:
    class Turn;
    Result<AdapterFiles> read_files(const std::string &path, AdapterReading reading) const;
    Result<std::shared_ptr<const Adapter>> make(AdapterFiles files,
                                                int64_t *copied_bytes = nullptr) const;
    int64_t most_kept_bytes() const;
    Result<int64_t> memory_bytes(const Adapter &adapter) const;

    const Model *model_ = nullptr;
    mutable std::once_flag used_;
    mutable std::shared_ptr<const AdapterModules> modules_; // of the model, once an adapter is made
    std::shared_ptr<WeightMemory> memory_ = std::make_shared<WeightMemory>();
    mutable std::shared_mutex backends_mutex_;
    std::vector<const Backend *> backends_;
    std::mutex mutex_; // of what follows
    std::condition_variable loaded_;
    int64_t loading_bytes_ = 0;
    std::unordered_map<uint64_t, AdapterHash> hashes_; // by salt
    std::shared_ptr<std::atomic<int64_t>> kept_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
};

} // namespace batchllm

// The handle of an adapter: batchllm.h's batchllm_adapter.
struct batchllm_adapter {
    std::shared_ptr<const batchllm::AdapterSource> source;
};
