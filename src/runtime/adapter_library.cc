#include "runtime/adapter_library.h"

#include <algorithm>
#include <cinttypes>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/file.h"
#include "base/printable.h"
#include "model/adapter_reader.h"

namespace batchllm {
namespace {

// Adapters that take no more than this in all, nor than fits a device, are not read again.
constexpr int64_t most_kept = int64_t{1} << 30;
constexpr int64_t most_loading_bytes = int64_t{512} << 20;

int64_t weight_bytes(const std::string &directory) {
    AdapterFiles files;
    files.directory = directory;
    std::error_code missing; // which reading reports
    const auto size = std::filesystem::file_size(files.weights_path(), missing);
    return missing ? 0 : static_cast<int64_t>(size);
}

bool are_readable(const std::string &directory) {
    AdapterFiles files;
    files.directory = directory;
    return is_readable_file(files.config_path()) && is_readable_file(files.weights_path());
}

// Memory that a kept adapter takes, counted with that of others.
class Room {
  public:
    explicit Room(std::shared_ptr<std::atomic<int64_t>> count) : count_(std::move(count)) {}
    Room(const Room &) = delete;
    Room &operator=(const Room &) = delete;
    ~Room() { count_->fetch_sub(bytes_); }

    // False: all would have more than `most`.
    bool add(int64_t bytes, int64_t most) {
        if (bytes > most) return false; // a file with holes may be of any size
        if (count_->fetch_add(bytes) > most - bytes) {
            count_->fetch_sub(bytes);
            return false;
        }
        bytes_ += bytes;
        return true;
    }

  private:
    std::shared_ptr<std::atomic<int64_t>> count_;
    int64_t bytes_ = 0;
};

} // namespace

Result<std::shared_ptr<const AdapterSource>> identify_adapter(const std::string &name,
                                                              const std::string &path) {
    ASSIGN_OR_RETURN(const AdapterFiles files, read_adapter_files(path, AdapterReading::hash));
    auto source = std::make_shared<AdapterSource>();
    source->name = name;
    source->path = path;
    source->hash = files.hash;
    source->file_bytes = static_cast<int64_t>(files.bytes());
    return std::shared_ptr<const AdapterSource>(std::move(source));
}

// Begins when files of this size may be in memory, and ends when they no longer are.
class AdapterLibrary::Turn {
  public:
    // A size may be any: a file with holes.
    Turn(AdapterLibrary *library, int64_t bytes)
        : library_(*library), bytes_(std::min(bytes, most_loading_bytes)) {
        std::unique_lock lock(library_.mutex_);
        library_.loaded_.wait(lock, [&] {
            return library_.loading_bytes_ == 0 ||
                   library_.loading_bytes_ + bytes_ <= most_loading_bytes;
        });
        library_.loading_bytes_ += bytes_;
    }
    Turn(const Turn &) = delete;
    Turn &operator=(const Turn &) = delete;
    ~Turn() {
        const std::lock_guard lock(library_.mutex_);
        library_.loading_bytes_ -= bytes_;
        library_.loaded_.notify_all();
    }

  private:
    AdapterLibrary &library_;
    int64_t bytes_;
};

void AdapterLibrary::open(const Model *model, std::vector<const Backend *> backends) {
    model_ = model;
    backends_ = std::move(backends);
}

void AdapterLibrary::forget(const Backend *backend) {
    const std::unique_lock lock(backends_mutex_);
    std::erase(backends_, backend);
}

// On any of the devices.
Result<int64_t> AdapterLibrary::memory_bytes(const Adapter &adapter) const {
    int64_t most = 0;
    const std::shared_lock lock(backends_mutex_);
    for (const Backend *backend : backends_) {
        ASSIGN_OR_RETURN(const int64_t bytes, backend->adapter_bytes(adapter));
        const int64_t room = backend->info().adapter_bytes;
        if (bytes > room) {
            return error(BATCHLLM_ERROR_OUT_OF_MEMORY,
                         "takes %" PRId64 " bytes on a device: adapter_memory_bytes is %" PRId64,
                         bytes, room);
        }
        most = std::max(most, bytes);
    }
    return most;
}

int64_t AdapterLibrary::most_kept_bytes() const {
    const std::shared_lock lock(backends_mutex_);
    return backends_.empty() ? 0 : std::min(most_kept, backends_.front()->info().adapter_bytes);
}

// Once more if the files are there: they were not for a moment, or the disk fails.
Result<AdapterFiles> AdapterLibrary::read_files(const std::string &path,
                                                AdapterReading reading) const {
    auto files = read_adapter_files(path, reading, memory_.get());
    const bool failed = !files.ok() && files.status().code() == BATCHLLM_ERROR_IO;
    return failed && are_readable(path) ? read_adapter_files(path, reading, memory_.get())
                                        : std::move(files);
}

// Its memory is given back with it.
Result<std::shared_ptr<const Adapter>> AdapterLibrary::make(AdapterFiles files,
                                                            int64_t *copied_bytes) const {
    std::call_once(used_, [&] { modules_ = std::make_shared<AdapterModules>(*model_); });
    const size_t size = files.weights.size;
    const bool has_bytes = files.has_bytes();
    ASSIGN_OR_RETURN(std::shared_ptr<Adapter> adapter,
                     make_adapter(std::move(files), *modules_, copied_bytes));
    if (!has_bytes) return std::shared_ptr<const Adapter>(std::move(adapter));
    const Adapter *raw = adapter.get();
    return std::shared_ptr<const Adapter>(
        raw, [adapter = std::move(adapter), size, memory = memory_](const Adapter *) {
            memory->give_back({std::move(adapter->bytes.back()), size});
        });
}

Result<std::shared_ptr<const AdapterSource>> AdapterLibrary::load(const std::string &name,
                                                                  const std::string &path) {
    if (name.empty() || !is_utf8(name)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "name is %s: it must be UTF-8 and not empty",
                     in_quotes(name).c_str());
    }
    if (model_ == nullptr) {
        return error(BATCHLLM_ERROR_STATE,
                     "the engine has no model that an adapter could change: it was made without "
                     "model_dir");
    }
    const int64_t size = weight_bytes(path);
    const int64_t most = most_kept_bytes();
    auto room = std::make_shared<Room>(kept_bytes_);
    bool keeps = room->add(size, most);
    std::optional<Turn> turn; // as long as files are in memory that are not kept
    ASSIGN_OR_RETURN(AdapterFiles files,
                     read_files(path, keeps ? AdapterReading::weights : AdapterReading::check));
    if (!keeps && has_others(files)) {
        turn.emplace(this, size);
        ASSIGN_OR_RETURN(files, read_files(path, AdapterReading::weights));
    }
    const auto block_bytes = static_cast<int64_t>(files.weights.size);
    auto source = std::make_shared<AdapterSource>();
    source->library = shared_from_this();
    source->name = name;
    source->path = path;
    source->hash = files.hash;
    source->file_bytes = static_cast<int64_t>(files.bytes());
    int64_t copied_bytes = 0;
    ASSIGN_OR_RETURN(std::shared_ptr<const Adapter> adapter, make(std::move(files), &copied_bytes));
    const auto rank_of = [&](const LowRank &change) {
        if (change.a) source->largest_rank = std::max(source->largest_rank, change.rank());
        source->matrices += change.a ? 1 : 0;
    };
    for (const auto &[matrix, change] : adapter->changes) rank_of(change);
    rank_of(adapter->embedding);
    source->warnings = adapter->warnings;
    auto bytes = memory_bytes(*adapter);
    if (!bytes.ok()) return std::move(bytes).status().within(path);
    source->memory_bytes = *bytes;
    // What the file has grown by since, what the block is larger by, and copies.
    keeps = keeps && room->add(block_bytes - size + copied_bytes, most);
    if (keeps) {
        const Adapter *raw = adapter.get();
        source->kept = {raw, [adapter = std::move(adapter), room](const Adapter *) {}};
    }
    const std::lock_guard lock(mutex_);
    const auto [known, is_new] = hashes_.try_emplace(source->salt(), source->hash);
    if (!is_new && known->second != source->hash) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s: half of its hash is that of another adapter of this engine",
                     path.c_str());
    }
    if (!is_new) source->warnings.clear();
    return std::shared_ptr<const AdapterSource>(std::move(source));
}

Result<std::shared_ptr<const Adapter>> AdapterLibrary::read(const AdapterSource &source) const {
    if (source.kept != nullptr) return source.kept;
    constexpr int32_t changed = BATCHLLM_ERROR_ROW_ADAPTER;
    const Status has_changed =
        error(changed, "its adapter has changed since it was loaded: %s", source.path.c_str());
    if (weight_bytes(source.path) > source.file_bytes) return has_changed; // however large it is
    auto files = read_files(source.path, AdapterReading::again);
    if (!files.ok() && files.status().code() == BATCHLLM_ERROR_IO && !are_readable(source.path)) {
        return Status(changed, "its adapter is gone: " + files.status().message());
    }
    if (!files.ok() && is_failure_of_process(files.status().code())) return files.status();
    if (!files.ok() || files->hash != source.hash) {
        return has_changed;
    }
    return make(std::move(files).value());
}

} // namespace batchllm
