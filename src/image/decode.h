// The bytes of a JPEG, PNG or WebP file -> its pixels in RGB, 8 bits each, upright.
//
// The pixels are those that Pillow and transformers make of the file: turned as the EXIF orientation
// says (ImageOps.exif_transpose), then converted to RGB with what is transparent laid over white
// (transformers' convert_to_rgb). docs/pictures.md says where decoders may differ.
//
// A file is read from memory and nothing is kept between calls: any number of threads may decode. Every
// size is checked before memory is taken for it. A file that ends early is an error, as in Pillow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace batchllm {

// What a file may ask for.
struct PictureLimits {
    int64_t bytes = 256 << 20;    // of the file
    int64_t pixels = 178'956'970; // width times height: where Pillow suspects a bomb
    int32_t side = 1 << 20;       // width or height
};

struct PictureSize {
    int32_t width = 0, height = 0; // upright
};

struct Pixels {
    // With memory for the pixels, which are not set, or OUT_OF_MEMORY.
    static Result<Pixels> make(int32_t width, int32_t height);

    int32_t width = 0, height = 0;
    std::unique_ptr<uint8_t[]> rgb; // [height, width, 3] and 16 bytes that a reader may touch

    int64_t row_bytes() const { return int64_t{width} * 3; }
    uint8_t *row(int64_t y) { return rgb.get() + y * row_bytes(); }
    const uint8_t *row(int64_t y) const { return rgb.get() + y * row_bytes(); }
};

// Reads the header alone. What it says can still turn out to be a lie when the file is decoded.
Result<PictureSize> picture_size(std::span<const std::byte> file, const PictureLimits &limits = {});

// Errors: INVALID_ARGUMENT with a text that says what is wrong with the file; OUT_OF_MEMORY.
Result<Pixels> decode_picture(std::span<const std::byte> file, const PictureLimits &limits = {});

} // namespace batchllm
