// Products with four-bit weights (cuda/four_bits) beside those in bf16 and fp8: microseconds a product, the rate of its
// arithmetic and, of small numbers of rows, of reading W. Dense layers beside cuBLASLt's products, beside expanding W
// to bf16 and cuBLASLt's product with that, and int4 beside rounding W and x to e4m3 and that product; experts beside the
// grouped products in bf16, and those in mxfp4 beside the products of x in e4m3.
//
//     four_bits                            all shapes, 16 to 16,384 rows
//     four_bits --shapes gpt-oss --rows 256 --seconds 0.2
//     four_bits --splits 4                 not as many as four_bit_splits() says
//     four_bits --alone                    the four-bit products alone
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "elementwise/quantize.h"
#include "experts/grouped.h"
#include "four_bits/convert.h"
#include "four_bits/product.h"
#include "linear/linear.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Options {
    std::string shapes;
    std::vector<int32_t> rows = {16, 64, 128, 256, 512, 1024, 4096, 16384};
    double seconds = 0.04; // for each time
    int32_t splits = 0;
    bool alone = false;
    bool sm80 = false;
    int sms = 1;
};

// Of a dense layer, or of experts, of which a row goes to `chosen`.
struct Shape {
    const char *name;
    PackedForm form;
    int32_t rows, columns;
    bool gated = false;
    int32_t experts = 0, chosen = 0;
};
const Shape kShapes[] = {
    {"Mistral-7B qkv, int4", PackedForm::int4_128, 6144, 4096},
    {"Mistral-7B gate/up, int4", PackedForm::int4_128, 28672, 4096, true},
    {"Mistral-7B gate/up, mxfp4", PackedForm::mxfp4, 28672, 4096, true},
    {"Mistral-7B gate/up, nvfp4", PackedForm::nvfp4, 28672, 4096, true},
    {"Mistral-7B down, int4", PackedForm::int4_128, 4096, 14336},
    {"Llama-70B qkv, int4", PackedForm::int4_128, 10240, 8192},
    {"Llama-70B o, int4", PackedForm::int4_128, 8192, 8192},
    {"Llama-70B gate/up, int4", PackedForm::int4_128, 57344, 8192, true},
    {"Llama-70B down, int4", PackedForm::int4_128, 8192, 28672},
    {"gpt-oss-20b gate/up, mxfp4", PackedForm::mxfp4, 5760, 2880, true, 32, 4},
    {"gpt-oss-20b down, mxfp4", PackedForm::mxfp4, 2880, 2880, false, 32, 4},
    {"Qwen3-30B-A3B gate/up, int4", PackedForm::int4_128, 1536, 2048, true, 128, 8},
    {"Qwen3-30B-A3B down, int4", PackedForm::int4_128, 2048, 768, false, 128, 8},
    {"Qwen3-30B-A3B gate/up, nvfp4", PackedForm::nvfp4, 1536, 2048, true, 128, 8},
};

DeviceMemory room(int64_t bytes) { return require(DeviceMemory::create(bytes, "a buffer")); }

// Random bits, or random numbers in e4m3.
DeviceMemory random_bytes(int64_t bytes, bool e4m3 = false) {
    constexpr int64_t piece = int64_t{8} << 20;
    std::vector<uint8_t> some(piece);
    std::mt19937 random(7);
    for (uint8_t &byte : some) {
        byte = static_cast<uint8_t>(random());
        if (e4m3) byte &= 0xbf; // below 2, so that sums are finite
    }
    DeviceMemory memory = room(bytes);
    for (int64_t at = 0; at < bytes; at += piece) {
        require(cudaMemcpy(memory.data() + at, some.data(),
                           static_cast<size_t>(std::min(piece, bytes - at)),
                           cudaMemcpyHostToDevice));
    }
    return memory;
}

// Microseconds of each call, which is given the number of a copy of W. Calls take turns, so that all run at the
// same clock.
std::vector<double> time_calls(const std::vector<std::function<void(int)>> &calls, int copies,
                               double seconds) {
    std::vector<double> total(calls.size());
    std::vector<int64_t> times(calls.size());
    std::vector<double> each(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
        each[i] = 1e-3 * static_cast<double>(time_launches(2, [&] { calls[i](0); })); // warms up
    }
    constexpr int turns = 4;
    for (int turn = 0; turn < turns; ++turn) {
        for (size_t i = 0; i < calls.size(); ++i) {
            const int rounds =
                std::clamp(static_cast<int>(seconds / turns / (each[i] * copies + 1e-7)), 1, 2000);
            const auto ms = static_cast<double>(time_launches(rounds, [&] {
                for (int copy = 0; copy < copies; ++copy) calls[i](copy);
            }));
            total[i] += 1e3 * ms * rounds;
            times[i] += int64_t{rounds} * copies;
        }
    }
    for (size_t i = 0; i < calls.size(); ++i) total[i] /= static_cast<double>(times[i]);
    return total;
}

class Bench {
  public:
    Bench(const Shape &shape, const Options &options)
        : s_(shape), o_(options), packed_{s_.form, s_.rows, s_.columns},
          experts_(std::max(1, s_.experts)),
          most_(int64_t{*std::max_element(o_.rows.begin(), o_.rows.end())}),
          most_turns_(most_ * std::max(1, s_.chosen)),
          linear_(require(Linear::create(DType::bf16, nullptr, 0, TuningCache()))) {
        const int64_t weights = int64_t{experts_} * s_.rows * s_.columns;
        copies_ =
            static_cast<int>(std::clamp<int64_t>((int64_t{300} << 20) / (weights / 2), 1, 24));
        x_ = noise(padded_rows(most_turns_) * s_.columns, 1, 1);
        y_ = room(padded_rows(most_turns_) * s_.rows * 2);
        bias_ = require(zeroed_memory(int64_t{experts_} * s_.rows * 4, "biases"));
        pack();
        if (o_.alone) return;
        for (int i = 0; i < copies_; ++i) {
            w_.push_back(
                noise(int64_t{experts_} * s_.rows * padded_columns(s_.columns, DType::bf16),
                      2 + static_cast<uint64_t>(i), 0.02F));
        }
        expanded_ = room(int64_t{experts_} * s_.rows * padded_columns(s_.columns, DType::bf16) * 2);
        linear_.set_scratch(y_.data(), y_.bytes());
    }

    void run() {
        std::printf("%s, %d x %d, %.2f bits a weight, packed at %.0f GB/s\n", s_.name, s_.rows,
                    s_.columns, 8.0 * static_cast<double>(packed_.bytes()) / s_.rows / s_.columns,
                    packing_);
        std::printf("  rows%s | four bits: us TFLOP/s TB/s | bf16: us TFLOP/s | fp8: us TFLOP/s | "
                    "expand: us TB/s, with product TFLOP/s | bf16 / four bits%s\n",
                    s_.experts > 0 ? " (an expert)" : "",
                    rounds() ? " | rounded, all: us TFLOP/s" : "");
        for (const int32_t rows : o_.rows) time(rows);
    }

  private:
    void pack() {
        const int64_t cells = int64_t{s_.rows} * (s_.columns / scale_columns(s_.form) + 1);
        const DeviceMemory codes = random_bytes(int64_t{s_.rows} * s_.columns / 2);
        const DeviceMemory scales = upload(std::vector<float>(static_cast<size_t>(cells), 0.01F));
        const DeviceMemory bytes = upload(std::vector<uint8_t>(
            static_cast<size_t>(cells), s_.form == PackedForm::nvfp4 ? 0x40 : 120));
        PackSource source{};
        source.codes = codes.as<uint8_t>();
        source.scales = scales.as<float>();
        source.scale_bytes = bytes.as<uint8_t>();
        source.rows = s_.rows;
        source.columns = s_.columns;
        source.group_columns = scale_columns(s_.form);
        source.groups = (s_.columns + source.group_columns - 1) / source.group_columns;
        source.step = 1;
        source.run = source.stride = 8;
        for (int i = 0; i < copies_; ++i) {
            four_.push_back(require(zeroed_memory(packed_.bytes() * experts_, "W")));
            for (int e = 0; e < experts_; ++e) {
                require(
                    launch_pack({packed_, DType::bf16, four_.back().data() + e * packed_.bytes()},
                                source, nullptr));
            }
        }
        if (has_e4m3()) pack_for_e4m3(source);
        require(cudaDeviceSynchronize());
        const float ms = time_launches(2, [&] {
            require(launch_pack({packed_, DType::bf16, four_.back().data()}, source, nullptr));
        });
        packing_ = 1e-6 * static_cast<double>(s_.rows) * s_.columns / 2 / static_cast<double>(ms);
    }

    bool has_e4m3() const {
        return s_.experts > 0 && s_.form == PackedForm::mxfp4 && !o_.alone && !o_.sm80;
    }
    void pack_for_e4m3(const PackSource &source) {
        const PackedShape shape{PackedForm::mxfp4_e4m3, s_.rows, s_.columns};
        factors_ = room(int64_t{experts_} * s_.rows * 4);
        for (int i = 0; i < copies_; ++i) {
            w8_.push_back(require(zeroed_memory(shape.bytes() * experts_, "W")));
            for (int e = 0; e < experts_; ++e) {
                require(launch_pack({shape, DType::bf16, w8_.back().data() + e * shape.bytes(),
                                     factors_.as<float>() + int64_t{e} * s_.rows},
                                    source, nullptr));
            }
        }
        const auto scales = static_cast<size_t>(most_turns_ * scale_groups(s_.columns));
        scales_ = upload(std::vector<float>(scales, 0.01F));
        x8_ = noise_in_e4m3(most_turns_, s_.columns, 3, 1);
        y_scales_ = room(most_turns_ * scale_groups(s_.rows) * 4);
    }
    GroupedArguments grouped_e4m3(int copy) const {
        GroupedArguments a = grouped(copy);
        a.element = DType::e4m3;
        a.x = x8_.data();
        a.w = w8_[static_cast<size_t>(copy)].data();
        a.scales = {Scaling::rows, scales_.as<float>(), factors_.as<float>(), y_scales_.as<float>(),
                    DType::bf16};
        return a;
    }

    FourBitArguments arguments(int copy, int32_t rows) const {
        FourBitArguments a{};
        a.element = a.y_type = DType::bf16;
        a.w_shape = packed_;
        a.w = four_[static_cast<size_t>(copy)].data();
        a.x = x_.data();
        a.y = y_.data();
        a.gated = s_.gated;
        a.activation = s_.form == PackedForm::mxfp4 && s_.experts > 0 ? Activation::clamped_swiglu
                                                                      : Activation::silu;
        a.bias = s_.form == PackedForm::mxfp4 && s_.experts > 0 ? bias_.as<float>() : nullptr;
        a.tokens = rows;
        a.splits = 1;
        if (s_.experts > 0) {
            a.row_of = s_.gated ? row_of_.as<int32_t>() : nullptr;
            a.tiles = tiles_.as<ExpertTile>();
            a.tile_count = tile_count_.as<int32_t>();
        } else if (!o_.sm80) {
            a.splits = o_.splits > 0 ? o_.splits : four_bit_splits(packed_, rows, o_.sms);
        }
        return a;
    }
    GroupedArguments grouped(int copy) const {
        GroupedArguments a{};
        a.element = DType::bf16;
        a.x = x_.data();
        a.row_of = s_.gated ? row_of_.as<int32_t>() : nullptr;
        a.w = w_[static_cast<size_t>(copy)].data();
        a.rows = s_.rows;
        a.columns = s_.columns;
        a.gated = s_.gated;
        const FourBitArguments own = arguments(0, 1);
        a.activation = own.activation;
        a.bias = own.bias;
        a.y = y_.data();
        a.tiles = tiles_.as<ExpertTile>();
        a.tile_count = tile_count_.as<int32_t>();
        return a;
    }

    // Turns are drawn; x's rows too.
    void route(int32_t rows) {
        std::mt19937_64 random(3);
        std::vector<int32_t> counts(static_cast<size_t>(s_.experts)), row_of;
        const int64_t turns = int64_t{rows} * s_.chosen;
        for (int64_t i = 0; i < turns; ++i) {
            ++counts[random() % counts.size()];
            row_of.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(rows)));
        }
        std::vector<ExpertTile> tiles;
        int32_t turn = 0;
        for (int32_t e = 0; e < s_.experts; ++e) {
            const int32_t end = turn + counts[static_cast<size_t>(e)];
            const auto first = static_cast<int32_t>(tiles.size());
            for (int32_t begin = turn; begin < end; begin += kTileRows) {
                tiles.push_back({e, turn, end, first});
            }
            turn = end;
        }
        row_of_ = upload(row_of);
        tiles_ = upload(tiles);
        tile_count_ = upload(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
        touched_ = 0;
        for (const int32_t count : counts) touched_ += count > 0 ? 1 : 0;
    }

    void expand(int copy) const {
        require(
            launch_expand({packed_, DType::bf16, four_[static_cast<size_t>(copy)].data(), experts_,
                           nullptr, DType::bf16, s_.experts > 0, false, expanded_.data()},
                          nullptr));
    }
    // Dense int4.
    bool rounds() const { return s_.experts == 0 && is_int4(s_.form) && !o_.alone; }
    void round_and_multiply(int copy, int32_t rows) {
        ExpandArguments a{packed_,
                          DType::bf16,
                          four_[static_cast<size_t>(copy)].data(),
                          1,
                          nullptr,
                          DType::e4m3,
                          false,
                          false,
                          expanded_.data(),
                          w_scales_.as<float>()};
        require(launch_expand(a, nullptr));
        require(launch_quantize_rows(
            {DType::bf16, x_.data(), x8_.data(), {scales_.as<float>()}, rows, s_.columns},
            nullptr));
        Matrix matrix{expanded_.data(), s_.rows, s_.columns, w_scales_.as<float>(), Scaling::rows};
        require(linear_.run(matrix, {x8_.data(), scales_.as<float>()}, rows, y_.data(), DType::bf16,
                            false, nullptr));
    }
    void product(const void *w, int32_t rows) {
        const Matrix matrix{w, s_.rows, s_.columns};
        require(linear_.run(matrix, x_.data(), rows, y_.data(), DType::bf16, false, nullptr));
    }
    void product_fp8(int copy, int32_t rows) {
        Matrix matrix{w8_[static_cast<size_t>(copy)].data(), s_.rows, s_.columns};
        matrix.scales = scales_.as<float>();
        matrix.scaling = Scaling::rows;
        const Input x(x8_.data(), scales_.as<float>());
        require(linear_.run(matrix, x, rows, y_.data(), DType::bf16, false, nullptr));
    }

    void time(int32_t rows) {
        if (s_.experts > 0) route(rows);
        const int64_t turns = int64_t{rows} * std::max(1, s_.chosen);
        const double flops = 2.0 * static_cast<double>(turns) * s_.rows * s_.columns;
        const auto launch = o_.sm80 ? launch_four_bits_sm80 : launch_four_bits_sm90;
        std::vector<std::function<void(int)>> calls = {
            [&](int copy) { require(launch(arguments(copy, rows), o_.sms, nullptr)); }};
        bool fp8 = false;
        if (!o_.alone) {
            if (s_.experts > 0) {
                calls.emplace_back([&](int copy) {
                    require(launch_grouped(GroupedKernel::sm90, grouped(copy), o_.sms, nullptr));
                });
            } else {
                calls.emplace_back(
                    [&](int copy) { product(w_[static_cast<size_t>(copy)].data(), rows); });
            }
            calls.emplace_back([&](int copy) { expand(copy); });
            const bool dense = s_.experts == 0;
            fp8 = has_e4m3() || (dense && linear_.has(s_.rows, s_.columns, Scaling::rows,
                                                      DType::bf16, false, most_));
            if (has_e4m3()) {
                calls.emplace_back([&](int copy) {
                    require(launch_mxfp4_e4m3_sm90(grouped_e4m3(copy), o_.sms, nullptr));
                });
            } else if (fp8) {
                if (scales_.bytes() == 0) {
                    scales_ = upload(std::vector<float>(
                        static_cast<size_t>(std::max<int64_t>(padded_rows(most_), s_.rows)),
                        0.01F));
                    x8_ = noise_in_e4m3(padded_rows(most_), s_.columns, 3, 1);
                    for (int i = 0; i < copies_; ++i) {
                        w8_.push_back(random_bytes(int64_t{s_.rows} * s_.columns, true));
                    }
                }
                calls.emplace_back([&](int copy) { product_fp8(copy, rows); });
                if (rounds()) {
                    if (w_scales_.bytes() == 0) {
                        w_scales_ = room(int64_t{s_.rows} * 4);
                        const ExpandArguments a{packed_, DType::bf16, four_[0].data(),
                                                1,       nullptr,     DType::e4m3,
                                                false,   false,       nullptr};
                        require(launch_row_scales(a, w_scales_.as<float>(), nullptr));
                    }
                    calls.emplace_back([&](int copy) { round_and_multiply(copy, rows); });
                }
            }
        }
        const std::vector<double> us = time_calls(calls, copies_, o_.seconds);
        const int matrices = s_.experts > 0 ? touched_ : 1;
        const double bytes = static_cast<double>(packed_.bytes()) * matrices;
        std::printf("%6d", rows);
        if (s_.experts > 0) std::printf(" (%.0f)", static_cast<double>(turns) / s_.experts);
        std::printf(" | %9.1f %6.1f %5.2f", us[0], flops / us[0] * 1e-6, bytes / us[0] * 1e-6);
        if (!o_.alone) {
            std::printf(" | %9.1f %6.1f", us[1], flops / us[1] * 1e-6);
            if (fp8) {
                std::printf(" | %9.1f %6.1f", us[3], flops / us[3] * 1e-6);
            } else {
                std::printf(" | %16s", "");
            }
            const double moved = static_cast<double>(packed_.bytes()) * experts_ +
                                 2.0 * experts_ * s_.rows * s_.columns;
            std::printf(" | %8.1f %5.2f %6.1f | %.2f", us[2], moved / us[2] * 1e-6,
                        flops / (us[1] + us[2]) * 1e-6, us[1] / us[0]);
            if (rounds() && fp8) std::printf(" | %9.1f %6.1f", us[4], flops / us[4] * 1e-6);
        }
        std::printf("\n");
        std::fflush(stdout);
    }

    const Shape &s_;
    const Options &o_;
    PackedShape packed_;
    int32_t experts_;
    int64_t most_, most_turns_;
    int copies_ = 1, touched_ = 0;
    double packing_ = 0;
    Linear linear_;
    DeviceMemory x_, y_, bias_, expanded_, scales_, row_of_, tiles_, tile_count_;
    DeviceMemory x8_, factors_, y_scales_, w_scales_;
    std::vector<DeviceMemory> four_, w_, w8_;
};

bool read(int count, char **values, Options *o) {
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        if (name == "--alone") {
            o->alone = true;
            continue;
        }
        if (name == "--sm80") {
            o->sm80 = true;
            continue;
        }
        if (i + 1 == count) return false;
        const std::string value = values[++i];
        if (name == "--shapes") {
            o->shapes = value;
        } else if (name == "--rows" && std::atoi(value.c_str()) > 0) {
            o->rows = {std::atoi(value.c_str())};
        } else if (name == "--splits" && std::atoi(value.c_str()) > 0) {
            o->splits = std::atoi(value.c_str());
        } else if (name == "--seconds" && std::atof(value.c_str()) > 0) {
            o->seconds = std::atof(value.c_str());
        } else {
            return false;
        }
    }
    return true;
}

} // namespace

int main(int count, char **values) {
    Options options;
    if (!read(count, values, &options)) {
        std::fprintf(stderr,
                     "unknown argument; the options are at the top of bench/four_bits.cc\n");
        return 2;
    }
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9) {
        std::printf("skipped: no device of compute capability 9.0\n");
        return 77;
    }
    options.sms = properties.multiProcessorCount;
    for (const Shape &shape : kShapes) {
        if (std::string(shape.name).find(options.shapes) != std::string::npos) {
            Bench(shape, options).run();
        }
    }
    return 0;
}
