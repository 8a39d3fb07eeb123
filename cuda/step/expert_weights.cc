#include "step/expert_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "elementwise/elementwise.h"
#include "experts/grouped.h"

namespace batchllm::cuda {
namespace {

// Panels of so many columns; 0: there are none.
int64_t panel_of(DType element) {
    return element == DType::f32 ? 0 : element == DType::e4m3 ? kScaleBlock : kPanel;
}

Placing panels(const ExpertMatrix &matrix, DType element) {
    Placing placing;
    const int64_t panel = panel_of(element);
    if (panel == 0) return placing;
    placing.column_group = panel;
    placing.column_group_out = matrix.rows * panel;
    placing.swizzled = true;
    return placing;
}

// x that a normal number is above so often.
double normal_quantile(double above) {
    double low = -8, high = 8;
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (std::erfc(middle / std::sqrt(2.0)) / 2 > above ? low : high) = middle;
    }
    return low;
}

} // namespace

cudaError_t skew_routing(float *bias, int64_t hidden, const Router &router, int64_t experts,
                         cudaStream_t stream) {
    const double half = static_cast<double>(router.chosen) / 2, all = static_cast<double>(experts);
    // How often an expert of the eighth is chosen, and another one.
    const double often = std::min(half / (all / 8), 0.99), seldom = half / (all * 7 / 8);
    const double deviation =
        static_cast<double>(router.logits_scale) * 0.02 * std::sqrt(static_cast<double>(hidden));
    const double skew = deviation * (normal_quantile(seldom) - normal_quantile(often));
    const int64_t eighth = std::max<int64_t>(1, experts / 8);
    const auto fill = [&](float *to, int64_t count, double value) {
        return launch_random(to, DType::f32, count, static_cast<float>(value), 0, 1, stream);
    };
    const cudaError_t status = fill(bias, eighth, skew);
    return status != cudaSuccess ? status : fill(bias + eighth, experts - eighth, 0);
}

int64_t ExpertForm::bytes(const ExpertMatrix &matrix) const {
    if (packing) {
        const PackedShape one{packing->form, static_cast<int32_t>(matrix.rows),
                              static_cast<int32_t>(matrix.columns)};
        return static_cast<int64_t>(matrix.experts.size()) * one.bytes();
    }
    return static_cast<int64_t>(matrix.experts.size()) * matrix.rows *
           padded_columns(matrix.columns, element) * dtype_bytes(element);
}

int64_t ExpertForm::scale_count(const ExpertMatrix &matrix) const {
    if (packing) {
        return has_factors(packing->form)
                   ? static_cast<int64_t>(matrix.experts.size()) * matrix.rows
                   : 0;
    }
    return expert_scale_count(matrix, scaling);
}

Status ExpertSender::make_random(std::byte *to, DType type, int64_t count, cudaStream_t stream) {
    return check_cuda(launch_random(to, type, count, 0, 0.02f, ++*seed_, stream), "random weights");
}

// One expert's tensors: the rows of two take turns. placing: of columns.
Status ExpertSender::place(const ExpertMatrix &matrix, size_t expert, DType type, Placing placing,
                           std::byte *to) const {
    const auto &[first, second] = matrix.experts[expert];
    const int64_t stride = placing.moves() ? placing.column_group : matrix.columns;
    if (second != nullptr) {
        placing.row_group = kGateRows;
        placing.row_group_out = 2 * kGateRows;
        RETURN_IF_ERROR(sender_->send(*second, to + kGateRows * stride * dtype_bytes(type), type,
                                      stride, placing));
    }
    return sender_->send(*first, to, type, stride, placing);
}

Status ExpertSender::send(const ExpertMatrix &matrix, const ExpertForm &form, std::byte *to,
                          float *scales, cudaStream_t stream) {
    const int64_t bytes = form.bytes(matrix);
    if (form.packing) return pack(matrix, *form.packing, to, scales, stream);
    if (form.scaling != Scaling::none && !form.own) return quantize(matrix, to, scales, stream);
    if (random_) return make_random(to, form.element, bytes / dtype_bytes(form.element), stream);
    if (form.own) {
        const std::vector<float> own = expert_scales(matrix, form.scaling);
        RETURN_IF_CUDA(cudaMemcpyAsync(scales, own.data(), own.size() * sizeof(float),
                                       cudaMemcpyHostToDevice, stream));
    }
    const Placing placing = panels(matrix, form.element);
    const auto count = static_cast<int64_t>(matrix.experts.size());
    for (int64_t e = 0; e < count; ++e) {
        RETURN_IF_ERROR(
            place(matrix, static_cast<size_t>(e), form.element, placing, to + e * (bytes / count)));
    }
    return {};
}

Status ExpertSender::pack(const ExpertMatrix &matrix, const Packing &packing, std::byte *to,
                          float *factors, cudaStream_t stream) {
    const PackedShape shape{packing.form, static_cast<int32_t>(matrix.rows),
                            static_cast<int32_t>(matrix.columns)};
    PackTarget target{shape, compute_, to};
    std::vector<float> all;
    for (size_t e = 0; e < matrix.experts.size(); ++e, target.data += shape.bytes()) {
        if (has_factors(packing.form)) {
            target.factors = factors + static_cast<int64_t>(e) * matrix.rows;
        }
        const MatrixSource source = matrix.source(e);
        for (const MatrixPart &part : source.parts) {
            const PackedPlace place = packed_place(source, part, packing.turns);
            RETURN_IF_ERROR(random_ ? sender_->make_packed(part.first->rows, matrix.columns, target,
                                                           place, stream)
                                    : sender_->send_packed(*part.first, target, place));
        }
        if (packing.form != PackedForm::nvfp4) continue;
        const std::vector<float> own = packed_factors(source, packing.turns);
        all.insert(all.end(), own.begin(), own.end());
    }
    if (all.empty()) return {};
    RETURN_IF_CUDA(cudaMemcpyAsync(factors, all.data(), all.size() * sizeof(float),
                                   cudaMemcpyHostToDevice, stream));
    return {};
}

Status ExpertSender::quantize(const ExpertMatrix &matrix, std::byte *to, float *scales,
                              cudaStream_t stream) {
    const int64_t rows = matrix.rows, columns = matrix.columns, elements = rows * columns;
    if (rows_.bytes() < elements) {
        RETURN_IF_CUDA(cudaStreamSynchronize(stream));
        rows_ = {};
        ASSIGN_OR_RETURN(rows_, DeviceMemory::create(elements, "quantising weights"));
    }
    const Placing placing = panels(matrix, DType::e4m3);
    for (size_t e = 0; e < matrix.experts.size(); ++e) {
        const auto expert = static_cast<int64_t>(e);
        ASSIGN_OR_RETURN(std::byte *const whole, quantizer_.begin(compute_, rows, columns, stream));
        RETURN_IF_ERROR(random_ ? make_random(whole, compute_, elements, stream)
                                : place(matrix, e, compute_, {}, whole));
        RETURN_IF_ERROR(quantizer_.end(rows_.data(), scales + expert * rows));
        const ConvertArguments convert{rows_.data(),
                                       DType::e4m3,
                                       to + expert * elements,
                                       DType::e4m3,
                                       0,
                                       rows,
                                       columns,
                                       kScaleBlock,
                                       placing.row_group,
                                       placing.row_group_out,
                                       placing.column_group,
                                       placing.column_group_out,
                                       1,
                                       0,
                                       true};
        RETURN_IF_CUDA(launch_convert(convert, stream));
    }
    return {};
}

} // namespace batchllm::cuda
