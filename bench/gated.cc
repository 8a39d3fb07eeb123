// The product of gate and up with its activation, as one kernel (cuda/gated) and as cuBLASLt's product with the activation
// after it: microseconds, and TFLOP/s of the product's arithmetic. Each is timed for a while, in turn, so that the
// device runs at the clock that its power allows. In fp8 both end in rows of e4m3 with a scale each.
//
//     gated                           Mistral-7B's shape, 256 to 8,192 rows, in bf16 and in fp8
//     gated --hidden 3584 --width 18944 --rows 4096 --only fp8 --seconds 0.5
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "elementwise/elementwise.h"
#include "elementwise/quantize.h"
#include "gated/gated.h"
#include "linear/linear.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Shape {
    int32_t hidden = 4096, width = 14336;
    std::vector<int32_t> rows = {256, 512, 768, 1024, 2048, 3072, 4096, 8192};
    double seconds = 0.25; // of each time
    std::string only;
};

class Bench {
  public:
    Bench(const Shape &shape, int sms)
        : s_(shape), sms_(sms), most_(*std::max_element(s_.rows.begin(), s_.rows.end())),
          linear_(require(Linear::create(DType::bf16, nullptr, 0, TuningCache()))) {
        const int64_t h = s_.hidden, w = s_.width;
        x_ = noise(most_ * h, 1, 1);
        y_ = noise(most_ * 2 * w, 2, 1);
        for (int i = 0; i < kLayers; ++i) {
            w_.push_back(noise(2 * w * h, static_cast<uint64_t>(3 + i), 0.02F));
            narrow_w_.push_back(require(DeviceMemory::create(2 * w * h, "W")));
            w_scales_.push_back(require(DeviceMemory::create(2 * w * 4, "scales")));
            quantize(w_.back(), narrow_w_.back(), w_scales_.back(), 2 * s_.width, s_.hidden);
        }
        narrow_x_ = require(DeviceMemory::create(most_ * h, "x"));
        x_scales_ = require(DeviceMemory::create(most_ * 4, "scales"));
        quantize(x_, narrow_x_, x_scales_, static_cast<int32_t>(most_), s_.hidden);
        out_ = require(DeviceMemory::create(most_ * w * 2, "out"));
        out_scales_ = require(DeviceMemory::create(most_ * 4, "scales"));
        linear_.set_scratch(y_.data(), y_.bytes());
    }

    void run() {
        std::printf("%6s %5s | %28s | %19s | %19s\n", "rows", "", "product, activation: us TFLOP/s",
                    "both: us TFLOP/s", "one: us TFLOP/s");
        for (const bool fp8 : {false, true}) {
            if (!s_.only.empty() && s_.only != (fp8 ? "fp8" : "bf16")) continue;
            for (const int32_t rows : s_.rows) time(rows, fp8);
        }
    }

  private:
    static constexpr int kLayers = 4; // whose weights do not stay in L2

    static void quantize(const DeviceMemory &from, const DeviceMemory &to,
                         const DeviceMemory &scales, int32_t rows, int32_t width) {
        require(launch_quantize_rows(
            {DType::bf16, from.data(), to.data(), {scales.as<float>()}, rows, width}, nullptr));
    }

    void product(int layer, int32_t rows, bool fp8) {
        const auto i = static_cast<size_t>(layer);
        const int64_t n = 2 * int64_t{s_.width};
        const Matrix w =
            fp8 ? Matrix{narrow_w_[i].data(), n, s_.hidden, w_scales_[i].as<float>(), Scaling::rows}
                : Matrix{w_[i].data(), n, s_.hidden};
        const Input x = fp8 ? Input(narrow_x_.data(), x_scales_.as<float>()) : Input(x_.data());
        require(linear_.run(w, x, rows, y_.data(), DType::bf16, false, nullptr));
    }
    void activation(int32_t rows, bool fp8) {
        const ActivationArguments a{DType::bf16, Activation::silu, true, y_.data(),
                                    nullptr,     out_.data(),      rows, s_.width};
        require(fp8 ? launch_activation_e4m3(a, {out_scales_.as<float>()}, nullptr)
                    : launch_activation(a, nullptr));
    }
    void gated(int layer, int32_t rows, bool fp8) {
        const auto i = static_cast<size_t>(layer);
        const GatedArguments a{fp8 ? DType::e4m3 : DType::bf16,
                               DType::bf16,
                               Activation::silu,
                               fp8 ? narrow_x_.data() : x_.data(),
                               fp8 ? narrow_w_[i].data() : w_[i].data(),
                               x_scales_.as<float>(),
                               w_scales_[i].as<float>(),
                               fp8 ? y_.data() : out_.data(),
                               rows,
                               s_.hidden,
                               s_.width};
        require(launch_gated_sm90(a, sms_, nullptr));
        if (fp8) {
            require(launch_quantize_rows(
                {DType::bf16, y_.data(), out_.data(), {out_scales_.as<float>()}, rows, s_.width},
                nullptr));
        }
    }

    // Microseconds of a call, which gets the number of a layer.
    double time(const std::function<void(int)> &call) const {
        const auto round = [&] {
            for (int i = 0; i < kLayers; ++i) call(i);
        };
        const double once = static_cast<double>(time_launches(4, round)) * 1e-3;
        const int times = std::max(4, static_cast<int>(s_.seconds / once));
        return static_cast<double>(time_launches(times, round)) * 1e3 / kLayers;
    }

    void time(int32_t rows, bool fp8) {
        const double flops = 4.0 * rows * s_.hidden * s_.width;
        std::vector<double> apart, both, one;
        for (int i = 0; i < 2; ++i) {
            apart.push_back(time([&](int layer) { product(layer, rows, fp8); }));
            both.push_back(time([&](int layer) {
                product(layer, rows, fp8);
                activation(rows, fp8);
            }));
            one.push_back(time([&](int layer) { gated(layer, rows, fp8); }));
        }
        const auto least = [](const std::vector<double> &us) {
            return *std::min_element(us.begin(), us.end());
        };
        const double a = least(apart), b = least(both), c = least(one);
        std::printf("%6d %5s | %9.1f %8.1f %9.1f | %9.1f %9.1f | %9.1f %9.1f | %.3f\n", rows,
                    fp8 ? "fp8" : "bf16", a, flops / a * 1e-6, b - a, b, flops / b * 1e-6, c,
                    flops / c * 1e-6, b / c);
        std::fflush(stdout);
    }

    Shape s_;
    int sms_;
    int64_t most_;
    Linear linear_;
    DeviceMemory x_, y_, narrow_x_, x_scales_, out_, out_scales_;
    std::vector<DeviceMemory> w_, narrow_w_, w_scales_;
};

bool read(int count, char **values, Shape *shape) {
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = values[i];
        if (name == "--only") {
            shape->only = values[i + 1];
            continue;
        }
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
    return count % 2 == 1 && takes_gated(DType::e4m3, shape->hidden, shape->width);
}

} // namespace

int main(int count, char **values) {
    Shape shape;
    if (!read(count, values, &shape)) {
        std::fprintf(stderr, "unknown argument; the options are at the top of bench/gated.cc, "
                             "sizes multiples of 128\n");
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
