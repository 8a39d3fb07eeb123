// Activations in e4m3: rows and their scales against the host, and the kernels that quantise their
// results against computing and quantising separately.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/narrow_floats.h"
#include "elementwise/elementwise.h"
#include "elementwise/norm.h"
#include "elementwise/quantize.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

const DType kTypes[] = {DType::f32, DType::bf16, DType::f16};

// Room for rows in e4m3, initialised with NaN.
struct Rows {
    Rows(int64_t count, int64_t width)
        : bytes(upload(std::vector<uint8_t>(static_cast<size_t>(count * width), 0xFF))),
          scales(upload(std::vector<float>(static_cast<size_t>(count),
                                           std::numeric_limits<float>::quiet_NaN()))),
          size(static_cast<size_t>(count * width)), rows(static_cast<size_t>(count)) {}

    std::vector<uint8_t> read_bytes() const { return download<uint8_t>(bytes, size); }
    std::vector<float> read_scales() const { return download<float>(scales, rows); }

    DeviceMemory bytes, scales;
    size_t size, rows;
};

Rows quantized(const Array &x, DType type, int32_t rows, int32_t width) {
    Rows out(rows, width);
    check(launch_quantize_rows(
        {type, x.data(), out.bytes.data(), {out.scales.as<float>()}, rows, width}, nullptr));
    return out;
}

void rows_are_multiples_of_their_scales(void **) {
    Random random(kSeed + 30);
    for (const DType type : kTypes) {
        for (const int32_t vectors :
             {1, 31, 32, 127, 128, 129, 200, 255, 256, 257, 511, 513, 2000, 2048, 2049, 4096}) {
            const int32_t width = 8 * vectors;
            const auto rows = static_cast<int32_t>(draw(random, 1, 5));
            auto x = normal(random, int64_t{rows} * width, type, 3);
            // Values of several magnitudes, including subnormals.
            for (float &v : x) v = rounded(v * std::ldexp(1.0F, -int(draw(random, 0, 14))), type);
            const Rows out = quantized(Array(x, type), type, rows, width);
            const std::vector<uint8_t> bytes = out.read_bytes();
            const std::vector<float> scales = out.read_scales();
            for (int32_t r = 0; r < rows; ++r) {
                const size_t begin = static_cast<size_t>(r) * static_cast<size_t>(width);
                double most = 0;
                for (size_t i = begin; i < begin + static_cast<size_t>(width); ++i) {
                    most = std::max(most, std::fabs(double(x[i])));
                }
                const double scale = double(scales[static_cast<size_t>(r)]);
                assert_true(std::fabs(scale * 448 - most) <= 1e-6 * most);
                for (size_t i = begin; i < begin + static_cast<size_t>(width); ++i) {
                    // Half the distance of neighbours: 2^-4 of a number, 2^-10 below the least exponent.
                    const double got = double(kE4m3Floats[bytes[i]]) * scale;
                    const double limit =
                        std::max(std::fabs(double(x[i])) / 16, std::ldexp(scale, -10));
                    if (!(std::fabs(got - double(x[i])) <= 1.00001 * limit)) {
                        fail_msg("%s, width %d: %g became %g (scale %g)", dtype_name(type), width,
                                 double(x[i]), got, scale);
                    }
                }
            }
        }
    }
}

void rows_of_zeros_stay_zeros_and_what_is_not_finite_is_seen(void **) {
    constexpr int32_t width = 264;
    for (const DType type : kTypes) {
        std::vector<float> x(3 * width, 0.0F);
        x[width + 5] = std::numeric_limits<float>::quiet_NaN();
        x[2 * width + 7] = std::numeric_limits<float>::infinity();
        const auto assert_seen = [](const Rows &out) {
            const std::vector<uint8_t> bytes = out.read_bytes();
            const std::vector<float> scales = out.read_scales();
            assert_true(std::all_of(bytes.begin(), bytes.begin() + width,
                                    [](uint8_t b) { return (b & 0x7F) == 0; }));
            assert_true(std::isfinite(scales[0]) && scales[0] > 0);
            for (const size_t row : {1, 2}) {
                bool seen = false;
                for (size_t i = 0; i < width; ++i) {
                    seen |= !std::isfinite(kE4m3Floats[bytes[row * width + i]] * scales[row]);
                }
                assert_true(seen);
            }
        };
        const Array in(x, type);
        assert_seen(quantized(in, type, 3, width));

        std::vector<float> gates(6 * width, 1.0F); // times the ups in x
        for (size_t i = 0; i < x.size(); ++i)
            gates[i / width * 2 * width + width + i % width] = x[i];
        const Array both(gates, type);
        const Rows activated(3, width), normed(3, width);
        check(launch_activation_e4m3(
            {type, Activation::silu, true, both.data(), nullptr, activated.bytes.data(), 3, width},
            {activated.scales.as<float>()}, nullptr));
        assert_seen(activated);
        const Array ones(std::vector<float>(width, 1.0F), DType::f32);
        check(launch_rms_norm({DType::e4m3,
                               type,
                               in.data(),
                               nullptr,
                               ones.floats(),
                               1e-5F,
                               normed.bytes.data(),
                               3,
                               width,
                               {normed.scales.as<float>()}},
                              nullptr));
        assert_seen(normed);
    }
}

void assert_same(const Rows &fused, const Rows &apart, const char *what) {
    if (fused.read_scales() != apart.read_scales()) fail_msg("%s: other scales", what);
    if (fused.read_bytes() != apart.read_bytes()) fail_msg("%s: other elements", what);
}

void a_norm_in_e4m3_is_the_norm_quantised(void **) {
    Random random(kSeed + 31);
    for (const DType stream : kTypes) {
        for (const int32_t hidden : {8, 64, 1000, 2048, 2056, 4096, 5120, 8200, 16384, 32768}) {
            constexpr int32_t count = 3;
            const auto x = normal(random, int64_t{count} * hidden, stream);
            const auto delta = normal(random, int64_t{count} * hidden, stream);
            const Array in(x, stream), same(x, stream), added(delta, stream);
            const Array w(normal(random, hidden, DType::f32), DType::f32);
            const Array plain(int64_t{count} * hidden, DType::f32);
            const Rows norm(count, hidden);
            check(launch_rms_norm({DType::f32, stream, in.data(), nullptr, w.floats(), 1e-5F,
                                   plain.data(), count, hidden},
                                  nullptr));
            check(launch_rms_norm({DType::e4m3,
                                   stream,
                                   in.data(),
                                   nullptr,
                                   w.floats(),
                                   1e-5F,
                                   norm.bytes.data(),
                                   count,
                                   hidden,
                                   {norm.scales.as<float>()}},
                                  nullptr));
            assert_same(norm, quantized(plain, DType::f32, count, hidden), "RMSNorm");

            const DeviceNorm next{NormKind::rms, w.floats(), nullptr, 1e-6F};
            const Rows sum(count, hidden);
            check(launch_add_norm({DType::f32, stream, in.data(), added.data(), nullptr, next, 0.5F,
                                   next, plain.data(), count, hidden},
                                  nullptr));
            check(launch_add_norm({DType::e4m3,
                                   stream,
                                   same.data(),
                                   added.data(),
                                   nullptr,
                                   next,
                                   0.5F,
                                   next,
                                   sum.bytes.data(),
                                   count,
                                   hidden,
                                   nullptr,
                                   {sum.scales.as<float>()}},
                                  nullptr));
            assert_true(in.read() == same.read());
            assert_same(sum, quantized(plain, DType::f32, count, hidden), "addition and norm");
        }
    }
}

// For computations that differ by a few units in the last place of f32: scales may differ by that,
// and elements between two e4m3 numbers may have been rounded to the other one.
void assert_nearly_same(const Rows &fused, const Rows &apart, const char *what) {
    const std::vector<float> scales = fused.read_scales(), others = apart.read_scales();
    for (size_t r = 0; r < scales.size(); ++r) {
        if (!(std::fabs(scales[r] - others[r]) <= 2e-6F * others[r])) {
            fail_msg("%s: scale %g, not %g", what, double(scales[r]), double(others[r]));
        }
    }
    const std::vector<uint8_t> got = fused.read_bytes(), wanted = apart.read_bytes();
    size_t other = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == wanted[i]) continue;
        ++other;
        if (std::abs(int(got[i]) - int(wanted[i])) > 1) {
            fail_msg("%s: %g, not %g", what, double(kE4m3Floats[got[i]]),
                     double(kE4m3Floats[wanted[i]]));
        }
    }
    if (other > 2 + got.size() / 2000) fail_msg("%s: %zu elements are others", what, other);
}

// In f32 bit by bit; in 16 bits SiLU is approximate.
void an_activation_in_e4m3_is_the_activation_quantised(void **) {
    Random random(kSeed + 32);
    for (const DType type : kTypes) {
        for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                      Activation::relu_squared}) {
            for (const int32_t width :
                 {8, 344, 1024, 1032, 2048, 2056, 14336, 16392, 18944, 28672, 32768}) {
                for (const bool gated : {false, true}) {
                    const auto rows = static_cast<int32_t>(draw(random, 1, 4));
                    const int64_t stride = (gated ? 2 : 1) * int64_t{width};
                    const auto x = normal(random, rows * stride, type, 3);
                    const Array in(x, type), wide(x, DType::f32);
                    const Array bias(normal(random, stride, DType::f32), DType::f32);
                    const float *b = draw(random, 0, 1) == 1 ? bias.floats() : nullptr;
                    const Array plain(int64_t{rows} * width, DType::f32);
                    const Rows out(rows, width);
                    check(launch_activation(
                        {DType::f32, kind, gated, wide.data(), b, plain.data(), rows, width},
                        nullptr));
                    check(launch_activation_e4m3(
                        {type, kind, gated, in.data(), b, out.bytes.data(), rows, width},
                        {out.scales.as<float>()}, nullptr));
                    const Rows apart = quantized(plain, DType::f32, rows, width);
                    if (type == DType::f32 || kind != Activation::silu) {
                        assert_same(out, apart, "activation");
                    } else {
                        assert_nearly_same(out, apart, "activation");
                    }
                }
            }
        }
    }
}

// [rows, groups] -> [groups, stride]
std::vector<float> by_group(const std::vector<float> &scales, size_t rows, size_t stride) {
    const size_t groups = scales.size() / rows;
    std::vector<float> out(groups * stride, 7.0F); // 7 remains where nothing is written
    for (size_t r = 0; r < rows; ++r) {
        for (size_t g = 0; g < groups; ++g) out[g * stride + r] = scales[r * groups + g];
    }
    return out;
}

// A row with groups of 128 equals that many rows; the same for norms and activations.
void groups_of_128_are_rows_of_their_own(void **) {
    Random random(kSeed + 33);
    constexpr size_t stride = 16;
    for (const DType type : {DType::bf16, DType::f16}) {
        for (const int32_t width : {128, 384, 2048, 2176, 4096, 14336, 32768}) {
            const auto rows = static_cast<int32_t>(draw(random, 1, 5));
            const int32_t groups = width / 128;
            const auto x = normal(random, 2 * int64_t{rows} * width, type);
            const Array in(x, type), wide(x, DType::f32);
            const DeviceMemory bytes =
                upload(std::vector<uint8_t>(static_cast<size_t>(rows * width), 0xFF));
            const std::vector<float> none(static_cast<size_t>(groups) * stride, 7.0F);
            const DeviceMemory scales = upload(none);
            const RowScales to{scales.as<float>(), stride};
            // The output of the last launch, as rows of 128.
            const auto written = [&] {
                Rows got(rows * groups, 128);
                check(cudaDeviceSynchronize());
                check(
                    cudaMemcpy(got.bytes.data(), bytes.data(), got.size, cudaMemcpyDeviceToDevice));
                const std::vector<float> all = download<float>(scales, none.size());
                std::vector<float> of_rows(got.rows);
                for (size_t i = 0; i < of_rows.size(); ++i) {
                    of_rows[i] = all[i % static_cast<size_t>(groups) * stride +
                                     i / static_cast<size_t>(groups)];
                }
                if (all != by_group(of_rows, static_cast<size_t>(rows), stride)) {
                    fail_msg("width %d: scales elsewhere", width);
                }
                check(cudaMemcpy(got.scales.data(), of_rows.data(), of_rows.size() * sizeof(float),
                                 cudaMemcpyHostToDevice));
                check(cudaMemcpy(scales.data(), none.data(), none.size() * sizeof(float),
                                 cudaMemcpyHostToDevice));
                return got;
            };
            const auto assert_is = [&](const Array &of, DType of_type, const char *what) {
                assert_same(written(), quantized(of, of_type, rows * groups, 128), what);
            };
            check(launch_quantize_rows({type, in.data(), bytes.data(), to, rows, width}, nullptr));
            assert_is(in, type, "rows");

            const Array w(normal(random, width, DType::f32), DType::f32);
            const Array plain(int64_t{rows} * width, DType::f32);
            check(launch_rms_norm({DType::f32, type, in.data(), nullptr, w.floats(), 1e-5F,
                                   plain.data(), rows, width},
                                  nullptr));
            check(launch_rms_norm({DType::e4m3, type, in.data(), nullptr, w.floats(), 1e-5F,
                                   bytes.data(), rows, width, to},
                                  nullptr));
            assert_is(plain, DType::f32, "RMSNorm");

            const DeviceNorm next{NormKind::layer, w.floats(), nullptr, 1e-6F};
            AddNormArguments norm{DType::f32, type, in.data(),    nullptr, nullptr, {},
                                  1,          next, plain.data(), rows,    width};
            check(launch_add_norm(norm, nullptr));
            norm.element = DType::e4m3;
            norm.out = bytes.data();
            norm.scales = to;
            check(launch_add_norm(norm, nullptr));
            assert_is(plain, DType::f32, "any norm");

            const Activation kind = Activation::silu;
            check(launch_activation(
                {DType::f32, kind, true, wide.data(), nullptr, plain.data(), rows, width},
                nullptr));
            check(launch_activation_e4m3(
                {type, kind, true, in.data(), nullptr, bytes.data(), rows, width}, to, nullptr));
            assert_nearly_same(written(), quantized(plain, DType::f32, rows * groups, 128),
                               "activation");
        }
    }
}

// A norm's output for experts: a row's scales side by side, and the same values in 16 bits for
// their router.
void a_norm_for_experts_is_the_norm_in_both_types(void **) {
    Random random(kSeed + 35);
    for (const auto &types :
         {std::pair(DType::bf16, DType::bf16), std::pair(DType::f16, DType::f16),
          std::pair(DType::f32, DType::bf16), std::pair(DType::f32, DType::f16)}) {
        const DType stream = types.first, type = types.second;
        for (const int32_t width : {128, 2048, 4096, 7168}) {
            constexpr int32_t rows = 3;
            const int32_t groups = width / 128;
            const Array in(normal(random, int64_t{rows} * width, stream), stream);
            const Array w(normal(random, width, DType::f32), DType::f32);
            const Array plain(int64_t{rows} * width, DType::f32);
            const DeviceNorm next{NormKind::rms, w.floats(), nullptr, 1e-5F};
            for (const bool any : {false, true}) {
                const Rows got(rows * groups, 128);
                const Array whole(int64_t{rows} * width, type), alone(int64_t{rows} * width, type);
                const RowScales to{got.scales.as<float>(), 1, groups};
                const auto launch = [&](DType element, void *out, RowScales scales, Whole also) {
                    if (!any) {
                        check(launch_rms_norm({element, stream, in.data(), nullptr, w.floats(),
                                               1e-5F, out, rows, width, scales, also},
                                              nullptr));
                        return;
                    }
                    check(launch_add_norm({element,
                                           stream,
                                           in.data(),
                                           nullptr,
                                           nullptr,
                                           {},
                                           1,
                                           next,
                                           out,
                                           rows,
                                           width,
                                           nullptr,
                                           scales,
                                           also},
                                          nullptr));
                };
                launch(DType::e4m3, got.bytes.data(), to, {whole.data(), type});
                launch(DType::f32, plain.data(), {}, {});
                launch(type, alone.data(), {}, {});
                assert_same(got, quantized(plain, DType::f32, rows * groups, 128), "groups");
                assert_true(whole.read() == alone.read());
            }
        }
    }
}

void chosen_rows_are_quantised(void **) {
    Random random(kSeed + 34);
    constexpr int32_t width = 264, rows = 3;
    const std::vector<int32_t> chosen = {4, 0, 4};
    const auto x = normal(random, 5 * width, DType::bf16);
    std::vector<float> gathered;
    for (const int32_t row : chosen) {
        const auto begin = x.begin() + row * width;
        gathered.insert(gathered.end(), begin, begin + width);
    }
    const Array in(x, DType::bf16);
    const DeviceMemory from = upload(chosen);
    const Rows out(rows, width);
    check(launch_quantize_rows({DType::bf16,
                                in.data(),
                                out.bytes.data(),
                                {out.scales.as<float>()},
                                rows,
                                width,
                                from.as<int32_t>()},
                               nullptr));
    assert_same(out, quantized(Array(gathered, DType::bf16), DType::bf16, rows, width), "rows");
}

void rows_that_are_too_wide_are_refused(void **) {
    const Array x(8, DType::f32);
    const Rows out(1, 8);
    const auto quantize = [&](int32_t width) {
        return launch_quantize_rows(
            {DType::f32, x.data(), out.bytes.data(), {out.scales.as<float>()}, 1, width}, nullptr);
    };
    assert_int_equal(quantize(kMostNormed + kVector), cudaErrorInvalidValue);
    assert_int_equal(quantize(12), cudaErrorInvalidValue);
    assert_int_equal(quantize(8), cudaSuccess);
    // A part of a group has a scale; but there must be somewhere to write it.
    const auto with = [&](const RowScales &scales) {
        return launch_quantize_rows({DType::f32, x.data(), out.bytes.data(), scales, 1, 8},
                                    nullptr);
    };
    assert_int_equal(with({out.scales.as<float>(), 16}), cudaSuccess);
    assert_int_equal(with({}), cudaErrorInvalidValue);
}

} // namespace

int main() {
    if (const int code = skipped()) return code;
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_multiples_of_their_scales),
        cmocka_unit_test(rows_of_zeros_stay_zeros_and_what_is_not_finite_is_seen),
        cmocka_unit_test(a_norm_in_e4m3_is_the_norm_quantised),
        cmocka_unit_test(an_activation_in_e4m3_is_the_activation_quantised),
        cmocka_unit_test(groups_of_128_are_rows_of_their_own),
        cmocka_unit_test(a_norm_for_experts_is_the_norm_in_both_types),
        cmocka_unit_test(chosen_rows_are_quantised),
        cmocka_unit_test(rows_that_are_too_wide_are_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
