// The residual stream of a step: the norms before sublayers, and what ends a sublayer.
//
// It is added to by the products themselves (y += scale x W^T). Where a norm stands after a sublayer, its product is a
// delta, which one launch normalises, adds and passes on to the next norm. Where cuBLASLt cannot add a product in e4m3 to
// the stream, it is a delta too. What a layer's matrix in e4m3 is multiplied with is written in e4m3, with its scales, by
// the norm.
//
// When a sublayer begins, the rows that it works on have been normed for it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "device/profile.h"
#include "elementwise/norm.h"
#include "step/parts.h"
#include "step/products.h"

namespace batchllm::cuda {

// How the norm before a feed-forward scales what it passes on.
inline Scaling scaling_of_feed(const DeviceLayer &w) {
    if (!w.experts.in_e4m3()) return w.gate_up.scaling;
    return w.experts.gate_up_packing ? Scaling::whole_turns : Scaling::turns;
}

class ResidualStream {
  public:
    ResidualStream(StepParts *parts, Products *products) : parts_(*parts), products_(*products) {}

    // What a layer begins with: its first norm, and how what that makes is scaled; or, after the last layer, the last norm.
    struct First {
        const DeviceNorm &norm;
        Scaling scaling;
    };
    First first_of(size_t layer) const;
    First after(size_t layer) const;
    // Whether the layer after it is beside it, so that what was normed for it stays.
    bool keeps_input(size_t layer) const {
        const std::vector<Layer> &all = parts_.model.layers;
        return layer + 1 < all.size() && all[layer + 1].beside;
    }

    // Writes what the norm makes of the rows.
    Status norm(const DeviceNorm &norm, Scaling scaling, const StepRows &rows, cudaStream_t stream);
    // Where that is.
    Input normed(const DeviceNorm &norm, Scaling scaling, const StepRows &rows) const;

    // The product that ends a sublayer, added to the residual stream, and the norm that follows.
    struct Ending {
        const Matrix &w;
        Input x;
        const float *bias;
        const DeviceNorm &after;
        float scale;
        const DeviceNorm *next; // null: what was normed before stays
        Scaling next_scaling;
        Part part;
        const float *keep = nullptr;            // [1] multiplies the sum; null: 1
        std::optional<ProductPlace> place = {}; // that adapters may change
        bool divided = false;                   // among ranks, whose results are added
        bool expert_inputs = false;             // makes_expert_inputs() of this layer
    };
    Status finish(const Ending &ending, const StepRows &rows, cudaStream_t stream);
    // Whether the launch that ends the layer's mixer also makes what router and experts take, where they have norms of their
    // own; and that of the router, or of the experts. A norm follows the mixer then: check_supported() refuses parallel blocks
    // with such norms.
    bool makes_expert_inputs(size_t layer) const;
    Input expert_input(bool of_router, const StepRows &rows) const;
    // Its second half, where Activations::delta has the sublayer's result.
    AddNormArguments addition(const Ending &ending, const StepRows &rows) const;
    // What a rank has made of these rows becomes the sum of all.
    Status sum(void *made, const StepRows &rows, cudaStream_t stream);
    // Where a rank's part of such a sum is made that is to be added: all of it in one place, or of each owner's rows in that
    // owner's memory, in the order of rows.
    struct Room {
        int64_t begin, count; // rows
        void *data;
    };
    std::vector<Room> part_rooms(const StepRows &rows) const;
    // Rooms' numbers of rows in steps of so many tokens, where ranks may own some.
    void add_owned_rows(int64_t tokens, std::vector<int64_t> *rows) const;
    // That addition. bias: that one of the ranks has.
    Status add_up(const float *bias, const StepRows &rows, AddNormArguments addition,
                  cudaStream_t stream);
    // Before the first sum of a step, and before each layer.
    Status begin(cudaStream_t stream);
    void enter(size_t layer) { layer_ = layer; }

    // For a launch that writes so many rows; turns: of hidden elements.
    RowScales scales_of(float *data, Scaling scaling, int64_t rows) const;

  private:
    Status run(const Ending &ending, const StepProduct &product, const StepRows &rows,
               cudaStream_t stream);
    // Where there is no norm, and the types are the same, what it passes on is the residual stream itself.
    bool copies_nothing(const DeviceNorm &norm, Scaling scaling) const {
        return !norm && parts_.options.residual == parts_.options.element &&
               scaling == Scaling::none;
    }
    Whole whole_of(Scaling scaling) const {
        const bool of_experts = scaling == Scaling::turns || scaling == Scaling::whole_turns;
        return {of_experts ? parts_.activations.normed_whole.data() : nullptr,
                parts_.options.element};
    }

    bool sums_by_peers(const StepRows &rows) const;
    // Of so many rows, a rank's.
    struct Owned {
        int64_t begin, count;
    };
    Owned owned(int64_t rows, int32_t rank) const;
    // Where rank's buffer has what rank `by` makes of the rows that it owns.
    std::byte *slot(int64_t rows, int32_t rank, int32_t by) const;
    bool can_own(int64_t tokens) const {
        return parts_.peers != nullptr && parts_.peers->owns_rows &&
               tokens >= parts_.options.owned_rows;
    }
    bool by_owners(const StepRows &rows) const { return owners_ && rows.wanted == nullptr; }
    void make_own(const StepRows &rows, AddNormArguments *addition) const;
    int64_t row_bytes() const { return parts_.model.hidden * dtype_bytes(parts_.options.residual); }

    StepParts &parts_;
    Products &products_;
    bool owners_ = false; // each rank owns some of the step's rows
    size_t layer_ = 0;
};

} // namespace batchllm::cuda
