#include "model/adapter_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>
#include <xxhash.h>

#include "base/file.h"
#include "model/adapter_bytes.h"

namespace batchllm {
namespace {

constexpr size_t config_limit = 16U << 20U;

AdapterHash hash_of(XXH3_state_t *state) {
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    return {hash.low64, hash.high64};
}

struct FreeState {
    void operator()(XXH3_state_t *state) const { XXH3_freeState(state); }
};

// Finds the tensors that have numbers that are not finite, as pieces of the file come.
class FiniteCheck {
  public:
    explicit FiniteCheck(AdapterFiles *files) : files_(*files) {
        files_.not_finite.assign(files_.tensors.size(), false);
    }

    // bytes: of the file, from `begin` on; where a number begins before, the bytes before them are the
    // file's too.
    void add(const std::byte *bytes, int64_t begin, int64_t size) {
        const int64_t end = begin + size;
        for (; next_ < files_.tensors.size(); ++next_) {
            const StoredTensor &tensor = files_.tensors[next_];
            if (tensor.offset >= end) return;
            if (const auto type = float_type(tensor)) {
                const int64_t width = dtype_bytes(*type);
                const int64_t first = (std::max(begin, tensor.offset) - tensor.offset) / width;
                const int64_t last =
                    (std::min(end, tensor.offset + tensor.bytes) - tensor.offset) / width;
                const std::byte *numbers = bytes + (tensor.offset + first * width - begin);
                if (!all_finite(numbers, last - first, *type)) files_.not_finite[next_] = true;
            }
            if (tensor.offset + tensor.bytes > end) return;
        }
    }

  private:
    AdapterFiles &files_;
    size_t next_ = 0; // the first tensor that has not ended
};

Status read_weights(AdapterFiles *files, WeightMemory *memory, XXH3_state_t *state) {
    const std::string path = files->weights_path();
    size_t size = 0;
    ASSIGN_OR_RETURN(const FileDescriptor fd, open_regular(path, &size));
    // A file that has holes may be of any size.
    if (size / static_cast<size_t>(::sysconf(_SC_PAGESIZE)) >=
        static_cast<size_t>(::sysconf(_SC_PHYS_PAGES))) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "%s: its %zu bytes do not fit into memory",
                     path.c_str(), size);
    }
    files->weight_bytes = size;
    const auto read_to = [&](std::byte *to, size_t bytes) -> Status {
        while (bytes > 0) {
            const ssize_t got = ::read(fd.get(), to, bytes);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) {
                return error(BATCHLLM_ERROR_IO, "%s: cannot read: %s", path.c_str(),
                             std::strerror(errno));
            }
            if (got == 0)
                return error(BATCHLLM_ERROR_ADAPTER_FORMAT, "%s: was cut short while it was read",
                             path.c_str());
            add_to_hash(state, to, static_cast<size_t>(got));
            to += got;
            bytes -= static_cast<size_t>(got);
        }
        return {};
    };
    std::vector<std::byte> header;
    if (files->reading != AdapterReading::hash) {
        header.resize(std::min(size, safetensors_length_bytes));
        const size_t length = header.size();
        RETURN_IF_ERROR(read_to(header.data(), length));
        header.resize(safetensors_header_bytes(header, size));
        RETURN_IF_ERROR(read_to(header.data() + length, header.size() - length));
        auto parsed = parse_safetensors(header, size, path);
        if (parsed.ok()) {
            files->tensors = std::move(parsed).value();
        } else if (parsed.status().code() == BATCHLLM_ERROR_MODEL_FORMAT) {
            files->malformed = Status(BATCHLLM_ERROR_ADAPTER_FORMAT, parsed.status().message());
        } else {
            files->malformed = parsed.status();
        }
        files->weights =
            files->has_bytes()
                ? memory->take(size)
                : WeightMemory::Block{std::unique_ptr<std::byte[]>(new std::byte[size]), size};
    }
    FiniteCheck check(files);
    const bool checks =
        files->reading == AdapterReading::check || files->reading == AdapterReading::weights;
    // Of pieces that are not kept; before the piece, the end of the one before it.
    constexpr size_t before = sizeof(float);
    std::unique_ptr<std::byte[]> piece;
    if (!files->has_bytes()) piece.reset(new std::byte[before + adapter_piece_bytes]);
    for (size_t done = header.size(), bytes; done < size; done += bytes) {
        bytes = std::min(adapter_piece_bytes, size - done);
        std::byte *to = piece ? piece.get() + before : files->weights.bytes.get() + done;
        RETURN_IF_ERROR(read_to(to, bytes));
        if (checks) check.add(to, static_cast<int64_t>(done), static_cast<int64_t>(bytes));
        if (piece) std::memmove(piece.get(), to + bytes - before, before);
    }
    return {};
}

} // namespace

WeightMemory::Block WeightMemory::take(size_t size) {
    {
        const std::lock_guard lock(mutex_);
        for (auto spare = spare_.begin(); spare != spare_.end(); ++spare) {
            if (spare->size < size || spare->size - spare->size / 8 > size) continue;
            Block block = std::move(*spare);
            spare_.erase(spare);
            spare_bytes_ -= block.size;
            return block;
        }
    }
    Block block{std::unique_ptr<std::byte[]>(new std::byte[size]), size};
#ifdef MADV_HUGEPAGE
    constexpr size_t page = 4096, huge = size_t{2} << 20;
    void *first = block.bytes.get();
    if (size >= 2 * huge && std::align(page, huge, first, size) != nullptr) {
        ::madvise(first, size, MADV_HUGEPAGE);
    }
#endif
    return block;
}

void WeightMemory::give_back(Block block) noexcept {
    const std::lock_guard lock(mutex_);
    if (block.size > most_bytes) return;
    while (spare_.size() == most_blocks || spare_bytes_ + block.size > most_bytes) {
        spare_bytes_ -= spare_.front().size;
        spare_.erase(spare_.begin());
    }
    spare_bytes_ += block.size;
    spare_.push_back(std::move(block));
}

Result<AdapterFiles> read_adapter_files(const std::string &directory, AdapterReading reading,
                                        WeightMemory *memory) {
    AdapterFiles files;
    files.directory = directory;
    files.reading = reading;
    ASSIGN_OR_RETURN(files.config, read_file(files.config_path(), config_limit));
    ASSIGN_OR_RETURN(const bool has_weights, file_exists(files.weights_path()));
    ASSIGN_OR_RETURN(const bool has_torch, file_exists(directory + "/adapter_model.bin"));
    if (!has_weights && has_torch) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s/adapter_model.bin must be converted to safetensors", directory.c_str());
    }
    const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
    if (state == nullptr) return Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    XXH3_128bits_reset(state.get());
    const uint64_t config_bytes = files.config.size(); // so that no byte can change sides
    XXH3_128bits_update(state.get(), &config_bytes, sizeof config_bytes);
    XXH3_128bits_update(state.get(), files.config.data(), files.config.size());
    RETURN_IF_ERROR(read_weights(&files, memory, state.get()));
    files.hash = hash_of(state.get());
    return files;
}

} // namespace batchllm
