// Each of the CUDA backend's kernels against float64 on the host, over random shapes. Not here: the fused
// attention (bench_attention --check) and sampling (test_cuda_sampling.cc).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "attention/plain.h"
#include "elementwise/elementwise.h"
#include "linear/linear.h"
#include "model/rope.h"

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

void gates_biases_and_rows_are_the_references(void **) {
    Random random(kSeed + 1);
    for (const DType type : kTypes) {
        for (int round = 0; round < 3; ++round) {
            const auto rows = static_cast<int32_t>(draw(random, 1, 30));
            const auto width = static_cast<int32_t>(8 * draw(random, 1, 300));
            const auto x = normal(random, int64_t{rows} * 2 * width, type, 2);
            const auto bias = normal(random, 2 * int64_t{width}, DType::f32);
            const Array in(x, type), b(bias, DType::f32), out(int64_t{rows} * width, type);
            check(launch_swiglu(type, in.data(), round == 0 ? nullptr : b.floats(), out.data(),
                                rows, width, nullptr));
            std::vector<double> wanted;
            for (int32_t r = 0; r < rows; ++r) {
                for (int32_t i = 0; i < width; ++i) {
                    const auto at = static_cast<size_t>(int64_t{r} * 2 * width + i);
                    const auto w = static_cast<size_t>(width);
                    const auto c = static_cast<size_t>(i);
                    const double gate = double(x[at]) + (round == 0 ? 0 : double(bias[c]));
                    const double up = double(x[at + w]) + (round == 0 ? 0 : double(bias[w + c]));
                    wanted.push_back(gate / (1 + std::exp(-gate)) * up);
                }
            }
            assert_close(out.read(), wanted, tolerance(type), "SwiGLU");

            check(launch_add_bias(type, in.data(), b.floats(), rows, 2 * width, nullptr));
            wanted.clear();
            for (size_t i = 0; i < x.size(); ++i) {
                wanted.push_back(double(x[i]) + double(bias[i % bias.size()]));
            }
            assert_close(in.read(), wanted, tolerance(type), "bias");

            // Embedding, then its rows gathered again.
            const std::vector<int32_t> tokens = {rows - 1, 0, rows / 2};
            const DeviceMemory ids = upload(tokens);
            const Array table(x, type), residual(3 * 2 * int64_t{width}, DType::f32);
            check(launch_embed(type, DType::f32, table.data(), ids.as<int32_t>(), nullptr, 3,
                               2 * width, residual.data(), nullptr));
            const Array gathered(3 * 2 * int64_t{width}, DType::f32);
            const DeviceMemory places = upload(std::vector<int32_t>{2, 1, 0});
            check(launch_gather(residual.data(), places.as<int32_t>(), gathered.data(), 3,
                                int64_t{2} * width * 4, nullptr));
            wanted.clear();
            for (int t = 2; t >= 0; --t) {
                for (int32_t i = 0; i < 2 * width; ++i) {
                    wanted.push_back(double(x[static_cast<size_t>(
                        int64_t{tokens[static_cast<size_t>(t)]} * 2 * width + i)]));
                }
            }
            assert_close(gathered.read(), wanted, 1e-7, "embedding");
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
            // In two pieces, as a large matrix is.
            for (const int64_t begin : {int64_t{0}, int64_t{100}}) {
                const int64_t rows = begin == 0 ? 100 : heads * dim - 100;
                check(launch_convert(
                    {static_cast<std::byte *>(in.data()) + begin * columns * dtype_bytes(from),
                     from, out.data(), to, begin, rows, columns, columns, dim, padded, 1, 1},
                    nullptr));
            }
            std::vector<double> wanted(static_cast<size_t>(heads * padded * columns));
            for (int64_t r = 0; r < heads * dim; ++r) {
                for (int64_t c = 0; c < columns; ++c) {
                    wanted[static_cast<size_t>((r / dim * padded + r % dim) * columns + c)] =
                        double(x[static_cast<size_t>(r * columns + c)]);
                }
            }
            assert_close(out.read(), wanted, tolerance(to), "conversion");
        }
    }
}

// Queries, and keys and values in their pages.
void rope_and_pages_are_the_references(void **) {
    Random random(kSeed + 3);
    struct Shape {
        int32_t heads, kv_heads, head_dim, padded;
    };
    for (const DType type : kTypes) {
        for (const Shape &shape :
             {Shape{4, 2, 64, 64}, Shape{3, 1, 80, 128}, Shape{4, 4, 96, 128},
              Shape{8, 2, 128, 128}, Shape{2, 1, 256, 256}, Shape{2, 2, 16, 64}}) {
            const bool norm = draw(random, 0, 1) == 1, biased = draw(random, 0, 1) == 1;
            const int32_t tokens = 9, pages = 5, half = shape.head_dim / 2;
            const int32_t all = shape.heads + 2 * shape.kv_heads;
            const int64_t row = int64_t{all} * shape.padded;
            std::vector<float> x = normal(random, tokens * row, type);
            std::vector<float> bias = normal(random, row, DType::f32);
            for (int64_t i = 0; i < tokens * row; ++i) {
                if (i % shape.padded >= shape.head_dim) x[static_cast<size_t>(i)] = 0;
            }
            const auto qw = normal(random, shape.head_dim, DType::f32);
            const auto kw = normal(random, shape.head_dim, DType::f32);
            const auto frequencies = rope_frequencies({}, shape.head_dim);
            std::vector<int32_t> positions, slots;
            for (int32_t t = 0; t < tokens; ++t) {
                positions.push_back(static_cast<int32_t>(draw(random, 0, 100000)));
                slots.push_back(static_cast<int32_t>(draw(random, 0, 31)) +
                                32 * t); // all different
            }
            const DeviceMemory where = upload(positions), kept = upload(slots);
            const DeviceMemory f = upload(frequencies);
            const Array qkv(x, type), b(bias, DType::f32), q(qw, DType::f32), k(kw, DType::f32);
            const Array table(int64_t{tokens} * half * 2, DType::f32);
            const int64_t pool = int64_t{pages} * shape.kv_heads * 2 * kPageKeys * shape.padded;
            const Array kv(std::vector<float>(static_cast<size_t>(pool)), type);
            check(launch_rope_table(where.as<int32_t>(), f.as<float>(), tokens, half,
                                    static_cast<float2 *>(table.data()), nullptr));
            check(launch_rope({type, qkv.data(), biased ? b.floats() : nullptr,
                               norm ? q.floats() : nullptr, norm ? k.floats() : nullptr, 1e-6f,
                               static_cast<float2 *>(table.data()), kept.as<int32_t>(), kv.data(),
                               tokens, shape.heads, shape.kv_heads, shape.head_dim, shape.padded},
                              nullptr));
            const std::vector<float> got_qkv = qkv.read(), got_kv = kv.read();
            std::vector<float> got;
            std::vector<double> wanted;
            for (int32_t t = 0; t < tokens; ++t) {
                for (int32_t head = 0; head < all; ++head) {
                    std::vector<double> y;
                    for (int32_t i = 0; i < shape.head_dim; ++i) {
                        const auto at = static_cast<size_t>(int64_t{head} * shape.padded + i);
                        y.push_back(double(x[static_cast<size_t>(t * row) + at]) +
                                    (biased ? double(bias[at]) : 0));
                    }
                    const bool value = head >= shape.heads + shape.kv_heads;
                    if (norm && !value) {
                        double sum = 0;
                        for (const double v : y) sum += v * v;
                        for (int32_t i = 0; i < shape.head_dim; ++i) {
                            y[static_cast<size_t>(i)] *=
                                double((head < shape.heads ? qw : kw)[static_cast<size_t>(i)]) /
                                std::sqrt(sum / shape.head_dim + 1e-6);
                        }
                    }
                    for (int32_t i = 0; i < half && !value; ++i) {
                        const auto a = static_cast<size_t>(i), c = static_cast<size_t>(i + half);
                        const double angle = double(
                            static_cast<float>(positions[static_cast<size_t>(t)]) * frequencies[a]);
                        const double first = y[a] * std::cos(angle) - y[c] * std::sin(angle);
                        y[c] = y[c] * std::cos(angle) + y[a] * std::sin(angle);
                        y[a] = first;
                    }
                    const int32_t slot = slots[static_cast<size_t>(t)];
                    const int32_t key = slot % kPageKeys;
                    const int32_t kv_head = (head - shape.heads) % shape.kv_heads;
                    for (int32_t i = 0; i < shape.head_dim; ++i) {
                        wanted.push_back(y[static_cast<size_t>(i)]);
                        if (head < shape.heads) {
                            got.push_back(got_qkv[static_cast<size_t>(t * row) +
                                                  static_cast<size_t>(head * shape.padded + i)]);
                            continue;
                        }
                        const int64_t block =
                            ((int64_t{slot / kPageKeys} * shape.kv_heads + kv_head) * 2 + value) *
                            kPageKeys * shape.padded;
                        const int32_t place =
                            type == DType::f32
                                ? key * shape.padded + i
                                : i / 64 * 4096 + key * 64 + (i % 64 / 8 ^ key % 8) * 8 + i % 8;
                        got.push_back(got_kv[static_cast<size_t>(block + place)]);
                    }
                }
            }
            assert_close(got, wanted, tolerance(type), "rope");
            double stray = 0; // nothing else was written to the pages
            for (const float v : got_kv) stray += v != 0;
            assert_true(stray <= 2.0 * tokens * shape.kv_heads * shape.head_dim);
        }
    }
}

void products_are_the_references(void **) {
    Random random(kSeed + 4);
    for (const DType type : kTypes) {
        for (const bool tune : {false, true}) {
            const Array scratch(1 << 22, DType::f32);
            auto linear =
                Linear::create(type, tune ? scratch.data() : nullptr, int64_t{4} << 22, {});
            check(linear.status());
            for (int round = 0; round < 6; ++round) {
                const int64_t m = draw(random, 1, 200), n = 8 * draw(random, 1, 60),
                              k = 8 * draw(random, 1, 60);
                const bool accumulate = draw(random, 0, 1) == 1;
                const DType out_type = draw(random, 0, 1) == 1 ? DType::f32 : type;
                const auto w = normal(random, n * k, type);
                auto x = normal(random, m * k, type);
                const auto y = normal(random, m * n, out_type);
                x.resize(static_cast<size_t>(padded_rows(m) * k));
                auto padded = y;
                padded.resize(static_cast<size_t>(padded_rows(m) * n));
                const Array in(x, type), weights(w, type), out(padded, out_type);
                check(linear->run({weights.data(), n, k}, in.data(), m, out.data(), out_type,
                                  accumulate, nullptr));
                std::vector<double> wanted;
                for (int64_t r = 0; r < m; ++r) {
                    for (int64_t c = 0; c < n; ++c) {
                        double sum = accumulate ? double(y[static_cast<size_t>(r * n + c)]) : 0;
                        for (int64_t i = 0; i < k; ++i) {
                            sum += double(x[static_cast<size_t>(r * k + i)]) *
                                   double(w[static_cast<size_t>(c * k + i)]);
                        }
                        wanted.push_back(sum);
                    }
                }
                std::vector<float> got = out.read();
                got.resize(static_cast<size_t>(m * n));
                assert_close(got, wanted, tolerance(out_type), "product");
            }
        }
    }
}

void plain_attention_is_the_reference(void **) {
    Random random(kSeed + 5);
    for (int round = 0; round < 12; ++round) {
        const int32_t kv_heads = static_cast<int32_t>(draw(random, 1, 3));
        const int32_t heads = kv_heads * static_cast<int32_t>(draw(random, 1, 4));
        const int32_t dim = round == 0 ? kMostPlainHeadDim : 64 << draw(random, 0, 3);
        const int32_t window = round % 2 == 0 ? 0 : static_cast<int32_t>(draw(random, 1, 150));
        const float softcap = round % 3 == 0 ? 0.5F * static_cast<float>(draw(random, 1, 20)) : 0;
        const bool sink = round % 4 < 2;
        const auto sinks = normal(random, heads, DType::f32, 3);
        // A prefix of 70 to 200 keys and a request that continues it, three tokens of each in the batch.
        const auto prefix = static_cast<int32_t>(draw(random, 70, 200));
        const auto own = static_cast<int32_t>(draw(random, 3, 100));
        const std::vector<AttentionNode> nodes = {{-1, 0, prefix, 0, 3, 0},
                                                  {0, prefix, own, 3, 3, 4}};
        std::vector<int32_t> pages = {5, 2, 7, 0, 3, 6};
        const std::vector<int32_t> node_of = {0, 0, 0, 1, 1, 1};
        const std::vector<int32_t> positions = {prefix - 3,       prefix - 2,
                                                prefix - 1,       prefix + own - 3,
                                                prefix + own - 2, prefix + own - 1};
        const auto q = normal(random, 6 * heads * dim, DType::f32);
        const auto kv = normal(random, int64_t{8} * kv_heads * 2 * kPageKeys * dim, DType::f32);
        const Array queries(q, DType::f32), pool(kv, DType::f32), out(6 * heads * dim, DType::f32);
        const Array sink_logits(sinks, DType::f32);
        const DeviceMemory n = upload(nodes), p = upload(pages), o = upload(node_of),
                           at = upload(positions);
        const float scale = 1 / std::sqrt(static_cast<float>(dim));
        check(launch_plain_attention({6, heads, kv_heads, dim, scale, window, queries.floats(),
                                      heads * dim, out.floats(), pool.floats(), p.as<int32_t>(),
                                      n.as<AttentionNode>(), o.as<int32_t>(), at.as<int32_t>(),
                                      softcap, sink ? sink_logits.floats() : nullptr},
                                     nullptr));
        std::vector<double> wanted;
        for (size_t t = 0; t < 6; ++t) {
            for (int32_t h = 0; h < heads; ++h) {
                std::vector<double> weights;
                std::vector<const float *> values;
                for (int32_t key = 0; key <= positions[t]; ++key) {
                    if (window > 0 && key <= positions[t] - window) continue;
                    const int32_t i = key < prefix ? key : key - prefix;
                    const int32_t page =
                        pages[static_cast<size_t>((key < prefix ? 0 : 4) + i / 64)];
                    const float *block =
                        kv.data() +
                        (int64_t{page} * kv_heads + h / (heads / kv_heads)) * 2 * kPageKeys * dim;
                    double dot = 0;
                    for (int32_t e = 0; e < dim; ++e) {
                        dot += double(q[(t * static_cast<size_t>(heads) + static_cast<size_t>(h)) *
                                            static_cast<size_t>(dim) +
                                        static_cast<size_t>(e)]) *
                               double(block[i % 64 * dim + e]);
                    }
                    dot *= double(scale);
                    if (softcap > 0) dot = double(softcap) * std::tanh(dot / double(softcap));
                    weights.push_back(std::exp(dot));
                    values.push_back(block + (kPageKeys + i % 64) * dim);
                }
                double total = sink ? std::exp(double(sinks[static_cast<size_t>(h)])) : 0;
                for (const double w : weights) total += w;
                for (int32_t e = 0; e < dim; ++e) {
                    double sum = 0;
                    for (size_t i = 0; i < weights.size(); ++i)
                        sum += weights[i] * double(values[i][e]);
                    wanted.push_back(sum / total);
                }
            }
        }
        assert_close(out.read(), wanted, 1e-5, "attention");
    }
}

} // namespace

int main() {
    if (const int code = skipped()) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_the_references),
        cmocka_unit_test(gates_biases_and_rows_are_the_references),
        cmocka_unit_test(weights_are_converted_and_padded),
        cmocka_unit_test(rope_and_pages_are_the_references),
        cmocka_unit_test(products_are_the_references),
        cmocka_unit_test(plain_attention_is_the_reference),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
