// Tokens that stand for parts of pictures: the tower's outputs in place of embeddings, and what the tower adds behind the
// first layers.
#include <algorithm>

#include "backend/cpu/forward.h"

namespace batchllm::cpu {

Status Forward::find_pictures(const TokenBatch &batch) {
    picture_of_.clear();
    for (const PictureTokens &part : batch.pictures) {
        if (tower_ == nullptr || part.first + part.token_count > tower_->tokens(part.slot)) {
            return error(BATCHLLM_ERROR_INTERNAL,
                         "cpu backend: tokens [%d, %d) of the picture in slot %d", part.first,
                         part.first + part.token_count, part.slot);
        }
        picture_of_.resize(batch.tokens.size(), {-1, 0});
        for (int32_t i = 0; i < part.token_count; ++i) {
            picture_of_[static_cast<size_t>(part.token_begin + i)] = {part.slot, part.first + i};
        }
    }
    return {};
}

const float *Forward::picture_row(int64_t token, int64_t part) const {
    if (picture_of_.empty()) return nullptr;
    const auto [slot, place] = picture_of_[static_cast<size_t>(token)];
    return slot < 0 ? nullptr : tower_->output(slot, part, place);
}

void Forward::add_deepstack(size_t layer, int64_t rows, const std::vector<int32_t> *wanted) {
    const auto part = static_cast<int64_t>(layer) + 1;
    if (picture_of_.empty() || part >= tower_->parts()) return;
    for (int64_t r = 0; r < rows; ++r) {
        const float *added = picture_row(wanted == nullptr ? r : (*wanted)[r], part);
        if (added == nullptr) continue;
        kernels_.add_scaled(added, 1, model_.hidden, residual_.floats() + r * model_.hidden);
    }
}

} // namespace batchllm::cpu
