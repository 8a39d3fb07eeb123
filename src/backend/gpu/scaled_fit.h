// Which of a layer's matrices a device keeps in e4m3, and multiplies with inputs that are rounded to it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/model.h"

namespace batchllm {

// Which of the layers' matrices are in e4m3 or in four bits. The embedding and what gives layers their inputs never
// are, the head is never in e4m3.
enum class Quantize : uint8_t {
    none,   // no matrix
    stored, // those that the checkpoint has so, with its own scales
    fp8, // in e4m3 those that it has so, and those that it has in four bits; of a checkpoint that is not quantised, all:
         // with a scale a row
};

// The backend option of that name.
Result<Quantize> read_quantize(const std::string &value);

// The matrices of a layer that are in e4m3, as far as its description says, on a device that has all such products; of a
// checkpoint whose other matrices are not in four bits.
struct ScaledLayer {
    bool first = false, last = false;   // of its mixer
    bool gate_up = false, down = false; // of what it feeds all tokens to
    bool experts = false;               // both of each
};
ScaledLayer scaled_layer(const Model &model, size_t layer, Quantize quantize);

} // namespace batchllm
