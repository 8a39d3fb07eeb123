// The kernels of cuda/elementwise against float64 on the host, over random shapes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "base/narrow_floats.h"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "elementwise/rope.h"
#include "model/model.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

const DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

void norms_are_the_references(void **) {
    Random random(kSeed);
    for (const DType type : kTypes) {
        for (const DType stream : {type, DType::f32}) {
            for (int round = 0; round < 4; ++round) {
                const auto hidden =
                    static_cast<int32_t>(8 * draw(random, 1, round == 0 ? 4096 : 700));
                const auto rows = static_cast<int32_t>(draw(random, 1, 40));
                const auto x = normal(random, int64_t{rows} * hidden, stream);
                const auto weight = normal(random, hidden, DType::f32);
                std::vector<int32_t> index;
                const auto count = static_cast<int32_t>(draw(random, 1, 20));
                for (int32_t i = 0; i < count; ++i) {
                    index.push_back(static_cast<int32_t>(draw(random, 0, rows - 1)));
                }
                const Array in(x, stream), w(weight, DType::f32);
                const Array out(int64_t{count} * hidden, type);
                const DeviceMemory places = upload(index);
                check(launch_rms_norm({type, stream, in.data(), places.as<int32_t>(), w.floats(),
                                       1e-5f, out.data(), count, hidden},
                                      nullptr));
                std::vector<double> wanted;
                for (const int32_t row : index) {
                    const float *from = x.data() + int64_t{row} * hidden;
                    double sum = 0;
                    for (int32_t i = 0; i < hidden; ++i) sum += double(from[i]) * double(from[i]);
                    const double scale = 1 / std::sqrt(sum / hidden + 1e-5);
                    for (int32_t i = 0; i < hidden; ++i) {
                        wanted.push_back(double(from[i]) * scale *
                                         double(weight[static_cast<size_t>(i)]));
                    }
                }
                assert_close(out.read(), wanted, tolerance(type), "RMSNorm");
            }
        }
    }
}

// A row's norm in float64.
void normalise(const DeviceNorm &norm, const std::vector<float> &weight,
               const std::vector<float> &bias, std::vector<double> *x) {
    if (!norm) return;
    const auto length = static_cast<double>(x->size());
    double mean = 0, squares = 0;
    for (const double v : *x) mean += norm.kind == NormKind::layer ? v / length : 0;
    for (const double v : *x) squares += (v - mean) * (v - mean);
    const double scale = 1 / std::sqrt(squares / length + double(norm.epsilon));
    for (size_t i = 0; i < x->size(); ++i) {
        (*x)[i] = ((*x)[i] - mean) * scale * (norm.weight != nullptr ? double(weight[i]) : 1) +
                  (norm.bias != nullptr ? double(bias[i]) : 0);
    }
}

DeviceNorm draw_norm(Random &random, const Array &weight, const Array &bias) {
    DeviceNorm norm;
    norm.kind = static_cast<NormKind>(draw(random, 0, 2));
    if (norm && draw(random, 0, 3) > 0) norm.weight = weight.floats();
    if (norm && draw(random, 0, 1) == 1) norm.bias = bias.floats();
    norm.epsilon = 1e-5f;
    return norm;
}

void additions_and_norms_are_the_references(void **) {
    Random random(kSeed + 6);
    for (const DType type : kTypes) {
        for (const DType stream : {type, DType::f32}) {
            for (int round = 0; round < 24; ++round) {
                const auto hidden =
                    static_cast<int32_t>(8 * draw(random, 1, round % 6 == 0 ? 4096 : 700));
                const auto count = static_cast<int32_t>(draw(random, 1, 20));
                const auto x = normal(random, int64_t{count} * hidden, stream);
                auto delta = normal(random, int64_t{count} * hidden, stream);
                for (float &v : delta) v = rounded(v + 0.5f, stream); // with a mean other than 0
                const auto weight = normal(random, hidden, DType::f32);
                const auto other = normal(random, hidden, DType::f32);
                const auto bias = normal(random, hidden, DType::f32);
                const Array residual(x, stream), added(delta, stream), w(weight, DType::f32),
                    o(other, DType::f32), b(bias, DType::f32);
                const Array out(int64_t{count} * hidden, type);
                const bool adds = round % 4 > 0, writes = round % 4 != 2;
                const float scale = draw(random, 0, 1) == 1 ? 1 : 0.25f;
                const DeviceNorm after = draw_norm(random, w, b), next = draw_norm(random, o, b);
                const bool biased = draw(random, 0, 1) == 1;
                check(launch_add_norm({type, stream, residual.data(), adds ? added.data() : nullptr,
                                       biased ? b.floats() : nullptr, after, scale, next,
                                       writes ? out.data() : nullptr, count, hidden},
                                      nullptr));
                const std::vector<float> kept = residual.read();
                std::vector<double> sums, wanted;
                for (int32_t r = 0; r < count; ++r) {
                    std::vector<double> row;
                    const auto begin = static_cast<size_t>(int64_t{r} * hidden);
                    const auto width = static_cast<size_t>(hidden);
                    for (size_t i = 0; i < width; ++i) {
                        row.push_back(double(delta[begin + i]) + (biased ? double(bias[i]) : 0));
                    }
                    normalise(after, weight, bias, &row);
                    for (size_t i = 0; i < width; ++i) {
                        sums.push_back(double(x[begin + i]) + (adds ? double(scale) * row[i] : 0));
                        row[i] = double(kept[begin + i]); // rounded
                    }
                    normalise(next, other, bias, &row);
                    wanted.insert(wanted.end(), row.begin(), row.end());
                }
                assert_close(kept, sums, tolerance(stream), "residual");
                if (!adds) assert_true(kept == x);
                if (writes) assert_close(out.read(), wanted, tolerance(type), "its norm");
            }
        }
    }
}

// One pass instead of two does not change any bit, nor does norming a row in place.
void a_fused_norm_is_the_norm_apart(void **) {
    Random random(kSeed + 7);
    for (const DType type : kTypes) {
        for (const int32_t hidden : {64, 1000, 2304, 5120, 16384}) {
            const auto x = normal(random, int64_t{3} * hidden, type);
            const auto delta = normal(random, int64_t{3} * hidden, type);
            const auto weight = normal(random, hidden, DType::f32);
            const Array a(x, type), b(x, type), c(x, type), d(delta, type), w(weight, DType::f32);
            const Array fused(int64_t{3} * hidden, type), apart(int64_t{3} * hidden, type);
            const DeviceNorm norm{NormKind::rms, w.floats(), nullptr, 1e-6f};
            check(launch_add_norm(
                {type, type, a.data(), d.data(), nullptr, norm, 1, norm, fused.data(), 3, hidden},
                nullptr));
            check(launch_add_norm(
                {type, type, b.data(), d.data(), nullptr, norm, 1, {}, nullptr, 3, hidden},
                nullptr));
            check(launch_rms_norm(
                {type, type, b.data(), nullptr, w.floats(), 1e-6f, apart.data(), 3, hidden},
                nullptr));
            assert_true(a.read() == b.read());
            assert_true(fused.read() == apart.read());
            check(launch_rms_norm(
                {type, type, c.data(), nullptr, w.floats(), 1e-6f, apart.data(), 3, hidden},
                nullptr));
            check(launch_add_norm(
                {type, type, c.data(), nullptr, nullptr, {}, 1, norm, c.data(), 3, hidden},
                nullptr));
            assert_true(c.read() == apart.read());
        }
    }
}

void several_norms_of_a_sum_are_each_the_norm_apart(void **) {
    Random random(kSeed + 9);
    for (const DType type : kTypes) {
        for (const int32_t hidden : {64, 1000, 2816, 5120, 16384}) {
            const int64_t all = int64_t{3} * hidden;
            const auto x = normal(random, all, type), delta = normal(random, all, type);
            const Array a(x, type), b(x, type), d(delta, type);
            const Array outs[3] = {Array(all, type), Array(all, type), Array(all, type)};
            std::vector<Array> weights;
            std::vector<DeviceNorm> norms;
            for (int i = 0; i < 4; ++i) {
                weights.emplace_back(normal(random, hidden, DType::f32), DType::f32);
                norms.push_back(
                    {NormKind::rms, weights.back().floats(), nullptr, i % 2 == 0 ? 1e-6f : 1e-3f});
            }
            check(launch_add_norms({{type, type, a.data(), d.data(), nullptr, norms[0], 1, norms[1],
                                     outs[0].data(), 3, hidden},
                                    {norms[2], norms[3]},
                                    {outs[1].data(), outs[2].data()}},
                                   nullptr));
            check(launch_add_norm(
                {type, type, b.data(), d.data(), nullptr, norms[0], 1, {}, nullptr, 3, hidden},
                nullptr));
            assert_true(a.read() == b.read());
            for (size_t i = 0; i < 3; ++i) {
                const Array apart(all, type);
                const DeviceNorm &norm = norms[i + 1];
                check(launch_rms_norm({type, type, b.data(), nullptr, norm.weight, norm.epsilon,
                                       apart.data(), 3, hidden},
                                      nullptr));
                assert_true(outs[i].read() == apart.read());
            }
        }
    }
}

double activated(Activation kind, double x) {
    if (kind == Activation::silu) return x / (1 + std::exp(-x));
    if (kind == Activation::relu_squared) return std::max(x, 0.0) * std::max(x, 0.0);
    if (kind == Activation::xielu) { // rise and fall: -1 and 0.5
        const double p = std::max(x, 0.0), m = std::min(x, 0.0);
        return x / 2 + (0.5 + std::log1p(std::exp(0.5))) * (std::expm1(m) - m) +
               std::log1p(std::exp(-1.0)) * p * p;
    }
    if (kind == Activation::gelu) return x / 2 * std::erfc(-x / std::sqrt(2.0));
    return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

void activations_are_the_references(void **) {
    Random random(kSeed + 8);
    for (const DType type : kTypes) {
        for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                      Activation::relu_squared, Activation::xielu}) {
            for (int round = 0; round < 6; ++round) {
                const bool gated = round % 2 == 0, biased = round % 3 > 0;
                const auto rows = static_cast<int32_t>(draw(random, 1, 30));
                const auto width = static_cast<int32_t>(8 * draw(random, 1, 300));
                const int64_t stride = (gated ? 2 : 1) * int64_t{width};
                const auto x = normal(random, rows * stride, type, 2);
                const auto bias = normal(random, stride, DType::f32);
                const Array in(x, type), b(bias, DType::f32), out(int64_t{rows} * width, type);
                const Array curve(std::vector<float>{-1, 0.5F}, DType::f32);
                check(
                    launch_activation({type, kind, gated, in.data(), biased ? b.floats() : nullptr,
                                       out.data(), rows, width, curve.floats()},
                                      nullptr));
                std::vector<double> wanted;
                for (int64_t r = 0; r < rows; ++r) {
                    const auto value = [&](int64_t i) {
                        return double(x[static_cast<size_t>(r * stride + i)]) +
                               (biased ? double(bias[static_cast<size_t>(i)]) : 0);
                    };
                    for (int32_t i = 0; i < width; ++i) {
                        wanted.push_back(activated(kind, value(i)) *
                                         (gated ? value(width + i) : 1));
                    }
                }
                assert_close(out.read(), wanted, tolerance(type), "activation");
            }
        }
    }
}

// As on the CPU.
void the_squared_relu_of_a_nan_is_one(void **) {
    const std::vector<float> x = {NAN, -INFINITY, INFINITY, -1, 0, -0.0F, 3, 1e-30F};
    const std::vector<float> wanted = {NAN, 0, INFINITY, 0, 0, 0, 9, 0};
    for (const DType type : kTypes) {
        const Array in(x, type), out(8, type);
        check(launch_activation(
            {type, Activation::relu_squared, false, in.data(), nullptr, out.data(), 1, 8},
            nullptr));
        const std::vector<float> got = out.read();
        for (size_t i = 0; i < 8; ++i) {
            if (std::isnan(wanted[i]) ? !std::isnan(got[i]) : got[i] != wanted[i]) {
                fail_msg("%s: of %g %g", dtype_name(type), double(x[i]), double(got[i]));
            }
        }
    }
}

// SiLU of every number of a type, or in f32 of the smallest and the largest, against float64.
void silu_is_right_for_every_number(void **) {
    for (const DType type : {DType::bf16, DType::f16}) {
        constexpr int32_t width = 2048, rows = 32;
        std::vector<float> x; // [rows, 2 width]; all ups are 1
        for (uint32_t bits = 0; bits < 65536; ++bits) {
            float value;
            if (type == DType::bf16) {
                const uint32_t wide = bits << 16;
                std::memcpy(&value, &wide, 4);
            } else {
                value = float16_to_float(static_cast<uint16_t>(bits));
            }
            x.push_back(value);
            if (x.size() % (2 * width) == width) x.resize(x.size() + width, 1.0f);
        }
        const Array narrow(x, type), wide(x, DType::f32);
        const Array out(int64_t{rows} * width, type), exact(int64_t{rows} * width, DType::f32);
        const auto launch = [&](DType of, const Array &in, const Array &to) {
            check(launch_activation(
                {of, Activation::silu, true, in.data(), nullptr, to.data(), rows, width}, nullptr));
        };
        launch(type, narrow, out);
        launch(DType::f32, wide, exact);
        const std::vector<float> got = out.read(), in_f32 = exact.read();
        for (size_t i = 0; i < got.size(); ++i) {
            const float gate = x[i / width * 2 * width + i % width];
            if (std::isnan(gate) || gate == -INFINITY) {
                assert_true(std::isnan(got[i]) && std::isnan(in_f32[i]));
                continue;
            }
            assert_true(got[i] == rounded(in_f32[i], type));
            const double wanted = double(gate) / (1 + std::exp(-double(gate)));
            const bool right = std::isinf(gate) ? in_f32[i] == gate
                                                : std::fabs(double(in_f32[i]) - wanted) <=
                                                      2e-5 * std::fabs(wanted) + 1e-34;
            if (!right) fail_msg("silu(%g) = %g, not %g", double(gate), double(in_f32[i]), wanted);
        }
    }
}

// A grid's second dimension ends at 65,535.
void more_rows_than_a_grid_has_are_all_reached(void **) {
    Random random(kSeed + 10);
    constexpr int32_t rows = 140001, width = 8;
    const auto x = normal(random, int64_t{rows} * 2 * width, DType::bf16);
    const auto bias = normal(random, 2 * width, DType::f32);
    const Array in(x, DType::bf16), b(bias, DType::f32);
    const Array out(int64_t{rows} * width, DType::bf16);
    const ActivationArguments activation{DType::bf16, Activation::silu, true, in.data(),
                                         b.floats(),  out.data(),       rows, width};
    check(launch_activation(activation, nullptr));
    check(launch_add_bias(DType::bf16, in.data(), b.floats(), rows, 2 * width, nullptr));
    std::vector<double> activations, sums;
    for (size_t i = 0; i < x.size(); ++i) {
        const size_t column = i % (2 * width);
        sums.push_back(double(x[i]) + double(bias[column]));
        if (column >= width) {
            activations.push_back(activated(Activation::silu, sums[i - width]) * sums[i]);
        }
    }
    assert_close(out.read(), activations, tolerance(DType::bf16), "activation");
    assert_close(in.read(), sums, tolerance(DType::bf16), "bias");
}

void gated_results_are_the_references(void **) {
    Random random(kSeed + 11);
    for (const DType type : kTypes) {
        for (const int32_t width : {8, 264, 2048, 2056, 4096}) {
            const auto rows = static_cast<int32_t>(draw(random, 1, 20));
            const int64_t stride = width + 8 * draw(random, 0, 3);
            const bool biased = draw(random, 0, 1) == 1;
            const auto x = normal(random, int64_t{rows} * width, type);
            const auto gates = normal(random, rows * stride, type, 3);
            const auto bias = normal(random, width, DType::f32);
            const Array in(x, type), g(gates, type), b(bias, DType::f32);
            check(launch_gate(
                {type, in.data(), g.data(), biased ? b.floats() : nullptr, stride, rows, width},
                nullptr));
            std::vector<double> wanted;
            for (size_t i = 0; i < x.size(); ++i) {
                const auto row = static_cast<int64_t>(i) / width,
                           column = static_cast<int64_t>(i) % width;
                const double gate = double(gates[static_cast<size_t>(row * stride + column)]) +
                                    (biased ? double(bias[static_cast<size_t>(column)]) : 0);
                wanted.push_back(double(x[i]) / (1 + std::exp(-gate)));
            }
            assert_close(in.read(), wanted, tolerance(type), "gate");
        }
    }
}

void finished_logits_are_the_references(void **) {
    Random random(kSeed + 9);
    for (int round = 0; round < 8; ++round) {
        const int64_t rows = draw(random, 1, 70), stride = 16 * draw(random, 1, 400);
        const bool biased = round % 2 == 1;
        const float softcap = round % 4 < 2 ? 30.0f : 0.0f;
        const auto x = normal(random, rows * stride, DType::f32, 20);
        const auto bias = normal(random, stride, DType::f32, 5);
        const Array logits(x, DType::f32), b(bias, DType::f32);
        check(launch_finish_logits(logits.floats(), rows, stride, biased ? b.floats() : nullptr,
                                   softcap, nullptr));
        std::vector<double> wanted;
        for (size_t i = 0; i < x.size(); ++i) {
            const double value = double(x[i]) + (biased ? double(bias[i % bias.size()]) : 0);
            const double cap = double(softcap);
            wanted.push_back(cap != 0 ? cap * std::tanh(value / cap) : value);
        }
        assert_close(logits.read(), wanted, 1e-5, "logits");
    }
}

void biases_and_rows_are_the_references(void **) {
    Random random(kSeed + 1);
    for (const DType type : kTypes) {
        for (int round = 0; round < 3; ++round) {
            const auto rows = static_cast<int32_t>(draw(random, 1, 30));
            const auto width = static_cast<int32_t>(8 * draw(random, 1, 300));
            const auto x = normal(random, int64_t{rows} * 2 * width, type, 2);
            const auto bias = normal(random, 2 * int64_t{width}, DType::f32);
            const Array in(x, type), b(bias, DType::f32);
            std::vector<double> wanted;
            check(launch_add_bias(type, in.data(), b.floats(), rows, 2 * width, nullptr));
            for (size_t i = 0; i < x.size(); ++i) {
                wanted.push_back(double(x[i]) + double(bias[i % bias.size()]));
            }
            assert_close(in.read(), wanted, tolerance(type), "bias");

            // Embedding, and its rows gathered again.
            const std::vector<int32_t> tokens = {rows - 1, 0, rows / 2};
            const DeviceMemory ids = upload(tokens);
            const Array table(x, type), residual(3 * 2 * int64_t{width}, DType::f32);
            check(launch_embed(type, DType::f32, table.data(), ids.as<int32_t>(), nullptr, 3,
                               2 * width, 1.5f, residual.data(), nullptr));
            const Array gathered(3 * 2 * int64_t{width}, DType::f32);
            const DeviceMemory places = upload(std::vector<int32_t>{2, 1, 0});
            check(launch_gather(residual.data(), places.as<int32_t>(), gathered.data(), 3,
                                int64_t{2} * width * 4, nullptr));
            wanted.clear();
            for (int t = 2; t >= 0; --t) {
                for (int32_t i = 0; i < 2 * width; ++i) {
                    wanted.push_back(
                        1.5 * double(x[static_cast<size_t>(
                                  int64_t{tokens[static_cast<size_t>(t)]} * 2 * width + i)]));
                }
            }
            assert_close(gathered.read(), wanted, 1e-7, "embedding");
        }
    }
}

void sums_of_rows_are_the_references(void **) {
    Random random(kSeed + 7);
    for (const DType type : kTypes) {
        for (int round = 0; round < 4; ++round) {
            const auto rows = static_cast<int32_t>(draw(random, 1, 60));
            const auto width = static_cast<int32_t>(8 * draw(random, 1, round == 0 ? 1024 : 40));
            const auto x = normal(random, int64_t{rows} * width, type);
            std::vector<SumSpan> spans; // they may overlap
            for (int64_t i = draw(random, 1, 9); i > 0; --i) {
                const auto begin = static_cast<int32_t>(draw(random, 0, rows - 1));
                spans.push_back({begin, static_cast<int32_t>(draw(random, 1, rows - begin))});
            }
            const auto count = static_cast<int32_t>(spans.size());
            const Array in(x, type), out(int64_t{count} * width, DType::f32);
            const DeviceMemory places = upload(spans);
            check(launch_sum_rows(type, in.data(), places.as<SumSpan>(), out.floats(), count, width,
                                  nullptr));
            std::vector<double> wanted;
            for (const SumSpan &span : spans) {
                for (int32_t c = 0; c < width; ++c) {
                    double sum = 0;
                    for (int32_t r = span.begin; r < span.begin + span.count; ++r) {
                        sum += double(x[static_cast<size_t>(int64_t{r} * width + c)]);
                    }
                    wanted.push_back(sum);
                }
            }
            assert_close(out.read(), wanted, 1e-5, "sums of rows");
        }
    }
}

void weights_are_converted_and_padded(void **) {
    Random random(kSeed + 2);
    for (const DType from : kTypes) {
        for (const DType to : kTypes) {
            const int64_t heads = 3, dim = 80, padded = 128, columns = 24;
            const auto x = normal(random, heads * dim * columns, from);
            const Array in(x, from);
            const Array out(std::vector<float>(static_cast<size_t>(heads * padded * columns)), to);
            // In two pieces, like a large matrix.
            for (const int64_t begin : {int64_t{0}, int64_t{100}}) {
                const int64_t rows = begin == 0 ? 100 : heads * dim - 100;
                check(launch_convert(
                    {static_cast<std::byte *>(in.data()) + begin * columns * dtype_bytes(from),
                     from, out.data(), to, begin, rows, columns, columns, dim, padded, 1, 1, 0.5f,
                     1.0f},
                    nullptr));
            }
            std::vector<double> wanted(static_cast<size_t>(heads * padded * columns));
            for (int64_t r = 0; r < heads * dim; ++r) {
                for (int64_t c = 0; c < columns; ++c) {
                    wanted[static_cast<size_t>((r / dim * padded + r % dim) * columns + c)] =
                        0.5 * double(x[static_cast<size_t>(r * columns + c)]) + 1;
                }
            }
            assert_close(out.read(), wanted, tolerance(to), "conversion");
        }
    }
}

struct RopeCase {
    int32_t heads, kv_heads, head_dim, padded;
    int32_t dims; // 0: no rotation
    bool pairs;
    NormKind norm;
    bool whole;
    float scale;
    float long_scale = 0;
    bool v_norm = false; // RMSNorm without weights
    int32_t long_shift = 0;
};

// The expected QKV row of a token: biases, norms, rotation. Leaves out the padding of each head.
std::vector<double> turned(const RopeCase &c, const float *row, const float *bias,
                           const std::vector<float> &q_norm, const std::vector<float> &k_norm,
                           const std::vector<float> &norm_bias, const std::vector<float> &angles,
                           int32_t position) {
    const int32_t all = c.heads + 2 * c.kv_heads, half = c.dims / 2;
    std::vector<double> out;
    for (int32_t head = 0; head < all; ++head) {
        for (int32_t i = 0; i < c.head_dim; ++i) {
            const auto at = static_cast<size_t>(head * c.padded + i);
            out.push_back(double(row[at]) + (bias != nullptr ? double(bias[at]) : 0));
        }
    }
    // Heads [first, first + count) are normed together.
    const auto norm = [&](int32_t first, int32_t count, const std::vector<float> &weight) {
        const auto begin = static_cast<size_t>(first * c.head_dim);
        const auto end = begin + static_cast<size_t>(count * c.head_dim);
        double mean = 0, squares = 0;
        const auto length = static_cast<double>(end - begin);
        for (size_t i = begin; i < end; ++i) mean += out[i] / length;
        if (c.norm != NormKind::layer) mean = 0;
        for (size_t i = begin; i < end; ++i) squares += (out[i] - mean) * (out[i] - mean);
        const double scale = 1 / std::sqrt(squares / length + 1e-6);
        for (size_t i = begin; i < end; ++i) {
            const size_t head = (i - begin) / static_cast<size_t>(c.head_dim);
            const size_t e = i % static_cast<size_t>(c.head_dim);
            const size_t at = head * static_cast<size_t>(c.padded) + e; // 0: a head alone
            out[i] = (out[i] - mean) * scale * double(weight[at]);
            if (c.norm == NormKind::layer) out[i] += double(norm_bias[at]);
        }
    };
    const std::vector<float> ones(static_cast<size_t>(c.padded), 1);
    for (int32_t head = c.heads + c.kv_heads; head < all && c.v_norm; ++head) norm(head, 1, ones);
    if (c.norm != NormKind::none && c.whole) {
        norm(0, c.heads, q_norm);
        norm(c.heads, c.kv_heads, k_norm);
    }
    for (int32_t head = 0; head < c.heads + c.kv_heads; ++head) {
        if (c.norm != NormKind::none && !c.whole) {
            norm(head, 1, head < c.heads ? q_norm : k_norm);
        }
        double *x = out.data() + head * c.head_dim;
        for (int32_t i = 0; i < half; ++i) {
            const double angle =
                double(static_cast<float>(position) * angles[static_cast<size_t>(i)]);
            const double cosine = double(c.scale) * std::cos(angle);
            const double sine = double(c.scale) * std::sin(angle);
            double &a = x[c.pairs ? 2 * i : i], &b = x[c.pairs ? 2 * i + 1 : i + half];
            const double first = a * cosine - b * sine;
            b = b * cosine + a * sine;
            a = first;
        }
        const double periods = std::floor((position + c.long_shift) / 8192.0);
        for (int32_t i = 0; i < c.head_dim && head < c.heads; ++i) {
            x[i] *= 1 + double(c.long_scale) * std::log(1 + periods);
        }
    }
    return out;
}

// A key's or value's number in e4m3: divided by its scale and rounded to nearest, so at most half a
// step away (2^-4, or 2^-10 near zero), or clamped to 448; NaN stays NaN.
void assert_stored(uint8_t byte, double wanted, double scale, DType type) {
    const double got = double(e4m3_to_float(byte));
    if (std::isnan(wanted)) {
        assert_true(std::isnan(got));
        return;
    }
    wanted = std::clamp(wanted / scale, -448.0, 448.0);
    const double step = std::max(std::abs(wanted) / 16, std::ldexp(1.0, -10));
    const double noise =
        tolerance(type) * 0.01 * std::abs(wanted) + 1e-5 / scale; // for the rotation
    if (!(std::abs(got - wanted) <= step + noise)) {
        fail_msg("stored %g for %g (scale %g)", got, wanted, scale);
    }
}

// e4m3: keys and values are stored in it.
void check_rope(Random &random, DType type, const RopeCase &c, bool e4m3) {
    const bool biased = draw(random, 0, 1) == 1;
    const int32_t tokens = 9, pages = 5, all = c.heads + 2 * c.kv_heads;
    const int64_t row = int64_t{all} * c.padded;
    std::vector<float> x = normal(random, tokens * row, type);
    std::vector<float> bias = normal(random, row, DType::f32);
    std::vector<float> q_norm = normal(random, int64_t{c.heads} * c.padded, DType::f32);
    std::vector<float> k_norm = normal(random, int64_t{c.kv_heads} * c.padded, DType::f32);
    std::vector<float> norm_bias = normal(random, int64_t{c.heads} * c.padded, DType::f32);
    for (std::vector<float> *padded : {&x, &bias, &q_norm, &k_norm, &norm_bias}) {
        for (size_t i = 0; i < padded->size(); ++i) {
            if (i % static_cast<size_t>(c.padded) >= static_cast<size_t>(c.head_dim)) {
                (*padded)[i] = 0;
            }
        }
    }
    // A value that is NaN; the token's last head is its last value head.
    if (e4m3) x[static_cast<size_t>(row - c.padded)] = NAN;
    const auto frequencies = rope_frequencies({}, c.dims);
    std::vector<int32_t> positions, slots;
    for (int32_t t = 0; t < tokens; ++t) {
        positions.push_back(static_cast<int32_t>(draw(random, 0, 100000)));
        slots.push_back(static_cast<int32_t>(draw(random, 0, 31)) + 32 * t); // all different
    }
    slots[3] = -1; // beyond the batch
    const DeviceMemory where = upload(positions), kept = upload(slots), f = upload(frequencies);
    const Array qkv(x, type), b(bias, DType::f32), q(q_norm, DType::f32), k(k_norm, DType::f32),
        nb(norm_bias, DType::f32);
    const Array table(int64_t{tokens} * c.dims + 8, DType::f32);
    const int64_t pool = int64_t{pages} * c.kv_heads * 2 * kPageKeys * c.padded;
    const Array kv(std::vector<float>(static_cast<size_t>(pool)), type);
    const DeviceMemory bytes = upload(std::vector<uint8_t>(static_cast<size_t>(pool)));
    std::vector<float> scales; // of keys, of values; the smallest clamp most of the numbers
    for (int32_t i = 0; i < 2 * c.kv_heads; ++i) {
        scales.push_back(std::ldexp(1.0F + 0.1F * static_cast<float>(i),
                                    static_cast<int>(draw(random, -10, -3))));
    }
    const bool scaled = draw(random, 0, 3) > 0;
    const DeviceMemory kv_scales = upload(scales);
    if (!scaled) scales.assign(scales.size(), 1);
    auto *angles = static_cast<float2 *>(table.data());
    check(launch_rope_table(where.as<int32_t>(), f.as<float>(), tokens, c.dims / 2, c.scale, angles,
                            nullptr));
    DeviceNorm of_q, of_k;
    if (c.norm != NormKind::none) {
        const float *norm_bias_at = c.norm == NormKind::layer ? nb.floats() : nullptr;
        of_q = {c.norm, q.floats(), norm_bias_at, 1e-6f};
        of_k = {c.norm, k.floats(), norm_bias_at, 1e-6f};
    }
    RopeArguments arguments{type,
                            qkv.data(),
                            biased ? b.floats() : nullptr,
                            of_q,
                            of_k,
                            c.whole,
                            {},
                            c.dims > 0 ? angles : nullptr,
                            c.dims,
                            c.pairs,
                            kept.as<int32_t>(),
                            e4m3 ? bytes.data() : kv.data(),
                            tokens,
                            c.heads,
                            c.kv_heads,
                            c.head_dim,
                            c.padded,
                            where.as<int32_t>(),
                            c.long_scale,
                            8192};
    if (c.v_norm) arguments.v_norm = {NormKind::rms, nullptr, nullptr, 1e-6f};
    arguments.long_shift = c.long_shift;
    arguments.kv_e4m3 = e4m3;
    if (scaled) {
        arguments.k_scale = kv_scales.as<float>();
        arguments.v_scale = arguments.k_scale + c.kv_heads;
    }
    check(launch_rope(arguments, nullptr));
    const std::vector<float> got_qkv = qkv.read(), got_kv = kv.read();
    std::vector<uint8_t> got_bytes(static_cast<size_t>(pool));
    check(cudaMemcpy(got_bytes.data(), bytes.data(), got_bytes.size(), cudaMemcpyDeviceToHost));
    std::vector<float> got;
    std::vector<double> wanted;
    for (int32_t t = 0; t < tokens; ++t) {
        const float *from = x.data() + t * row;
        const float *to = got_qkv.data() + t * row;
        const int32_t slot = slots[static_cast<size_t>(t)], key = slot % kPageKeys;
        if (slot < 0) {
            assert_true(std::equal(from, from + row, to));
            continue;
        }
        const std::vector<double> right =
            turned(c, from, biased ? bias.data() : nullptr, q_norm, k_norm, norm_bias, frequencies,
                   positions[static_cast<size_t>(t)]);
        wanted.insert(wanted.end(), right.begin(),
                      e4m3 ? right.begin() + c.heads * c.head_dim : right.end());
        for (int32_t head = 0; head < all; ++head) {
            const bool value = head >= c.heads + c.kv_heads;
            const int32_t kv_head = (head - c.heads) % c.kv_heads;
            for (int32_t i = 0; i < c.head_dim; ++i) {
                if (head < c.heads) {
                    got.push_back(to[head * c.padded + i]);
                    continue;
                }
                const int64_t block =
                    ((int64_t{slot / kPageKeys} * c.kv_heads + kv_head) * 2 + value) * kPageKeys *
                    c.padded;
                if (e4m3) {
                    assert_stored(got_bytes[static_cast<size_t>(block + place_in_block(key, i, 1))],
                                  right[static_cast<size_t>(head * c.head_dim + i)],
                                  double(scales[static_cast<size_t>(value * c.kv_heads + kv_head)]),
                                  type);
                    continue;
                }
                const int32_t place =
                    type == DType::f32 ? key * c.padded + i : place_in_block(key, i, 2);
                got.push_back(got_kv[static_cast<size_t>(block + place)]);
            }
        }
        for (int32_t i = 0; i < c.heads * c.padded; ++i) { // the padding of queries stays zero
            if (i % c.padded >= c.head_dim) assert_true(to[i] == 0);
        }
    }
    assert_close(got, wanted, tolerance(type), "rope");
    double stray = 0; // nothing else was written to the pages
    for (const float v : got_kv) stray += v != 0;
    for (const uint8_t v : got_bytes) stray += v != 0;
    assert_true(stray <= 2.0 * (tokens - 1) * c.kv_heads * c.head_dim);
}

// Queries, and keys and values in their pages.
void rope_and_pages_are_the_references(void **) {
    Random random(kSeed + 3);
    constexpr NormKind none = NormKind::none, rms = NormKind::rms, layer = NormKind::layer;
    for (const DType type : kTypes) {
        for (const RopeCase &c : {
                 // Whole heads, in halves: most models.
                 RopeCase{4, 2, 64, 64, 64, false, none, false, 1},
                 {3, 1, 80, 128, 80, false, rms, false, 1},
                 {4, 4, 96, 128, 96, false, none, false, 1.3f},
                 {8, 2, 128, 128, 128, false, rms, false, 1},
                 {2, 1, 256, 256, 256, false, rms, false, 1},
                 {2, 2, 16, 64, 16, false, none, false, 1},
                 {1, 1, 256, 256, 256, false, none, false, 1},
                 {64, 8, 128, 128, 128, false, rms, false, 1}, // several blocks per token
                 {33, 3, 144, 256, 144, false, none, false, 1},
                 {1, 1, 512, 512, 512, false, none, false, 1},
                 {16, 8, 256, 256, 256, false, rms, false, 1, 0, true},
                 {16, 2, 512, 512, 512, false, rms, false, 1, 0, true},
                 // The others.
                 {4, 2, 128, 128, 0, false, none, false, 1},
                 {4, 2, 128, 128, 64, true, rms, false, 1},
                 {8, 2, 128, 128, 128, true, none, false, 1},
                 {6, 6, 80, 128, 20, false, none, false, 1},
                 {4, 1, 128, 128, 96, false, none, false, 1.19f},
                 {5, 1, 50, 64, 50, false, rms, false, 1},
                 {5, 5, 72, 128, 36, true, layer, false, 1},
                 {12, 4, 128, 128, 128, false, rms, true, 1},
                 {4, 2, 128, 128, 64, false, rms, false, 1, 0, true},
                 {3, 3, 72, 128, 72, false, rms, true, 1},
                 {40, 8, 128, 128, 128, false, layer, false, 1},
                 {2, 1, 256, 256, 64, false, rms, true, 1},
                 {2, 1, 512, 512, 512, false, rms, false, 1},
                 {9, 3, 512, 512, 128, false, rms, false, 1},
                 {3, 1, 320, 512, 80, true, none, false, 1},
                 {8, 2, 128, 128, 128, false, none, false, 1, 0.1f},
                 {5, 1, 128, 128, 0, false, none, false, 1, 0.1f, false, 1},
                 {4, 2, 24, 64, 0, false, none, false, 1, 0.5f, false, 5000},
             }) {
            for (int round = 0; round < 2; ++round) check_rope(random, type, c, false);
            if (type != DType::f32) check_rope(random, type, c, true);
        }
    }
}

} // namespace

int main() {
    if (const int code = skipped()) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_the_references),
        cmocka_unit_test(additions_and_norms_are_the_references),
        cmocka_unit_test(a_fused_norm_is_the_norm_apart),
        cmocka_unit_test(several_norms_of_a_sum_are_each_the_norm_apart),
        cmocka_unit_test(activations_are_the_references),
        cmocka_unit_test(the_squared_relu_of_a_nan_is_one),
        cmocka_unit_test(silu_is_right_for_every_number),
        cmocka_unit_test(more_rows_than_a_grid_has_are_all_reached),
        cmocka_unit_test(gated_results_are_the_references),
        cmocka_unit_test(biases_and_rows_are_the_references),
        cmocka_unit_test(sums_of_rows_are_the_references),
        cmocka_unit_test(weights_are_converted_and_padded),
        cmocka_unit_test(rope_and_pages_are_the_references),
        cmocka_unit_test(finished_logits_are_the_references),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
