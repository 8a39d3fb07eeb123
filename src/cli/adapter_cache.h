// The adapters that the command line names -> the library's, each loaded with the first rows that name it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cli/api.h"

namespace batchllm::cli {

struct AdapterOptions {
    std::vector<std::pair<std::string, std::string>> named; // name, directory
    std::string directory; // each of its directories is an adapter; empty: none
    std::string used;      // by rows that name none; empty: none

    std::vector<std::string> directories() const; // all that are named
};

struct NamedAdapter {
    std::string name;
    std::shared_ptr<const batchllm_adapter>
        handle; // of the engine, or of none; null: not loaded yet
    uint64_t salt = 0;
};
using SharedAdapter = std::shared_ptr<const NamedAdapter>;

// Used by one thread at a time.
class AdapterCache {
  public:
    // Lists --adapters: what comes into that directory later is not found, and a name stays known
    // even if its directory goes. engine null: adapters are only identified. It is borrowed.
    static Result<AdapterCache> open(const AdapterOptions &options, batchllm_engine *engine);

    // The adapter of this name, to be loaded. Fails with ROW_ADAPTER if there is none.
    Result<SharedAdapter> find(const std::string &name);
    bool knows(const std::string &name) const { return paths_.contains(name); }
    // A row of the batch format whose model is no adapter's name, so that it has none: perhaps it is
    // misspelt.
    void count_other_model(const std::string &model);
    // One line that tells of these rows; empty: there were none, or no adapters.
    std::string other_models() const;
    // Loads all that have been found, by as many threads (0: one for each core).
    void load_found(int32_t threads);
    // Of one that has been found: loads it if it has not been tried. Fails with the same text every time.
    Status load(const NamedAdapter &adapter);
    // The same for a row. Its errors are ROW_ADAPTER, or failures of the process, which are no row's.
    Status load_for_row(const NamedAdapter &adapter);
    // Loads those of --adapter, so that a misspelt directory is found before any row runs.
    Status load_named(const AdapterOptions &options, int32_t threads);

  private:
    struct Entry {
        Status status;
        std::shared_ptr<NamedAdapter> adapter;
    };
    explicit AdapterCache(batchllm_engine *engine) : engine_(engine) {}
    void try_to_load(Entry *entry) const;

    batchllm_engine *engine_;
    std::unordered_map<std::string, std::string> paths_;        // by name
    std::unordered_map<std::string, Entry> entries_;            // by name
    std::vector<Entry *> found_;                                // and not tried yet
    std::string directory_;                                     // of --adapters; empty: none
    int64_t other_rows_ = 0;                                    // rows with other models
    std::vector<std::pair<std::string, int64_t>> other_models_; // the first few, and their rows
};

// What identifies the adapters of a job: names and values. Those in a directory are hashed by samples
// of their weights, since most of them may not be used.
Result<std::vector<std::pair<std::string, std::string>>>
identify_adapters(const AdapterOptions &options);

} // namespace batchllm::cli
