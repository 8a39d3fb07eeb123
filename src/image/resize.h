// Pixels of one size -> pixels of another, antialiased.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "image/decode.h"

namespace batchllm {

enum class ResizeFilter : uint8_t { bilinear, bicubic };

// To the bit what torch.nn.functional.interpolate(antialias=True) makes of uint8 on a CPU, and so what
// torchvision's resize makes: first all rows, then all columns, each rounded to 8 bits, with weights of
// 16 bits. It is the way of Pillow-SIMD; Pillow itself has weights of 22 bits. On float, torch gives
// other values, for bicubic by up to 20.
Result<Pixels> resize_picture(Pixels pixels, int32_t width, int32_t height, ResizeFilter filter);

} // namespace batchllm
