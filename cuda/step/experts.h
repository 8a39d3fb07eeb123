// The experts of a layer in a step: logits of the router -> turns sorted by expert, gate and up of each turn, down,
// and the weighted sum of each token's. What is launched depends on the number of tokens alone.
#pragma once

#include <span>

#include "backend/gpu/step_buffers.h"
#include "device/profile.h"
#include "experts/combine.h"
#include "experts/grouped.h"
#include "experts/routing.h"
#include "experts/weigh.h"
#include "step/adapters.h"
#include "step/weights.h"

namespace batchllm::cuda {

// What adapters change experts with.
struct AdaptedExperts {
    const StepAdapters &adapters;
    const StepInput &input;
    size_t layer;
    bool wanted; // rows are the wanted ones of a step that gathers
    Input whole; // the experts' input in the compute type
};

class StepExperts {
  public:
    StepExperts(const Model &model, DType element, GroupedKernel kernel, int32_t sms)
        : model_(model), element_(element), kernel_(kernel), sms_(sms) {}

    // None where no layer has experts.
    Status allocate(const StepBuffers &buffers);

    // [rows, router.rows], of the layer that runs next.
    float *logits() const { return logits_.as<float>(); }

    // For steps whose adapters change experts. rows: of the largest step.
    struct AdapterRoom {
        int64_t tiles = 0, in_tiles = 0, tile_adapters = 0, gate_up = 0, whole = 0; // bytes
        int64_t bytes() const { return tiles + in_tiles + tile_adapters + gate_up + whole; }
    };
    AdapterRoom adapter_room(int64_t rows) const;
    Status make_room_for_adapters(int64_t rows);

    // Whether the launch of a product can itself add what adapters do, before all else.
    bool may_add_adapters(const DeviceExperts &weights, ExpertProduct place) const;

    // After logits() was filled. x: [rows, hidden] elements, or e4m3 with scales (Scaling::turns, or of packed weights
    // whole_turns) where the weights are. ends: what becomes of the result, each of as many rows as it says, in order;
    // its delta: the shared expert's of these rows, where the layer has one, or null. adapted: null: no step has adapters.
    // norms: where the layer has one.
    Status run(const Layer &layer, const DeviceExperts &weights, const Input &x,
               std::span<const AddNormArguments> ends, const AdaptedExperts *adapted,
               Profile *profile, cudaStream_t stream, const CombineNorms &norms = {});

    // [experts] of the layer that ran last, after all that was enqueued.
    Result<std::vector<int64_t>> turns_of_each() const;

  private:
    RoutingArguments routing(const Experts &experts, const DeviceExperts &weights,
                             int64_t rows) const;
    cudaError_t launch(const GroupedArguments &product, const std::optional<Packing> &packing,
                       cudaStream_t stream) const;
    // What the first product and what adapters add to it read.
    struct TurnInput {
        Input x;
        const void *whole;     // adapters', of the compute type; null: there are none
        const int32_t *row_of; // [turns] of both; null: the turn's number
    };
    // Where the router weighs inputs: a row for each turn. adapts: whether adapters change the first product.
    Status weigh(const Experts &experts, const DeviceExperts &weights, int64_t rows, bool adapts,
                 TurnInput *input, cudaStream_t stream);
    Status products(const Experts &experts, const DeviceExperts &weights, const Input &x,
                    int64_t rows, const AdaptedExperts *adapted, Profile *profile,
                    cudaStream_t stream);
    // Whether it does.
    bool adds_adapters(const DeviceExperts &weights, const AdaptedExperts &adapted,
                       ExpertProduct place) const;
    // The launch, and what adapters add to its result, y, if it does not itself; x, x_rows: their input, and which row of that
    // a turn has.
    Result<AdapterArguments> run_adapted(GroupedArguments product,
                                         const std::optional<Packing> &packing,
                                         const AdaptedExperts &adapted, ExpertProduct place,
                                         bool adds, const Input &x, const int32_t *x_rows,
                                         int64_t rows, cudaStream_t stream);
    Status activate(const Experts &experts, const DeviceExperts &weights, int64_t rows,
                    const AdaptedExperts &adapted, const AdapterArguments &change,
                    cudaStream_t stream);

    const Model &model_;
    DType element_;
    GroupedKernel kernel_;
    int32_t sms_;
    DeviceMemory logits_;           // [rows, experts and the shared expert's gate, padded] f32
    DeviceMemory experts_of_;       // [rows, chosen] int32
    DeviceMemory weights_;          // [rows, chosen] f32
    DeviceMemory counts_;           // [blocks, experts] int32
    DeviceMemory token_of_;         // [rows * chosen] int32
    DeviceMemory turn_of_;          // [rows, chosen] int32
    DeviceMemory tiles_;            // [most_tiles] ExpertTile
    DeviceMemory tile_count_;       // [1] int32
    DeviceMemory activated_;        // [rows * chosen, width]
    DeviceMemory activated_scales_; // [rows * chosen, scale_groups(width)], where it is in e4m3
    // [rows * chosen, hidden]. Before the last product what weigh() has made: the first one's input, in e4m3 with its
    // scales behind it.
    DeviceMemory made_;
    // Of steps whose adapters change experts.
    DeviceMemory adapted_tiles_;      // [rows * chosen] AdapterTile
    DeviceMemory adapted_tile_count_; // [1] int32
    DeviceMemory in_adapted_tiles_;   // [rows * chosen] uint8: AdaptedTurns'
    DeviceMemory tile_adapters_;      // [most_tiles] TileAdapters, where products add them
    // [rows * chosen, width or twice that]. Before the first product what weigh() has made for adapters beside e4m3:
    // [rows * chosen, hidden].
    DeviceMemory gate_up_;
    DeviceMemory whole_; // activated_ in the compute type, where that is in e4m3
};

} // namespace batchllm::cuda
