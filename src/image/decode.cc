#include "image/decode.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "image/codecs.h"
#include "image/orientation.h"

namespace batchllm {
namespace {

struct Format {
    const char *name;
    Result<FileHeader> (*read_header)(FileBytes);
    Status (*decode)(FileBytes, Pixels *);
};
constexpr Format jpeg{"JPEG", read_jpeg_header, decode_jpeg};
constexpr Format png{"PNG", read_png_header, decode_png};
constexpr Format webp{"WebP", read_webp_header, decode_webp};

const Format *format_of(FileBytes file) {
    const std::string_view text(reinterpret_cast<const char *>(file.data()), file.size());
    if (text.starts_with("\xff\xd8\xff")) return &jpeg;
    if (text.starts_with(std::string_view("\x89PNG\r\n\x1a\n", 8))) return &png;
    if (text.starts_with("RIFF") && text.substr(0, 12).ends_with("WEBP")) return &webp;
    return nullptr;
}

struct Checked {
    const Format *format;
    FileHeader header;
};

Result<Checked> read_header(FileBytes file, const PictureLimits &limits) {
    if (file.empty()) return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the picture has no bytes");
    if (static_cast<int64_t>(file.size()) > limits.bytes) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "the picture has %zu bytes, more than the limit of %lld", file.size(),
                     static_cast<long long>(limits.bytes));
    }
    const Format *format = format_of(file);
    if (format == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "not a JPEG, PNG or WebP file");
    }
    ASSIGN_OR_RETURN(const FileHeader header, format->read_header(file));
    if (header.width < 1 || header.height < 1) {
        return bad_picture(format->name, "it has no pixels");
    }
    if (header.width > limits.side || header.height > limits.side) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "a side of %lld pixels is more than the limit of %d",
                     static_cast<long long>(std::max(header.width, header.height)), limits.side);
    }
    if (header.width * header.height > limits.pixels) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%lld x %lld pixels are more than the limit of %lld",
                     static_cast<long long>(header.width), static_cast<long long>(header.height),
                     static_cast<long long>(limits.pixels));
    }
    return Checked{format, header};
}

} // namespace

Status bad_picture(const char *format, const char *problem) {
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "not a valid %s file: %s", format, problem);
}

Result<Pixels> Pixels::make(int32_t width, int32_t height) {
    constexpr int64_t slack = 16;
    const int64_t bytes = int64_t{width} * height * 3 + slack;
    Pixels pixels;
    pixels.width = width;
    pixels.height = height;
    pixels.rgb.reset(new (std::nothrow) uint8_t[static_cast<size_t>(bytes)]);
    if (pixels.rgb == nullptr) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory for a picture of %d x %d pixels",
                     width, height);
    }
    std::memset(pixels.rgb.get() + bytes - slack, 0, slack);
    return pixels;
}

Result<PictureSize> picture_size(std::span<const std::byte> file, const PictureLimits &limits) {
    ASSIGN_OR_RETURN(const Checked checked, read_header(file, limits));
    PictureSize size{static_cast<int32_t>(checked.header.width),
                     static_cast<int32_t>(checked.header.height)};
    if (lies_on_its_side(checked.header.orientation)) std::swap(size.width, size.height);
    return size;
}

Result<Pixels> decode_picture(std::span<const std::byte> file, const PictureLimits &limits) {
    ASSIGN_OR_RETURN(const Checked checked, read_header(file, limits));
    const FileHeader &header = checked.header;
    ASSIGN_OR_RETURN(Pixels pixels, Pixels::make(static_cast<int32_t>(header.width),
                                                 static_cast<int32_t>(header.height)));
    RETURN_IF_ERROR(checked.format->decode(file, &pixels));
    return turn_upright(std::move(pixels), header.orientation);
}

} // namespace batchllm
