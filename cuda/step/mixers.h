// The first half of a layer: what mixes tokens, in whichever way.
#pragma once

#include <vector>

#include "step/graphs.h"
#include "step/parts.h"
#include "step/products.h"
#include "step/residual.h"

namespace batchllm::cuda {

class Mixers {
  public:
    Mixers(StepParts *parts, Products *products, ResidualStream *residual, Graphs *graphs);

    // Enqueues what must be of all tokens, whichever of them are wanted: a layer's keys and values, or its states. The first
    // norm has been launched.
    Status begin(size_t layer, cudaStream_t stream);
    // The rest, up to the mixer's last product.
    Status mix(size_t layer, cudaStream_t stream);
    // That product, and the norm that follows.
    Status end(size_t layer, const StepRows &rows, cudaStream_t stream);

    // Gives the launches that a captured graph has marked the staged step's arguments.
    Status set_arguments(Graph *graph) const;

  private:
    Status project(size_t layer, cudaStream_t stream);
    Status keys_and_values(size_t layer, const Attention &attention, cudaStream_t stream);
    Status share_squares(const DeviceLayer &w, const Attention &attention, cudaStream_t stream);
    Status latents(size_t layer, const Attention &attention, cudaStream_t stream);
    Status recurrent(size_t layer, Part part, cudaStream_t stream);
    Status channel_gates(size_t layer, const ChannelDeltaNet &net, cudaStream_t stream);
    struct LatentRows {
        int32_t absorbed, first, plain; // first: of those in the plain form
    };
    LatentRows latent_rows() const;
    struct PlainQueries {
        std::byte *q; // of the first token in the plain form
        int64_t stride;
    };
    PlainQueries plain_queries(size_t layer, const Attention &attention) const;
    Status attend_latents(size_t layer, const Attention &attention, cudaStream_t stream);
    Status attend(size_t layer, const Attention &attention, cudaStream_t stream);
    AttentionTensors tensors(size_t layer, const Attention &attention) const;
    // The mixer's result as its last product takes it.
    Result<Input> result(const Matrix &w, const StepRows &rows, cudaStream_t stream);

    StepParts &parts_;
    Products &products_;
    ResidualStream &residual_;
    Graphs &graphs_;
    std::vector<size_t> attending_; // layers with attention
};

} // namespace batchllm::cuda
