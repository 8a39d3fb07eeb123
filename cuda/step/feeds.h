// The second half of a layer: what tokens are fed to, in whichever way, and then the layer's part of the layer inputs.
#pragma once

#include "step/parts.h"
#include "step/products.h"
#include "step/residual.h"

namespace batchllm::cuda {

class Feeds {
  public:
    Feeds(StepParts *parts, Products *products, ResidualStream *residual)
        : parts_(*parts), products_(*products), residual_(*residual) {}

    // Enqueues it, for rows that have been normed for it; and what ends the layer.
    Status run(size_t layer, const StepRows &rows, cudaStream_t stream);

    // Of the residual stream before the first layer: the layers' parts of the layer inputs. Nothing where there are none.
    Status make_layer_inputs(cudaStream_t stream);

  private:
    Status dense(size_t layer, const FeedForward &f, const StepRows &rows, cudaStream_t stream);
    Status experts(size_t layer, const Experts &experts, const SharedExperts *both,
                   const StepRows &rows, cudaStream_t stream);
    bool in_one_product(const DeviceLayer &w, const FeedForward &f, int64_t rows,
                        const AdapterArguments *adapters) const;
    Status activate(size_t layer, const FeedForward &f, const Input &x, const StepRows &rows,
                    cudaStream_t stream);
    Status shared_expert(size_t layer, const FeedForward &f, const Input &x, const StepRows &rows,
                         cudaStream_t stream);
    Status route(size_t index, const Experts &experts, const Input &x, const StepRows &rows,
                 cudaStream_t stream);
    Status add_layer_input(size_t layer, const StepRows &rows, cudaStream_t stream);
    // The norm before what is fed, of whichever sublayer it is.
    const DeviceNorm &norm_before(size_t layer) const {
        const DeviceLayer &w = parts_.layer(layer);
        return parts_.model.layers[layer].parallel ? w.before_attention : w.before_feed_forward;
    }

    StepParts &parts_;
    Products &products_;
    ResidualStream &residual_;
};

} // namespace batchllm::cuda
