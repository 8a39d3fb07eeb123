// JPEG by libjpeg-turbo, with its defaults (slow integer DCT, fancy upsampling), as Pillow uses it.
#include <csetjmp>
#include <cstdio> // jpeglib.h needs FILE

#include <jerror.h>
#include <jpeglib.h>

#include <memory>
#include <new>
#include <optional>
#include <string_view>

#include "image/codecs.h"
#include "image/orientation.h"

namespace batchllm {
namespace {

// More scans than any encoder makes: each costs a pass over the whole picture.
constexpr int most_scans = 500;
// Of so many pixels together, unless there are no more scans than encoders make.
constexpr int64_t most_scanned_pixels = int64_t{1} << 32;
constexpr int usual_scans = 50;

// A decompressor whose errors come back to `out`. Its functions jump there, so what lies between a
// setjmp and a call of the library has no destructors to run.
struct JpegReader {
    JpegReader() {
        info.err = jpeg_std_error(&errors);
        info.client_data = this;
        errors.error_exit = [](j_common_ptr common) { of(common)->fail(); };
        errors.emit_message = [](j_common_ptr, int) {}; // warnings: as Pillow, decode what there is
        errors.output_message = [](j_common_ptr) {};
        source.init_source = [](j_decompress_ptr) {};
        source.fill_input_buffer = [](j_decompress_ptr d) -> boolean {
            ERREXIT(d, JERR_INPUT_EOF);
            return FALSE;
        };
        source.skip_input_data = [](j_decompress_ptr d, long count) {
            if (count <= 0) return;
            if (static_cast<size_t>(count) > d->src->bytes_in_buffer) ERREXIT(d, JERR_INPUT_EOF);
            d->src->next_input_byte += count;
            d->src->bytes_in_buffer -= static_cast<size_t>(count);
        };
        source.resync_to_restart = jpeg_resync_to_restart;
        source.term_source = [](j_decompress_ptr) {};
        progress.progress_monitor = [](j_common_ptr common) {
            JpegReader *reader = of(common);
            const int scans = reader->info.input_scan_number;
            const int64_t pixels = int64_t{reader->info.image_width} * reader->info.image_height;
            if (scans <= usual_scans) return;
            if (scans <= most_scans && scans * pixels <= most_scanned_pixels) return;
            reader->too_many_scans = true;
            std::longjmp(reader->out, 1);
        };
    }
    ~JpegReader() { jpeg_destroy_decompress(&info); }
    JpegReader(const JpegReader &) = delete;
    JpegReader &operator=(const JpegReader &) = delete;

    static JpegReader *of(j_common_ptr common) {
        return static_cast<JpegReader *>(common->client_data);
    }
    [[noreturn]] void fail() { std::longjmp(out, 1); }

    // What went wrong, after a jump.
    Status status() {
        if (too_many_scans) return bad_picture("JPEG", "it has too many scans for its size");
        switch (errors.msg_code) {
        case JERR_OUT_OF_MEMORY:
            return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to decode a JPEG file");
        case JERR_INPUT_EOF:
        case JERR_INPUT_EMPTY:
            return bad_picture("JPEG", "it is truncated");
        default:
            break;
        }
        char text[JMSG_LENGTH_MAX];
        errors.format_message(reinterpret_cast<j_common_ptr>(&info), text);
        return bad_picture("JPEG", text);
    }

    // Reads up to the first scan; false: status() says why not.
    bool read_header(FileBytes file) {
        if (setjmp(out) != 0) return false;
        jpeg_create_decompress(&info);
        info.progress = &progress;
        source.next_input_byte = reinterpret_cast<const JOCTET *>(file.data());
        source.bytes_in_buffer = file.size();
        info.src = &source;
        jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
        jpeg_read_header(&info, TRUE);
        return true;
    }

    // Decodes row by row: colours straight into the picture, inks by way of `inks`, a row's length.
    bool decode(Pixels *pixels, uint8_t *inks) {
        if (setjmp(out) != 0) return false;
        info.out_color_space = inks != nullptr ? JCS_CMYK : JCS_RGB;
        jpeg_start_decompress(&info);
        while (info.output_scanline < info.output_height) {
            uint8_t *to = pixels->row(info.output_scanline);
            JSAMPROW row = inks != nullptr ? inks : to;
            jpeg_read_scanlines(&info, &row, 1);
            if (inks != nullptr) inks_to_rgb(inks, pixels->width, to);
        }
        // What follows the last row only matters where all scans had to be read for the first.
        if (info.progressive_mode) jpeg_finish_decompress(&info);
        return true;
    }

    // Four inks are stored inverted, as Adobe's programs and all others do; then Pillow's formula.
    static void inks_to_rgb(const uint8_t *inks, int32_t width, uint8_t *rgb) {
        for (int32_t x = 0; x < width; ++x, inks += 4, rgb += 3) {
            const int light = inks[3];
            for (int c = 0; c < 3; ++c) {
                const int product = (255 - inks[c]) * light + 128;
                rgb[c] = static_cast<uint8_t>(light - ((product + (product >> 8)) >> 8));
            }
        }
    }

    int orientation() const {
        std::optional<int> exif, xmp;
        for (auto *marker = info.marker_list; marker != nullptr; marker = marker->next) {
            const FileBytes data(reinterpret_cast<const std::byte *>(marker->data),
                                 marker->data_length);
            const std::string_view text(reinterpret_cast<const char *>(data.data()), data.size());
            if (text.starts_with(std::string_view("Exif\0\0", 6))) {
                if (!exif) exif = exif_orientation(data);
            } else if (text.starts_with(std::string_view("http://ns.adobe.com/xap/1.0/\0", 29))) {
                if (!xmp) xmp = xmp_orientation(data.subspan(29));
            }
        }
        return exif ? *exif : xmp.value_or(1);
    }

    std::jmp_buf out;
    jpeg_decompress_struct info{};
    jpeg_error_mgr errors{};
    jpeg_source_mgr source{};
    jpeg_progress_mgr progress{};
    bool too_many_scans = false;
};

} // namespace

Result<FileHeader> read_jpeg_header(FileBytes file) {
    JpegReader reader;
    if (!reader.read_header(file)) return reader.status();
    return FileHeader{reader.info.image_width, reader.info.image_height, reader.orientation()};
}

Status decode_jpeg(FileBytes file, Pixels *pixels) {
    JpegReader reader;
    if (!reader.read_header(file)) return reader.status();
    std::unique_ptr<uint8_t[]> inks;
    switch (reader.info.num_components) {
    case 1:
    case 3:
        break;
    case 4:
        inks.reset(new (std::nothrow) uint8_t[static_cast<size_t>(pixels->width) * 4]);
        if (inks == nullptr) {
            return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to decode a JPEG file");
        }
        break;
    default:
        return bad_picture("JPEG", "it has neither 1, 3 nor 4 components");
    }
    if (!reader.decode(pixels, inks.get())) return reader.status();
    return {};
}

} // namespace batchllm
