#include "attention/family.h"

#include <climits>

namespace batchllm::cuda {
namespace {

void costs_sm90(WorklistOptions *) {} // as WorklistOptions has them

// mma.sync computes at about half the rate, an item of few rows takes as long as one of many, two CTAs
// share an SM, and whoever arrives last merges while others have nothing left to do.
void costs_sm80(WorklistOptions *options) {
    options->wide_us = 3.2;
    options->narrow_us = 1.6;
    options->stream_us = 0.55;
    options->item_us = 3;
    options->merge_us = 0.1;
    options->share_us = 5;
    options->matrix_split = 1.2;
    options->stream_split = 6;
    options->item_rows = kMatrixRows;
}

// Its tiles of O do not hold heads of 512: those are left to sm80's kernels, by the same worklist.
cudaError_t launch_sm90(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return a.head_dim > 256 ? launch_attention_sm80(a, sms, stream)
                            : launch_attention_sm90(a, sms, stream);
}

// The best first.
constexpr AttentionFamily kFamilies[] = {
    {"sm90", 90, 90, launch_sm90, costs_sm90}, // sm_90a's code runs nowhere else
    {"sm80", 80, INT32_MAX, launch_attention_sm80, costs_sm80},
    {"sm80_small", 80, INT32_MAX, launch_attention_sm80_small, costs_sm80},
};

} // namespace

const AttentionFamily *find_attention(std::string_view name, int32_t major, int32_t minor) {
    const int32_t capability = major * 10 + minor;
    for (const AttentionFamily &family : kFamilies) {
        if ((name == "auto" || name == family.name) && capability >= family.least &&
            capability <= family.most) {
            return &family;
        }
    }
    return nullptr;
}

} // namespace batchllm::cuda
