// Products in e4m3 with scales of rows, of few rows of x: cuBLASLt's first algorithm, what is chosen by time (its others, and
// the product for few rows), and that product (cuda/linear/few_rows.h). Microseconds, and TFLOP/s. All are timed in turn
// for a while, so that the device runs at the clock that its power limit allows.
//
//     few_rows                             the layers of Mistral-7B and of a half of Llama-3.3-70B, 144 to 640 rows
//     few_rows --width 8192 --columns 4096 --rows 320 --seconds 0.5
//     few_rows --check                     no times: how far its elements are from cuBLASLt's
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "linear/few_rows.h"
#include "linear/linear.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Shape {
    const char *name;
    int32_t width, columns;
};
struct Options {
    std::vector<Shape> shapes = {{"70B/2 qkv", 5120, 8192},       {"70B/2 output", 8192, 4096},
                                 {"70B/2 gate, up", 28672, 8192}, {"70B/2 down", 8192, 14336},
                                 {"7B qkv", 6144, 4096},          {"7B output", 4096, 4096},
                                 {"7B gate, up", 28672, 4096},    {"7B down", 4096, 14336}};
    std::vector<int32_t> rows = {144, 160, 192, 256, 288, 320, 416, 448, 480, 576, 640};
    double seconds = 0.03; // for each time
    bool check = false;
};

DeviceMemory scales_of(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 0.5F + 0.01F * static_cast<float>(i % 97);
    }
    return upload(values);
}

class Bench {
  public:
    Bench(const Shape &shape, const Options &options)
        : s_(shape), o_(options),
          most_(*std::max_element(options.rows.begin(), options.rows.end()) + most_row_step),
          guess_(require(Linear::create(DType::bf16, nullptr, 0, TuningCache()))),
          tuned_(require(Linear::create(DType::bf16, nullptr, 0, TuningCache()))) {
        const int64_t bytes = int64_t{s_.width} * s_.columns;
        layers_ = static_cast<int>(std::max<int64_t>(2, (int64_t{200} << 20) / bytes));
        for (int i = 0; i < layers_; ++i) {
            w_.push_back(noise_in_e4m3(s_.width, s_.columns, 3 + static_cast<uint64_t>(i), 0.02F));
        }
        x_ = noise_in_e4m3(most_, s_.columns, 1, 1);
        x_scales_ = scales_of(most_);
        w_scales_ = scales_of(s_.width);
        y_ = require(DeviceMemory::create(most_ * s_.width * 2, "y"));
        other_ = require(DeviceMemory::create(most_ * s_.width * 2, "y"));
        scratch_ = require(DeviceMemory::create(most_ * s_.width * 2, "scratch"));
        tuned_.set_scratch(scratch_.data(), scratch_.bytes());
        tuned_.set_timing(true);
        partials_ = require(DeviceMemory::create(kFewRowsPartials, "partial sums"));
        flags_ = require(zeroed_memory(kFewRowsFlags * 4, "flags"));
    }

    void run() {
        for (const int32_t rows : o_.rows) {
            o_.check ? check(rows) : time(rows);
        }
    }
    bool right() const { return right_; }

  private:
    const void *weights(int layer) const { return w_[static_cast<size_t>(layer)].data(); }
    void product(Linear *linear, int layer, int32_t rows, bool add, void *y) const {
        Matrix w{weights(layer), s_.width, s_.columns, w_scales_.as<float>(), Scaling::rows};
        require(linear->run(w, {x_.data(), x_scales_.as<float>()}, rows, y, DType::bf16, add,
                            nullptr, 0.25F));
    }
    void few_rows(int layer, int32_t rows, bool add, void *y) const {
        require(
            launch_few_rows_sm90({x_.data(), x_scales_.as<float>(), weights(layer),
                                  w_scales_.as<float>(), y, DType::bf16, add, 0.25F, rows,
                                  s_.columns, s_.width, partials_.data(), flags_.as<uint32_t>()},
                                 nullptr));
    }

    void time(int32_t rows) {
        const double flops = 2.0 * rows * s_.columns * s_.width;
        const std::vector<double> us =
            time_in_turn({[&](int layer) { product(&guess_, layer, rows, false, y_.data()); },
                          [&](int layer) { product(&tuned_, layer, rows, false, y_.data()); },
                          [&](int layer) { few_rows(layer, rows, false, y_.data()); }},
                         layers_, o_.seconds);
        std::printf("%-16s %4d", s_.name, rows);
        for (const double one : us) std::printf(" | %7.1f %6.0f", one, flops / one * 1e-6);
        std::printf(" | %.3f\n", us[1] / us[2]);
        std::fflush(stdout);
    }

    void check(int32_t rows) {
        for (const bool add : {false, true}) {
            const auto count = static_cast<size_t>(int64_t{rows} * s_.width);
            std::vector<uint16_t> made[2];
            for (int own = 0; own < 2; ++own) {
                void *y = own != 0 ? y_.data() : other_.data();
                require(launch_random(y, DType::bf16, most_ * s_.width, 0, 100, 9, nullptr));
                if (own != 0) {
                    few_rows(0, rows, add, y);
                } else {
                    product(&guess_, 0, rows, add, y);
                }
                made[own].resize(count);
                require(cudaMemcpy(made[own].data(), y, count * 2, cudaMemcpyDeviceToHost));
            }
            double difference = 0, size = 0;
            size_t worst = 0;
            double most = 0;
            for (size_t i = 0; i < count; ++i) {
                const auto value = [&](int own) {
                    const uint32_t bits = uint32_t{made[own][i]} << 16;
                    float of;
                    std::memcpy(&of, &bits, sizeof of);
                    return static_cast<double>(of);
                };
                const double apart = std::abs(value(0) - value(1));
                if (!(apart <= most)) most = apart, worst = i;
                difference += apart * apart;
                size += value(0) * value(0);
            }
            const double share = std::sqrt(difference / size);
            const bool right = share < (add ? 2e-3 : 1e-3); // what is added to is rounded too
            std::printf("%-16s %4d%s: differences %.2e of the whole, the greatest %.3g at row %zu, "
                        "column %zu%s\n",
                        s_.name, rows, add ? ", added" : "", share, most,
                        worst / static_cast<size_t>(s_.width),
                        worst % static_cast<size_t>(s_.width), right ? "" : ": WRONG");
            right_ = right_ && right;
        }
    }

    Shape s_;
    Options o_;
    int64_t most_;
    int layers_ = 0; // enough that weights do not stay in L2
    mutable Linear guess_, tuned_;
    DeviceMemory x_, y_, other_, scratch_, x_scales_, w_scales_, partials_, flags_;
    std::vector<DeviceMemory> w_;
    bool right_ = true;
};

bool read(int count, char **values, Options *options) {
    Shape own{"", 0, 0};
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        if (name == "--check") {
            options->check = true;
            continue;
        }
        const double value = i + 1 < count ? std::atof(values[++i]) : 0;
        if (value <= 0) return false;
        if (name == "--width") {
            own.width = static_cast<int32_t>(value);
        } else if (name == "--columns") {
            own.columns = static_cast<int32_t>(value);
        } else if (name == "--rows") {
            options->rows = {static_cast<int32_t>(value)};
        } else if (name == "--seconds") {
            options->seconds = value;
        } else {
            return false;
        }
    }
    if (own.width > 0 && own.columns > 0) options->shapes = {own};
    return (own.width > 0) == (own.columns > 0) && own.width % 16 == 0 && own.columns % 16 == 0;
}

} // namespace

int main(int count, char **values) {
    Options options;
    if (!read(count, values, &options)) {
        std::fprintf(stderr, "unknown argument; the options are at the top of bench/few_rows.cc\n");
        return 2;
    }
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
        std::printf("skipped: no device of compute capability 9.0\n");
        return 77;
    }
    if (!options.check) {
        std::printf("microseconds and TFLOP/s: cuBLASLt's first | what time chooses | few "
                    "rows | time of "
                    "the second over the third\n");
    }
    bool right = true;
    for (const Shape &shape : options.shapes) {
        Bench bench(shape, options);
        bench.run();
        right = right && bench.right();
    }
    return right ? 0 : 1;
}
