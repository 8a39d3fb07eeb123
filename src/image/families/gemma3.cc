// Gemma 3: transformers' Gemma3ImageProcessor and Gemma3Processor, without pan and scan, which is off
// by default there. Each picture becomes a square of one size, whatever its shape.
#include <cmath>

#include "image/picture_family.h"

namespace batchllm {
namespace {

class Gemma3Processor final : public PictureFamily {
  public:
    Status read(const ProcessorFiles &files) {
        RETURN_IF_ERROR(read_common(files, {ResizeFilter::bilinear, true, half, half}));
        ASSIGN_OR_RETURN(const bool crops, files.picture.boolean_or("do_pan_and_scan", false));
        if (crops) {
            return files.picture.at("do_pan_and_scan")
                .value()
                .unsupported("several crops of a picture");
        }
        size_ = {224, 224};
        if (const auto size = files.picture.given("size")) {
            RETURN_IF_ERROR(read_side(*size, "width", &size_.width));
            RETURN_IF_ERROR(read_side(*size, "height", &size_.height));
        }
        ASSIGN_OR_RETURN(const JsonValue tower, files.config.at("vision_config"));
        patch_ = 14;
        if (tower.given("patch_size")) RETURN_IF_ERROR(read_side(tower, "patch_size", &patch_));

        int64_t tokens = 256;
        if (const auto given = files.config.given("mm_tokens_per_image")) {
            ASSIGN_OR_RETURN(tokens, given->integer(1, 1 << 20));
        }
        // The tower's outputs are averaged over squares of patches, so that this many are left.
        const int64_t patches = size_.width / patch_;
        const auto left = static_cast<int64_t>(std::sqrt(static_cast<double>(tokens)));
        if (size_.width != size_.height || size_.width % patch_ != 0 || left * left != tokens ||
            patches % left != 0) {
            return files.picture.fail("does not make " + std::to_string(tokens) +
                                      " tokens of a picture, as mm_tokens_per_image says");
        }
        merge_ = static_cast<int32_t>(patches / left);
        patch_key_ = files.config.file() + ": patch_size";
        merge_key_ = files.picture.file() + ": size";

        ASSIGN_OR_RETURN(token_, files.token("image_token_index", 262144));
        ASSIGN_OR_RETURN(const int32_t begin, files.token("boi_token_index", 255999));
        ASSIGN_OR_RETURN(const int32_t end, files.token("eoi_token_index", 256000));
        ASSIGN_OR_RETURN(placeholder_, files.spelling(begin));
        ASSIGN_OR_RETURN(const std::string token_text, files.spelling(token_));
        ASSIGN_OR_RETURN(const std::string end_text, files.spelling(end));
        if (files.tokenizer != nullptr) {
            replaced_by_ = "\n\n" + placeholder_ + token_text + end_text + "\n\n";
        }
        finish("gemma3", {size_.width, size_.height});
        return {};
    }

  private:
    static Status read_side(const JsonValue &settings, std::string_view key, int32_t *side) {
        ASSIGN_OR_RETURN(const JsonValue given, settings.at(key));
        ASSIGN_OR_RETURN(const int64_t pixels, given.integer(1, 1 << 14));
        *side = static_cast<int32_t>(pixels);
        return {};
    }

    Result<PictureSize> target(int32_t, int32_t) const override { return size_; }

    PictureSize size_;
};

} // namespace

MadeProcessor make_gemma3_processor(const ProcessorFiles &files) {
    auto processor = std::make_unique<Gemma3Processor>();
    RETURN_IF_ERROR(processor->read(files));
    return std::unique_ptr<const PictureProcessor>(std::move(processor));
}

} // namespace batchllm
