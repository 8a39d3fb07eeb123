// What is made of the last layer's result: logits of the wanted tokens, and sums of their hidden states. After the step was
// run, and until the next is staged.
#pragma once

#include "elementwise/elementwise.h"
#include "step/parts.h"
#include "step/products.h"
#include "step/residual.h"

namespace batchllm::cuda {

class OutputHead {
  public:
    OutputHead(StepParts *parts, Products *products, ResidualStream *residual)
        : parts_(*parts), products_(*products), residual_(*residual) {}

    // Logits of wanted tokens [first, first + count), first a multiple of logits_rows(), count at most
    // logits_rows(): f32 at logits(), logits_stride() apart.
    Status compute_logits(int64_t first, int64_t count, cudaStream_t stream);
    int64_t logits_rows() const { return parts_.activations.logits_rows; }
    int64_t logits_stride() const { return parts_.weights.head.rows; }
    float *logits() const { return parts_.activations.logits.as<float>(); }

    // sums[i], of hidden floats: of the last norm's rows of the wanted tokens in spans[i].
    Status sum_hidden(const SumSpan *spans, int32_t count, float *sums, cudaStream_t stream);

    // [rows] what the batch sampled, by logits row, for the next one's fed tokens.
    SampleResult *samples() const { return parts_.activations.samples.as<SampleResult>(); }
    Profile &profile() { return parts_.profile; }

  private:
    // The last norm's rows; without a norm the residual stream itself, whose type is the element's then.
    const std::byte *hidden() const {
        const Input x =
            residual_.normed(parts_.weights.final_norm, Scaling::none, parts_.wanted_rows());
        return static_cast<const std::byte *>(x.data);
    }

    StepParts &parts_;
    Products &products_;
    ResidualStream &residual_;
};

} // namespace batchllm::cuda
