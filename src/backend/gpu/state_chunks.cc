#include "backend/gpu/state_chunks.h"

#include <algorithm>
#include <variant>

#include "base/visit.h"
#include "model/model.h"

namespace batchllm {

bool goes_in_chunks(const Model &model, DType element, bool reproducible) {
    return std::all_of(model.layers.begin(), model.layers.end(), [&](const Layer &layer) {
        return std::visit(
            Visitor{[](const NoMixer &) { return true; }, [](const Attention &) { return true; },
                    [&](const DeltaNet &net) {
                        return !reproducible && takes_chunks(element, net.key_dim, net.value_dim);
                    },
                    [](const ChannelDeltaNet &) { return false; },
                    [&](const Mamba2 &mamba) {
                        return !reproducible &&
                               takes_state_space_chunks(element, mamba.key_dim, mamba.value_dim);
                    },
                    [](const ShortConvolution &) { return true; }},
            layer.mixer);
    });
}

} // namespace batchllm
