// A step's input at addresses that stay from step to step, so that graphs can read it: sections, each
// with its own memory, filled from what was sent by one kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/staging.h"
#include "elementwise/elementwise.h"

namespace batchllm::cuda {

// The sections of a step. From kLists on, five for each shape of attention: its items, rows, partials,
// merged tokens and widened pages. Behind them five for the plain form of latents, and which pages are expanded for it.
enum StepSection : size_t {
    kTokens,
    kPositions,
    kPages,
    kWanted,
    kSlots,
    kNodes,
    kNodeOf,
    kStateItems,
    kStateLevels,
    kStateChunks,
    kAdapters,
    kPictureTokens,
    kRopePositions,
    kLastSeen,
    kLists
};

class StepInput {
  public:
    // Memory for a first step. Growing later waits for the device.
    Status make(size_t index, int64_t bytes) {
        set(index, 0, 0);
        ASSIGN_OR_RETURN(sections_[index].memory, DeviceMemory::create(bytes, "a step's input"));
        return {};
    }

    // Host: section `index` is of count values, to be written to what is returned before anything else is
    // staged.
    template <typename T> Result<T *> stage_room(size_t index, int64_t count, Staging *staging) {
        ASSIGN_OR_RETURN(const int64_t place, staging->add<T>(count));
        set(index, place, count * static_cast<int64_t>(sizeof(T)));
        return staging->at<T>(place);
    }
    // Section `index` is values, then `rest` up to count.
    template <typename T>
    Status stage(size_t index, std::span<const T> values, int64_t count, T rest, Staging *staging) {
        ASSIGN_OR_RETURN(T *const to, stage_room<T>(index, count, staging));
        std::fill(std::copy(values.begin(), values.end(), to), to + count, rest);
        return {};
    }
    template <typename T> Status stage(size_t index, std::span<const T> values, Staging *staging) {
        return stage<T>(index, values, static_cast<int64_t>(values.size()), {}, staging);
    }

    // Makes room. True: sections have moved. Waits for the stream then, since steps may read them.
    Result<bool> reserve(cudaStream_t stream) {
        bool moved = false;
        for (Section &section : sections_) {
            if (section.memory.bytes() >= section.bytes) continue;
            if (!moved) RETURN_IF_CUDA(cudaStreamSynchronize(stream));
            moved = true;
            section.memory = DeviceMemory();
            ASSIGN_OR_RETURN(section.memory,
                             DeviceMemory::create(2 * section.bytes + 4096, "a step's input"));
        }
        return moved;
    }

    // Enqueues the copies from what staging has sent.
    Status fill(const Staging &staging, cudaStream_t stream) {
        for (size_t first = 0; first < sections_.size(); first += CopyArguments::kMost) {
            CopyArguments copies{};
            for (size_t i = first; i < sections_.size() && copies.count < CopyArguments::kMost;
                 ++i) {
                const Section &section = sections_[i];
                copies.from[copies.count] = staging.on_device<std::byte>(section.place);
                copies.to[copies.count] = section.memory.data();
                copies.bytes[copies.count++] = section.bytes;
            }
            RETURN_IF_CUDA(launch_copies(copies, stream));
        }
        return {};
    }

    // Null: nothing has been staged there yet.
    template <typename T> const T *at(size_t index) const {
        return index < sections_.size() ? sections_[index].memory.as<T>() : nullptr;
    }

  private:
    void set(size_t index, int64_t place, int64_t bytes) {
        if (index >= sections_.size()) sections_.resize(index + 1);
        sections_[index].place = place;
        sections_[index].bytes = bytes;
    }

    struct Section {
        int64_t place = 0, bytes = 0;
        DeviceMemory memory;
    };
    std::vector<Section> sections_;
};

} // namespace batchllm::cuda
