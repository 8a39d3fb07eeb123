// Whether a matrix in four bits can stay so on a device.
#pragma once

#include <optional>
#include <vector>

#include "backend/gpu/packed_form.h"
#include "model/model.h"

namespace batchllm {

// Empty: it cannot, and why; or there is nothing to say, since no part is in four bits, or since
// nothing is rounded that need not be (f32).
struct PackedFit {
    std::optional<Packing> packing;
    const char *refusal = nullptr;
};

// Of a matrix made of these tensors, those that the model has, multiplied with elements of this type.
PackedFit packed_fit(const Model &model, const std::vector<const Tensor *> &parts, DType element);

// The tensors of the matrices that begin and end a mixer, one after another; some may be absent.
std::vector<const Tensor *> first_tensors(const Mixer &mixer);
std::vector<const Tensor *> last_tensors(const Mixer &mixer);
// Whether heads of attention are padded in them.
bool has_padded_heads(const Mixer &mixer);

// The matrices of a layer that stay in four bits, as far as its description says: of its mixer, of
// what it feeds all tokens to, and of its experts.
struct PackedLayer {
    std::optional<Packing> first, last, gate_up, down, experts_gate_up, experts_down;
};
PackedLayer packed_layer(const Model &model, const Layer &layer, DType element);

} // namespace batchllm
