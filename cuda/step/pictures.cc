#include "step/pictures.h"

#include <numeric>

#include "model/tower.h"

namespace batchllm::cuda {

Status StepPictures::allocate(const Model &model, DType type, int64_t tokens) {
    const int64_t parts = model.tower->parts(), hidden = model.hidden;
    ASSIGN_OR_RETURN(memory_, DeviceMemory::create(tokens * parts * hidden * dtype_bytes(type),
                                                   "pictures' outputs"));
    outputs_ = {type, memory_.data(), parts, hidden};
    most_tokens_ = tokens;
    slots_.resize(kSlots);
    free_.resize(static_cast<size_t>(tokens));
    std::iota(free_.rbegin(), free_.rend(), 0);
    return {};
}

Status StepPictures::take(int32_t slot, int32_t tokens) {
    release(slot);
    const auto count = static_cast<size_t>(tokens);
    if (count > free_.size()) {
        return error(BATCHLLM_ERROR_INTERNAL, "cuda backend: a picture of %d tokens, room for %zu",
                     tokens, free_.size());
    }
    slots_[static_cast<size_t>(slot)].assign(free_.end() - static_cast<ptrdiff_t>(count),
                                             free_.end());
    free_.resize(free_.size() - count);
    return {};
}

void StepPictures::release(int32_t slot) {
    std::vector<int32_t> &places = slots_[static_cast<size_t>(slot)];
    free_.insert(free_.end(), places.begin(), places.end());
    places.clear();
}

Status StepPictures::stage(const TokenBatch &batch, StepInput *input, Staging *staging) {
    if (!on()) return {};
    staged_ = 0;
    for (const PictureTokens &part : batch.pictures) {
        const std::vector<int32_t> &places = slots_[static_cast<size_t>(part.slot)];
        if (static_cast<size_t>(part.first) + static_cast<size_t>(part.token_count) >
            places.size()) {
            return error(BATCHLLM_ERROR_INTERNAL,
                         "cuda backend: tokens [%d, %d) of the picture in slot %d", part.first,
                         part.first + part.token_count, part.slot);
        }
        staged_ += part.token_count;
    }
    ASSIGN_OR_RETURN(PictureToken * to,
                     input->stage_room<PictureToken>(kPictureTokens, staged_, staging));
    for (const PictureTokens &part : batch.pictures) {
        for (int32_t i = 0; i < part.token_count; ++i) {
            *to++ = {part.token_begin + i, place(part.slot, part.first + i)};
        }
    }
    return {};
}

Status StepPictures::embed(const StepInput &input, void *residual, cudaStream_t stream) const {
    return check_cuda(launch_picture_tokens(outputs_, 0, input.at<PictureToken>(kPictureTokens),
                                            staged_, false, residual, stream),
                      "pictures");
}

Status StepPictures::add_behind(size_t layer, const StepInput &input, void *residual,
                                cudaStream_t stream) const {
    return check_cuda(launch_picture_tokens(outputs_, static_cast<int64_t>(layer) + 1,
                                            input.at<PictureToken>(kPictureTokens), staged_, true,
                                            residual, stream),
                      "pictures");
}

} // namespace batchllm::cuda
