#include "backend/gpu/scaled_fit.h"

#include <algorithm>
#include <vector>

#include "backend/gpu/packed_fit.h"
#include "backend/gpu/step_buffers.h"
#include "model/four_bits.h"

namespace batchllm {
namespace {

using TensorParts = std::vector<const Tensor *>;

constexpr int64_t cublas_multiple = 16; // rows and columns of cuBLASLt's products in e4m3
constexpr int64_t scale_block = 128;    // rows and columns of its blocks of scales, and of experts'

bool is_multiple(int64_t size, int64_t of) { return size > 0 && size % of == 0; }

class Fit {
  public:
    Fit(const Model &model, Quantize quantize) : model_(model), quantize_(quantize) {}

    // A matrix made of these tensors, those that the model has. moves: rows or columns are padded heads.
    bool operator()(int64_t rows, int64_t columns, const TensorParts &parts,
                    bool moves = false) const {
        if (!is_multiple(rows, cublas_multiple) || !is_multiple(columns, cublas_multiple)) {
            return false;
        }
        if (quantize_ == Quantize::none) return false;
        if (model_.quantization == nullptr) return quantize_ == Quantize::fp8;
        const bool any = std::any_of(parts.begin(), parts.end(), [&](const Tensor *part) {
            return bool(*part) && described_e4m3(model_, *part).has_value();
        });
        return quantize_ == Quantize::fp8 ? any : has_own_scales(columns, parts, moves);
    }

    bool of_experts(const Layer &layer) const {
        const Experts &experts = *layer.experts();
        const FeedForward &one = experts.each.front();
        const auto biased = [](const FeedForward &each) {
            return each.gate.bias || each.up.bias || each.down.bias;
        };
        const auto fits = [&](int64_t rows, int64_t columns, const TensorParts &parts) {
            return (*this)(rows, columns, parts);
        };
        return !layer.parallel && !experts.before && one.activation == Activation::silu &&
               is_multiple(model_.hidden, scale_block) && is_multiple(one.width, scale_block) &&
               std::none_of(experts.each.begin(), experts.each.end(), biased) &&
               fits(one.gate.rows() + one.up.rows(), model_.hidden,
                    {&one.gate.values, &one.up.values}) &&
               fits(model_.hidden, one.width, {&one.down.values});
    }

  private:
    // Whether the file's scales can be used as they are.
    bool has_own_scales(int64_t columns, const TensorParts &parts, bool moves) const {
        bool rows = true, blocks = !moves && columns % scale_block == 0;
        int64_t first = 0;
        for (const Tensor *part : parts) {
            if (!*part) continue;
            const auto scheme = described_e4m3(model_, *part);
            if (!scheme || part->factor != 1 || part->row_step != 1) return false;
            // A stack; other schemes have a tensor for each expert.
            const bool stacked = part->stored_stack > 0;
            if (stacked && may_be_stacked(*scheme, *part)) return false;
            const bool in_blocks =
                scheme->kind == ScaleKind::block || scheme->kind == ScaleKind::block_or_tensor;
            rows = rows && (!in_blocks || scheme->block_columns >= part->row_length());
            const int64_t first_row = stacked ? 0 : part->first_row;
            blocks = blocks && in_blocks && scheme->block_rows == scale_block &&
                     scheme->block_columns == scale_block && first_row % scale_block == 0 &&
                     part->first_column % scale_block == 0 && first % scale_block == 0;
            first += part->rows;
        }
        return first > 0 && (rows || blocks);
    }

    const Model &model_;
    Quantize quantize_;
};

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
        return fits(first_rows(of.mixer), model.hidden, first_tensors(of.mixer),
                    has_padded_heads(of.mixer));
    };
    ScaledLayer scaled;
    scaled.first = first_of(layer);
    scaled.last = fits(model.hidden, last_columns(layer.mixer), last_tensors(layer.mixer),
                       has_padded_heads(layer.mixer));
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
    const Layer *beside = nullptr;
    if (layer.beside)
        beside = &all[index - 1];
    else if (index + 1 < all.size() && all[index + 1].beside)
        beside = &all[index + 1];
    if (beside != nullptr && !first_of(*beside)) scaled.first = false;
    return scaled;
}

} // namespace batchllm
