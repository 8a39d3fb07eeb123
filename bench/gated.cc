// The product of gate and up with its activation, as one kernel (cuda/gated) and as cuBLASLt's
// product followed by the activation: microseconds, and TFLOP/s of the product's arithmetic, in
// bf16. All are timed in turn for a while, so that the device runs at the clock that its power
// limit allows.
//
//     gated                           Mistral-7B's shape, 256 to 8,192 rows
//     gated --hidden 3584 --width 18944 --rows 4096 --seconds 0.5
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "elementwise/elementwise.h"
#include "gated/gated.h"
#include "linear/linear.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Shape {
    int32_t hidden = 4096, width = 14336;
    std::vector<int32_t> rows = {256, 512, 768, 1024, 2048, 3072, 4096, 8192};
    double seconds = 0.25; // for each time
};

class Bench {
  public:
    Bench(const Shape &shape, int sms)
        : s_(shape), sms_(sms), most_(*std::max_element(s_.rows.begin(), s_.rows.end())),
          linear_(require(Linear::create(DType::bf16, nullptr, 0, TuningCache()))) {
        const int64_t h = s_.hidden, w = s_.width;
        x_ = noise(most_ * h, 1, 1);
        y_ = noise(most_ * 2 * w, 2, 1);
        for (uint64_t i = 0; i < kLayers; ++i) w_.push_back(noise(2 * w * h, 3 + i, 0.02F));
        out_ = require(DeviceMemory::create(most_ * w * 2, "out"));
        linear_.set_scratch(y_.data(), y_.bytes());
    }

    void run() {
        std::printf("microseconds and TFLOP/s: the product by cuBLASLt | and the activation | both "
                    "in one kernel | time of both over it\n");
        for (const int32_t rows : s_.rows) time(rows);
    }

  private:
    static constexpr int kLayers = 4; // enough that weights do not stay in L2

    const void *weights(int layer) const { return w_[static_cast<size_t>(layer)].data(); }
    void product(int layer, int32_t rows) {
        const Matrix w{weights(layer), 2 * int64_t{s_.width}, s_.hidden};
        require(linear_.run(w, x_.data(), rows, y_.data(), DType::bf16, false, nullptr));
    }
    void activation(int32_t rows) const {
        require(launch_activation(
            {DType::bf16, Activation::silu, true, y_.data(), nullptr, out_.data(), rows, s_.width},
            nullptr));
    }
    void gated(int layer, int32_t rows) const {
        require(launch_gated_sm90({DType::bf16, Activation::silu, x_.data(), weights(layer),
                                   out_.data(), rows, s_.hidden, s_.width},
                                  sms_, nullptr));
    }

    void time(int32_t rows) {
        const double flops = 4.0 * rows * s_.hidden * s_.width;
        const std::vector<double> us = time_in_turn({[&](int layer) { product(layer, rows); },
                                                     [&](int layer) {
                                                         product(layer, rows);
                                                         activation(rows);
                                                     },
                                                     [&](int layer) { gated(layer, rows); }},
                                                    kLayers, s_.seconds);
        std::printf("%6d", rows);
        for (const double one : us) std::printf(" | %9.1f %8.1f", one, flops / one * 1e-6);
        std::printf(" | %.3f\n", us[1] / us[2]);
        std::fflush(stdout);
    }

    Shape s_;
    int sms_;
    int64_t most_;
    Linear linear_;
    DeviceMemory x_, y_, out_;
    std::vector<DeviceMemory> w_;
};

bool read(int count, char **values, Shape *shape) {
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = values[i];
        const double value = std::atof(values[i + 1]);
        if (value <= 0) return false;
        if (name == "--hidden") {
            shape->hidden = static_cast<int32_t>(value);
        } else if (name == "--width") {
            shape->width = static_cast<int32_t>(value);
        } else if (name == "--rows") {
            shape->rows = {static_cast<int32_t>(value)};
        } else if (name == "--seconds") {
            shape->seconds = value;
        } else {
            return false;
        }
    }
    return count % 2 == 1 &&
           takes_gated(DType::bf16, Activation::silu, shape->hidden, shape->width);
}

} // namespace

int main(int count, char **values) {
    Shape shape;
    if (!read(count, values, &shape)) {
        std::fprintf(stderr, "unknown argument; the options are at the top of bench/gated.cc, "
                             "widths multiples of 128, hidden sizes of 64\n");
        return 2;
    }
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
        std::printf("skipped: no device of compute capability 9.0\n");
        return 77;
    }
    Bench(shape, properties.multiProcessorCount).run();
    return 0;
}
