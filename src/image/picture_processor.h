// A picture's file -> what the model's tower reads, and the tokens that stand for it: the part of
// transformers' processors that deals with pictures, for the families that make() names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "image/decode.h"
#include "image/picture.h"
#include "text/tokenizer.h"

namespace batchllm {

// Immutable once made: any number of threads may use it.
class PictureProcessor {
  public:
    // From a model's folder: config.json, and preprocessor_config.json or processor_config.json. Null
    // if the model reads text alone. UNSUPPORTED, by name, if it reads pictures in a way that is not
    // known here, and MODEL_FORMAT if a file is wrong; the model can still be used for text.
    // tokenizer: whose special tokens the texts below have; null: they are empty.
    static Result<std::unique_ptr<const PictureProcessor>> make(const std::string &model_dir,
                                                                const Tokenizer *tokenizer,
                                                                const PictureLimits &limits = {});
    virtual ~PictureProcessor() = default;

    // What becomes of a picture of this size (PictureSize: upright). INVALID_ARGUMENT: the model does
    // not take it (Qwen: one side is more than 200 times the other).
    virtual Result<PictureGrid> grid(int32_t width, int32_t height) const = 0;

    // The errors are grid's and decode_picture's.
    Result<PreparedPicture> prepare(std::span<const std::byte> file) const;
    // The same for pixels in memory.
    Result<PreparedPicture> prepare(const Pixels &pixels) const;

    // A hash of everything that decides how pixels become patches and tokens.
    uint64_t fingerprint() const { return fingerprint_; }
    const PictureLimits &limits() const { return limits_; }

    // What stands for a picture in the text that a chat template renders, "<|image_pad|>"; and what is
    // put in its place before the text is tokenized, which has the special token token() once: equal,
    // or "\n\n<start_of_image><image_soft_token><end_of_image>\n\n".
    const std::string &placeholder() const { return placeholder_; }
    const std::string &replaced_by() const { return replaced_by_; }
    // The special token at whose places the tower's outputs stand, Model::picture_token.
    int32_t token() const { return token_; }
    // The tokens that then replace that one token: token() as often as grid.tokens says, for some
    // families with others in between (Pixtral's [IMG_BREAK] after each row).
    virtual std::vector<int32_t> layout(const PictureGrid &grid) const;

  protected:
    // How a resized picture becomes numbers.
    virtual PreparedPicture patches(const Pixels &resized, const PictureGrid &grid) const = 0;

    uint64_t fingerprint_ = 0;
    PictureLimits limits_;
    std::string placeholder_, replaced_by_;
    int32_t token_ = -1;
};

} // namespace batchllm
