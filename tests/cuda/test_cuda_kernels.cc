// Matrix products and plain attention against float64 on the host, over random shapes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "attention/plain.h"
#include "base/narrow_floats.h"
#include "linear/linear.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

const DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

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

// Rows of e4m3 on the device with their scales, and the values that they represent.
struct Quantized {
    std::vector<float> values;
    DeviceMemory bytes, scales;
};

Quantized quantized(Random &random, int64_t rows, int64_t columns, int64_t room) {
    Quantized q;
    std::vector<uint8_t> bytes(static_cast<size_t>(room * columns));
    std::vector<float> scales(static_cast<size_t>(room), 1.0F);
    std::uniform_real_distribution<float> scale(0.001F, 0.1F);
    for (int64_t r = 0; r < rows; ++r) {
        const float of_row = scale(random);
        scales[static_cast<size_t>(r)] = of_row;
        for (int64_t c = 0; c < columns; ++c) {
            auto byte = static_cast<uint8_t>(draw(random, 0, 255));
            if ((byte & 0x7F) == 0x7F) byte = 0;
            bytes[static_cast<size_t>(r * columns + c)] = byte;
            q.values.push_back(kE4m3Floats[byte] * of_row);
        }
    }
    q.bytes = upload(bytes);
    q.scales = upload(scales);
    return q;
}

void products_in_e4m3_are_the_references(void **) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    if (properties.major < 9) skip(); // cuBLASLt has no scales by row on such devices
    Random random(kSeed + 6);
    for (const DType out_type : {DType::bf16, DType::f32}) {
        for (const bool tune : {false, true}) {
            for (const bool fast : {false, true}) {
                const Array scratch(1 << 22, DType::f32);
                auto linear = Linear::create(DType::bf16, tune ? scratch.data() : nullptr,
                                             int64_t{4} << 22, {});
                check(linear.status());
                linear->set_fast_accumulation(fast);
                for (int round = 0; round < 6; ++round) {
                    const int64_t m = draw(random, 1, 200), n = 16 * draw(random, 1, 40),
                                  k = 16 * draw(random, 1, 60);
                    const bool accumulate = round % 2 == 1;
                    const float alpha = round % 3 == 0 ? 0.5F : 1.0F;
                    const Quantized w = quantized(random, n, k, n);
                    const Quantized x = quantized(random, m, k, padded_rows(m));
                    const auto y = normal(random, m * n, out_type);
                    auto padded = y;
                    padded.resize(static_cast<size_t>(padded_rows(m) * n));
                    const Array out(padded, out_type);
                    check(linear->run({w.bytes.data(), n, k, w.scales.as<float>(), Scaling::rows},
                                      {x.bytes.data(), x.scales.as<float>()}, m, out.data(),
                                      out_type, accumulate, nullptr, alpha));
                    std::vector<double> wanted;
                    for (int64_t r = 0; r < m; ++r) {
                        for (int64_t c = 0; c < n; ++c) {
                            double sum = 0;
                            for (int64_t i = 0; i < k; ++i) {
                                sum += double(x.values[static_cast<size_t>(r * k + i)]) *
                                       double(w.values[static_cast<size_t>(c * k + i)]);
                            }
                            sum *= double(alpha);
                            if (accumulate) sum += double(y[static_cast<size_t>(r * n + c)]);
                            wanted.push_back(sum);
                        }
                    }
                    std::vector<float> got = out.read();
                    got.resize(static_cast<size_t>(m * n));
                    // Tensor cores add e4m3 products with some 14 bits.
                    assert_close(got, wanted, out_type == DType::bf16 ? 6e-3 : 1e-3,
                                 "product in e4m3");
                }
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
        cmocka_unit_test(products_are_the_references),
        cmocka_unit_test(products_in_e4m3_are_the_references),
        cmocka_unit_test(plain_attention_is_the_reference),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
