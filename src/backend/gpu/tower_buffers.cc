#include "backend/gpu/tower_buffers.h"

#include <algorithm>

#include "backend/gpu/step_buffers.h"
#include "model/tower.h"

namespace batchllm {
namespace {

constexpr int64_t number_bytes = 4; // bytes of an f32 or an int32
constexpr int64_t row_step = 64;    // at most what products round rows up to
constexpr int64_t align = 16;
// Of a picture: twice what the processors of published models allow. Its numbers stay below 2^31.
constexpr int64_t most_patches = 131072;
// There are buffers for pictures that take a share of what is free.
constexpr int64_t free_share = 16;

} // namespace

TowerBuffers tower_buffers(const Model &model, DType element, DType residual, int64_t patches) {
    const Tower &tower = *model.tower;
    const int64_t rows = rounded_up(patches, row_step), hidden = tower.hidden;
    const int64_t each = int64_t{tower.merge} * tower.merge;
    const int64_t tokens = rounded_up((rows + each - 1) / each, row_step);
    const int64_t bytes = dtype_bytes(element);
    int64_t columns = padded_tower_width(tower.values()), up = 0, width = 0, projected = 0;
    const auto feed = [&](const FeedForward &f, int64_t of) {
        const int64_t padded = padded_tower_width(f.width);
        up = std::max(up, of * (f.gate ? 2 : 1) * padded);
        width = std::max(width, of * padded);
    };
    const auto merger = [&](const Merger &m) { // a row is a token's
        if (m.has_feed_forward()) feed(m.feed_forward, tokens);
        projected = std::max(projected, tokens * m.projection.rows());
    };
    merger(tower.merger);
    for (const DeepstackMerger &deepstack : tower.deepstack) merger(deepstack.merger);
    for (const Layer &layer : tower.layers) {
        feed(*layer.feed_forward(), rows);
        columns = std::max<int64_t>(columns, layer.attention()->q_size());
    }
    TowerBuffers of;
    of.residual = tokens * each * hidden * dtype_bytes(residual);
    of.delta = std::max(rows * hidden, tokens * int64_t{model.hidden}) * number_bytes;
    of.normed = std::max(rows * columns, tokens * each * hidden) * bytes;
    of.qkv = std::max(rows * 3 * hidden, projected) * bytes;
    of.attended = rows * hidden * bytes;
    of.up = up * bytes;
    of.activated = width * bytes;
    if (!tower.ropes.empty()) of.angles = rows * (tower.ropes[0].dims() / 2) * 2 * number_bytes;
    // Blocks: for each of two lists no more than tokens, and one for all whole blocks of rows; sections are padded.
    const int64_t blocks = 2 * (tokens + rows / least_tower_block_rows) * tower_block_bytes;
    of.sent = rows * (tower.values() * number_bytes + tower_patch_bytes) + tokens * number_bytes +
              blocks + 5 * align;
    return of;
}

int64_t tower_weight_bytes(const Tower &tower, DType element) {
    int64_t elements = 0, numbers = 0;
    for_each_tensor(tower, [&](const Tensor &tensor) {
        // Vectors and positions stay in f32.
        const bool is_vector =
            tensor.rows == 1 || tensor.columns == 1 || &tensor == &tower.positions;
        (is_vector ? numbers : elements) += tensor.rows * tensor.columns;
    });
    // Frames are folded into one.
    elements -= int64_t{tower.hidden} * tower.values() * (tower.frames - 1);
    return elements * dtype_bytes(element) + numbers * number_bytes;
}

int64_t picture_token_bytes(const Model &model, DType residual) {
    return model.tower->parts() * model.hidden * dtype_bytes(residual);
}

int64_t picture_tokens_on_gpu(const Model &model, DType residual, int64_t step_tokens,
                              int64_t memory_bytes) {
    // What a few steps of pictures alone need, and more than any picture has; a share of the memory.
    constexpr int64_t steps = 3, least = 32768, share = 32, most = int64_t{2} << 30;
    const int64_t bytes = std::min(most, memory_bytes / share);
    return std::min(std::max(steps * step_tokens, least),
                    bytes / picture_token_bytes(model, residual));
}

int64_t tower_patches_on_gpu(const Model &model, DType element, DType residual,
                             int64_t picture_tokens, int64_t left) {
    const Tower &tower = *model.tower;
    const int64_t each =
        tower_buffers(model, element, residual, least_pack_patches).total() / least_pack_patches;
    int64_t most = std::min(most_patches, picture_tokens * tower.merge * tower.merge);
    if (tower.positions && !tower.interpolated) {
        most = std::min(most, int64_t{tower.side} * tower.side);
    }
    const int64_t least =
        std::min(least_pack_patches, left / 2 / each); // where there is little memory
    return std::max({std::min(most, left / free_share / each), least, int64_t{1}});
}

int64_t tower_bytes_on_gpu(const Model &model, DType element, DType residual, int64_t step_tokens,
                           int64_t memory_bytes, int64_t left) {
    if (model.tower == nullptr) return 0;
    const int64_t tokens = picture_tokens_on_gpu(model, residual, step_tokens, memory_bytes);
    const int64_t before = tokens * picture_token_bytes(model, residual) + linear_workspace;
    const int64_t patches =
        tower_patches_on_gpu(model, element, residual, tokens, std::max<int64_t>(0, left - before));
    return before + tower_buffers(model, element, residual, patches).total();
}

} // namespace batchllm
