// The matrices of a layer's experts -> the device, as experts/grouped.h has them: in the compute type, or in e4m3 with
// the checkpoint's own elements and scales or a scale for each row's greatest.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/device.h"
#include "step/matrix_form.h"
#include "step/row_quantizer.h"
#include "step/sender.h"

namespace batchllm::cuda {

struct ExpertForm {
    DType element;
    Scaling scaling = Scaling::none;
    bool own = false;                    // elements and scales of the checkpoint
    std::optional<Packing> packing = {}; // then nothing else counts; nvfp4's factors are scales

    // Of all experts.
    int64_t bytes(const ExpertMatrix &matrix) const;
    int64_t scale_count(const ExpertMatrix &matrix) const;
};

// A router's biases, of f32, for random weights: the first eighth of `experts` gets half of the tokens, where logits are
// of weights of deviation 0.02 and of normed rows. bias: [experts].
cudaError_t skew_routing(float *bias, int64_t hidden, const Router &router, int64_t experts,
                         cudaStream_t stream);

class ExpertSender {
  public:
    // random: elements are made up from *seed, which goes on. compute: the type of what is quantised here.
    ExpertSender(DType compute, bool random, uint64_t *seed, Sender *sender)
        : compute_(compute), random_(random), seed_(seed), sender_(sender) {}

    // Enqueued when this returns. to, scales: of form.bytes() and form.scale_count(). to is zero.
    Status send(const ExpertMatrix &matrix, const ExpertForm &form, std::byte *to, float *scales,
                cudaStream_t stream);

  private:
    Status place(const ExpertMatrix &matrix, size_t expert, DType type, Placing placing,
                 std::byte *to) const;
    Status pack(const ExpertMatrix &matrix, const Packing &packing, std::byte *to, float *factors,
                cudaStream_t stream);
    Status quantize(const ExpertMatrix &matrix, std::byte *to, float *scales, cudaStream_t stream);
    Status make_random(std::byte *to, DType type, int64_t count, cudaStream_t stream);

    DType compute_;
    bool random_;
    uint64_t *seed_;
    Sender *sender_;
    RowQuantizer quantizer_;
    DeviceMemory rows_; // an expert's matrix in e4m3, row-major
};

} // namespace batchllm::cuda
