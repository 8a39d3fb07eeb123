// Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: transformers' Qwen2VLImageProcessor.
#include <algorithm>
#include <cmath>

#include "image/picture_family.h"

namespace batchllm {
namespace {

class QwenProcessor final : public PictureFamily {
  public:
    Status read(const ProcessorFiles &files) {
        RETURN_IF_ERROR(
            read_common(files, {ResizeFilter::bicubic, true, clip_mean, clip_deviation}));
        ASSIGN_OR_RETURN(patch_, files.number("patch_size", 14));
        ASSIGN_OR_RETURN(merge_, files.number("merge_size", 2));
        ASSIGN_OR_RETURN(const int32_t frames, files.number("temporal_patch_size", 2));
        patch_key_ = files.picture.file() + ": patch_size";
        merge_key_ = files.picture.file() + ": merge_size";
        in_blocks_ = true;

        // The edges' names are the reference's: the numbers are pixels. min_pixels and max_pixels go
        // before them.
        if (const auto size = files.picture.given("size")) {
            RETURN_IF_ERROR(read_pixels(*size, "shortest_edge", &least_pixels_));
            RETURN_IF_ERROR(read_pixels(*size, "longest_edge", &most_pixels_));
        }
        RETURN_IF_ERROR(read_pixels(files.picture, "min_pixels", &least_pixels_));
        RETURN_IF_ERROR(read_pixels(files.picture, "max_pixels", &most_pixels_));
        if (least_pixels_ > most_pixels_) {
            return files.picture.fail("wants more pixels at least than at most");
        }

        ASSIGN_OR_RETURN(token_, files.token("image_token_id", 151655));
        ASSIGN_OR_RETURN(placeholder_, files.spelling(token_));
        replaced_by_ = placeholder_;
        finish("qwen", {frames, least_pixels_, most_pixels_});
        return {};
    }

  private:
    static Status read_pixels(const JsonValue &settings, std::string_view key, int64_t *pixels) {
        const auto given = settings.given(key);
        if (!given) return {};
        ASSIGN_OR_RETURN(*pixels, given->integer(1, int64_t{1} << 28));
        return {};
    }

    // smart_resize: sides are multiples of a block, their product is in the range, and the aspect
    // stays close. Python rounds halves to even.
    Result<PictureSize> target(int32_t width, int32_t height) const override {
        constexpr int32_t most_aspect = 200;
        const auto [shorter, longer] = std::minmax(width, height);
        if (longer > int64_t{most_aspect} * shorter) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "the longer side of %d x %d pixels is more than %d times the shorter",
                         width, height, most_aspect);
        }
        const double block = patch_ * merge_, w = width, h = height;
        double to_w = std::nearbyint(w / block) * block, to_h = std::nearbyint(h / block) * block;
        if (to_w * to_h > static_cast<double>(most_pixels_)) {
            const double beta = std::sqrt(h * w / static_cast<double>(most_pixels_));
            to_w = std::max(block, std::floor(w / beta / block) * block);
            to_h = std::max(block, std::floor(h / beta / block) * block);
        } else if (to_w * to_h < static_cast<double>(least_pixels_)) {
            const double beta = std::sqrt(static_cast<double>(least_pixels_) / (h * w));
            to_w = std::ceil(w * beta / block) * block;
            to_h = std::ceil(h * beta / block) * block;
        }
        if (to_w < 1 || to_h < 1) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%d x %d pixels are too few for this model", width, height);
        }
        return PictureSize{static_cast<int32_t>(to_w), static_cast<int32_t>(to_h)};
    }

    int64_t least_pixels_ = 56 * 56, most_pixels_ = 28 * 28 * 1280;
};

} // namespace

MadeProcessor make_qwen_processor(const ProcessorFiles &files) {
    auto processor = std::make_unique<QwenProcessor>();
    RETURN_IF_ERROR(processor->read(files));
    return std::unique_ptr<const PictureProcessor>(std::move(processor));
}

} // namespace batchllm
