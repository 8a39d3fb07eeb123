// Adapters' matrices on their way to the device. A thread copies them, as files have them, through pinned memory that is
// allocated once, and packs them there (adapters/adapters.h), while steps run. Pinned memory of an adapter's own takes longer
// to allocate than to fill, and the driver may wait for steps meanwhile (docs/lab/adapters.md).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "step/adapter_layout.h"

namespace batchllm::cuda {

struct LaidOutAdapter final : PackedAdapter {
    LaidOutAdapter(std::shared_ptr<const Adapter> of, AdapterLayout layout_of)
        : adapter(std::move(of)), layout(std::move(layout_of)) {}

    std::shared_ptr<const Adapter> adapter; // to whose tensors the layout refers
    AdapterLayout layout;
};

class AdapterUploads {
  public:
    AdapterUploads(DType element, int sms) : element_(element), sms_(sms) {}
    AdapterUploads(const AdapterUploads &) = delete;
    AdapterUploads &operator=(const AdapterUploads &) = delete;
    ~AdapterUploads();

    // Takes memory and starts the thread, at the first call; may wait for all devices. Any thread.
    Status start();
    // Uploads that have not begun are not made. What is enqueued afterwards comes after those that have; what is added, add()
    // makes.
    void stop();
    cudaStream_t stream() const { return stream_; } // once it has been started

    struct Upload {
        std::shared_ptr<const LaidOutAdapter> adapter; // until it has been copied
        std::byte *to;                                 // layout.bytes
        std::byte *raw; // raw_bytes(); others before and after it have it too
        cudaEvent_t done;
        std::byte *freed = nullptr; // memory of the stream's that only uploads before this one use
    };
    static int64_t raw_bytes(const AdapterLayout &layout);
    // The upload's number.
    int64_t add(Upload upload);
    // Until `done` of this upload has been recorded on the stream. Fails if any upload has.
    Status wait(int64_t number);

  private:
    struct Chunk {
        std::byte *data;
        Event sent; // what it had has been copied
    };
    using Fill = std::function<void(int64_t from, int64_t bytes, std::byte *to)>;

    Status take_memory();
    void work();
    Status send(const Upload &upload);
    Status copy(std::byte *to, int64_t bytes, const Fill &fill);

    const DType element_;
    const int sms_;
    int device_ = 0;
    std::mutex starting_;
    bool started_ = false;
    Stream stream_;
    PinnedMemory pinned_;
    std::vector<Chunk> chunks_;
    size_t next_chunk_ = 0;
    std::optional<ThreadPool> pool_; // of the thread's
    std::thread thread_;

    std::mutex mutex_; // of what follows
    std::condition_variable changed_;
    std::deque<Upload> wanted_;
    int64_t added_ = 0, sent_ = 0;
    Status failed_;
    bool stop_ = false;
};

} // namespace batchllm::cuda
