#include "cli/adapter_cache.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <unistd.h>
#include <utility>

#include <xxhash.h>

#include "base/file.h"
#include "base/printable.h"
#include "base/thread_pool.h"

namespace batchllm::cli {
namespace {

constexpr const char *config_name = "/adapter_config.json";
constexpr const char *weights_name = "/adapter_model.safetensors";

// Hashes the size of a file and some parts of it.
Status add_samples(const std::string &path, XXH3_state_t *state) {
    constexpr size_t samples = 16;
    constexpr size_t sample_bytes = 4096;
    size_t size = 0;
    ASSIGN_OR_RETURN(const FileDescriptor file, open_regular(path, &size));
    XXH3_64bits_update(state, &size, sizeof size);
    char bytes[sample_bytes];
    for (size_t i = 0; i < samples; ++i) {
        const size_t at = size > sample_bytes ? (size - sample_bytes) * i / (samples - 1) : 0;
        const ssize_t got = ::pread(file.get(), bytes, sample_bytes, static_cast<off_t>(at));
        if (got < 0) {
            return error(BATCHLLM_ERROR_IO, "%s: cannot read: %s", path.c_str(),
                         std::strerror(errno));
        }
        XXH3_64bits_update(state, bytes, static_cast<size_t>(got));
    }
    return {};
}

struct FreeState {
    void operator()(XXH3_state_t *state) const { XXH3_freeState(state); }
};

// Of an adapter's files; "none": one cannot be read, so that rows that name it fail.
Result<std::string> hash_samples(const std::string &directory) {
    const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
    if (state == nullptr) return Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    XXH3_64bits_reset(state.get());
    for (const char *file : {config_name, weights_name}) {
        const Status added = add_samples(directory + file, state.get());
        if (added.ok()) continue;
        return is_readable_file(directory + file) ? Result<std::string>(added)
                                                  : Result<std::string>(std::string("none"));
    }
    char digits[32];
    std::snprintf(digits, sizeof digits, "samples %016llx",
                  static_cast<unsigned long long>(XXH3_64bits_digest(state.get())));
    return std::string(digits);
}

Result<std::vector<std::string>> adapters_in(const std::string &path) {
    auto listed = names_in(path);
    if (!listed.ok()) return std::move(listed).status().within("--adapters");
    std::vector<std::string> names = std::move(listed).value();
    std::erase_if(names, [&](const std::string &name) {
        if (name.front() == '.') return true;
        const auto exists = file_exists(path + "/" + name + config_name);
        return exists.ok() && !*exists; // else loading it says what is wrong
    });
    const auto itself = file_exists(path + config_name);
    if (names.empty() && itself.ok() && *itself) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "--adapters: %s is an adapter itself: name it with --adapter NAME=%s",
                     path.c_str(), path.c_str());
    }
    return names;
}

} // namespace

std::vector<std::string> AdapterOptions::directories() const {
    std::vector<std::string> all;
    for (const auto &[name, path] : named) all.push_back(path);
    if (!directory.empty()) all.push_back(directory);
    return all;
}

Result<AdapterCache> AdapterCache::open(const AdapterOptions &options, batchllm_engine *engine) {
    AdapterCache cache(engine);
    for (const auto &[name, path] : options.named) cache.paths_.emplace(name, path);
    if (options.directory.empty()) return cache;
    cache.directory_ = options.directory;
    ASSIGN_OR_RETURN(const std::vector<std::string> names, adapters_in(options.directory));
    for (const std::string &name : names) {
        cache.paths_.emplace(name, options.directory + "/" + name); // --adapter comes first
    }
    return cache;
}

Result<SharedAdapter> AdapterCache::find(const std::string &name) {
    const auto known = entries_.find(name);
    if (known != entries_.end()) return SharedAdapter(known->second.adapter);
    if (!paths_.contains(name)) {
        // Of a name, not of a path: nothing outside the directory is looked at.
        const std::string path = directory_ + "/" + name;
        const bool lacks_config =
            !directory_.empty() && !name.empty() && name.front() != '.' &&
            name.find_first_of(std::string_view("/\0", 2)) == std::string::npos &&
            ::access(path.c_str(), F_OK) == 0;
        const bool came_later = lacks_config && ::access((path + config_name).c_str(), F_OK) == 0;
        return error(BATCHLLM_ERROR_ROW_ADAPTER,
                     "there is no adapter %s (--adapter, --adapters)%s%s%s",
                     in_quotes(name).c_str(),
                     came_later     ? ": "
                     : lacks_config ? ": no "
                                    : "",
                     lacks_config ? (path + config_name).c_str() : "",
                     came_later ? " came after the job began" : "");
    }
    auto adapter = std::make_shared<NamedAdapter>();
    adapter->name = name;
    Entry &entry = entries_[name];
    entry.adapter = adapter;
    found_.push_back(&entry);
    return SharedAdapter(std::move(adapter));
}

void AdapterCache::count_other_model(const std::string &model) {
    constexpr size_t most = 8;
    if (paths_.empty() && directory_.empty()) return;
    ++other_rows_;
    const auto counted = std::find_if(other_models_.begin(), other_models_.end(),
                                      [&](const auto &other) { return other.first == model; });
    if (counted != other_models_.end()) {
        ++counted->second;
    } else if (other_models_.size() < most) {
        other_models_.emplace_back(model, 1);
    }
}

std::string AdapterCache::other_models() const {
    if (other_rows_ == 0) return "";
    std::string text = "Rows whose \"model\" is no adapter's name: ";
    int64_t listed = 0;
    for (const auto &[model, rows] : other_models_) {
        text += (listed == 0 ? "" : ", ") + std::to_string(rows) + " with " + in_quotes(model);
        listed += rows;
    }
    return listed == other_rows_
               ? text
               : text + ", " + std::to_string(other_rows_ - listed) + " with others";
}

void AdapterCache::try_to_load(Entry *entry) const {
    NamedAdapter &adapter = *entry->adapter;
    if (adapter.handle != nullptr || !entry->status.ok()) return;
    batchllm_adapter_info info = {};
    info.struct_size = sizeof info;
    batchllm_adapter *loaded = nullptr;
    entry->status = call_status(batchllm_adapter_load(engine_, adapter.name.c_str(),
                                                      paths_.at(adapter.name).c_str(), &loaded));
    if (!entry->status.ok()) return;
    adapter.handle.reset(loaded, [](batchllm_adapter *a) { batchllm_adapter_destroy(a); });
    entry->status = call_status(batchllm_adapter_get_info(loaded, &info));
    adapter.salt = info.salt;
}

void AdapterCache::load_found(int32_t threads) {
    constexpr size_t most_threads = 16;
    const std::vector<Entry *> found = std::exchange(found_, {});
    if (found.empty()) return;
    if (threads == 0) threads = ThreadPool::available();
    ThreadPool pool(std::min(threads, static_cast<int32_t>(std::min(found.size(), most_threads))));
    pool.parallel_for(static_cast<int64_t>(found.size()),
                      [&](int64_t i, int32_t) { try_to_load(found[static_cast<size_t>(i)]); });
    for (Entry *entry : found) { // by itself there may be memory, or a descriptor, for it
        if (is_failure_of_process(entry->status.code())) entry->status = {};
    }
}

Status AdapterCache::load(const NamedAdapter &adapter) {
    Entry &entry = entries_.at(adapter.name);
    try_to_load(&entry);
    return entry.status;
}

Status AdapterCache::load_for_row(const NamedAdapter &adapter) {
    const Status status = load(adapter);
    if (status.ok()) return {};
    const std::string &path = paths_.at(adapter.name);
    const bool of_process =
        status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY
            ? status.message() == "out of memory" // rather than an adapter that is too large
            : is_failure_of_process(status.code()) && is_readable_file(path + config_name) &&
                  is_readable_file(path + weights_name);
    return of_process ? status : Status(BATCHLLM_ERROR_ROW_ADAPTER, status.message());
}

Status AdapterCache::load_named(const AdapterOptions &options, int32_t threads) {
    for (const auto &[name, path] : options.named) RETURN_IF_ERROR(find(name).status());
    load_found(threads);
    for (const auto &[name, path] : options.named) {
        const Status loaded = load(*entries_.at(name).adapter);
        if (!loaded.ok()) return Status(loaded).within("--adapter " + name);
    }
    return {};
}

Result<std::vector<std::pair<std::string, std::string>>>
identify_adapters(const AdapterOptions &options) {
    std::vector<std::pair<std::string, std::string>> parts;
    for (const auto &[name, path] : options.named) {
        batchllm_adapter_info info = {};
        info.struct_size = sizeof info;
        RETURN_IF_ERROR(call_status(batchllm_adapter_identify(path.c_str(), &info)));
        parts.emplace_back("adapter " + name, info.identity);
    }
    if (options.directory.empty()) return parts;
    ASSIGN_OR_RETURN(const std::vector<std::string> names, adapters_in(options.directory));
    for (const std::string &name : names) {
        const bool is_named = std::any_of(options.named.begin(), options.named.end(),
                                          [&](const auto &named) { return named.first == name; });
        if (is_named || !is_utf8(name)) continue; // which rows cannot name
        ASSIGN_OR_RETURN(std::string samples, hash_samples(options.directory + "/" + name));
        parts.emplace_back("adapter " + name, std::move(samples));
    }
    return parts;
}

} // namespace batchllm::cli
