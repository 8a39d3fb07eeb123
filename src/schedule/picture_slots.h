// Which pictures are on a device, in slots whose number and tokens are bounded.
//
// A picture has a number, which requests carry. It is ready once it has been prepared on the host. Tokens of
// it can be in a batch only if it is in a slot, or is ready and gets one. It stays until its room is needed,
// or no request needs it any more, and no batch in flight uses it: a picture whose tokens are computed in
// parts, or again, may be loaded again.
//
// Always: the pictures in slots have no more tokens than the room; one that a batch in flight uses keeps
// its slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

class PictureSlots {
  public:
    // BackendInfo's; 0: there are no pictures.
    PictureSlots(int32_t slots, int64_t tokens);

    // A new picture, which is not ready. tokens: at most the room.
    void add(int32_t number, int32_t tokens);
    void set_ready(int32_t number) { at(number).ready = true; }
    // No request needs it any more. True: it is in a slot, until take_changes() unloads it; the number
    // must not be used again before that.
    bool remove(int32_t number);

    // A batch is being built: the batches before `running` have finished. The same batch again: it stayed
    // empty, and uses no picture that was taken for it.
    void begin_batch(uint64_t batch, uint64_t running);
    // Whether tokens of the picture can be in that batch. If so, it has a slot.
    bool take(int32_t number);
    // The picture that take() has missed because it is not ready; -1: none.
    int32_t blocked() const { return blocked_; }
    int32_t slot(int32_t number) const { return pictures_[static_cast<size_t>(number)].slot; }

    // What is to be done before the batch goes forward, in this order. A picture that is unloaded is no
    // longer ready.
    struct Change {
        int32_t number;
        int32_t slot;
        bool load; // false: unload
    };
    std::vector<Change> take_changes();

  private:
    struct Picture {
        int32_t tokens = 0;
        int32_t slot = -1;
        bool ready = false;
        bool removed = false;
        uint64_t batch = 0;        // the last that uses it
        uint64_t batch_before = 0; // the last but for the batch being built
    };

    Picture &at(int32_t number) { return pictures_[static_cast<size_t>(number)]; }
    void unload(int32_t number);

    int64_t tokens_;
    std::vector<Picture> pictures_;   // by number
    std::vector<int32_t> loaded_;     // numbers of those in slots
    std::vector<int32_t> free_slots_; // highest first
    std::vector<Change> changes_;
    int64_t tokens_used_ = 0;
    uint64_t batch_ = 1, running_ = 1; // no picture has been used by batch 1
    int32_t blocked_ = -1;
};

} // namespace batchllm
