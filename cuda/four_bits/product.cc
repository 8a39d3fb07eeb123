#include "four_bits/product.h"

namespace batchllm::cuda {

bool takes_four_bits(const FourBitArguments &a) {
    const PackedShape &w = a.w_shape;
    const bool elements =
        w.form != PackedForm::mxfp4_e4m3 &&
        (a.element == DType::bf16 || (a.element == DType::f16 && is_int4(w.form) && !a.split));
    const bool shape = w.rows > 0 && w.columns > 0 && w.columns % 8 == 0 &&
                       w.rows % (a.gated ? 2 * kGateRows : 8) == 0;
    const bool ending = !a.gated || has_packed_ending(a.activation);
    const bool result = a.y_type == a.element || (a.y_type == DType::f32 && !a.gated && !a.squared);
    const bool added = !a.add || (!a.gated && !a.squared);
    const bool splits = a.splits == 1 || (a.tiles == nullptr && a.splits > 1 && a.splits <= 8);
    return elements && shape && ending && result && added && splits;
}

cudaError_t launch_four_bits_sm90(const FourBitArguments &a, int sms, cudaStream_t stream) {
    if (!takes_four_bits(a)) return cudaErrorInvalidValue;
    if (a.tiles == nullptr && a.tokens == 0) return cudaSuccess;
    switch (a.w_shape.form) {
    case PackedForm::int4_128:
        return launch_int4_128_sm90(a, sms, stream);
    case PackedForm::int4_32:
        return launch_int4_32_sm90(a, sms, stream);
    case PackedForm::mxfp4:
        return launch_mxfp4_sm90(a, sms, stream);
    case PackedForm::nvfp4:
        return launch_nvfp4_sm90(a, sms, stream);
    case PackedForm::mxfp4_e4m3:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
