// Norms of the residual stream's rows, and the addition of a sublayer's result on the way to the next.
// Types as in elementwise/elementwise.h, and e4m3 for what is passed on, with scales
// (elementwise/quantize.h). A row has at most kMostNormed elements, a multiple of kVector.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "model/kinds.h"
#include "ranks/peers.h"

namespace batchllm::cuda {

inline constexpr int32_t kMostNormed = 32768; // a block holds a row

struct DeviceNorm {
    NormKind kind = NormKind::none;
    const float *weight = nullptr; // [length] with the offset added; null: ones
    const float *bias = nullptr;   // [length] or null
    float epsilon = 0;

    explicit constexpr operator bool() const { return kind != NormKind::none; }
    // By a weight alone.
    bool is_plain_rms() const {
        return kind == NormKind::rms && weight != nullptr && bias == nullptr;
    }
};

// Where scales of rows in e4m3 go.
inline constexpr int32_t kScaleGroup = 128;
struct RowScales {
    float *data = nullptr;
    // 0: a scale a row, at data[row]. Else one for each kScaleGroup elements (of a row's last there may be fewer), group g
    // of a row at data[g * group_stride + row * row_stride].
    int64_t group_stride = 0;
    int64_t row_stride = 1;
};

// Where what is passed on in e4m3 goes in 16 bits as well; null: nowhere.
struct Whole {
    void *data = nullptr; // as out, of type
    DType type = DType::bf16;
};

// out[i] = x[rows[i]] / rms(x[rows[i]]) * weight; rows null: i itself.
struct NormArguments {
    DType element, stream_type;
    const void *x; // [., hidden] of stream_type
    const int32_t *rows;
    const float *weight; // [hidden]
    float epsilon;
    void *out; // [count, hidden] of element
    int32_t count, hidden;
    RowScales scales = {}; // of e4m3
    Whole whole = {};
};
cudaError_t launch_rms_norm(const NormArguments &arguments, cudaStream_t stream);

// residual = keep * (residual + scale * after(delta + bias)), rounded to its type, or without the first residual if
// `fresh`; then out = next(residual). Either half may be left out; a norm that is none passes its input on.
struct AddNormArguments {
    DType element, stream_type;
    void *residual;    // [count, hidden] of stream_type
    const void *delta; // [count, hidden] of stream_type; null: nothing is added
    const float *bias; // [hidden] or null
    DeviceNorm after;
    float scale;
    DeviceNorm next;
    void *out; // [count, hidden] of element; null: not wanted
    int32_t count, hidden;
    const float *keep = nullptr; // [1]; null: 1
    RowScales scales = {};       // of e4m3
    Whole whole = {};
    bool fresh = false;
    PeerSum peers = {};     // instead of delta: what all ranks have made, waited for and added up
    PeerCopies copies = {}; // with peers: of all that is written, residual only if it says so
};
cudaError_t launch_add_norm(const AddNormArguments &arguments, cudaStream_t stream);

// The same, and out[i] = more[i](residual). All three norms are RMSNorms by weights alone; what is passed on is not e4m3,
// and there are no peers.
struct AddNormsArguments {
    AddNormArguments add;
    DeviceNorm more[2];
    void *out[2]; // as add.out
};
cudaError_t launch_add_norms(const AddNormsArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
