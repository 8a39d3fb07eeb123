// The products of experts alone, on the GPU: the time of launches of gate and up with the
// activation, and of down, for various numbers of tokens per expert, spread evenly, at random and
// by Zipf's law (the expert of rank r gets 1 / r of the first one's tokens, but none more than one
// turn per token). For comparison: one dense product of the same size, and cuBLASLt's products of
// one expert after another.
//
//     experts                          Qwen3-30B-A3B: 128 experts, 8 a token, 768 wide, hidden 2048
//     experts --experts 8 --chosen 2 --width 14336 --hidden 4096 --tokens 256
//     experts --kernel sm90            only this one
//     experts --gelu                   gates by GELU's approximation with tanh (Gemma 4), not by SiLU
//     experts --fp8 blocks             elements in e4m3 with scales of blocks of W, or of its rows
//                                      (rows); also for the dense product
//     experts --check                  no times: elements drawn from each product against float64
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device_arrays.h"
#include "elementwise/elementwise.h"
#include "experts/grouped.h"
#include "linear/linear.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

const char *const kKernels[] = {"sm80", "sm90"};

// How turns are spread over the experts. eighth: half of the turns go to an eighth of the experts.
enum class Spread { even, drawn, eighth, zipf };
const char *const kSpreads[] = {"even", "drawn", "eighth", "Zipf"};

struct Shape {
    int32_t experts = 128, chosen = 8, width = 768, hidden = 2048;
    std::vector<int32_t> tokens = {16, 64, 128, 256, 512, 2048}; // per expert
    bool check = false;
    Activation activation = Activation::silu;
    Scaling scaling = Scaling::none; // of W: in bf16
    std::string kernel;              // "": all that run on this device
};

// The turns of each expert, `each` on average.
std::vector<int32_t> counts_of(const Shape &shape, int32_t each, Spread spread) {
    std::vector<int32_t> counts(static_cast<size_t>(shape.experts), each);
    if (spread == Spread::even) return counts;
    if (spread == Spread::drawn) {
        std::mt19937_64 random(3);
        std::fill(counts.begin(), counts.end(), 0);
        const int64_t turns = int64_t{each} * shape.experts;
        for (int64_t i = 0; i < turns; ++i) ++counts[random() % counts.size()];
        return counts;
    }
    if (spread == Spread::eighth) {
        const int32_t some = std::max(1, shape.experts / 8), others = shape.experts - some;
        const int32_t half = each * shape.experts / 2;
        for (int32_t e = 0; e < shape.experts; ++e) {
            // Every eighth expert; the remainder goes to the first experts of each kind.
            const bool many = e % 8 == 0 && e / 8 < some;
            const int32_t number = many ? e / 8 : e - std::min(e / 8 + 1, some);
            const int32_t of = many ? some : others,
                          turns = many ? half : each * shape.experts - half;
            counts[static_cast<size_t>(e)] = turns / of + (number < turns % of ? 1 : 0);
        }
        return counts;
    }
    const double all = static_cast<double>(each) * shape.experts, most = all / shape.chosen;
    double sum = 0;
    for (int32_t e = 0; e < shape.experts; ++e) sum += 1.0 / (e + 1);
    double left = 0;
    for (int32_t e = 0; e < shape.experts; ++e) {
        const double wanted = all / sum / (e + 1) + left / (shape.experts - e);
        const double got = std::floor(std::min(wanted, most));
        left += all / sum / (e + 1) - got;
        counts[static_cast<size_t>(e)] = static_cast<int32_t>(got);
    }
    std::shuffle(counts.begin(), counts.end(), std::mt19937_64(1));
    return counts;
}

// Median microseconds of what `launch` enqueues.
double time_us(const std::function<void(cudaStream_t)> &launch) {
    const Stream stream = require(Stream::create());
    const Event begin = require(Event::create(true)), end = require(Event::create(true));
    std::vector<float> times;
    for (int run = 0; run < 9; ++run) {
        require(cudaEventRecord(begin, stream));
        launch(stream);
        require(cudaEventRecord(end, stream));
        require(cudaEventSynchronize(end));
        float ms = 0;
        require(cudaEventElapsedTime(&ms, begin, end));
        if (run > 1) times.push_back(ms * 1000);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
}

// Both products of one layer's experts, on the device.
class LayerOfExperts {
  public:
    LayerOfExperts(const Shape &shape, int64_t most_turns, int sms)
        : shape_(shape), sms_(sms), fp8_(shape.scaling != Scaling::none),
          made_(noise(most_turns * shape.hidden, 4, 1)) {
        const int64_t rows = int64_t{3} * shape.experts * shape.width;
        const int64_t tokens = most_turns / shape.chosen;
        if (!fp8_) {
            x_ = noise(tokens * shape.hidden, 1, 1);
            w_ = noise(rows * shape.hidden, 2, 0.02f);
            activated_ = noise(most_turns * shape.width, 3, 1);
            return;
        }
        x_ = noise_in_e4m3(tokens, shape.hidden, 1, 1);
        w_ = noise_in_e4m3(rows, shape.hidden, 2, 0.02f);
        activated_ = noise_in_e4m3(most_turns, shape.width, 3, 1);
        const int64_t widest = std::max(shape.hidden, shape.width);
        scales_ = upload(std::vector<float>(
            static_cast<size_t>(std::max(most_turns * widest / kScaleBlock, rows) + 65536), 0.01f));
        made_scales_ =
            upload(std::vector<float>(static_cast<size_t>(most_turns * shape.width / kScaleBlock)));
    }

    void set(const std::vector<int32_t> &counts) {
        std::vector<ExpertTile> tiles;
        int32_t turn = 0;
        expert_of_.clear();
        for (int32_t e = 0; e < shape_.experts; ++e) {
            const int32_t end = turn + counts[static_cast<size_t>(e)];
            const auto first = static_cast<int32_t>(tiles.size());
            for (int32_t begin = turn; begin < end; begin += kTileRows) {
                tiles.push_back({e, turn, end, first});
            }
            turn = end;
            expert_of_.resize(static_cast<size_t>(end), e);
        }
        std::mt19937_64 random(5);
        const auto rows = static_cast<uint64_t>(std::max(1, turn / shape_.chosen));
        row_of_.resize(static_cast<size_t>(turn));
        for (int32_t &row : row_of_) row = static_cast<int32_t>(random() % rows);
        tiles_ = upload(tiles);
        rows_ = upload(row_of_);
        count_ = upload(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
    }

    GroupedArguments arguments(bool down) const {
        GroupedArguments a{};
        a.element = fp8_ ? DType::e4m3 : DType::bf16;
        a.x = down ? activated_.data() : x_.data();
        a.row_of = down ? nullptr : rows_.as<int32_t>();
        a.w = w_.data() + (down ? 2 * bytes() * shape_.experts * shape_.width * shape_.hidden : 0);
        a.rows = down ? shape_.hidden : 2 * shape_.width;
        a.columns = down ? shape_.width : shape_.hidden;
        a.gated = !down;
        a.activation = shape_.activation;
        a.y = down ? made_.data() : activated_.data();
        a.tiles = tiles_.as<ExpertTile>();
        a.tile_count = count_.as<int32_t>();
        a.scales = {shape_.scaling, scales_.as<float>(), scales_.as<float>(),
                    made_scales_.as<float>(), DType::bf16};
        return a;
    }
    int64_t bytes() const { return fp8_ ? 1 : 2; } // bytes per element
    double time(bool down, GroupedKernel kernel) const {
        const GroupedArguments a = arguments(down);
        return time_us([&](cudaStream_t s) { require(launch_grouped(kernel, a, sms_, s)); });
    }
    double flops(bool down) const {
        const GroupedArguments a = arguments(down);
        return 2.0 * static_cast<double>(row_of_.size()) * a.rows * a.columns;
    }

    // cuBLASLt's time of one expert after another, without the activation.
    double time_apart(bool down, const std::vector<int32_t> &counts, Linear *linear) const {
        const GroupedArguments a = arguments(down);
        const DeviceMemory y = noise(padded_rows(counts[0]) * a.rows, 6, 1);
        return time_us([&](cudaStream_t s) {
            for (int32_t e = 0; e < shape_.experts; ++e) {
                const auto *w = static_cast<const std::byte *>(a.w);
                const Matrix matrix = dense(w + bytes() * e * a.rows * a.columns, a);
                const Input x(a.x, scales_.as<float>());
                require(linear->run(matrix, x, counts[0], y.data(), DType::bf16, false, s));
            }
        });
    }
    // The time of all turns with one expert's matrix.
    double time_dense(bool down, Linear *linear) const {
        const GroupedArguments a = arguments(down);
        const auto rows = static_cast<int64_t>(row_of_.size());
        const DeviceMemory x =
            fp8_ ? noise_in_e4m3(rows, a.columns, 8, 1) : noise(rows * a.columns, 8, 1);
        const DeviceMemory y = noise(rows * a.rows, 7, 1);
        const Matrix matrix = dense(a.w, a);
        return time_us([&](cudaStream_t s) {
            const Input input(x.data(), scales_.as<float>());
            require(linear->run(matrix, input, rows, y.data(), DType::bf16, false, s));
        });
    }

    // The largest error among drawn elements, divided by their root mean square.
    double error_of(bool down, GroupedKernel kernel) const {
        const GroupedArguments a = arguments(down);
        require(launch_grouped(kernel, a, sms_, nullptr));
        require(cudaDeviceSynchronize());
        std::mt19937_64 random(9);
        const int32_t width = a.gated ? a.rows / 2 : a.rows;
        double worst = 0, squares = 0;
        constexpr int draws = 300;
        for (int i = 0; i < draws; ++i) {
            const auto turn = static_cast<int64_t>(random() % row_of_.size());
            const auto column = static_cast<int32_t>(random() % static_cast<uint64_t>(width));
            double wanted;
            if (a.gated) {
                const int32_t row = column / 8 * 16 + column % 8;
                const double gate = dot(a, turn, row);
                const double z = shape_.activation == Activation::silu
                                     ? gate
                                     : 1.5957691216057308 * (gate + 0.044715 * std::pow(gate, 3));
                wanted = gate / (1 + std::exp(-z)) * dot(a, turn, row + 8);
            } else {
                wanted = dot(a, turn, column);
            }
            const auto *y = static_cast<const uint16_t *>(a.y) + turn * width + column;
            worst = std::max(worst, std::fabs(bf16(y, 1)[0] - wanted));
            squares += wanted * wanted / draws;
        }
        return worst / std::sqrt(squares);
    }

  private:
    Matrix dense(const void *w, const GroupedArguments &a) const {
        return {w, a.rows, a.columns, scales_.as<float>(), shape_.scaling};
    }
    static std::vector<double> bf16(const uint16_t *from, size_t count) {
        std::vector<uint16_t> raw(count);
        require(cudaMemcpy(raw.data(), from, 2 * count, cudaMemcpyDeviceToHost));
        std::vector<double> values;
        for (const uint16_t half : raw) {
            const uint32_t bits = static_cast<uint32_t>(half) << 16;
            float x;
            std::memcpy(&x, &bits, 4);
            values.push_back(static_cast<double>(x));
        }
        return values;
    }
    double dot(const GroupedArguments &a, int64_t turn, int32_t row) const {
        const auto at = static_cast<size_t>(turn);
        const int64_t from = a.row_of != nullptr ? row_of_[at] : turn;
        const auto columns = static_cast<size_t>(a.columns);
        const auto x = bf16(static_cast<const uint16_t *>(a.x) + from * a.columns, columns);
        double sum = 0;
        for (int32_t p = 0; p < a.columns / kPanel; ++p) {
            const int64_t panel = int64_t{expert_of_[at]} * (a.columns / kPanel) + p;
            const auto w =
                bf16(static_cast<const uint16_t *>(a.w) + (panel * a.rows + row) * kPanel, kPanel);
            for (int32_t c = 0; c < kPanel; ++c) {
                sum += x[static_cast<size_t>(p * kPanel + c)] *
                       w[static_cast<size_t>(((c / 8) ^ (row % 8)) * 8 + c % 8)];
            }
        }
        return sum;
    }

    const Shape &shape_;
    int sms_;
    bool fp8_;
    DeviceMemory x_, w_, activated_, made_, tiles_, rows_, count_;
    DeviceMemory scales_; // for everything that needs scales: all equal
    DeviceMemory made_scales_;
    std::vector<int32_t> row_of_, expert_of_;
};

bool check_all(const Shape &shape, LayerOfExperts *layer,
               const std::vector<GroupedKernel> &kernels) {
    double worst = 0;
    for (const int32_t each : shape.tokens) {
        for (const Spread spread : {Spread::even, Spread::drawn, Spread::eighth, Spread::zipf}) {
            layer->set(counts_of(shape, each, spread));
            for (const GroupedKernel kernel : kernels) {
                for (const bool down : {false, true}) {
                    const double error = layer->error_of(down, kernel);
                    worst = std::max(worst, error);
                    if (error < 0.03) continue;
                    std::printf("%d tokens an expert, %s, %s, %s: error %g\n", each,
                                kSpreads[static_cast<int>(spread)], down ? "down" : "gate and up",
                                kKernels[static_cast<int>(kernel)], error);
                }
            }
        }
    }
    std::printf("largest error %.4f of the root mean square\n", worst);
    return worst < 0.03;
}

void time_all(const Shape &shape, LayerOfExperts *layer,
              const std::vector<GroupedKernel> &kernels) {
    Linear linear = require(Linear::create(DType::bf16, nullptr, 0, TuningCache()));
    std::printf("%-28s | %-26s | %-26s | %-15s | %s\n", "tokens an expert",
                "gate/up: us TFLOP/s TB/s", "down: us TFLOP/s TB/s", "dense TFLOP/s",
                "one by one TFLOP/s");
    for (const int32_t each : shape.tokens) {
        for (const Spread spread : {Spread::even, Spread::drawn, Spread::eighth, Spread::zipf}) {
            const std::vector<int32_t> counts = counts_of(shape, each, spread);
            layer->set(counts);
            for (const GroupedKernel kernel : kernels) {
                std::printf("%6d %-6s %-15s", each, kSpreads[static_cast<int>(spread)],
                            kKernels[static_cast<int>(kernel)]);
                for (const bool down : {false, true}) {
                    const double us = layer->time(down, kernel);
                    const double bytes = static_cast<double>(layer->bytes()) * (down ? 1 : 2) *
                                         shape.experts * shape.width * shape.hidden;
                    std::printf(" | %9.1f %8.1f %6.2f ", us, layer->flops(down) / us * 1e-6,
                                bytes / us * 1e-6);
                }
                if (spread == Spread::even && kernel == kernels.back()) {
                    std::printf(" | %6.1f %6.1f   |",
                                layer->flops(false) / layer->time_dense(false, &linear) * 1e-6,
                                layer->flops(true) / layer->time_dense(true, &linear) * 1e-6);
                    for (const bool down : {false, true}) {
                        const double us = layer->time_apart(down, counts, &linear);
                        std::printf(" %7.1f", layer->flops(down) / us * 1e-6);
                    }
                }
                std::printf("\n");
                std::fflush(stdout);
            }
        }
    }
}

bool read(int count, char **values, Shape *shape) {
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        if (name == "--check") {
            shape->check = true;
            continue;
        }
        if (name == "--gelu") {
            shape->activation = Activation::gelu_tanh;
            continue;
        }
        if (i + 1 == count) return false;
        if (name == "--kernel") {
            shape->kernel = values[++i];
            continue;
        }
        if (name == "--fp8") {
            const std::string kind = values[++i];
            if (kind != "rows" && kind != "blocks") return false;
            shape->scaling = kind == "rows" ? Scaling::rows : Scaling::blocks;
            continue;
        }
        const int value = std::atoi(values[++i]);
        if (value <= 0) return false;
        if (name == "--experts") {
            shape->experts = value;
        } else if (name == "--chosen") {
            shape->chosen = value;
        } else if (name == "--width" && value % kPanel == 0) {
            shape->width = value;
        } else if (name == "--hidden" && value % kPanel == 0) {
            shape->hidden = value;
        } else if (name == "--tokens") {
            shape->tokens = {value};
        } else {
            return false;
        }
    }
    const bool in_e4m3 = experts_take_e4m3(shape->hidden, shape->width, shape->activation);
    if (shape->scaling != Scaling::none && (shape->check || !in_e4m3)) return false;
    return shape->chosen <= shape->experts;
}

} // namespace

int main(int count, char **values) {
    Shape shape;
    if (!read(count, values, &shape)) {
        std::fprintf(stderr,
                     "unknown argument; the options are at the top of bench/experts.cc, "
                     "widths multiples of %d, in fp8 of %d\n",
                     kPanel, static_cast<int>(kScaleBlock));
        return 2;
    }
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major < 8) {
        std::printf("skipped: no device of compute capability 8.0 or later\n");
        return 77;
    }
    std::vector<GroupedKernel> kernels = {GroupedKernel::sm80};
    if (properties.major == 9 && properties.minor == 0) {
        kernels.push_back(GroupedKernel::sm90);
    }
    std::erase_if(kernels, [&](GroupedKernel kernel) {
        const char *name = kKernels[static_cast<int>(kernel)];
        return (!shape.kernel.empty() && shape.kernel != name) ||
               (shape.scaling != Scaling::none && kernel != GroupedKernel::sm90);
    });
    if (kernels.empty()) {
        std::fprintf(stderr, "no kernel %s here\n", shape.kernel.c_str());
        return 2;
    }
    const int32_t most = *std::max_element(shape.tokens.begin(), shape.tokens.end());
    LayerOfExperts layer(shape, int64_t{most} * shape.experts + shape.experts,
                         properties.multiProcessorCount);
    if (shape.check) return check_all(shape, &layer, kernels) ? 0 : 1;
    time_all(shape, &layer, kernels);
    return 0;
}
