// The adapters that the command line names -> the library's, each loaded when a row first names it.
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
};

struct NamedAdapter {
    std::shared_ptr<const batchllm_adapter> handle; // of the engine, or of none
    uint64_t salt = 0;
};
using SharedAdapter = std::shared_ptr<const NamedAdapter>;

// Used by one thread at a time.
class AdapterCache {
  public:
    // Lists --adapters: what comes into that directory later is not found, and a name stays known
    // even if its directory goes. engine null: adapters are only identified. It is borrowed.
    static Result<AdapterCache> open(const AdapterOptions &options, batchllm_engine *engine);

    // Fails with the same text every time; with ROW_ADAPTER if there is no adapter of this name.
    Result<SharedAdapter> get(const std::string &name);
    bool knows(const std::string &name) const { return paths_.contains(name); }
    // Loads those of --adapter, so that a misspelt directory is found before any row runs.
    Status load_named(const AdapterOptions &options);

  private:
    struct Entry {
        Status status;
        SharedAdapter adapter;
    };
    explicit AdapterCache(batchllm_engine *engine) : engine_(engine) {}
    Result<SharedAdapter> load(const std::string &name, const std::string &path) const;

    batchllm_engine *engine_;
    std::unordered_map<std::string, std::string> paths_; // by name
    std::unordered_map<std::string, Entry> entries_;
};

// What identifies the adapters of a job: names and values. Those in a directory are hashed by samples
// of their weights, since most of them may not be used.
Result<std::vector<std::pair<std::string, std::string>>>
identify_adapters(const AdapterOptions &options);

} // namespace batchllm::cli
