#include "image/picture_family.h"

#include <cstring>
#include <limits>

#include <xxhash.h>

namespace batchllm {
namespace {

constexpr int32_t most_number = std::numeric_limits<int32_t>::max();

Result<std::array<double, 3>> three_numbers(const JsonValue &picture, std::string_view key,
                                            const std::array<double, 3> &otherwise, double least) {
    const auto given = picture.given(key);
    if (!given) return otherwise;
    ASSIGN_OR_RETURN(const std::vector<JsonValue> elements, given->elements());
    if (elements.size() != 3) return given->fail("is not three numbers");
    std::array<double, 3> numbers{};
    for (size_t c = 0; c < 3; ++c) {
        ASSIGN_OR_RETURN(numbers[c], elements[c].number(least, 1e6));
    }
    return numbers;
}

} // namespace

Result<std::string> ProcessorFiles::spelling(int32_t token) const {
    if (tokenizer == nullptr) return std::string();
    const auto text = tokenizer->token_bytes(token);
    if (!text || text->empty() || !tokenizer->is_special(token)) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: the tokenizer has no special token %d, by which pictures are marked",
                     config.file().c_str(), token);
    }
    return *text;
}

Result<int32_t> ProcessorFiles::token(std::string_view key, int32_t otherwise) const {
    const auto given = config.given(key);
    if (!given) return otherwise;
    ASSIGN_OR_RETURN(const int64_t id, given->integer(0, most_number));
    return static_cast<int32_t>(id);
}

Result<int32_t> ProcessorFiles::number(std::string_view key, int32_t otherwise) const {
    const auto given = picture.given(key);
    if (!given) return otherwise;
    ASSIGN_OR_RETURN(const int64_t number, given->integer(1, 1 << 11));
    return static_cast<int32_t>(number);
}

Status PictureFamily::read_common(const ProcessorFiles &files, const Defaults &defaults) {
    const JsonValue &picture = files.picture;
    limits_ = files.limits;
    filter_ = defaults.filter;
    ASSIGN_OR_RETURN(const bool resize, picture.boolean_or("do_resize", true));
    if (!resize)
        return picture.at("do_resize").value().unsupported("pictures that keep their size");
    ASSIGN_OR_RETURN(const bool crop, picture.boolean_or("do_center_crop", false));
    if (crop) return picture.at("do_center_crop").value().unsupported("cropping pictures");
    if (const auto resample = picture.given("resample")) {
        constexpr int64_t bilinear = 2, bicubic = 3; // PIL.Image.Resampling
        ASSIGN_OR_RETURN(const int64_t filter, resample->integer(0, 100));
        if (filter != bilinear && filter != bicubic) {
            return resample->unsupported("this filter for resizing");
        }
        filter_ = filter == bicubic ? ResizeFilter::bicubic : ResizeFilter::bilinear;
    }

    ASSIGN_OR_RETURN(const bool rescale, picture.boolean_or("do_rescale", true));
    ASSIGN_OR_RETURN(const bool normalize, picture.boolean_or("do_normalize", defaults.normalize));
    double factor = 1.0 / 255;
    if (const auto given = picture.given("rescale_factor")) {
        ASSIGN_OR_RETURN(factor, given->number(1e-9, 1e9));
    }
    ASSIGN_OR_RETURN(const auto mean, three_numbers(picture, "image_mean", defaults.mean, -1e6));
    ASSIGN_OR_RETURN(const auto deviation,
                     three_numbers(picture, "image_std", defaults.deviation, 1e-6));
    // In f32 and in the order of transformers' rescale_and_normalize, which scales mean and deviation
    // up instead of the pixels down.
    const auto up = static_cast<float>(rescale ? 1 / factor : 1);
    for (size_t c = 0; c < 3; ++c) {
        const float m = static_cast<float>(mean[c]) * up, d = static_cast<float>(deviation[c]) * up;
        for (size_t i = 0; i < 256; ++i) {
            const auto byte = static_cast<float>(i);
            values_[c][i] = normalize ? (byte - m) / d
                            : rescale ? byte * static_cast<float>(factor)
                                      : byte;
        }
    }
    return {};
}

void PictureFamily::finish(std::string_view family, std::initializer_list<int64_t> settings) {
    std::string bytes("1 "); // version of this list
    const auto add = [&](const auto &value) {
        bytes.append(reinterpret_cast<const char *>(&value), sizeof value);
    };
    for (const std::string_view text :
         {family, std::string_view(placeholder_), std::string_view(replaced_by_)}) {
        add(text.size());
        bytes += text;
    }
    for (const int64_t setting : settings) add(setting);
    for (const int64_t setting :
         {int64_t{patch_}, int64_t{merge_}, int64_t{in_blocks_}, int64_t{channels_last_},
          int64_t{token_}, static_cast<int64_t>(filter_)}) {
        add(setting);
    }
    add(values_);
    fingerprint_ = XXH3_64bits(bytes.data(), bytes.size());
}

Result<PictureGrid> PictureFamily::grid(int32_t width, int32_t height) const {
    if (width < 1 || height < 1) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the picture has no pixels");
    }
    ASSIGN_OR_RETURN(const PictureSize size, target(width, height));
    if (int64_t{size.width} * size.height > limits_.pixels) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "the model wants %d x %d pixels, more than the limit of %lld", size.width,
                     size.height, static_cast<long long>(limits_.pixels));
    }
    // Resizing goes by way of the new width and the old height.
    if (int64_t{size.width} * height > limits_.pixels) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%d x %d pixels are too long and thin for this model", width, height);
    }
    PictureGrid grid;
    grid.rows = size.height / patch_;
    grid.columns = size.width / patch_;
    grid.merge = merge_;
    grid.tokens = (grid.rows / merge_) * (grid.columns / merge_);
    return grid;
}

Result<PreparedPicture> PictureFamily::prepare(std::span<const std::byte> file) const {
    // The size first: a picture that the model does not take is not decoded.
    ASSIGN_OR_RETURN(const PictureSize size, picture_size(file, limits_));
    ASSIGN_OR_RETURN(const PictureGrid grid, this->grid(size.width, size.height));
    ASSIGN_OR_RETURN(Pixels pixels, decode_picture(file, limits_));
    ASSIGN_OR_RETURN(pixels, resize_picture(std::move(pixels), grid.columns * patch_,
                                            grid.rows * patch_, filter_));
    return cut_up(pixels, grid);
}

PreparedPicture PictureFamily::cut_up(const Pixels &pixels, const PictureGrid &grid) const {
    const auto side = static_cast<size_t>(patch_), area = side * side;
    const auto columns = static_cast<size_t>(grid.columns), merge = static_cast<size_t>(merge_);
    PreparedPicture result;
    result.grid = grid;
    result.patches.resize(static_cast<size_t>(grid.rows) * columns * area * 3);
    for (int32_t pixel_row = 0; pixel_row < pixels.height; ++pixel_row) {
        const uint8_t *from = pixels.row(pixel_row);
        const size_t row = static_cast<size_t>(pixel_row) / side;
        const size_t y = static_cast<size_t>(pixel_row) % side;
        for (size_t column = 0; column < columns; ++column, from += side * 3) {
            size_t index = row * columns + column;
            if (in_blocks_) {
                const size_t block = row / merge * (columns / merge) + column / merge;
                index = (block * merge + row % merge) * merge + column % merge;
            }
            float *patch = result.patches.data() + index * area * 3;
            if (channels_last_) {
                float *to = patch + y * side * 3;
                for (size_t i = 0; i < side * 3; ++i) to[i] = values_[i % 3][from[i]];
            } else {
                for (size_t c = 0; c < 3; ++c) {
                    float *to = patch + c * area + y * side;
                    for (size_t x = 0; x < side; ++x) to[x] = values_[c][from[x * 3 + c]];
                }
            }
        }
    }
    return result;
}

std::vector<int32_t> PictureFamily::layout(const PictureGrid &grid) const {
    return std::vector<int32_t>(static_cast<size_t>(grid.tokens), token_);
}

} // namespace batchllm
