// EXIF and XMP -> how a picture is to be turned.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "image/decode.h"

namespace batchllm {

// The orientation tag, 1 to 8; nothing if there is none or the data are broken. exif may begin with
// "Exif\0\0".
std::optional<int> exif_orientation(std::span<const std::byte> exif);
// The same of an XMP packet, which Pillow asks where EXIF says nothing.
std::optional<int> xmp_orientation(std::span<const std::byte> xmp);

// Whether an orientation exchanges width and height.
constexpr bool lies_on_its_side(int orientation) { return orientation >= 5; }

// Turns pixels upright.
Result<Pixels> turn_upright(Pixels pixels, int orientation);

} // namespace batchllm
