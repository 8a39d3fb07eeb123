// What decode.cc asks of each format. The files wrap libjpeg-turbo, libpng and libwebp: an error of
// theirs ends in a Status, and no jump of theirs passes an object that has a destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "image/decode.h"

namespace batchllm {

using FileBytes = std::span<const std::byte>;

// A file's header. The size is the one in the file, before it is turned upright.
struct FileHeader {
    int64_t width = 0, height = 0;
    int orientation = 1; // of EXIF, 1 to 8
};

Result<FileHeader> read_jpeg_header(FileBytes file);
Result<FileHeader> read_png_header(FileBytes file);
Result<FileHeader> read_webp_header(FileBytes file);

// Fill pixels, which have the header's size, in the order of the file.
Status decode_jpeg(FileBytes file, Pixels *pixels);
Status decode_png(FileBytes file, Pixels *pixels);
Status decode_webp(FileBytes file, Pixels *pixels);

// A file that is broken or whose parts contradict each other.
Status bad_picture(const char *format, const char *problem);

// One channel of a pixel laid over white, rounded as Pillow's alpha_composite does.
inline uint8_t over_white(uint32_t value, uint32_t alpha) {
    if (alpha == 0) return 255;
    const uint32_t sum = (value * alpha + 255 * (255 - alpha)) * 128 + (0x80 << 7);
    return static_cast<uint8_t>(((sum >> 8) + sum) >> 8 >> 7);
}

inline void put_gray(uint8_t value, uint8_t *rgb) { rgb[0] = rgb[1] = rgb[2] = value; }

} // namespace batchllm
