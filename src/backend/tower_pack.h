// Pictures that a tower computes in one go: the order of their patches, the ranges that see each other, and where the results
// go; and a tower's weights as all backends change them before they pack them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/tower.h"

namespace batchllm {

// Patches are packed picture by picture, in each window by window, and there by the tokens that they become: so what one
// token stands for, a window and a picture are ranges.
struct TowerPack {
    struct Patch {
        int32_t picture; // of the pack
        int32_t at;      // which of PreparedPicture::patches
        int32_t row, column;
        int32_t rows, columns; // of its picture
    };
    // Where the result of merge * merge consecutive patches goes.
    struct Output {
        int32_t slot, token;
    };
    struct Range {
        int64_t begin, end; // patches that see each other
    };

    std::vector<Patch> patches;
    std::vector<Output> outputs; // [patches / (merge * merge)]
    std::vector<Range> pictures; // in the order of the loads
    std::vector<Range> windows;  // the pictures again if layers have no windows

    void place(const Tower &tower, std::span<const PictureLoad> loads);
};

// The first of these pictures, as many as have no more than `most` patches together, but at least one.
std::span<const PictureLoad> first_pack(std::span<const PictureLoad> loads, int64_t most);

// The caller has prepared the picture for this model; what is checked would otherwise be read or written out of bounds.
Status check_picture(const Tower &tower, const PictureLoad &load, const BackendInfo &info);

// All frames of a picture are equal, so their weights can be added. [hidden, Tower::values()]
std::vector<float> folded_patch(const Tower &tower);

// Of a merger whose projection is by_channel: its columns in the order in which patches are joined.
std::vector<float> joined_projection(const Merger &merger, const Tower &tower);

// The weights of values sum to one, so their bias can as well be part of the output's: o.bias + o * v.bias. Empty: there is
// neither.
std::vector<float> output_bias(const Attention &attention);

// What a merger's last norm and what follows it take.
int64_t merged_width(const Merger &merger, const Tower &tower);

} // namespace batchllm
