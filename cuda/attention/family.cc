#include "attention/family.h"

namespace batchllm::cuda {
namespace {

// Tokens with more rows than an item of heads of 512, or one that widens keys; sm80's kernels run these, with the same
// worklist. So they do heads of 512 with caps, sinks or by row.
bool left_to_sm80(int32_t heads, int32_t kv_heads, int32_t head_dim, bool e4m3) {
    return (head_dim > 256 || e4m3) && heads > kNarrowRows * kv_heads;
}

// The defaults of WorklistOptions, except for e4m3. Those are predicted; other values near them
// were no faster on an H200.
void costs_sm90(WorklistOptions *options) {
    const bool e4m3 = options->kv_bytes == 1;
    const bool split = options->head_dim > 256; // O's columns, between warpgroups
    if (split) options->matrix_rows = kNarrowRows;
    options->wide_from_scratch =
        e4m3 && !split && !left_to_sm80(options->heads, options->kv_heads, options->head_dim, e4m3);
    if (!e4m3) return;
    options->narrow_us = 0.7;
    options->stream_us = 0.3;
    options->decode_share = 1;
}

// mma.sync computes at about half the rate, an item with few rows takes as long as one with many,
// two CTAs share an SM, and the CTA that finishes last merges while the others have nothing left to
// do.
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
    options->wide_from_scratch = false;
    if (options->kv_bytes != 1) return;
    options->wide_us = 3.6; // predicted, like the other e4m3 costs
    options->narrow_us = 1.8;
    options->stream_us = 0.35;
}

cudaError_t launch_sm90(const AttentionArguments &a, int sms, cudaStream_t stream) {
    const bool split = a.head_dim > 256;
    if (left_to_sm80(a.heads, a.kv_heads, a.head_dim, a.kv_e4m3 != 0) ||
        (split && (special(a) || a.by_row != 0))) {
        return launch_attention_sm80(a, sms, stream);
    }
    return split ? launch_attention_512_sm90(a, sms, stream)
                 : launch_attention_sm90(a, sms, stream);
}

// Best first.
constexpr AttentionFamily kFamilies[] = {
    {"sm90", 90, 90, launch_sm90, costs_sm90}, // sm_90a code runs nowhere else
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
