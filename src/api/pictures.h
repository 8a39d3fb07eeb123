// The handle of pictures: batchllm.h's batchllm_pictures.
#pragma once

#include <memory>

#include "runtime/intake.h"
#include "runtime/picture_library.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

struct batchllm_pictures {
    std::unique_ptr<const batchllm::Tokenizer> tokenizer;
    std::unique_ptr<const batchllm::ChatTemplate> chat;
    std::shared_ptr<batchllm::PictureLibrary> library;
};

namespace batchllm::api {

// The column of n rows, checked. Null: no row has a picture.
Result<PictureColumns> read_pictures(const batchllm_picture_column *column, int64_t n);

} // namespace batchllm::api
