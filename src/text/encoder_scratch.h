// Memory that encoding reuses, borrowed for a call and returned after it. So a tokenizer keeps as
// many as there have been threads using it at once, and threads keep none.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"

namespace batchllm {

struct EncoderScratch {
    BpeScratch bpe;
    std::string normalized;
    std::vector<AddedPiece> raw_pieces;
    std::vector<AddedPiece> normalized_pieces;
};

class ScratchPool {
  public:
    std::unique_ptr<EncoderScratch> take() {
        {
            std::lock_guard lock(mutex_);
            if (!free_.empty()) {
                auto scratch = std::move(free_.back());
                free_.pop_back();
                return scratch;
            }
        }
        return std::make_unique<EncoderScratch>();
    }
    void give_back(std::unique_ptr<EncoderScratch> scratch) {
        std::lock_guard lock(mutex_);
        free_.push_back(std::move(scratch));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<EncoderScratch>> free_;
};

} // namespace batchllm
