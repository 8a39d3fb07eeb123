// The handle of a tokenizer, which reports take too.
#pragma once

#include <memory>

#include "text/chat_template.h"
#include "text/tokenizer.h"

struct batchllm_tokenizer {
    std::unique_ptr<batchllm::Tokenizer> tokenizer;
    std::unique_ptr<const batchllm::ChatTemplate> chat;
};
