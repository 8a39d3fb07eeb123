// Gemma 4: transformers' Gemma4ImageProcessor and Gemma4Processor.
#include <algorithm>
#include <cmath>

#include "image/picture_family.h"

namespace batchllm {
namespace {

class Gemma4Processor final : public PictureFamily {
  public:
    Status read(const ProcessorFiles &files) {
        RETURN_IF_ERROR(read_common(files, {ResizeFilter::bicubic, false, {0, 0, 0}, {1, 1, 1}}));
        ASSIGN_OR_RETURN(patch_, files.number("patch_size", 16));
        ASSIGN_OR_RETURN(merge_, files.number("pooling_kernel_size", 3));
        ASSIGN_OR_RETURN(most_tokens_, files.number("max_soft_tokens", 280));
        if (const int32_t known[] = {70, 140, 280, 560, 1120};
            std::find(std::begin(known), std::end(known), most_tokens_) == std::end(known)) {
            return files.picture.at("max_soft_tokens").value().unsupported("this number of tokens");
        }
        patch_key_ = files.picture.file() + ": patch_size";
        merge_key_ = files.picture.file() + ": pooling_kernel_size";
        channels_last_ = true;

        ASSIGN_OR_RETURN(token_, files.token("image_token_id", 258880));
        ASSIGN_OR_RETURN(const int32_t begin, files.token("boi_token_id", 255999));
        ASSIGN_OR_RETURN(const int32_t end, files.token("eoi_token_id", 258882));
        ASSIGN_OR_RETURN(placeholder_, files.spelling(token_));
        ASSIGN_OR_RETURN(const std::string begin_text, files.spelling(begin));
        ASSIGN_OR_RETURN(const std::string end_text, files.spelling(end));
        replaced_by_ = begin_text + placeholder_ + end_text;
        finish("gemma4", {most_tokens_});
        return {};
    }

  private:
    // get_aspect_ratio_preserving_size: the largest size of whole blocks that has no more patches.
    Result<PictureSize> target(int32_t width, int32_t height) const override {
        const int64_t block = int64_t{patch_} * merge_;
        const int64_t most_pixels = int64_t{most_tokens_} * merge_ * merge_ * patch_ * patch_;
        const double factor = std::sqrt(static_cast<double>(most_pixels) /
                                        static_cast<double>(int64_t{width} * height));
        const auto blocks = [&](int32_t side) {
            return static_cast<int64_t>(std::floor(factor * side / static_cast<double>(block)));
        };
        int64_t across = blocks(width), down = blocks(height);
        // What is very long and thin keeps one block of thickness.
        if (across == 0 && down != 0) {
            across = 1;
            down = std::min<int64_t>(height / width, most_tokens_);
        } else if (down == 0 && across != 0) {
            down = 1;
            across = std::min<int64_t>(width / height, most_tokens_);
        }
        if (across == 0 || down == 0 || across * down > most_tokens_) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "%d x %d pixels do not fit into %d tokens of %lld x %lld pixels", width,
                         height, most_tokens_, static_cast<long long>(block),
                         static_cast<long long>(block));
        }
        return PictureSize{static_cast<int32_t>(across * block),
                           static_cast<int32_t>(down * block)};
    }

    int32_t most_tokens_ = 0;
};

} // namespace

MadeProcessor make_gemma4_processor(const ProcessorFiles &files) {
    auto processor = std::make_unique<Gemma4Processor>();
    RETURN_IF_ERROR(processor->read(files));
    return std::unique_ptr<const PictureProcessor>(std::move(processor));
}

} // namespace batchllm
