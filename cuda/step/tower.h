// Pictures -> the outputs of the model's tower, in the places that StepPictures has given them. The tower (src/model/tower.h) is
// walked from its description, packed over the patches of several pictures.
//
// Its residual stream has the type of the text model's. A picture's outputs have the same bits whatever is loaded with it if
// pictures are packed alone (`alone`).
//
// All memory is taken at once: nothing of the device's is allocated for a picture later.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/tower_pack.h"
#include "device/staging.h"
#include "linear/linear.h"
#include "step/forward_options.h"
#include "step/pictures.h"
#include "step/tower_weights.h"
#include "tower/attention.h"

namespace batchllm::cuda {

class StepTower {
  public:
    // What of the model's tower is not computed; null: nothing.
    static const char *missing(const Model &model, DType element);
    // model: kept. Weights, and memory for packs; pictures: allocated, kept.
    static Result<std::unique_ptr<StepTower>>
    create(const Model &model, const ForwardOptions &options, StepPictures *pictures);

    // Enqueues all of it. The pictures, which are checked, have been copied when this returns; it may wait for earlier ones.
    Status load(std::span<const PictureLoad> loads, cudaStream_t copies, cudaStream_t stream);

    const Tower &described() const { return tower_; }
    int64_t most_patches() const { return most_patches_; } // of a picture
    // So that ranks, whose memory differs, pack pictures alike.
    void limit_patches(int64_t most) { most_patches_ = std::min(most_patches_, most); }
    int64_t weight_bytes() const { return weights_.memory.bytes(); }

  private:
    // What a pack is sent with. There are two: one may be filled while the other's pack is computed.
    struct Sent {
        Staging staging;
        Event arrived, done;
        int64_t values = 0, patches = 0, places = 0, pictures = 0, windows = 0; // sections
        int32_t picture_blocks = 0, window_blocks = 0;
    };

    StepTower(const Model &model, const ForwardOptions &options, Linear linear,
              StepPictures *pictures);
    Status allocate();
    // Whether products' candidates are timed with this pack, as in steps of text (Forward::timing_is_due).
    bool timing_is_due();
    Status send(std::span<const PictureLoad> loads, Sent *to, cudaStream_t copies);
    // rows: of a block.
    static Result<int64_t> stage_blocks(const std::vector<TowerPack::Range> &ranges, int32_t rows,
                                        Staging *staging, int32_t *count);
    Status run(const Sent &sent, cudaStream_t stream);
    Status embed(const Sent &sent, cudaStream_t stream);
    Status layer(size_t index, const Sent &sent, cudaStream_t stream);
    Status attend(const Attention &attention, const TowerQueries &queries, const Sent &sent,
                  cudaStream_t stream);
    // Windows are a third of a block, and have half a tile of keys.
    bool on_sm90(const Attention &attention) const { return sm90_ && attention.window == 0; }
    Status merge(size_t part, const Sent &sent, cudaStream_t stream);
    struct Rows { // of a type
        void *data;
        DType type;
    };
    Status norm(const DeviceNorm &norm, const Rows &x, int64_t rows, int64_t width, const Rows &out,
                cudaStream_t stream);
    Rows residual() const { return {residual_.data(), stream_}; }
    Rows normed() const { return {normed_.data(), element_}; }
    Status product(const Matrix &w, const void *x, int64_t rows, const Rows &y,
                   cudaStream_t stream) {
        return linear_.run(w, x, rows, y.data, y.type, false, stream);
    }
    // To the residual stream.
    Status add_product(const Matrix &w, const void *x, int64_t rows, cudaStream_t stream) {
        return linear_.run(w, x, rows, residual_.data(), stream_, true, stream);
    }
    // normed_ -> activated_.
    Status activate(const TowerFeed &feed, const void *x, int64_t rows, cudaStream_t stream);
    int64_t patches() const { return static_cast<int64_t>(pack_.patches.size()); }
    int64_t tokens() const { return static_cast<int64_t>(pack_.outputs.size()); }

    const Model &model_;
    const Tower &tower_;
    DType element_, stream_; // of products' inputs, of the residual stream
    bool alone_, tunes_;
    bool sm90_;
    int64_t untimed_;
    std::unordered_map<int64_t, int64_t> packs_; // by tuned_rows()
    StepPictures *pictures_;
    Linear linear_;
    TowerWeights weights_;
    DeviceMemory frequencies_, axes_; // of the rope
    std::array<Sent, 2> sent_;
    size_t turn_ = 0;
    TowerPack pack_; // the one that is being enqueued

    int64_t most_patches_ = 0; // of a pack
    // As TowerBuffers says.
    DeviceMemory residual_, delta_, normed_, qkv_, attended_, up_, activated_, angles_;
};

} // namespace batchllm::cuda
