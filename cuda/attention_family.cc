#include "attention_family.h"

#include <climits>

namespace batchllm::cuda {
namespace {

void costs_sm90(WorklistOptions *) {} // as WorklistOptions has them

// mma.sync computes at about half the rate, and two CTAs share an SM.
void costs_sm80(WorklistOptions *options) {
    options->matrix_us = 3.2;
    options->stream_us = 1.0;
    options->item_us = 2.0;
    options->matrix_split = 2;
    options->stream_split = 6;
}

// The best first.
constexpr AttentionFamily kFamilies[] = {
    {"sm90", 90, 90, launch_attention_sm90, costs_sm90}, // sm_90a's code runs nowhere else
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
