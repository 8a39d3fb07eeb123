// The pictures of one device: read, decoded and resized by threads, in the order in which rows that have
// them are placed, and loaded into the slots that the scheduler gives them. One that has left its slot is
// prepared again only when the scheduler waits for it: its tokens may all be computed.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "runtime/lane_supply.h"
#include "runtime/picture_library.h"
#include "schedule/picture_slots.h"

namespace batchllm {

struct PictureKind {
    using Source = PictureSource;
    using Made = PreparedPicture;
    using Slots = PictureSlots;
    static constexpr int64_t ahead = int64_t{1} << 30;
    static constexpr int32_t row_error = BATCHLLM_ERROR_ROW_PICTURE;
    static constexpr bool keeps_unused = false, renews_at_once = false;

    // About: as if every patch had 16 x 16 pixels, of three channels.
    static int64_t bytes(const PictureSource &source) {
        constexpr int64_t patch = 3 * 16 * 16 * sizeof(float);
        return patch * source.grid.rows * source.grid.columns;
    }
    static int64_t loaded_bytes(const PictureSource &source) { return bytes(source); }
    // About: 3 bytes for each pixel of the file, and what a decoder holds beside them, such as the
    // coefficients of a progressive JPEG, 2 bytes for each of 3 values.
    static int64_t bytes_to_make(const PictureSource &source) {
        return bytes(source) + 9 * source.pixels;
    }
    static void add(PictureSlots *slots, int32_t number, const PictureSource &source) {
        slots->add(number, source.grid.tokens);
    }
    static Result<std::shared_ptr<const PreparedPicture>> make(const Backend &backend,
                                                               const PictureSource &source);
};

class LanePictures : public LaneSupply<PictureKind> {
  public:
    LanePictures(Backend *backend, PictureSlots *slots, int32_t threads)
        : LaneSupply(backend, slots, threads) {}

    // After a batch has been scheduled, before it goes forward.
    Status load();
};

} // namespace batchllm
