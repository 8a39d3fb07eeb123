// What the processors of all families have in common: they bring a picture to a size of whole patches,
// make numbers of its bytes and cut it into patches. A family says to which size, and which tokens
// stand for a picture. Each has its file in families/.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "image/picture_processor.h"
#include "image/resize.h"

namespace batchllm {

// The files from which a processor is made.
struct ProcessorFiles {
    JsonValue config;                   // config.json
    std::optional<JsonValue> processor; // processor_config.json
    JsonValue picture;                  // its "image_processor", or preprocessor_config.json
    const Tokenizer *tokenizer;         // or null
    const PictureLimits &limits;

    // How a special token is spelled; "" without a tokenizer.
    Result<std::string> spelling(int32_t token) const;
    // The id under a key of config.json.
    Result<int32_t> token(std::string_view key, int32_t otherwise) const;
    // A number of the picture's settings.
    Result<int32_t> number(std::string_view key, int32_t otherwise) const;
};

class PictureFamily : public PictureProcessor {
  public:
    Result<PictureGrid> grid(int32_t width, int32_t height) const override;
    Result<PreparedPicture> prepare(std::span<const std::byte> file) const override;
    Cut cut() const override { return {patch_, merge_, patch_key_, merge_key_}; }
    uint64_t fingerprint() const override { return fingerprint_; }
    const PictureLimits &limits() const override { return limits_; }
    std::string placeholder() const override { return placeholder_; }
    std::string replaced_by() const override { return replaced_by_; }
    int32_t token() const override { return token_; }
    std::vector<int32_t> layout(const PictureGrid &grid) const override;

  protected:
    // Defaults of a family where preprocessor_config.json says nothing.
    struct Defaults {
        ResizeFilter filter;
        bool normalize;
        std::array<double, 3> mean, deviation;
    };
    static constexpr std::array<double, 3> clip_mean{0.48145466, 0.4578275, 0.40821073};
    static constexpr std::array<double, 3> clip_deviation{0.26862954, 0.26130258, 0.27577711};
    static constexpr std::array<double, 3> half{0.5, 0.5, 0.5};

    // Reads what all families have: limits, filter, rescaling and normalising.
    Status read_common(const ProcessorFiles &files, const Defaults &defaults);
    // Sets the fingerprint from what is set by then and the family's own settings.
    void finish(std::string_view family, std::initializer_list<int64_t> settings);

    // To which size, in whole blocks of merge x merge patches, a picture is brought.
    virtual Result<PictureSize> target(int32_t width, int32_t height) const = 0;

    int32_t patch_ = 0, merge_ = 1;
    std::string patch_key_, merge_key_; // PictureProcessor::Cut
    bool in_blocks_ = false;            // patches in blocks of merge x merge, not row by row
    bool channels_last_ = false;        // a patch is [height, width, 3], not [3, height, width]
    std::string placeholder_, replaced_by_;
    int32_t token_ = -1;

  private:
    PreparedPicture cut_up(const Pixels &pixels, const PictureGrid &grid) const;

    PictureLimits limits_;
    ResizeFilter filter_ = ResizeFilter::bicubic;
    std::array<std::array<float, 256>, 3> values_{}; // of a channel's byte
    uint64_t fingerprint_ = 0;
};

using MadeProcessor = Result<std::unique_ptr<const PictureProcessor>>;
MadeProcessor make_qwen_processor(const ProcessorFiles &files);
MadeProcessor make_gemma3_processor(const ProcessorFiles &files);
MadeProcessor make_gemma4_processor(const ProcessorFiles &files);
MadeProcessor make_pixtral_processor(const ProcessorFiles &files);

} // namespace batchllm
