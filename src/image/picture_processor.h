// A picture's file -> what the model's tower reads, and the tokens that stand for it: the part of
// transformers' processors that deals with pictures, for the families in picture_family.h.
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
    // From a model's folder: config.json, and processor_config.json or preprocessor_config.json. Null
    // if the model reads text alone. UNSUPPORTED, by name, if it reads pictures in a way that is not
    // known here, and MODEL_FORMAT if a file is wrong; the model can still be used for text.
    // tokenizer: whose special tokens the texts below have; null: they are empty.
    static Result<std::unique_ptr<const PictureProcessor>> make(const std::string &model_dir,
                                                                const Tokenizer *tokenizer,
                                                                const PictureLimits &limits = {});
    virtual ~PictureProcessor() = default;

    // What becomes of a picture of this size (of picture_size: upright). INVALID_ARGUMENT: the model
    // does not take it (Qwen: one side is more than 200 times the other).
    virtual Result<PictureGrid> grid(int32_t width, int32_t height) const = 0;

    // The errors are grid's and decode_picture's.
    virtual Result<PreparedPicture> prepare(std::span<const std::byte> file) const = 0;

    // How it cuts pictures, which the tower must expect. The texts say what decides it: "FILE: key".
    struct Cut {
        int32_t patch = 0; // pixels along a side of a patch
        int32_t merge = 1; // PictureGrid::merge
        std::string patch_key, merge_key;
    };
    virtual Cut cut() const = 0;

    // A hash of everything that decides how pixels become patches and tokens.
    virtual uint64_t fingerprint() const = 0;
    virtual const PictureLimits &limits() const = 0;

    // What stands for a picture in the text that a chat template renders, "<|image_pad|>"; and what is
    // put in its place before the text is tokenized, which has the special token token() once: equal,
    // or "\n\n<start_of_image><image_soft_token><end_of_image>\n\n".
    virtual std::string placeholder() const = 0;
    virtual std::string replaced_by() const = 0;
    // The special token at whose places the tower's outputs stand, Model::picture_token.
    virtual int32_t token() const = 0;
    // The tokens that then replace that one token: token() as often as grid.tokens says, for some
    // families with others in between (Pixtral's [IMG_BREAK] after each row).
    virtual std::vector<int32_t> layout(const PictureGrid &grid) const = 0;
};

} // namespace batchllm
