// WebP by libwebp. Of an animation, its first frame on a canvas that is transparent elsewhere.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>
#include <new>
#include <optional>

#include "image/codecs.h"
#include "image/orientation.h"

namespace batchllm {
namespace {

Status webp_status(VP8StatusCode code) {
    switch (code) {
    case VP8_STATUS_OK:
        return {};
    case VP8_STATUS_OUT_OF_MEMORY:
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to decode a WebP file");
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
        return bad_picture("WebP", "it is truncated");
    default:
        return bad_picture("WebP", "its data are damaged");
    }
}

const uint8_t *data_of(FileBytes file) { return reinterpret_cast<const uint8_t *>(file.data()); }

// The orientation in the EXIF or XMP chunk.
int orientation_of_webp(FileBytes file) {
    const WebPData data{data_of(file), file.size()};
    const std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)> demuxer(WebPDemux(&data),
                                                                           WebPDemuxDelete);
    if (demuxer == nullptr) return 1;
    const auto chunk = [&](const char *name,
                           std::optional<int> (*read)(FileBytes)) -> std::optional<int> {
        WebPChunkIterator at{};
        std::optional<int> found;
        if (WebPDemuxGetChunk(demuxer.get(), name, 1, &at) != 0) {
            found = read({reinterpret_cast<const std::byte *>(at.chunk.bytes), at.chunk.size});
        }
        WebPDemuxReleaseChunkIterator(&at);
        return found;
    };
    if (const auto exif = chunk("EXIF", exif_orientation)) return *exif;
    return chunk("XMP ", xmp_orientation).value_or(1);
}

// RGBA over white; rgba and rgb may be the same memory.
void lay_over_white(const uint8_t *rgba, int64_t pixels, uint8_t *rgb) {
    for (int64_t i = 0; i < pixels; ++i, rgba += 4, rgb += 3) {
        const uint32_t alpha = rgba[3];
        for (int c = 0; c < 3; ++c) rgb[c] = over_white(rgba[c], alpha);
    }
}

Status decode_first_frame(FileBytes file, Pixels *pixels) {
    const WebPData data{data_of(file), file.size()};
    WebPAnimDecoderOptions options;
    if (WebPAnimDecoderOptionsInit(&options) == 0) {
        return error(BATCHLLM_ERROR_INTERNAL, "libwebp has another version than its headers");
    }
    options.color_mode = MODE_RGBA;
    options.use_threads = 0;
    const std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)> decoder(
        WebPAnimDecoderNew(&data, &options), WebPAnimDecoderDelete);
    WebPAnimInfo info;
    uint8_t *canvas = nullptr;
    int time = 0;
    if (decoder == nullptr || WebPAnimDecoderGetInfo(decoder.get(), &info) == 0 ||
        static_cast<int32_t>(info.canvas_width) != pixels->width ||
        static_cast<int32_t>(info.canvas_height) != pixels->height ||
        WebPAnimDecoderGetNext(decoder.get(), &canvas, &time) == 0) {
        return bad_picture("WebP", "its first frame is damaged or truncated");
    }
    lay_over_white(canvas, int64_t{pixels->width} * pixels->height, pixels->rgb.get());
    return {};
}

} // namespace

Result<FileHeader> read_webp_header(FileBytes file) {
    WebPBitstreamFeatures features;
    RETURN_IF_ERROR(webp_status(WebPGetFeatures(data_of(file), file.size(), &features)));
    return FileHeader{features.width, features.height, orientation_of_webp(file)};
}

Status decode_webp(FileBytes file, Pixels *pixels) {
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0) {
        return error(BATCHLLM_ERROR_INTERNAL, "libwebp has another version than its headers");
    }
    RETURN_IF_ERROR(webp_status(WebPGetFeatures(data_of(file), file.size(), &config.input)));
    if (config.input.has_animation != 0) return decode_first_frame(file, pixels);
    const bool alpha = config.input.has_alpha != 0;
    const size_t values = alpha ? 4 : 3;
    const auto area = static_cast<size_t>(pixels->width) * static_cast<size_t>(pixels->height);
    std::unique_ptr<uint8_t[]> rgba;
    // libwebp 1.2.4 reads through a null pointer when it gets no memory for a lossless picture: four
    // bytes a pixel, and tables. So a shortage is to be noticed here.
    constexpr size_t tables = 1 << 20;
    auto *probe = new (std::nothrow) uint8_t[area * 8 + tables];
    asm volatile("" : "+r"(probe)); // keeps the compiler from removing it
    rgba.reset(probe);
    if (rgba != nullptr) rgba.reset(new (std::nothrow) uint8_t[alpha ? area * values : 1]);
    if (rgba == nullptr) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to decode a WebP file");
    }
    config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = alpha ? rgba.get() : pixels->rgb.get();
    config.output.u.RGBA.stride = static_cast<int>(static_cast<size_t>(pixels->width) * values);
    config.output.u.RGBA.size = area * values;
    const VP8StatusCode code = WebPDecode(data_of(file), file.size(), &config);
    WebPFreeDecBuffer(&config.output);
    RETURN_IF_ERROR(webp_status(code));
    if (alpha) lay_over_white(rgba.get(), static_cast<int64_t>(area), pixels->rgb.get());
    return {};
}

} // namespace batchllm
