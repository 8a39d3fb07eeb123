// The adapters of one device: read and packed by threads, in the order in which rows that need them
// are placed, and loaded into the slots that the scheduler gives them. One that no run needs stays in its
// slot, for rows to come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "runtime/adapter_library.h"
#include "runtime/lane_supply.h"
#include "schedule/adapter_slots.h"

namespace batchllm {

struct AdapterKind {
    using Source = AdapterSource;
    using Made = PackedAdapter;
    using Slots = AdapterSlots;
    static constexpr int64_t ahead = int64_t{1} << 30;
    static constexpr int32_t row_error = BATCHLLM_ERROR_ROW_ADAPTER;
    static constexpr bool keeps_unused = true, renews_at_once = true;

    // A backend keeps what has been read until it is loaded (cuda), or what it has made of it (cpu).
    static int64_t bytes(const AdapterSource &source) {
        return std::max(source.file_bytes, source.memory_bytes);
    }
    static int64_t loaded_bytes(const AdapterSource &source) { return source.memory_bytes; }
    static int64_t bytes_to_make(const AdapterSource &source) {
        return source.file_bytes + source.memory_bytes;
    }
    static void add(AdapterSlots *slots, int32_t number, const AdapterSource &source) {
        slots->add(number, source.memory_bytes);
    }
    static Result<std::shared_ptr<const PackedAdapter>> make(const Backend &backend,
                                                             const AdapterSource &source);
};

class LaneAdapters : public LaneSupply<AdapterKind> {
  public:
    LaneAdapters(Backend *backend, AdapterSlots *slots, int32_t threads)
        : LaneSupply(backend, slots, threads) {}

    // After a batch has been scheduled, before it goes forward.
    Status load();
};

} // namespace batchllm
