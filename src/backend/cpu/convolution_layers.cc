#include "backend/cpu/convolution_layers.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/feed_forward.h"

namespace batchllm::cpu {

Status ConvolutionLayers::allocate(const Model &model, int64_t step_tokens) {
    int64_t channels = 0;
    for (const Layer &layer : model.layers) {
        const auto *convolution = std::get_if<ShortConvolution>(&layer.mixer);
        if (convolution != nullptr) channels = std::max(channels, convolution->channels());
    }
    if (channels == 0) return {};
    const char *what = "a step's buffers";
    ASSIGN_OR_RETURN(products_, Buffer::create(step_tokens * channels * 4, what));
    ASSIGN_OR_RETURN(gates_, Buffer::create(step_tokens * channels * 4, what));
    zeros_.assign(static_cast<size_t>(channels), 0.0f);
    return {};
}

Status ConvolutionLayers::project(const PackedConvolution &weights, const std::byte *x,
                                  int64_t tokens) {
    const int64_t channels = weights.c.rows;
    // A slice has the same columns of B and of x.
    RETURN_IF_ERROR(linear_->run(weights.bx, x, tokens, [&](const Linear::Tile &tile) {
        const int64_t width = tile.width / 2, column = tile.column / 2;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const float *b = tile.data + r * tile.width;
            kernels_.multiply_biased(b, bias_at(weights.b_bias, column), b + width,
                                     bias_at(weights.x_bias, column), static_cast<int32_t>(width),
                                     products_.floats() + (tile.row + r) * channels + column);
        }
    }));
    return linear_->run(weights.c, x, tokens, [&](const Linear::Tile &tile) {
        for (int64_t r = 0; r < tile.rows; ++r) {
            kernels_.copy_bias(tile.data + r * tile.width, bias_at(weights.c_bias, tile.column),
                               static_cast<int32_t>(tile.width),
                               gates_.floats() + (tile.row + r) * channels + tile.column);
        }
    });
}

class ConvolutionLayers::Inputs {
  public:
    Inputs(const ConvolutionLayers &of, const StateWork::Node &node, const ShortConvolution &shape,
           size_t layer)
        : own_(of.products_.floats() + node.token_begin * shape.channels()),
          kept_(node.from < 0 ? nullptr : of.states_.inputs(node.from, layer)),
          zeros_(of.zeros_.data()), channels_(shape.channels()), before_(shape.width - 1) {}

    // The node's token t in this batch; from 1 - width on.
    const float *at(int32_t t) const {
        if (t >= 0) return own_ + t * channels_;
        return kept_ != nullptr ? kept_ + (before_ + t) * channels_ : zeros_;
    }

  private:
    const float *own_;
    const float *kept_;
    const float *zeros_;
    int64_t channels_;
    int32_t before_;
};

void ConvolutionLayers::convolve(const ShortConvolution &shape, const PackedConvolution &weights,
                                 size_t layer, const std::vector<int32_t> *rows, std::byte *out) {
    const int64_t channels = shape.channels();
    const int64_t row_bytes = channels * dtype_bytes(kernels_.element);
    const int32_t before = shape.width - 1;
    const float *bias = bias_at(weights.filter_bias, 0);
    const auto convolve_piece = [&](const StateWork::Piece &piece) {
        const StateWork::Node &node = work_.nodes[static_cast<size_t>(piece.node)];
        const Inputs inputs(*this, node, shape, layer);
        std::array<const float *, most_convolution_width> seen{};
        for (int32_t t = piece.begin; t < piece.end; ++t) {
            const int64_t token = node.token_begin + t;
            const int64_t row = rows == nullptr ? token : (*rows)[static_cast<size_t>(token)];
            if (row < 0) continue;
            for (int32_t w = 0; w < shape.width; ++w) {
                seen[static_cast<size_t>(w)] = inputs.at(t - before + w);
            }
            kernels_.convolve_gated(seen.data(), weights.filter.data(), bias,
                                    gates_.floats() + token * channels, shape.width,
                                    static_cast<int32_t>(channels), out + row * row_bytes);
        }
    };
    const auto keep = [&](const StateWork::Node &node) {
        const Inputs inputs(*this, node, shape, layer);
        float *to = states_.inputs(node.state, layer);
        // In this order, because if the slots are the same, a row must be read before it is
        // overwritten.
        for (int32_t i = 0; i < before; ++i) {
            std::memmove(to + i * channels, inputs.at(node.token_count - before + i),
                         static_cast<size_t>(channels) * sizeof(float));
        }
    };
    for (const StateWork::Level &level : work_.levels) {
        pool_->parallel_for(
            static_cast<int64_t>(level.piece_end - level.piece_begin), [&](int64_t i, int32_t) {
                convolve_piece(work_.pieces[level.piece_begin + static_cast<size_t>(i)]);
            });
        pool_->parallel_for(static_cast<int64_t>(level.node_end - level.node_begin),
                            [&](int64_t i, int32_t) {
                                keep(work_.nodes[level.node_begin + static_cast<size_t>(i)]);
                            });
    }
}

} // namespace batchllm::cpu
