// Pictures -> the outputs of the model's tower, which stay loaded by slot. The tower (model/tower.h) runs packed over the patches
// of all pictures of a call, each of which attends to those of its own picture or window.
//
// The matrices are packed with the first pictures: a job of text alone pays nothing for them. An output has the same bits
// whatever pictures are loaded with it, if the products are reproducible.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/weights.h"
#include "backend/tower_pack.h"
#include "base/thread_pool.h"
#include "model/tower.h"

namespace batchllm::cpu {

class CpuTower {
  public:
    // All are borrowed; the model has a tower.
    CpuTower(const Model &model, const Kernels &kernels, ThreadPool *pool, int32_t slots,
             bool reproducible);

    Status load(std::span<const PictureLoad> pictures);
    void unload(int32_t slot) { slots_[static_cast<size_t>(slot)] = {}; }

    // Bytes that a loaded picture takes per token.
    static int64_t token_bytes(const Model &model);
    // Tokens of the picture in a slot; 0: it is empty.
    int32_t tokens(int32_t slot) const { return slots_[static_cast<size_t>(slot)].tokens; }
    // What stands for a token of the picture: its embedding, and for part 1 and later what is added behind layer part - 1 of
    // the text model. [text model's hidden]
    const float *output(int32_t slot, int64_t part, int32_t token) const;
    int64_t parts() const { return tower_.parts(); }

  private:
    struct Packed; // the weights
    // Patches [begin, end) of the pack, which see each other. Their keys are in groups of their own.
    struct Segment {
        int64_t begin, end;
        int64_t first_group;
    };
    // Some rows of a segment: what a task of attention takes.
    struct Block {
        size_t segment;
        int64_t begin;
        int32_t rows;
    };
    struct Segments {
        std::vector<Segment> all;
        std::vector<Block> blocks;
        std::vector<size_t> of; // [patches]
        int64_t groups = 0;
        void add(int64_t begin, int64_t end);
    };
    struct Slot {
        int32_t tokens = 0;
        Buffer values; // [parts, tokens, hidden]
    };
    struct Scratch {
        Buffer scores, output;
        std::vector<float> maximum, sum;
        std::vector<int32_t> visible_begin, visible_end;
        std::vector<const void *> keys, values;
    };

    Status pack_weights();
    Status run(std::span<const PictureLoad> pictures);
    void place(std::span<const PictureLoad> pictures);
    Status reserve();
    Status embed(std::span<const PictureLoad> pictures);
    void add_position(const TowerPack::Patch &patch, float *x) const;
    Status run_layer(size_t index);
    Status attend(const Attention &attention, const PackedAttention &weights,
                  const Segments &segments);
    void write_patch(const Attention &attention, const Segments &segments, int64_t patch);
    void attend_block(const Attention &attention, const Segments &segments, const Block &block,
                      int64_t head, Scratch *scratch);
    Status merge(const Merger &merger, size_t packed, int64_t part);
    void norm(const PackedNorm &norm, const float *x, int64_t rows, int64_t width, std::byte *out);
    void norm_in_place(const PackedNorm &norm, int64_t rows, int64_t width, float *x);
    Status product(const PackedMatrix &matrix, const std::byte *x, int64_t rows, const Vector &bias,
                   bool add, float *to);
    int64_t patches() const { return static_cast<int64_t>(pack_.patches.size()); }

    const Model &model_;
    const Tower &tower_;
    const Kernels &kernels_;
    ThreadPool *pool_;
    bool reproducible_;
    std::unique_ptr<Linear> linear_;
    std::shared_ptr<Packed> packed_; // null until the first pictures
    std::vector<Slot> slots_;

    // For the current pack.
    TowerPack pack_;
    Segments pictures_, windows_;
    Buffer residual_;      // [patches, hidden] float
    Buffer merging_;       // the same, for a merger
    Buffer input_;         // [rounded patches, the most columns] elements: input of a product
    Buffer qkv_;           // [patches, 3 hidden] float, or a product of a merger
    Buffer queries_;       // [heads][patches][D] elements
    Buffer keys_;          // [heads][groups][16 D] elements
    Buffer values_;        // likewise
    Buffer attended_;      // [rounded patches, hidden] elements
    Buffer activated_;     // [rounded patches, largest width] elements
    Buffer cosine_, sine_; // [patches, pairs of the rope] float
    std::vector<Scratch> scratch_; // [threads]
};

} // namespace batchllm::cpu
