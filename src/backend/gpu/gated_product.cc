#include "backend/gpu/gated_product.h"

#include "model/model.h"

namespace batchllm {

bool takes_gated(DType element, const FeedForward &feed) {
    return feed.gate && !feed.gate.bias && !feed.up.bias &&
           takes_gated(element, feed.activation, feed.gate.columns(), feed.width);
}

} // namespace batchllm
