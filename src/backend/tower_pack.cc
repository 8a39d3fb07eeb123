#include "backend/tower_pack.h"

#include <algorithm>

namespace batchllm {
namespace {

int64_t patches_of(const PictureLoad &load) {
    return int64_t{load.picture->grid.rows} * load.picture->grid.columns;
}

std::vector<float> numbers_of(const Tensor &tensor) {
    std::vector<float> numbers(static_cast<size_t>(tensor.rows * tensor.columns));
    read_rows(tensor, 0, tensor.rows, DType::f32, numbers.data());
    return numbers;
}

} // namespace

void TowerPack::place(const Tower &tower, std::span<const PictureLoad> loads) {
    patches.clear();
    outputs.clear();
    pictures.clear();
    windows.clear();
    const int32_t merge = tower.merge;
    for (const PictureLoad &load : loads) {
        const PictureGrid &grid = load.picture->grid;
        const int32_t rows = grid.rows / merge;
        const int32_t columns = grid.columns / merge; // of tokens
        const int32_t window = tower.window > 0 ? tower.window / merge : std::max(rows, columns);
        const auto add_token = [&](int32_t y, int32_t x) {
            outputs.push_back({load.slot, y * columns + x});
            for (int32_t i = 0; i < merge * merge; ++i) {
                const int32_t row = y * merge + i / merge;
                const int32_t column = x * merge + i % merge;
                const int32_t at = tower.in_blocks ? (y * columns + x) * merge * merge + i
                                                   : row * grid.columns + column;
                patches.push_back({static_cast<int32_t>(pictures.size()), at, row, column,
                                   grid.rows, grid.columns});
            }
        };
        const auto count = [&]() { return static_cast<int64_t>(patches.size()); };
        const int64_t first = count();
        for (int32_t top = 0; top < rows; top += window) {
            for (int32_t left = 0; left < columns; left += window) {
                const int64_t begin = count();
                for (int32_t y = top; y < std::min(rows, top + window); ++y) {
                    for (int32_t x = left; x < std::min(columns, left + window); ++x) {
                        add_token(y, x);
                    }
                }
                windows.push_back({begin, count()});
            }
        }
        pictures.push_back({first, count()});
    }
}

std::span<const PictureLoad> first_pack(std::span<const PictureLoad> loads, int64_t most) {
    size_t count = 0;
    for (int64_t patches = 0; count < loads.size(); ++count) {
        patches += patches_of(loads[count]);
        if (count > 0 && patches > most) break;
    }
    return loads.first(count);
}

Status check_picture(const Tower &tower, const PictureLoad &load, const BackendInfo &info) {
    const PreparedPicture &picture = *load.picture;
    const PictureGrid &grid = picture.grid;
    const bool fits = grid.rows > 0 && grid.columns > 0 && grid.rows % tower.merge == 0 &&
                      grid.columns % tower.merge == 0;
    const int64_t patches = patches_of(load);
    if (load.slot < 0 || load.slot >= info.picture_slots || !fits ||
        (info.picture_patches > 0 && patches > info.picture_patches) ||
        static_cast<int64_t>(picture.patches.size()) != patches * tower.values() ||
        grid.tokens != patches / (tower.merge * tower.merge)) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "%s backend: slot %d, a picture of %d x %d patches, %zu numbers and %d "
                     "tokens",
                     info.name.c_str(), load.slot, grid.rows, grid.columns, picture.patches.size(),
                     grid.tokens);
    }
    const bool placed = !tower.positions || tower.interpolated ||
                        (grid.rows <= tower.side && grid.columns <= tower.side);
    if (placed) return {};
    return error(BATCHLLM_ERROR_INTERNAL, "%s backend: a picture of %d x %d patches, at most %d",
                 info.name.c_str(), grid.rows, grid.columns, tower.side);
}

std::vector<float> folded_patch(const Tower &tower) {
    const std::vector<float> stored = numbers_of(tower.patch.values);
    const auto size = static_cast<size_t>(tower.patch_values);
    const auto frames = static_cast<size_t>(tower.frames);
    std::vector<float> folded(stored.size() / frames);
    for (size_t i = 0; i < folded.size(); ++i) {
        for (size_t frame = 0; frame < frames; ++frame) {
            folded[i] += stored[(i / size * frames + frame) * size + i % size];
        }
    }
    return folded;
}

std::vector<float> joined_projection(const Merger &merger, const Tower &tower) {
    const std::vector<float> by_channel = numbers_of(merger.projection.values);
    const auto patches = static_cast<size_t>(tower.merge * tower.merge);
    const auto hidden = static_cast<size_t>(tower.hidden);
    std::vector<float> joined(by_channel.size());
    for (size_t i = 0; i < joined.size(); ++i) {
        const size_t column = i % (patches * hidden);
        joined[i] = by_channel[i - column + column % hidden * patches + column / hidden];
    }
    return joined;
}

std::vector<float> output_bias(const Attention &attention) {
    std::vector<float> bias;
    if (attention.o.bias) bias = numbers_of(attention.o.bias);
    if (!attention.v.bias) return bias;
    const std::vector<float> o = numbers_of(attention.o.values), v = numbers_of(attention.v.bias);
    bias.resize(o.size() / v.size());
    for (size_t row = 0; row < bias.size(); ++row) {
        double sum = bias[row];
        for (size_t i = 0; i < v.size(); ++i) sum += double{o[row * v.size() + i]} * v[i];
        bias[row] = static_cast<float>(sum);
    }
    return bias;
}

int64_t merged_width(const Merger &merger, const Tower &tower) {
    return merger.averaged ? tower.hidden : int64_t{tower.hidden} * tower.merge * tower.merge;
}

} // namespace batchllm
