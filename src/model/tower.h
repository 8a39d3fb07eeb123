// A tower as data: what turns the patches of a prepared picture into embeddings of the text model. Backends walk the
// description and do not know families by name, as they do for the text model (model/model.h), whose parts it is made of.
//
// A picture's patches, [rows * columns, values of a patch] (image/picture.h), become
//     x = before(patch(values) + position)            of every patch, [hidden]
//     x = layers(x)                                   which attend to all patches of the picture, or to its window
//     output = output_scale * merger(after(x))        of every merge * merge patches: [text model's hidden]
// The outputs stand in the text model at the places of Model::picture_token, row by row. What a deepstack merger makes of x
// behind one of the tower's layers is added, at the same places, to the text model's residual stream behind its own layer of
// the same number as the merger.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/model.h"

namespace batchllm {

// What becomes of the merge * merge patches that one token stands for. Each patch goes through norm; then the patches are
// joined (their rows one after another, [merge * merge * hidden]; the projection's columns, by_channel, are in the order of
// [hidden, merge * merge]) or averaged ([hidden]); then merged_norm, and either the feed-forward, without a gate, or
// `projection`, or both: the feed-forward of the projection.
struct Merger {
    Norm norm;
    bool averaged = false;
    Norm merged_norm;
    Weight projection; // or absent
    bool by_channel = false;
    FeedForward feed_forward;

    bool has_feed_forward() const { return bool(feed_forward.up); }
};

struct DeepstackMerger {
    int32_t layer = 0; // of the tower: it takes x behind this one
    Merger merger;
};

struct Tower {
    // Its tensors have names that begin with one of prefixes; other tensors of such names are an error unless their names
    // begin with one of passed_over.
    std::vector<std::string> prefixes, passed_over;
    int32_t hidden = 0;
    int32_t merge = 1; // a token stands for merge * merge patches
    // Patches come in blocks of merge * merge, row by row, also inside a block; otherwise all row by row.
    bool in_blocks = false;
    // [hidden, channels * frames * patch_values]: of each channel, the values of `frames` equal frames. A patch has those of
    // one frame: channels * patch_values.
    Weight patch;
    int32_t channels = 3;
    int32_t frames = 1;
    int32_t patch_values = 0; // of one channel: the square of a patch's side

    // A square table of side * side positions, row by row, [side * side, hidden], or absent. Interpolated: it is spread over
    // the picture so that corners meet corners, and a patch takes the bilinear mean of the four around it. Otherwise a patch
    // takes its own, and a picture has at most side rows and columns of patches.
    Tensor positions;
    int32_t side = 0;
    bool interpolated = false;

    Norm before;
    // With axes: 1 the patch's row, 2 its column.
    std::vector<Rope> ropes;
    // Attention and a feed-forward each. Attention sees the whole picture, or, with Attention::window, the square of
    // `window` by `window` patches that the patch is in, a multiple of merge; those at the edges may be cut off.
    std::vector<Layer> layers;
    int32_t window = 0;
    Norm after;

    Merger merger;
    float output_scale = 1;
    std::vector<DeepstackMerger> deepstack; // [i] behind layer i of the text model

    // Of a patch in PreparedPicture::patches.
    int64_t values() const { return int64_t{channels} * patch_values; }
    // Rows of the text model's width that a token of a picture has: its output, and what deepstack adds.
    int64_t parts() const { return 1 + static_cast<int64_t>(deepstack.size()); }
};

// Visits every tensor of the tower in a fixed order.
void for_each_tensor(const Tower &tower, const std::function<void(const Tensor &)> &visit);
void for_each_tensor(Tower *tower, const std::function<void(Tensor *)> &visit);

} // namespace batchllm
