// PNG by libpng: every kind of pixel -> RGB, as Pillow and then transformers' convert_to_rgb turn it
// into RGB. One thing differs on purpose: of a grey value with 16 bits the upper 8 are taken, as of
// all other values with 16 bits, where Pillow makes everything above 255 white.
#include <csetjmp>
#include <cstdlib>
#include <cstring>

#include <png.h>

#include <array>
#include <memory>
#include <new>
#include <optional>
#include <string_view>

#include "image/codecs.h"
#include "image/orientation.h"

namespace batchllm {
namespace {

constexpr size_t signature_bytes = 8;
constexpr int64_t most_chunk_bytes = 64 << 20; // of one chunk that libpng would keep

uint32_t u32(FileBytes bytes, size_t at) {
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<uint32_t>(bytes[at + i]);
    return value;
}

// The orientation that chunks anywhere in the file give: eXIf, or a packet of XMP as plain text.
int orientation_of_png(FileBytes file) {
    std::optional<int> exif, xmp;
    for (size_t at = signature_bytes; at + 12 <= file.size();) {
        const size_t size = u32(file, at);
        if (size > file.size() - at - 12) break;
        const std::string_view kind(reinterpret_cast<const char *>(file.data()) + at + 4, 4);
        const FileBytes data = file.subspan(at + 8, size);
        if (kind == "eXIf") {
            exif = exif_orientation(data);
        } else if (kind == "iTXt") {
            // Keyword, 0, whether compressed, ...
            constexpr std::string_view keyword("XML:com.adobe.xmp\0\0", 19);
            const std::string_view text(reinterpret_cast<const char *>(data.data()), data.size());
            if (text.starts_with(keyword)) xmp = xmp_orientation(data);
        }
        at += 12 + size;
    }
    return exif ? *exif : xmp.value_or(1);
}

// A reader whose errors come back to `out`: what lies between a setjmp and a call of the library has
// no destructors to run.
struct PngReader {
    explicit PngReader(FileBytes bytes) : rest(bytes) {}
    ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
    PngReader(const PngReader &) = delete;
    PngReader &operator=(const PngReader &) = delete;

    Status status() const {
        if (out_of_memory) {
            return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to decode a PNG file");
        }
        return bad_picture("PNG", truncated ? "it is truncated" : problem.data());
    }

    // Reads up to the pixels; false: status() says why not.
    bool read_header() {
        if (setjmp(out) != 0) return false;
        png = png_create_read_struct_2(
            PNG_LIBPNG_VER_STRING, this,
            [](png_structp p, png_const_charp text) {
                auto *reader = static_cast<PngReader *>(png_get_error_ptr(p));
                std::strncpy(reader->problem.data(), text, reader->problem.size() - 1);
                std::longjmp(reader->out, 1);
            },
            [](png_structp, png_const_charp) {}, this,
            [](png_structp p, png_alloc_size_t size) {
                void *memory = std::malloc(size);
                if (memory == nullptr)
                    static_cast<PngReader *>(png_get_mem_ptr(p))->out_of_memory = true;
                return memory;
            },
            [](png_structp, png_voidp memory) { std::free(memory); });
        if (png != nullptr) info = png_create_info_struct(png);
        if (info == nullptr) {
            out_of_memory = true;
            return false;
        }
        png_set_read_fn(png, this, [](png_structp p, png_bytep to, size_t count) {
            auto *reader = static_cast<PngReader *>(png_get_io_ptr(p));
            if (count > reader->rest.size()) {
                reader->truncated = true;
                png_error(p, "it is truncated");
            }
            std::memcpy(to, reader->rest.data(), count);
            reader->rest = reader->rest.subspan(count);
        });
        // The caller has checked the size.
        png_set_user_limits(png, 0x7fffffff, 0x7fffffff);
        png_set_chunk_malloc_max(png, most_chunk_bytes);
        // Texts, profiles and times are not needed.
        png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
        static constexpr png_byte unread[] = "tEXt\0zTXt\0iTXt\0iCCP\0sPLT\0eXIf\0hIST";
        png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, unread, 7);
        png_read_info(png, info);
        return true;
    }

    // After png_read_update_info: one row after the other into `row`, or all of an interlaced file into
    // `rows`.
    bool read_row(uint8_t *row) {
        if (setjmp(out) != 0) return false;
        png_read_row(png, row, nullptr);
        return true;
    }
    bool read_interlaced(png_bytepp rows) {
        if (setjmp(out) != 0) return false;
        png_read_image(png, rows);
        return true;
    }
    bool start() {
        if (setjmp(out) != 0) return false;
        png_set_packing(png); // a byte for each pixel
        png_set_interlace_handling(png);
        png_read_update_info(png, info);
        return true;
    }

    std::jmp_buf out;
    FileBytes rest;
    png_structp png = nullptr;
    png_infop info = nullptr;
    bool truncated = false, out_of_memory = false;
    std::array<char, 128> problem{};
};

// A row of the file's pixels -> RGB.
class Converter {
  public:
    explicit Converter(const PngReader &reader)
        : kind_(png_get_color_type(reader.png, reader.info)),
          depth_(png_get_bit_depth(reader.png, reader.info)) {
        png_bytep alpha = nullptr;
        png_color_16p colour = nullptr;
        int count = 0;
        if (png_get_tRNS(reader.png, reader.info, &alpha, &count, &colour) != 0) {
            if (kind_ != PNG_COLOR_TYPE_PALETTE && colour != nullptr) transparent_ = *colour;
        }
        if (kind_ == PNG_COLOR_TYPE_PALETTE) {
            // What the palette lacks is black, and opaque where tRNS lacks it.
            png_colorp palette = nullptr;
            int colours = 0;
            png_get_PLTE(reader.png, reader.info, &palette, &colours);
            for (int i = 0; i < 256; ++i) {
                const png_color c = i < colours ? palette[i] : png_color{};
                const uint32_t a = i < count ? alpha[i] : 255;
                table_[i] = {over_white(c.red, a), over_white(c.green, a), over_white(c.blue, a)};
            }
        } else if (kind_ == PNG_COLOR_TYPE_GRAY && depth_ <= 8) {
            const int most = (1 << depth_) - 1;
            for (int i = 0; i <= most; ++i) {
                // As Pillow, which compares what is scaled up; only for a single bit it scales both.
                const auto value = static_cast<uint8_t>(i * 255 / most);
                const bool hidden =
                    transparent_ && value == (depth_ == 1 ? (transparent_->gray != 0 ? 255 : 0)
                                                          : transparent_->gray & 0xff);
                put_gray(hidden ? 255 : value, table_[i].data());
            }
        }
    }

    void convert(const uint8_t *from, int32_t width, uint8_t *to) const {
        if (kind_ == PNG_COLOR_TYPE_RGB && depth_ == 8 && !transparent_) {
            std::memcpy(to, from, static_cast<size_t>(width) * 3);
            return;
        }
        const int step = depth_ == 16 ? 2 : 1; // the upper byte comes first
        for (int32_t x = 0; x < width; ++x, to += 3) {
            switch (kind_) {
            case PNG_COLOR_TYPE_GRAY:
                if (depth_ == 16) {
                    const bool hidden =
                        transparent_ && transparent_->gray == (from[2 * x] << 8 | from[2 * x + 1]);
                    put_gray(hidden ? 255 : from[2 * x], to);
                    break;
                }
                [[fallthrough]];
            case PNG_COLOR_TYPE_PALETTE:
                std::memcpy(to, table_[from[x]].data(), 3);
                break;
            case PNG_COLOR_TYPE_RGB: {
                for (int c = 0; c < 3; ++c) to[c] = from[(x * 3 + c) * step];
                // As Pillow, which knows 8 bits of each alone.
                if (transparent_ && to[0] == (transparent_->red & 0xff) &&
                    to[1] == (transparent_->green & 0xff) && to[2] == (transparent_->blue & 0xff)) {
                    put_gray(255, to);
                }
                break;
            }
            case PNG_COLOR_TYPE_GRAY_ALPHA:
                put_gray(over_white(from[x * 2 * step], from[(x * 2 + 1) * step]), to);
                break;
            default: // RGB and alpha
                for (int c = 0; c < 3; ++c) {
                    to[c] = over_white(from[(x * 4 + c) * step], from[(x * 4 + 3) * step]);
                }
            }
        }
    }

  private:
    int kind_, depth_;
    std::optional<png_color_16> transparent_;
    std::array<std::array<uint8_t, 3>, 256> table_{};
};

} // namespace

Result<FileHeader> read_png_header(FileBytes file) {
    // The first chunk is IHDR, so this alone tells the size.
    if (file.size() < signature_bytes + 25) return bad_picture("PNG", "it is truncated");
    PngReader reader(file);
    if (!reader.read_header()) return reader.status();
    return FileHeader{png_get_image_width(reader.png, reader.info),
                      png_get_image_height(reader.png, reader.info), orientation_of_png(file)};
}

Status decode_png(FileBytes file, Pixels *pixels) {
    PngReader reader(file);
    if (!reader.read_header()) return reader.status();
    const Converter converter(reader);
    if (!reader.start()) return reader.status();
    const size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
    const auto height = static_cast<size_t>(pixels->height);
    const bool interlaced = png_get_interlace_type(reader.png, reader.info) != PNG_INTERLACE_NONE;
    const size_t kept_rows = interlaced ? height : 1;
    const std::unique_ptr<uint8_t[]> raw(new (std::nothrow) uint8_t[kept_rows * row_bytes]);
    const std::unique_ptr<png_bytep[]> rows(new (std::nothrow) png_bytep[kept_rows]);
    if (raw == nullptr || rows == nullptr) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "no memory to decode a PNG file");
    }
    for (size_t y = 0; y < kept_rows; ++y) rows[y] = raw.get() + y * row_bytes;
    if (interlaced && !reader.read_interlaced(rows.get())) return reader.status();
    for (size_t y = 0; y < height; ++y) {
        if (!interlaced && !reader.read_row(raw.get())) return reader.status();
        converter.convert(rows[interlaced ? y : 0], pixels->width,
                          pixels->row(static_cast<int64_t>(y)));
    }
    return {};
}

} // namespace batchllm
