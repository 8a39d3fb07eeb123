// A layer of a tower, part by part: microseconds, TFLOP/s of products and attention, and what all layers take for one picture.
// bf16; weights of several layers, so that they do not stay in L2.
//
//     tower                                             Qwen3-VL-8B's tower; pictures of 1080p, 720p and 448 x 448
//     tower --pictures 4                                of so many pictures at once, as in a pack
//     tower --hidden 1280 --width 3424 --gated 1 --layers 32 --patches 4096,8160
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "elementwise/elementwise.h"
#include "linear/linear.h"
#include "tower/attention.h"
#include "tower/rows.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Shape {
    int32_t hidden = 1152, heads = 16, width = 4304, layers = 27;
    bool gated = false, tune = true;
    int32_t pictures = 1;
    std::vector<int32_t> patches = {8160, 3600, 784}; // of a picture
};

constexpr int kLayers = 8; // whose weights there are

class Bench {
  public:
    Bench(const Shape &shape, int64_t most)
        : s_(shape), linear_(require(Linear::create(DType::bf16, nullptr, 0, TuningCache()))) {
        const int64_t h = s_.hidden, up = (s_.gated ? 2 : 1) * int64_t{s_.width};
        for (uint64_t i = 0; i < kLayers; ++i) {
            qkv_w_.push_back(noise(3 * h * h, 4 * i, 0.02F));
            o_w_.push_back(noise(h * h, 4 * i + 1, 0.02F));
            up_w_.push_back(noise(up * h, 4 * i + 2, 0.02F));
            down_w_.push_back(noise(h * s_.width, 4 * i + 3, 0.02F));
        }
        normed_ = noise(most * h, 90, 1);
        qkv_ = noise(most * 3 * h, 91, 1);
        attended_ = noise(most * h, 92, 1);
        up_ = noise(most * up, 93, 1);
        activated_ = noise(most * s_.width, 94, 1);
        for (DeviceMemory *floats : {&residual_, &scratch_}) {
            *floats = require(DeviceMemory::create(most * std::max(3 * h, up) * 4, "rows"));
            require(launch_random(floats->data(), DType::f32, most * h, 0, 1, 95, nullptr));
        }
        bias_ = require(zeroed_memory(3 * std::max<int64_t>(h, up) * 4, "bias"));
        angles_ = require(zeroed_memory(most * (h / s_.heads / 2) * 8, "angles"));
        if (s_.tune) linear_.set_scratch(scratch_.data(), scratch_.bytes());
    }

    void run(int32_t of_one) {
        const int32_t patches = s_.pictures * of_one;
        const int64_t h = s_.hidden, p = patches, up = (s_.gated ? 2 : 1) * int64_t{s_.width};
        const int32_t head_dim = s_.hidden / s_.heads;
        const auto blocks_of = [&](int32_t rows) {
            std::vector<TowerBlock> blocks;
            for (int32_t begin = 0; begin < patches; begin += of_one) {
                const int32_t end = begin + of_one;
                for (int32_t row = begin; row < end; row += rows) {
                    blocks.push_back({begin, end, row});
                }
            }
            return blocks;
        };
        std::printf("%d times %d patches\n", s_.pictures, of_one);
        total_ = 0;
        const auto product = [&](const char *name, const std::vector<DeviceMemory> &w, int64_t rows,
                                 int64_t columns, const DeviceMemory &x, const DeviceMemory &y,
                                 DType type) {
            time(name, 2 * static_cast<double>(p * rows * columns), [&](int layer) {
                const Matrix matrix{w[static_cast<size_t>(layer)].data(), rows, columns};
                require(linear_.run(matrix, x.data(), patches, y.data(), type, false, nullptr));
            });
        };
        const auto add_product = [&](const char *name, const std::vector<DeviceMemory> &w,
                                     int64_t columns, const DeviceMemory &x) {
            time(name, 2 * static_cast<double>(p * h * columns), [&](int layer) {
                Matrix matrix{w[static_cast<size_t>(layer)].data(), h, columns};
                matrix.bias = bias_.data();
                require(linear_.run(matrix, x.data(), patches, residual_.data(), DType::bf16, true,
                                    nullptr));
            });
        };
        const auto norm = [&](int) {
            require(
                launch_tower_norm({DType::bf16,
                                   DType::bf16,
                                   residual_.data(),
                                   {NormKind::layer, bias_.as<float>(), bias_.as<float>(), 1e-6F},
                                   normed_.data(),
                                   patches,
                                   s_.hidden},
                                  nullptr));
        };
        product("queries, keys, values", qkv_w_, 3 * h, h, normed_, qkv_, DType::bf16);
        time("turning", 0, [&](int) {
            require(launch_tower_turn({DType::bf16, qkv_.data(), bias_.as<float>(),
                                       angles_.as<float2>(), patches, s_.heads, head_dim,
                                       tower_head_fits_sm90(DType::bf16, head_dim)},
                                      nullptr));
        });
        require(launch_random(qkv_.data(), DType::bf16, p * 3 * h, 0, 1, 96, nullptr));
        if (tower_head_fits_sm90(DType::bf16, head_dim)) {
            const std::vector<TowerBlock> blocks = blocks_of(tower_block_rows_sm90());
            const DeviceMemory of_blocks = upload(blocks);
            time("attention, sm90", 4 * static_cast<double>(p * of_one * h), [&](int) {
                require(launch_tower_attention_sm90(
                    {DType::bf16, qkv_.data(), attended_.data(), of_blocks.as<TowerBlock>(),
                     static_cast<int32_t>(blocks.size()), s_.heads, head_dim,
                     1 / std::sqrt(static_cast<float>(head_dim))},
                    {bias_.as<float>(), angles_.as<float2>()}, patches, nullptr));
            });
        }
        const double with_sm90 = total_;
        const std::vector<TowerBlock> blocks = blocks_of(tower_block_rows(DType::bf16, head_dim));
        const DeviceMemory of_blocks = upload(blocks);
        time("attention", 4 * static_cast<double>(p * of_one * h), [&](int) {
            require(launch_tower_attention({DType::bf16, qkv_.data(), attended_.data(),
                                            of_blocks.as<TowerBlock>(),
                                            static_cast<int32_t>(blocks.size()), s_.heads, head_dim,
                                            1 / std::sqrt(static_cast<float>(head_dim))},
                                           nullptr));
        });
        if (tower_head_fits_sm90(DType::bf16, head_dim)) total_ = with_sm90;
        add_product("output, added", o_w_, h, attended_);
        time("norm", 0, norm);
        if (!s_.gated) {
            time("up, with activation", 2 * static_cast<double>(p * up * h), [&](int layer) {
                Matrix matrix{up_w_[static_cast<size_t>(layer)].data(), up, h};
                matrix.bias = bias_.data();
                matrix.gelu = true;
                require(linear_.run(matrix, normed_.data(), patches, activated_.data(), DType::bf16,
                                    false, nullptr));
            });
        }
        const double with_activation = total_;
        product("up", up_w_, up, h, normed_, up_, DType::bf16);
        time("activation", 0, [&](int) {
            require(launch_activation({DType::bf16, Activation::gelu_tanh, s_.gated, up_.data(),
                                       bias_.as<float>(), activated_.data(), patches, s_.width},
                                      nullptr));
        });
        if (!s_.gated) total_ = with_activation;
        add_product("down, added", down_w_, s_.width, activated_);
        time("norm", 0, norm);
        std::printf("  %d layers: %.2f ms a picture\n", s_.layers,
                    total_ * s_.layers * 1e-3 / s_.pictures);
    }

  private:
    void time(const char *name, double flops, const std::function<void(int)> &launch) {
        double us = 1e30;
        for (int round = 0; round < 3; ++round) {
            int layer = 0;
            const float took = time_launches(2 * kLayers, [&] { launch(layer++ % kLayers); });
            us = std::min(us, 1e3 * static_cast<double>(took));
        }
        total_ += us;
        std::printf("  %-24s %9.1f us", name, us);
        if (flops > 0) std::printf(" %7.0f TFLOP/s", flops / us * 1e-6);
        std::printf("\n");
    }

    Shape s_;
    Linear linear_;
    std::vector<DeviceMemory> qkv_w_, o_w_, up_w_, down_w_;
    DeviceMemory normed_, qkv_, attended_, up_, activated_, residual_, scratch_, bias_, angles_;
    double total_ = 0; // us of a layer
};

} // namespace

int main(int count, char **values) {
    Shape shape;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = values[i];
        if (name == "--patches") {
            shape.patches.clear();
            for (char *part = std::strtok(values[i + 1], ","); part != nullptr;
                 part = std::strtok(nullptr, ",")) {
                shape.patches.push_back(std::atoi(part));
            }
            continue;
        }
        const int number = std::atoi(values[i + 1]);
        if (name == "--pictures") shape.pictures = number;
        if (name == "--hidden") shape.hidden = number;
        if (name == "--heads") shape.heads = number;
        if (name == "--width") shape.width = number;
        if (name == "--layers") shape.layers = number;
        if (name == "--gated") shape.gated = number != 0;
        if (name == "--tune") shape.tune = number != 0;
    }
    int64_t most = 0;
    for (const int32_t patches : shape.patches) most = std::max<int64_t>(most, patches);
    Bench bench(shape, padded_rows(shape.pictures * most));
    for (const int32_t patches : shape.patches) bench.run(patches);
}
