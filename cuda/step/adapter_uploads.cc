#include "step/adapter_uploads.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>

#include "ranks/rank_group.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kChunk = int64_t{8} << 20, kChunks = 4; // of pinned memory
constexpr int64_t kPart = int64_t{1} << 20;               // of a chunk, that a thread fills
// Four threads copy three times as fast as one, eight hardly faster (docs/lab/adapters.md).
constexpr int32_t kMostThreads = 4;
// Matrices take turns with one block of the device's memory, or a larger matrix.
constexpr int64_t kBlock = int64_t{64} << 20;

int64_t bytes_of_list(const AdapterLayout &layout) {
    return padded_piece(static_cast<int64_t>(layout.pieces.size() * sizeof(AdapterPiece)));
}

// Pieces that are in the block together.
std::vector<std::span<const AdapterLayout::Piece>> turns_of(const AdapterLayout &layout) {
    std::vector<std::span<const AdapterLayout::Piece>> turns;
    const std::span<const AdapterLayout::Piece> all(layout.pieces);
    int64_t bytes = 0;
    for (size_t i = 0, first = 0; i < all.size(); ++i) {
        const int64_t more = padded_piece(all[i].bytes);
        if (i == first || bytes + more > kBlock) {
            first = i;
            bytes = 0;
            turns.emplace_back();
        }
        bytes += more;
        turns.back() = all.subspan(first, i + 1 - first);
    }
    return turns;
}

} // namespace

AdapterUploads::~AdapterUploads() {
    stop();
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

void AdapterUploads::stop() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Status AdapterUploads::start() {
    const std::lock_guard lock(starting_);
    if (started_) return {};
    RETURN_IF_ERROR(take_memory());
    try {
        thread_ = std::thread([this] { work(); });
    } catch (const std::system_error &) {
        // add() makes them.
    }
    started_ = true;
    return {};
}

Status AdapterUploads::take_memory() {
    const std::lock_guard while_none_launches(launching());
    RETURN_IF_CUDA(cudaGetDevice(&device_));
    ASSIGN_OR_RETURN(stream_, Stream::create());
    ASSIGN_OR_RETURN(pinned_,
                     PinnedMemory::create(kChunks * kChunk, "adapters on their way to the device"));
    chunks_.clear();
    for (int64_t i = 0; i < kChunks; ++i) {
        ASSIGN_OR_RETURN(Event sent, Event::create(false, true));
        chunks_.push_back({pinned_.data() + i * kChunk, std::move(sent)});
    }
    pool_.emplace(std::min(kMostThreads, ThreadPool::available()));
    // What is first used while steps run may wait for them to be loaded.
    RETURN_IF_CUDA(load_adapter_pack(element_));
    RETURN_IF_CUDA(cudaMemsetAsync(pinned_.data(), 0, 16, stream_));
    return check_cuda(cudaStreamSynchronize(stream_), "adapters");
}

// The list of pieces, then the block.
int64_t AdapterUploads::raw_bytes(const AdapterLayout &layout) {
    int64_t most = 0;
    for (const auto &turn : turns_of(layout)) most = std::max(most, PieceBytes(turn).bytes());
    return bytes_of_list(layout) + most;
}

int64_t AdapterUploads::add(Upload upload) {
    std::unique_lock lock(mutex_);
    if (thread_.joinable()) {
        wanted_.push_back(std::move(upload));
        changed_.notify_all();
        return ++added_;
    }
    Status status = send(upload);
    if (!status.ok()) failed_ = std::move(status);
    ++sent_;
    return ++added_;
}

Status AdapterUploads::wait(int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return sent_ >= number; });
    return failed_;
}

void AdapterUploads::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return stop_ || !wanted_.empty(); });
        if (stop_) return;
        Upload upload = std::move(wanted_.front());
        wanted_.pop_front();
        lock.unlock();
        Status status = send(upload);
        upload = {}; // its memory may be waited for
        lock.lock();
        if (!status.ok() && failed_.ok()) failed_ = std::move(status);
        ++sent_;
        changed_.notify_all();
    }
}

// Now that the addresses are known.
Status AdapterUploads::send(const Upload &upload) try {
    RETURN_IF_CUDA(cudaSetDevice(device_));
    if (upload.freed != nullptr) RETURN_IF_CUDA(cudaFreeAsync(upload.freed, stream_));
    const AdapterLayout &layout = upload.adapter->layout;
    const auto turns = turns_of(layout);
    std::byte *const block = upload.raw + bytes_of_list(layout);
    std::vector<AdapterEntry> entries = layout.entries;
    for (size_t i = 0; i < entries.size(); ++i) {
        entries[i].a = upload.to + layout.places[i].first;
        entries[i].b = upload.to + layout.places[i].second;
    }
    std::vector<AdapterPiece> pieces;
    for (const auto &turn : turns) {
        std::byte *from = block;
        for (const AdapterLayout::Piece &piece : turn) {
            pieces.push_back(piece.piece);
            pieces.back().from = from;
            pieces.back().to = upload.to + piece.to;
            from += padded_piece(piece.bytes);
        }
    }
    const auto copy_all = [&](const auto &values, std::byte *to) {
        const auto *from = reinterpret_cast<const std::byte *>(values.data());
        return copy(to, static_cast<int64_t>(values.size() * sizeof(values[0])),
                    [from](int64_t at, int64_t bytes, std::byte *chunk) {
                        std::memcpy(chunk, from + at, static_cast<size_t>(bytes));
                    });
    };
    RETURN_IF_ERROR(copy_all(entries, upload.to));
    RETURN_IF_ERROR(copy_all(pieces, upload.raw));
    for (const auto &[place, bytes] : layout.zeros) {
        RETURN_IF_CUDA(cudaMemsetAsync(upload.to + place, 0, static_cast<size_t>(bytes), stream_));
    }
    const auto *first = reinterpret_cast<const AdapterPiece *>(upload.raw);
    for (const auto &turn : turns) {
        const PieceBytes raw(turn);
        RETURN_IF_ERROR(copy(block, raw.bytes(), [&](int64_t from, int64_t bytes, std::byte *to) {
            raw.copy(from, bytes, to);
        }));
        RETURN_IF_CUDA(
            launch_adapter_pack(element_, first, static_cast<int32_t>(turn.size()), sms_, stream_));
        first += turn.size();
    }
    return check_cuda(cudaEventRecord(upload.done, stream_), "an adapter on its way");
} catch (const std::bad_alloc &) {
    return Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
}

Status AdapterUploads::copy(std::byte *to, int64_t bytes, const Fill &fill) {
    for (int64_t at = 0; at < bytes; at += kChunk) {
        const Chunk &chunk = chunks_[next_chunk_];
        next_chunk_ = (next_chunk_ + 1) % chunks_.size();
        const int64_t count = std::min(kChunk, bytes - at);
        RETURN_IF_CUDA(cudaEventSynchronize(chunk.sent));
        pool_->parallel_for((count + kPart - 1) / kPart, [&](int64_t part, int32_t) {
            const int64_t begin = part * kPart;
            fill(at + begin, std::min(kPart, count - begin), chunk.data + begin);
        });
        RETURN_IF_CUDA(cudaMemcpyAsync(to + at, chunk.data, static_cast<size_t>(count),
                                       cudaMemcpyHostToDevice, stream_));
        RETURN_IF_CUDA(cudaEventRecord(chunk.sent, stream_));
    }
    return {};
}

} // namespace batchllm::cuda
