// Each of the CUDA backend's kernels against float64 on the host, over random shapes. Attention's fused
// kernel has its own check (bench_attention --check).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "attention.h"
#include "attention_plain.h"
#include "device.h"
#include "elementwise.h"
#include "linear.h"
#include "model/model.h"
#include "sample/sampling.h"
#include "sampling.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

using Random = std::mt19937_64;
constexpr uint64_t kSeed = 20261120;

int64_t draw(Random &random, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

void check(const Status &status) {
    if (!status.ok()) fail_msg("%s", status.message().c_str());
}
void check(cudaError_t code) { check(check_cuda(code, "a kernel")); }

// f32 <-> an element type's bits, by the value: what the device would read.
float rounded(float x, DType type) {
    if (type == DType::f32) return x;
    if (type == DType::bf16) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        bits += 0x7fff + (bits >> 16 & 1);
        bits &= 0xffff0000u;
        std::memcpy(&x, &bits, 4);
        return x;
    }
    return static_cast<float>(static_cast<_Float16>(x));
}

// A device array of a type, moved as floats.
class Array {
  public:
    Array(int64_t count, DType type) : count_(count), type_(type) {
        auto memory =
            DeviceMemory::create(std::max<int64_t>(16, count * dtype_bytes(type)), "test");
        check(memory.status());
        memory_ = std::move(memory).value();
        // NaN in every type: what is not written is seen.
        check(cudaMemset(memory_.data(), 0xff, static_cast<size_t>(memory_.bytes())));
    }
    Array(const std::vector<float> &values, DType type)
        : Array(static_cast<int64_t>(values.size()), type) {
        std::vector<std::byte> raw(values.size() * static_cast<size_t>(dtype_bytes(type)));
        for (size_t i = 0; i < values.size(); ++i) {
            if (type == DType::f32) {
                std::memcpy(&raw[4 * i], &values[i], 4);
            } else if (type == DType::bf16) {
                const float x = rounded(values[i], type);
                std::memcpy(&raw[2 * i], reinterpret_cast<const char *>(&x) + 2, 2);
            } else {
                const auto x = static_cast<_Float16>(values[i]);
                std::memcpy(&raw[2 * i], &x, 2);
            }
        }
        check(cudaMemcpy(memory_.data(), raw.data(), raw.size(), cudaMemcpyHostToDevice));
    }
    std::vector<float> read() const {
        std::vector<std::byte> raw(static_cast<size_t>(count_ * dtype_bytes(type_)));
        check(cudaDeviceSynchronize());
        check(cudaMemcpy(raw.data(), memory_.data(), raw.size(), cudaMemcpyDeviceToHost));
        std::vector<float> values(static_cast<size_t>(count_));
        for (size_t i = 0; i < values.size(); ++i) {
            if (type_ == DType::f32) {
                std::memcpy(&values[i], &raw[4 * i], 4);
            } else if (type_ == DType::bf16) {
                values[i] = 0;
                std::memcpy(reinterpret_cast<char *>(&values[i]) + 2, &raw[2 * i], 2);
            } else {
                _Float16 x;
                std::memcpy(&x, &raw[2 * i], 2);
                values[i] = static_cast<float>(x);
            }
        }
        return values;
    }
    void *data() const { return memory_.data(); }
    float *floats() const { return memory_.as<float>(); }

  private:
    int64_t count_;
    DType type_;
    DeviceMemory memory_;
};

// A device array of plain values.
template <typename T> DeviceMemory upload(const std::vector<T> &values) {
    auto memory = DeviceMemory::create(
        std::max<int64_t>(16, static_cast<int64_t>(values.size() * sizeof(T))), "test");
    check(memory.status());
    check(cudaMemcpy(memory->data(), values.data(), values.size() * sizeof(T),
                     cudaMemcpyHostToDevice));
    return std::move(memory).value();
}

std::vector<float> normal(Random &random, int64_t count, DType type, float deviation = 1) {
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float &x : values) x = rounded(distribution(random), type);
    return values;
}

double tolerance(DType type) {
    return type == DType::f32 ? 1e-5 : type == DType::bf16 ? 6e-3 : 8e-4;
}

// || got - wanted || / || wanted || within the type's rounding; no NaN passes.
void assert_close(const std::vector<float> &got, const std::vector<double> &wanted, double limit,
                  const char *what) {
    assert_int_equal(got.size(), wanted.size());
    double wrong = 0, all = 1e-30;
    for (size_t i = 0; i < got.size(); ++i) {
        wrong += std::pow(static_cast<double>(got[i]) - wanted[i], 2);
        all += wanted[i] * wanted[i];
    }
    if (!(std::sqrt(wrong / all) <= limit)) {
        fail_msg("%s: relative error %g (limit %g)", what, std::sqrt(wrong / all), limit);
    }
}

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
            const auto frequencies = rope_inverse_frequencies({}, shape.head_dim);
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
    for (int round = 0; round < 6; ++round) {
        const int32_t kv_heads = static_cast<int32_t>(draw(random, 1, 3));
        const int32_t heads = kv_heads * static_cast<int32_t>(draw(random, 1, 4));
        const int32_t dim = 64 << draw(random, 0, 2);
        const int32_t window = round % 2 == 0 ? 0 : static_cast<int32_t>(draw(random, 1, 150));
        // A prefix of 70 to 200 keys and a request that continues it, three tokens of each in the batch.
        const auto prefix = static_cast<int32_t>(draw(random, 70, 200));
        const auto own = static_cast<int32_t>(draw(random, 3, 100));
        const std::vector<PlainNode> nodes = {{-1, 0, prefix, 0}, {0, prefix, own, 4}};
        std::vector<int32_t> pages = {5, 2, 7, 0, 3, 6};
        const std::vector<int32_t> node_of = {0, 0, 0, 1, 1, 1};
        const std::vector<int32_t> positions = {prefix - 3,       prefix - 2,
                                                prefix - 1,       prefix + own - 3,
                                                prefix + own - 2, prefix + own - 1};
        const auto q = normal(random, 6 * heads * dim, DType::f32);
        const auto kv = normal(random, int64_t{8} * kv_heads * 2 * kPageKeys * dim, DType::f32);
        const Array queries(q, DType::f32), pool(kv, DType::f32), out(6 * heads * dim, DType::f32);
        const DeviceMemory n = upload(nodes), p = upload(pages), o = upload(node_of),
                           at = upload(positions);
        const float scale = 1 / std::sqrt(static_cast<float>(dim));
        check(launch_plain_attention({6, heads, kv_heads, dim, scale, window, queries.floats(),
                                      heads * dim, out.floats(), pool.floats(), p.as<int32_t>(),
                                      n.as<PlainNode>(), o.as<int32_t>(), at.as<int32_t>()},
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
                    weights.push_back(std::exp(dot * double(scale)));
                    values.push_back(block + (kPageKeys + i % 64) * dim);
                }
                double total = 0;
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

// ---- Sampling, against sample/sampling.h ----

struct Sampled {
    int64_t tokens = 0, equal = 0;
};

enum class Logits { normal, ties, all_equal, few_finite };

std::vector<float> some_logits(Random &random, int64_t count, Logits kind) {
    std::vector<float> logits = normal(random, count, DType::f32, kind == Logits::ties ? 4 : 2);
    for (float &x : logits) {
        if (kind == Logits::ties) x = std::round(x);
        if (kind == Logits::all_equal) x = -1.5f;
        if (kind == Logits::few_finite && draw(random, 0, 9) > 0) x = -INFINITY;
    }
    // Zeros of both signs are equal.
    if (kind == Logits::ties) {
        for (int i = 0; i < 20; ++i) {
            logits[static_cast<size_t>(draw(random, 0, count - 1))] = -0.0f;
        }
    }
    return logits;
}

SamplingParams some_params(Random &random, int32_t vocabulary) {
    SamplingParams p;
    const auto maybe = [&] { return draw(random, 0, 1) == 1; };
    const auto between = [&](double low, double high) {
        return static_cast<float>(low +
                                  (high - low) * static_cast<double>(draw(random, 0, 1000)) / 1000);
    };
    if (draw(random, 0, 3) > 0) p.temperature = between(0.2, 2);
    if (maybe()) p.top_p = maybe() ? between(0.05, 1) : 1e-6f;
    if (maybe()) p.min_p = between(0, 0.3);
    if (maybe()) {
        const int64_t some[] = {1, 2, draw(random, 3, 60), 600, vocabulary - 1, vocabulary + 5};
        p.top_k = std::max(1, static_cast<int32_t>(some[draw(random, 0, 5)]));
    }
    if (maybe()) p.repetition_penalty = between(0.5, 2);
    if (maybe()) p.presence_penalty = between(-2, 2);
    if (maybe()) p.frequency_penalty = between(-2, 2);
    if (maybe()) {
        std::vector<char> seen(static_cast<size_t>(vocabulary));
        for (int64_t i = draw(random, 1, 300); i > 0; --i) {
            const auto token = static_cast<int32_t>(draw(random, 0, vocabulary - 1));
            if (seen[static_cast<size_t>(token)]++ != 0) continue;
            // One token is left, whatever is banned.
            const bool ban = token > 0 && draw(random, 0, 4) == 0;
            p.bias.emplace_back(token, ban ? -INFINITY : between(-5, 5));
        }
    }
    p.logprobs = static_cast<int32_t>(draw(random, -1, 20));
    return p;
}

// A row's changes, one for each token that has any.
void add_edits(const SampleInput &input, std::vector<LogitEdit> *edits) {
    const SamplingParams &p = *input.params;
    std::map<int32_t, LogitEdit> by_token;
    const auto edit = [&](int32_t token) -> LogitEdit & {
        return by_token.try_emplace(token, LogitEdit{token, 0, 0, 0, NAN}).first->second;
    };
    for (const auto &[token, bias] : p.bias) edit(token).bias = bias;
    for (const auto &tokens : {input.prompt, input.output}) {
        for (const int32_t token : tokens) edit(token).repeated = 1;
    }
    for (const int32_t token : input.output) ++edit(token).times;
    for (const auto &[token, e] : by_token) edits->push_back(e);
}

void sample_both(Random &random, int32_t vocabulary, Logits kind, Sampled *result) {
    const int32_t rows = 16;
    const int64_t stride = (vocabulary + 15) / 16 * 16;
    const std::vector<float> logits = some_logits(random, rows * stride, kind);
    const Array device(logits, DType::f32);
    std::vector<int32_t> row_of; // of each task; every fourth row has three
    for (int32_t r = 0; r < rows; ++r) row_of.insert(row_of.end(), r % 4 == 0 ? 3 : 1, r);
    const size_t count = row_of.size();
    std::vector<SamplingParams> params(count);
    std::vector<std::vector<int32_t>> prompts(count), outputs(count);
    std::vector<SampleInput> inputs;
    std::vector<SampleTask> tasks;
    std::vector<LogitEdit> edits;
    int32_t likely = 0;
    for (size_t i = 0; i < count; ++i) {
        SamplingParams &p = params[i] = some_params(random, vocabulary);
        for (auto *tokens : {&prompts[i], &outputs[i]}) {
            for (int64_t t = draw(random, 0, 40); t > 0; --t) {
                tokens->push_back(
                    static_cast<int32_t>(draw(random, 0, std::min(vocabulary, 60) - 1)));
            }
        }
        inputs.push_back({&p, prompts[i], outputs[i], random(), static_cast<int32_t>(i)});
        SampleTask task{};
        task.row = row_of[i];
        task.output = static_cast<int32_t>(i);
        task.logprob = p.logprobs >= 0;
        task.likely_begin = likely;
        task.likely_count = std::max(0, p.logprobs);
        likely += task.likely_count;
        task.temperature = p.temperature;
        task.top_p = p.top_p;
        task.min_p = p.min_p;
        task.top_k = p.top_k;
        task.repetition_penalty = p.repetition_penalty;
        task.presence_penalty = p.presence_penalty;
        task.frequency_penalty = p.frequency_penalty;
        task.uniform = random_uniform(inputs[i].random_key, inputs[i].position);
        task.edit_begin = static_cast<int32_t>(edits.size());
        add_edits(inputs[i], &edits);
        task.edit_count = static_cast<int32_t>(edits.size()) - task.edit_begin;
        const bool first = i == 0 || row_of[i - 1] != row_of[i];
        task.together = !first ? 0 : row_of[i] % 4 == 0 ? 3 : 1;
        tasks.push_back(task);
    }
    const DeviceMemory t = upload(tasks), e = upload(edits);
    const DeviceMemory results = upload(std::vector<SampleResult>(count));
    const DeviceMemory lists = upload(std::vector<Likely>(static_cast<size_t>(likely), {-7, 0}));
    check(launch_sample({device.floats(), stride, vocabulary, t.as<SampleTask>(),
                         static_cast<int32_t>(count), e.as<LogitEdit>(), nullptr,
                         results.as<SampleResult>(), nullptr, nullptr, lists.as<Likely>()},
                        nullptr));
    std::vector<SampleResult> got(count);
    std::vector<Likely> listed(static_cast<size_t>(likely));
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(got.data(), results.data(), got.size() * sizeof(SampleResult),
                     cudaMemcpyDeviceToHost));
    check(cudaMemcpy(listed.data(), lists.data(), listed.size() * sizeof(Likely),
                     cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; ++i) {
        const float *row = logits.data() + row_of[i] * stride;
        std::vector<float> scratch(row, row + vocabulary);
        SampleOutput wanted;
        sample(scratch, inputs[i], &wanted);
        assert_int_equal(got[i].finite, wanted.finite);
        ++result->tokens;
        result->equal += got[i].token == wanted.token;
        if (params[i].greedy()) assert_int_equal(got[i].token, wanted.token);
        if (got[i].token == wanted.token && params[i].logprobs >= 0) {
            assert_true(std::fabs(got[i].logprob - wanted.logprob) < 1e-4f ||
                        got[i].logprob == wanted.logprob); // both -inf
        }
        for (int32_t l = 0; l < tasks[i].likely_count; ++l) {
            const Likely &one = listed[static_cast<size_t>(tasks[i].likely_begin + l)];
            if (l >= static_cast<int32_t>(wanted.top.size())) {
                assert_int_equal(one.token, -1);
                continue;
            }
            const TopLogprob &other = wanted.top[static_cast<size_t>(l)];
            assert_int_equal(one.token, other.token);
            assert_true(std::fabs(one.logprob - other.logprob) < 1e-4f);
        }
    }
    // Rows with several tasks are as they were.
    const std::vector<float> after = device.read();
    for (int32_t r = 0; r < rows; r += 4) {
        assert_memory_equal(after.data() + r * stride, logits.data() + r * stride,
                            static_cast<size_t>(vocabulary) * sizeof(float));
    }
}

void sampled_tokens_are_the_references(void **) {
    Random random(kSeed + 6);
    Sampled result;
    for (int round = 0; round < 12; ++round) {
        for (const int32_t vocabulary : {3, 50, 997, 32000, 151936}) {
            if (vocabulary > 997 && round % 3 != 0) continue;
            sample_both(random, vocabulary, static_cast<Logits>(round / 3), &result);
        }
    }
    print_message("%d of %d tokens equal\n", int(result.equal), int(result.tokens));
    // The rest: draws beside a boundary, which rounding decides.
    assert_true(result.equal * 200 >= result.tokens * 199);
}

void logits_that_are_not_finite_are_told(void **) {
    const float bad[] = {NAN, -NAN, INFINITY};
    std::vector<float> logits(5 * 64, 0.5f);
    for (size_t i = 0; i < 3; ++i) logits[i * 64 + 7 * i + 3] = bad[i];
    std::fill_n(logits.begin() + 3 * 64, 64, -INFINITY);
    logits[4 * 64 + 40] = -INFINITY; // a ban: finite
    std::vector<SampleTask> tasks(5);
    for (int32_t i = 0; i < 5; ++i) {
        SampleTask &task = tasks[static_cast<size_t>(i)];
        task.row = task.output = i;
        task.together = 1;
        task.likely_begin = 3 * i;
        task.likely_count = 3;
    }
    const Array device(logits, DType::f32);
    const DeviceMemory t = upload(tasks);
    const DeviceMemory results = upload(std::vector<SampleResult>(5));
    const DeviceMemory lists = upload(std::vector<Likely>(15, {-7, 0}));
    check(launch_sample({device.floats(), 64, 60, t.as<SampleTask>(), 5, nullptr, nullptr,
                         results.as<SampleResult>(), nullptr, nullptr, lists.as<Likely>()},
                        nullptr));
    std::vector<SampleResult> got(5);
    std::vector<Likely> listed(15);
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(got.data(), results.data(), 5 * sizeof(SampleResult), cudaMemcpyDeviceToHost));
    check(cudaMemcpy(listed.data(), lists.data(), 15 * sizeof(Likely), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < 15; ++i) {
        assert_int_equal(listed[i].token, i < 12 ? -1 : static_cast<int32_t>(i) - 12);
    }
    for (size_t i = 0; i < 4; ++i) {
        assert_int_equal(got[i].finite, 0);
        assert_int_equal(got[i].token, -1);
    }
    assert_int_equal(got[4].finite, 1);
    assert_int_equal(got[4].token, 0);
}

} // namespace

int main() {
    int devices = 0;
    cudaDeviceProp properties{};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0 ||
        cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major < 8) {
        std::printf("skipped: no device of compute capability 8.0 or later\n");
        return 77;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_the_references),
        cmocka_unit_test(gates_biases_and_rows_are_the_references),
        cmocka_unit_test(weights_are_converted_and_padded),
        cmocka_unit_test(rope_and_pages_are_the_references),
        cmocka_unit_test(products_are_the_references),
        cmocka_unit_test(plain_attention_is_the_reference),
        cmocka_unit_test(sampled_tokens_are_the_references),
        cmocka_unit_test(logits_that_are_not_finite_are_told),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
