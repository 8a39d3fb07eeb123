// What is made of the last layer's result: logits of the wanted tokens, and sums of their hidden states. After the step was
// run, and until the next is staged.
#pragma once

#include "backend/gpu/step_buffers.h"
#include "elementwise/elementwise.h"
#include "step/parts.h"
#include "step/products.h"
#include "step/residual.h"

namespace batchllm::cuda {

class OutputHead {
  public:
    OutputHead(StepParts *parts, Products *products, ResidualStream *residual)
        : parts_(*parts), products_(*products), residual_(*residual) {}

    // Some of consecutive rows. Ranks have all logits of a share each.
    struct Share {
        int64_t begin, end;
    };
    // Logits of wanted tokens [first, first + count), first a multiple of logits_rows(), count at most
    // logits_rows(): of those in share_of(count), f32 at logits(), logits_stride() apart.
    Status compute_logits(int64_t first, int64_t count, cudaStream_t stream);
    Share share_of(int64_t count) const { return share_of(count, parts_.options.rank.number); }
    int64_t logits_rows() const { return parts_.activations.logits_rows; }
    int64_t logits_stride() const {
        return rank() ? vocabulary_stride(parts_.model) : parts_.weights.head.rows;
    }
    float *logits() const {
        const Activations &a = parts_.activations;
        return rank() ? a.all_logits.as<float>() : a.logits.as<float>();
    }
    const DeviceRank &rank() const { return parts_.options.rank; }

    // sums[i], of hidden floats: of the last norm's rows of the wanted tokens in spans[i].
    Status sum_hidden(const SumSpan *spans, int32_t count, float *sums, cudaStream_t stream);

    // [rows] what the batch sampled, by logits row, for the next one's fed tokens.
    SampleResult *samples() const { return parts_.activations.samples.as<SampleResult>(); }
    Profile &profile() { return parts_.profile; }

  private:
    Share share_of(int64_t count, int32_t rank) const {
        const int64_t ranks = parts_.options.rank.ranks();
        return {count * rank / ranks, count * (rank + 1) / ranks};
    }
    Status read_logits(int64_t count, cudaStream_t stream);
    Status share_logits(int64_t count, cudaStream_t stream);
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
