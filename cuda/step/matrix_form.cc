#include "step/matrix_form.h"

#include <algorithm>
#include <initializer_list>

#include "backend/gpu/step_buffers.h"
#include "base/visit.h"
#include "experts/tile.h"
#include "four_bits/layout.h"
#include "model/four_bits.h"

namespace batchllm::cuda {
namespace {

bool scaled_by_rows(const Tensor &tensor) { return tensor.scales.per_row == 1; }

// Blocks of the tensor in the file are blocks of the whole.
bool scaled_by_blocks(const Tensor &tensor, int64_t first) {
    const Scales &scales = tensor.scales;
    return scales.block_rows == kScaleBlock && scales.block_columns == kScaleBlock &&
           tensor.first_row % kScaleBlock == 0 && tensor.first_column % kScaleBlock == 0 &&
           first % kScaleBlock == 0;
}

float scale_at(const Tensor &tensor, int64_t row, int64_t column) {
    const Scales &scales = tensor.scales;
    return scales.data[(tensor.first_row + row) / scales.block_rows * scales.per_row +
                       (tensor.first_column + column) / scales.block_columns];
}

bool has_part_in(const MatrixSource &source, std::initializer_list<DType> types) {
    return std::any_of(source.parts.begin(), source.parts.end(), [&](const MatrixPart &part) {
        return bool(*part.first) &&
               std::find(types.begin(), types.end(), part.first->dtype) != types.end();
    });
}

} // namespace

bool has_any(const std::vector<MatrixPart> &parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [](const MatrixPart &part) { return bool(*part.first); });
}

SplitQueries::SplitQueries(const Tensor &tensor, const Tensor &gate, const Attention &attention,
                           int64_t padded, int64_t gates) {
    if (!attention.gated || attention.gate || !tensor) {
        all_.push_back({tensor, 0});
        if (gate) all_.push_back({gate, gates});
        return;
    }
    const int64_t rows = attention.head_dim;
    for (int64_t h = 0; h < attention.heads; ++h) {
        all_.push_back({rows_of(tensor, 2 * h * rows, rows), h * padded});
        all_.push_back({rows_of(tensor, (2 * h + 1) * rows, rows), gates + h * padded});
    }
}

std::vector<MatrixPart> SplitQueries::parts(std::vector<MatrixPart> others) const {
    for (const auto &[tensor, first] : all_) others.emplace_back(&tensor, first);
    return others;
}

MixerMatrices::MixerMatrices(const Mixer &mixer, int64_t hidden)
    : first{first_rows(mixer), hidden, {}, {}}, last{hidden, last_columns(mixer), {}, {}} {
    std::visit(
        Visitor{[](const NoMixer &) {},
                [&](const Attention &a) {
                    if (a.latent) {
                        const Weight &q = a.first_q();
                        first.parts = {{&q.values, 0}, {&a.latent.down.values, q.rows()}};
                        last.parts = {{&a.o.values, 0}};
                        return;
                    }
                    const int64_t padded = padded_head_dim(a.head_dim), q_rows = a.heads * padded;
                    const int64_t kv_rows = a.kv_layer < 0 ? a.kv_heads * padded : 0;
                    queries_.emplace(a.q.values, a.gate.values, a, padded, q_rows + 2 * kv_rows);
                    first.parts =
                        queries_->parts({{&a.k.values, q_rows}, {&a.v.values, q_rows + kv_rows}});
                    first.placing = {a.head_dim, padded, 1, 1};
                    last.parts = {{&a.o.values, 0}};
                    last.placing = {1, 1, a.head_dim, padded};
                },
                [&](const LinearAttention &linear) {
                    int64_t row = 0;
                    for (const Tensor &part : linear.input) {
                        first.parts.emplace_back(&part, row);
                        row += part.rows;
                    }
                    last.parts = {{&linear.o.values, 0}};
                },
                [&](const ShortConvolution &convolution) {
                    const int64_t channels = convolution.channels();
                    first.parts = {{&convolution.b.values, 0},
                                   {&convolution.c.values, channels},
                                   {&convolution.x.values, 2 * channels}};
                    last.parts = {{&convolution.o.values, 0}};
                }},
        mixer);
}

TurnedFilter::TurnedFilter(const Tensor &filter, bool reads) {
    const auto channels = static_cast<size_t>(filter.rows);
    const auto width = static_cast<size_t>(filter.columns);
    tensor.rows = filter.rows * filter.columns;
    tensor.columns = 1;
    if (!reads) return;
    std::vector<float> stored(channels * width);
    read_rows(filter, 0, filter.rows, DType::f32, stored.data());
    values_.resize(stored.size());
    for (size_t c = 0; c < channels; ++c) {
        for (size_t w = 0; w < width; ++w) values_[w * channels + c] = stored[c * width + w];
    }
    tensor.data = reinterpret_cast<const std::byte *>(values_.data());
}

std::vector<MatrixPart> convolution_parts(const LinearAttention &delta, int64_t width) {
    std::vector<MatrixPart> parts;
    int64_t channel = 0;
    for (const Weight &part : delta.convolution) {
        parts.emplace_back(&part.values, channel * width + width - delta.width);
        channel += part.rows();
    }
    return parts;
}

std::vector<MatrixPart> bias_parts(const LinearAttention &delta) {
    std::vector<MatrixPart> parts;
    int64_t channel = 0;
    for (const Weight &part : delta.convolution) {
        parts.emplace_back(&part.bias, channel);
        channel += part.rows();
    }
    return parts;
}

bool is_stored_in_e4m3(const MatrixSource &source) { return has_part_in(source, {DType::e4m3}); }
bool is_stored_quantised(const MatrixSource &source) {
    return has_part_in(source, {DType::e4m3, DType::u4});
}

PackedPlace packed_place(const MatrixSource &source, const MatrixPart &part, bool turns) {
    if (turns) return {part.second == 0 ? 0 : kGateRows, kGateRows, 2 * kGateRows};
    return {part.second, source.placing.row_group, source.placing.row_group_out};
}

std::vector<float> packed_factors(const MatrixSource &source, bool turns) {
    constexpr float of_random = 0.007F; // of weights that are made up (Sender)
    std::vector<float> all(static_cast<size_t>(source.rows), 1);
    for (const MatrixPart &part : source.parts) {
        const Tensor &tensor = *part.first;
        if (!tensor) continue;
        const PackedPlace place = packed_place(source, part, turns);
        const float own = tensor.four_bits != nullptr ? tensor.four_bits->factor : of_random;
        for (int64_t r = 0; r < tensor.rows; ++r) {
            all[static_cast<size_t>(place.row(r))] = own * packed_factor(kNvfp4Power);
        }
    }
    return all;
}

PackedFit packed_fit(const Model &model, const MatrixSource &source, DType element) {
    std::vector<const Tensor *> parts;
    for (const MatrixPart &part : source.parts) parts.push_back(part.first);
    const PackedFit fit = packed_fit(model, parts, element);
    const Placing &placing = source.placing;
    if (!fit.packing) return fit;
    if (placing.column_group != placing.column_group_out) {
        return {std::nullopt, "their columns are heads that are padded"};
    }
    return source.rows % 8 == 0 ? fit : PackedFit{std::nullopt, "their rows are no multiple of 8"};
}

Scaling own_scaling(const MatrixSource &source) {
    bool any = false, rows = true, blocks = !source.placing.moves();
    for (const auto &[tensor, first] : source.parts) {
        if (!*tensor) continue;
        if (tensor->dtype != DType::e4m3 || tensor->row_step != 1 || tensor->stored_transposed ||
            tensor->factor != 1) {
            return Scaling::none;
        }
        any = true;
        rows = rows && scaled_by_rows(*tensor);
        blocks = blocks && scaled_by_blocks(*tensor, first);
    }
    for (const auto &[fits, scaling] :
         {std::pair(rows, Scaling::rows), std::pair(blocks, Scaling::blocks)}) {
        if (any && fits && takes_e4m3(source.rows, source.columns, scaling)) return scaling;
    }
    return Scaling::none;
}

int64_t scale_count(int64_t rows, int64_t columns, Scaling scaling) {
    if (scaling == Scaling::none) return 0;
    if (scaling == Scaling::rows) return rows;
    return (rows + kScaleBlock - 1) / kScaleBlock * block_scale_stride(columns);
}

std::vector<float> own_scales(const MatrixSource &source, Scaling scaling) {
    std::vector<float> all(static_cast<size_t>(scale_count(source.rows, source.columns, scaling)),
                           1.0F);
    for (const auto &[tensor, first] : source.parts) {
        if (!*tensor) continue;
        if (scaling == Scaling::rows) {
            for (int64_t r = 0; r < tensor->rows; ++r) {
                all[static_cast<size_t>(first + source.placing.row(r))] = scale_at(*tensor, r, 0);
            }
            continue;
        }
        const int64_t stride = block_scale_stride(source.columns);
        for (int64_t r = 0; r < tensor->rows; r += kScaleBlock) {
            for (int64_t c = 0; c < tensor->columns; c += kScaleBlock) {
                all[static_cast<size_t>((first + r) / kScaleBlock * stride + c / kScaleBlock)] =
                    scale_at(*tensor, r, c);
            }
        }
    }
    return all;
}

MatrixSource ExpertMatrix::source(size_t expert) const {
    MatrixSource source{rows, columns, {{experts[expert].first, 0}}, {}};
    if (experts[expert].second != nullptr) {
        source.parts.emplace_back(experts[expert].second, rows / 2);
    }
    return source;
}

ExpertMatrices::ExpertMatrices(const Experts &experts, int64_t hidden) {
    const FeedForward &first = experts.each[0];
    const bool gated = bool(first.gate);
    const int64_t width = first.width, rows = gated ? 2 * width : width;
    gate_up = {rows, hidden, {}};
    down = {hidden, width, {}};
    if (gated) of_gate_up_bias = {kGateRows, 2 * kGateRows};
    for (const FeedForward &expert : experts.each) {
        const auto e = static_cast<int64_t>(down_bias.size());
        if (gated) {
            gate_up_bias.emplace_back(&expert.gate.bias, e * rows);
            gate_up_bias.emplace_back(&expert.up.bias, e * rows + kGateRows);
            gate_up.experts.push_back({&expert.gate.values, &expert.up.values});
        } else {
            gate_up_bias.emplace_back(&expert.up.bias, e * rows);
            gate_up.experts.push_back({&expert.up.values, nullptr});
        }
        down_bias.emplace_back(&expert.down.bias, e * hidden);
        down.experts.push_back({&expert.down.values, nullptr});
    }
}

PackedFit packed_fit(const Model &model, const ExpertMatrix &matrix, DType element) {
    std::vector<const Tensor *> parts;
    for (const ExpertMatrix::Parts &expert : matrix.experts) {
        parts.push_back(expert.first);
        if (expert.second != nullptr) parts.push_back(expert.second);
    }
    const PackedFit fit = packed_fit(model, parts, element);
    if (fit.packing && fit.packing->ordered) {
        return {std::nullopt, "the columns of experts' groups are in any order (g_idx)"};
    }
    const int64_t step = matrix.experts[0].second != nullptr ? 2 * kGateRows : 8;
    if (!fit.packing || matrix.rows % step == 0) return fit;
    return {std::nullopt, "their rows are no multiple of 8"};
}

Scaling own_scaling(const ExpertMatrix &matrix) {
    const Scaling first = own_scaling(matrix.source(0));
    for (size_t e = 1; e < matrix.experts.size(); ++e) {
        if (own_scaling(matrix.source(e)) != first) return Scaling::none;
    }
    return first;
}

int64_t expert_scale_count(const ExpertMatrix &matrix, Scaling scaling) {
    if (scaling == Scaling::none) return 0;
    const auto rows = static_cast<int64_t>(matrix.experts.size()) * matrix.rows;
    return scaling == Scaling::rows ? rows
                                    : 2 * (rows / kScaleBlock * matrix.columns / kScaleBlock);
}

std::vector<float> expert_scales(const ExpertMatrix &matrix, Scaling scaling) {
    std::vector<float> all;
    all.reserve(static_cast<size_t>(expert_scale_count(matrix, scaling)));
    const int64_t stride = block_scale_stride(matrix.columns);
    for (size_t e = 0; e < matrix.experts.size(); ++e) {
        const bool two = matrix.experts[e].second != nullptr;
        const int64_t second = two ? matrix.rows / 2 : 0; // its first row
        const std::vector<float> own = own_scales(matrix.source(e), scaling);
        if (scaling == Scaling::rows) {
            for (int64_t row = 0; row < matrix.rows; ++row) {
                const int64_t from = two ? row / 16 * 8 + row % 8 + row / 8 % 2 * second : row;
                all.push_back(own[static_cast<size_t>(from)]);
            }
            continue;
        }
        for (int64_t b = 0; b < matrix.columns / kScaleBlock; ++b) {
            for (int64_t row = 0; row < matrix.rows; row += kScaleBlock) {
                const int64_t from = two ? row / 2 : row; // of these rows
                for (const int64_t part : {from, from + second}) {
                    all.push_back(own[static_cast<size_t>(part / kScaleBlock * stride + b)]);
                }
            }
        }
    }
    return all;
}

} // namespace batchllm::cuda
