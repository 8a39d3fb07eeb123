#include "backend/gpu/scaled_fit.h"

#include <algorithm>
#include <vector>

#include "backend/gpu/step_buffers.h"
#include "base/visit.h"
#include "model/four_bits.h"

namespace batchllm {
namespace {

using Parts = std::vector<const Tensor *>;

class Fit {
  public:
    Fit(const Model &model, Quantize quantize) : model_(model), quantize_(quantize) {}

    // A matrix made of these tensors, those that the model has.
    bool operator()(int64_t rows, int64_t columns, const Parts &parts) const {
        constexpr int64_t multiple = 16; // of cuBLASLt's products in e4m3
        if (rows == 0 || columns == 0 || rows % multiple != 0 || columns % multiple != 0)
            return false;
        return is_wanted(parts);
    }

    bool of_experts(const Layer &layer) const {
        constexpr int64_t multiple = 128; // of the kernels' blocks of scales
        const Experts &experts = *layer.experts();
        const FeedForward &one = experts.each.front();
        const auto biased = [](const FeedForward &each) {
            return each.gate.bias || each.up.bias || each.down.bias;
        };
        return !layer.parallel && !experts.before && one.activation == Activation::silu &&
               model_.hidden % multiple == 0 && one.width % multiple == 0 &&
               std::none_of(experts.each.begin(), experts.each.end(), biased) &&
               is_wanted({&one.gate.values, &one.up.values}) && is_wanted({&one.down.values});
    }

  private:
    bool is_wanted(const Parts &parts) const {
        if (quantize_ == Quantize::none) return false;
        const bool rounds = quantize_ == Quantize::fp8;
        if (model_.quantization == nullptr) return rounds;
        int stored = 0, there = 0;
        for (const Tensor *part : parts) {
            if (!*part) continue;
            ++there;
            const bool as_it_is =
                part->factor == 1 && part->row_step == 1 && !part->stored_transposed;
            if (is_described_in_e4m3(model_, *part) && (as_it_is || rounds)) ++stored;
        }
        return rounds ? stored > 0 : stored == there && there > 0;
    }

    const Model &model_;
    Quantize quantize_;
};

Parts first_parts(const Mixer &mixer) {
    return std::visit(
        Visitor{
            [](const NoMixer &) { return Parts(); },
            [](const Attention &a) {
                if (a.latent) {
                    return Parts{&a.first_q().values, &a.latent.down.values};
                }
                return Parts{&a.q.values, &a.k.values, &a.v.values, &a.gate.values};
            },
            [](const LinearAttention &linear) {
                Parts parts;
                for (const Tensor &part : linear.input) parts.push_back(&part);
                return parts;
            },
            [](const ShortConvolution &convolution) {
                return Parts{&convolution.b.values, &convolution.c.values, &convolution.x.values};
            }},
        mixer);
}

Parts last_parts(const Mixer &mixer) {
    return std::visit(Visitor{[](const NoMixer &) { return Parts(); },
                              [](const auto &other) { return Parts{&other.o.values}; }},
                      mixer);
}

} // namespace

Result<Quantize> read_quantize(const std::string &value) {
    if (value == "none") return Quantize::none;
    if (value == "stored") return Quantize::stored;
    if (value == "fp8") return Quantize::fp8;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "backend option quantize=%s: none, stored or fp8",
                 value.c_str());
}

ScaledLayer scaled_layer(const Model &model, size_t index, Quantize quantize) {
    const Fit fits(model, quantize);
    const std::vector<Layer> &all = model.layers;
    const Layer &layer = all[index];
    const auto first_of = [&](const Layer &of) {
        return fits(first_rows(of.mixer), model.hidden, first_parts(of.mixer));
    };
    ScaledLayer scaled;
    scaled.first = first_of(layer);
    scaled.last = fits(model.hidden, last_columns(layer.mixer), last_parts(layer.mixer));
    scaled.experts = layer.experts() != nullptr && fits.of_experts(layer);
    // What experts share a layer with takes rows of the compute type.
    const FeedForward *feed = layer.experts() == nullptr ? layer.feed_forward() : nullptr;
    if (feed != nullptr) {
        const int64_t rows = feed->gate.rows() + feed->up.rows();
        scaled.gate_up = fits(rows, model.hidden, {&feed->gate.values, &feed->up.values});
        scaled.down = fits(model.hidden, feed->width, {&feed->down.values});
    }
    // What is multiplied with the same rows is in one type.
    if (layer.parallel && scaled.first != scaled.gate_up) scaled.first = scaled.gate_up = false;
    const Layer *beside = layer.beside                                      ? &all[index - 1]
                          : index + 1 < all.size() && all[index + 1].beside ? &all[index + 1]
                                                                            : nullptr;
    if (beside != nullptr && !first_of(*beside)) scaled.first = false;
    return scaled;
}

} // namespace batchllm
