// Mistral 3 with Pixtral's tower: transformers' PixtralImageProcessor and PixtralProcessor.
#include <algorithm>
#include <cmath>

#include "image/picture_family.h"

namespace batchllm {
namespace {

class PixtralProcessor final : public PictureFamily {
  public:
    Status read(const ProcessorFiles &files) {
        RETURN_IF_ERROR(
            read_common(files, {ResizeFilter::bicubic, true, clip_mean, clip_deviation}));
        // PixtralProcessor gives the picture's processor its own sizes.
        patch_ = 16;
        merge_ = 1;
        std::string break_text = "[IMG_BREAK]", end_text = "[IMG_END]";
        if (files.processor) {
            RETURN_IF_ERROR(read_number(*files.processor, "patch_size", &patch_));
            RETURN_IF_ERROR(read_number(*files.processor, "spatial_merge_size", &merge_));
            RETURN_IF_ERROR(read_text(*files.processor, "image_break_token", &break_text));
            RETURN_IF_ERROR(read_text(*files.processor, "image_end_token", &end_text));
        }
        const std::string &file = (files.processor ? *files.processor : files.picture).file();
        patch_key_ = file + ": patch_size";
        merge_key_ = file + ": spatial_merge_size";
        most_ = {1024, 1024};
        if (const auto size = files.picture.given("size")) {
            if (size->given("longest_edge")) {
                RETURN_IF_ERROR(read_number(*size, "longest_edge", &most_.width));
                most_.height = most_.width;
            } else {
                RETURN_IF_ERROR(read_number(*size, "width", &most_.width));
                RETURN_IF_ERROR(read_number(*size, "height", &most_.height));
            }
        }

        if (files.tokenizer == nullptr) {
            return files.config.unsupported("pictures of this model without a tokenizer");
        }
        ASSIGN_OR_RETURN(token_, files.token("image_token_index", 10));
        ASSIGN_OR_RETURN(placeholder_, files.spelling(token_));
        replaced_by_ = placeholder_;
        for (const auto &[text, id] :
             {std::pair(&break_text, &break_), std::pair(&end_text, &end_)}) {
            *id = files.tokenizer->token_id(*text);
            if (*id < 0) {
                return error(BATCHLLM_ERROR_MODEL_FORMAT,
                             "%s: the tokenizer has no token %s, which stands behind pictures",
                             files.config.file().c_str(), printable(*text).c_str());
            }
        }
        finish("pixtral", {most_.width, most_.height, break_, end_});
        return {};
    }

    // A row of the picture after the other, each with a mark at its end.
    std::vector<int32_t> layout(const PictureGrid &grid) const override {
        const auto across = static_cast<size_t>(grid.columns / merge_);
        std::vector<int32_t> tokens;
        for (int32_t row = 0; row < grid.rows / merge_; ++row) {
            tokens.insert(tokens.end(), across, token_);
            tokens.push_back(break_);
        }
        if (!tokens.empty()) tokens.back() = end_;
        return tokens;
    }

  private:
    static Status read_number(const JsonValue &settings, std::string_view key, int32_t *number) {
        const auto given = settings.given(key);
        if (!given) return {};
        ASSIGN_OR_RETURN(const int64_t value, given->integer(1, 1 << 14));
        *number = static_cast<int32_t>(value);
        return {};
    }
    static Status read_text(const JsonValue &settings, std::string_view key, std::string *text) {
        const auto given = settings.given(key);
        if (!given) return {};
        ASSIGN_OR_RETURN(*text, given->string());
        return {};
    }

    // Only ever smaller, then up to whole blocks.
    Result<PictureSize> target(int32_t width, int32_t height) const override {
        const int64_t block = int64_t{patch_} * merge_;
        const double ratio = std::max(static_cast<double>(height) / most_.height,
                                      static_cast<double>(width) / most_.width);
        const auto side = [&](int32_t pixels) -> int64_t {
            const int64_t kept =
                ratio > 1 ? static_cast<int64_t>(std::floor(pixels / ratio)) : pixels;
            // Python divides towards minus infinity, so nothing stays nothing.
            return kept == 0 ? 0 : ((kept - 1) / block + 1) * block;
        };
        const int64_t across = side(width), down = side(height);
        if (across == 0 || down == 0) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "the shorter side of %d x %d pixels vanishes where the longer becomes %d",
                         width, height, std::max(most_.width, most_.height));
        }
        return PictureSize{static_cast<int32_t>(across), static_cast<int32_t>(down)};
    }

    PictureSize most_;
    int32_t break_ = -1, end_ = -1;
};

} // namespace

MadeProcessor make_pixtral_processor(const ProcessorFiles &files) {
    auto processor = std::make_unique<PixtralProcessor>();
    RETURN_IF_ERROR(processor->read(files));
    return std::unique_ptr<const PictureProcessor>(std::move(processor));
}

} // namespace batchllm
