#include "image/orientation.h"

#include <cstring>
#include <string_view>
#include <utility>

namespace batchllm {
namespace {

// Numbers of a TIFF file, in its byte order. A read outside the data gives 0.
struct Tiff {
    std::span<const std::byte> data;
    bool big_endian;

    uint32_t byte(size_t at) const {
        return at < data.size() ? std::to_integer<uint32_t>(data[at]) : 0;
    }
    uint32_t u16(size_t at) const {
        return big_endian ? byte(at) << 8 | byte(at + 1) : byte(at + 1) << 8 | byte(at);
    }
    uint32_t u32(size_t at) const {
        return big_endian ? u16(at) << 16 | u16(at + 2) : u16(at + 2) << 16 | u16(at);
    }
};

std::string_view as_text(std::span<const std::byte> data) {
    return {reinterpret_cast<const char *>(data.data()), data.size()};
}

} // namespace

std::optional<int> exif_orientation(std::span<const std::byte> exif) {
    constexpr std::string_view prefix("Exif\0\0", 6);
    while (as_text(exif).starts_with(prefix)) exif = exif.subspan(prefix.size());
    if (exif.size() < 8) return std::nullopt;
    const std::string_view magic = as_text(exif).substr(0, 4);
    const bool big_endian = magic == std::string_view("MM\0*", 4);
    if (!big_endian && magic != std::string_view("II*\0", 4)) return std::nullopt;
    const Tiff tiff{exif, big_endian};

    constexpr uint32_t orientation_tag = 0x0112, type_byte = 1, type_short = 3, type_long = 4;
    const size_t directory = tiff.u32(4);
    const uint32_t entries = tiff.u16(directory);
    for (uint32_t i = 0; i < entries; ++i) {
        const size_t entry = directory + 2 + size_t{i} * 12;
        if (entry + 12 > exif.size()) break;
        if (tiff.u16(entry) != orientation_tag) continue;
        const uint32_t type = tiff.u16(entry + 2);
        if (tiff.u32(entry + 4) != 1) return std::nullopt;
        const uint32_t value = type == type_short  ? tiff.u16(entry + 8)
                               : type == type_long ? tiff.u32(entry + 8)
                               : type == type_byte ? tiff.byte(entry + 8)
                                                   : 0;
        return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return std::nullopt;
}

std::optional<int> xmp_orientation(std::span<const std::byte> xmp) {
    constexpr std::string_view key = "tiff:Orientation";
    const std::string_view text = as_text(xmp);
    for (size_t at = text.find(key); at != text.npos; at = text.find(key, at + 1)) {
        std::string_view rest = text.substr(at + key.size());
        if (rest.starts_with("=\"")) {
            rest.remove_prefix(2);
        } else if (rest.starts_with(">")) {
            rest.remove_prefix(1);
        } else {
            continue;
        }
        if (rest.empty() || rest[0] < '0' || rest[0] > '9') continue;
        return rest[0] >= '1' && rest[0] <= '8' ? rest[0] - '0' : 1;
    }
    return std::nullopt;
}

Result<Pixels> turn_upright(Pixels pixels, int orientation) {
    if (orientation <= 1 || orientation > 8) return pixels;
    const bool side = lies_on_its_side(orientation);
    ASSIGN_OR_RETURN(Pixels upright, Pixels::make(side ? pixels.height : pixels.width,
                                                  side ? pixels.width : pixels.height));
    // The upright pixel (x, y) is the pixel at `first` plus x steps of `right` and y of `down`.
    const int64_t row = pixels.row_bytes(), last_x = row - 3, last_y = row * (pixels.height - 1);
    int64_t first = 0, right = 3, down = row;
    if (side) std::swap(right, down);
    if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) {
        first += last_x;
        (side ? down : right) *= -1;
    }
    if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {
        first += last_y;
        (side ? right : down) *= -1;
    }
    for (int64_t y = 0; y < upright.height; ++y) {
        const int64_t begin = first + y * down;
        uint8_t *to = upright.row(y);
        for (int64_t x = 0; x < upright.width; ++x, to += 3) {
            std::memcpy(to, pixels.rgb.get() + begin + x * right, 3);
        }
    }
    return upright;
}

} // namespace batchllm
