// Kernels between the CPU backend's matrix products against double-precision references: norms,
// activations, rotations, caps, for every kernel table that this processor runs and for lengths
// that are not multiples of a vector.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "base/narrow_floats.h"
#include "model/model.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;

namespace {

constexpr int32_t kLengths[] = {1, 3, 16, 24, 64, 100, 257};

// Calls test(kernels) for all tables.
template <typename Test> void for_each_table(const Test &test) {
    int tables = 0;
    for (DType element : {DType::f32, DType::bf16}) {
        for (Isa isa : kAllIsas) {
            const Kernels *kernels = kernels_for(isa, element);
            if (kernels == nullptr || !isa_runs_here(isa)) continue;
            test(*kernels);
            ++tables;
        }
    }
    assert_true(tables >= 2);
}

std::vector<float> random_floats(std::mt19937_64 *random, int32_t n, float spread) {
    std::normal_distribution<float> normal(0.3f, spread);
    std::vector<float> out(static_cast<size_t>(n));
    for (float &x : out) x = normal(*random);
    return out;
}

// n elements as floats.
std::vector<float> read_elements(const Kernels &kernels, const std::vector<std::byte> &bytes,
                                 int32_t n) {
    std::vector<float> out(static_cast<size_t>(n));
    for (size_t i = 0; i < out.size(); ++i) {
        if (kernels.element == DType::f32) {
            std::memcpy(&out[i], bytes.data() + 4 * i, 4);
        } else {
            uint16_t bits;
            std::memcpy(&bits, bytes.data() + 2 * i, 2);
            out[i] = bfloat16_to_float(bits);
        }
    }
    return out;
}

// Room for n elements and a guard after them.
std::vector<std::byte> room(const Kernels &kernels, int32_t n) {
    return std::vector<std::byte>(static_cast<size_t>(n * dtype_bytes(kernels.element)) + 16,
                                  std::byte{0x5A});
}

void expect_close(const char *what, const Kernels &kernels, const std::vector<float> &got,
                  const std::vector<double> &expected, double tolerance) {
    assert_int_equal(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
        const double limit = tolerance * std::max(1.0, std::fabs(expected[i]));
        if (!(std::fabs(static_cast<double>(got[i]) - expected[i]) <= limit)) {
            fail_msg("%s, %s, %zu of %zu: %.9g and not %.9g", what, kernels.name, i, got.size(),
                     static_cast<double>(got[i]), expected[i]);
        }
    }
}

// The rounding of an element, in addition to that of float arithmetic.
double element_tolerance(const Kernels &kernels) {
    return kernels.element == DType::f32 ? 3e-6 : 4.5e-3;
}

void expect_elements(const char *what, const Kernels &kernels, const std::vector<std::byte> &bytes,
                     const std::vector<double> &expected) {
    const auto n = static_cast<int32_t>(expected.size());
    expect_close(what, kernels, read_elements(kernels, bytes, n), expected,
                 element_tolerance(kernels));
    for (size_t i = bytes.size() - 16; i < bytes.size(); ++i) {
        if (bytes[i] != std::byte{0x5A}) fail_msg("%s, %s: wrote past its end", what, kernels.name);
    }
}

void norms_equal_the_reference(void **) {
    std::mt19937_64 random(seed_of_run());
    for_each_table([&](const Kernels &kernels) {
        for (const int32_t n : kLengths) {
            const auto x = random_floats(&random, n, 2);
            const auto weight = random_floats(&random, n, 1);
            const auto bias = random_floats(&random, n, 1);
            const float epsilon = 0.01f;
            double mean = 0, squares = 0, variance = 0;
            for (const float v : x) {
                mean += v / static_cast<double>(n);
                squares += static_cast<double>(v) * v / n;
            }
            for (const float v : x) variance += (v - mean) * (v - mean) / n;
            std::vector<double> rms, layer;
            for (size_t i = 0; i < x.size(); ++i) {
                rms.push_back(x[i] / std::sqrt(squares + epsilon) * weight[i]);
                layer.push_back((x[i] - mean) / std::sqrt(variance + epsilon) * weight[i] +
                                bias[i]);
            }
            auto out = room(kernels, n);
            kernels.rms_norm(x.data(), weight.data(), epsilon, n, out.data());
            expect_elements("rms_norm", kernels, out, rms);
            out = room(kernels, n);
            kernels.layer_norm(x.data(), weight.data(), bias.data(), epsilon, n, out.data());
            expect_elements("layer_norm", kernels, out, layer);
            auto head = x;
            kernels.rms_norm_head(head.data(), weight.data(), epsilon, n);
            expect_close("rms_norm_head", kernels, head, rms, 3e-6);
            head = x;
            kernels.layer_norm_head(head.data(), weight.data(), bias.data(), epsilon, n);
            expect_close("layer_norm_head", kernels, head, layer, 3e-6);
        }
    });
}

double activation_of(Activation activation, double x) {
    switch (activation) {
    case Activation::silu:
        return x / (1 + std::exp(-x));
    case Activation::gelu:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::clamped_swiglu:
        return std::min(x, 7.0) / (1 + std::exp(-1.702 * std::min(x, 7.0)));
    case Activation::relu_squared:
        return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::xielu:
        return x / 2 + 0.7 * (std::expm1(std::min(x, 0.0)) - std::min(x, 0.0)) +
               0.4 * std::max(x, 0.0) * std::max(x, 0.0);
    }
    return 0;
}

// The factor for the activation of a gate.
double factor_of(Activation activation, double up) {
    return activation == Activation::clamped_swiglu ? std::clamp(up, -7.0, 7.0) + 1 : up;
}

void activations_equal_the_reference_gated_or_not_with_biases_or_without(void **) {
    std::mt19937_64 random(seed_of_run());
    for_each_table([&](const Kernels &kernels) {
        for (const int32_t n : kLengths) {
            for (const auto activation :
                 {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                  Activation::clamped_swiglu, Activation::relu_squared, Activation::xielu}) {
                for (int form = 0; form < 4; ++form) {
                    const bool gated = form % 2 == 0, biased = form >= 2;
                    const auto gate = random_floats(&random, n, 4);
                    const auto up = random_floats(&random, n, 4);
                    const auto gate_bias = random_floats(&random, n, 1);
                    const auto up_bias = random_floats(&random, n, 1);
                    std::vector<double> expected;
                    for (size_t i = 0; i < gate.size(); ++i) {
                        const double g = static_cast<double>(gate[i]) + (biased ? gate_bias[i] : 0);
                        const double u = static_cast<double>(up[i]) + (biased ? up_bias[i] : 0);
                        expected.push_back(activation_of(activation, g) *
                                           factor_of(activation, gated ? u : 1));
                    }
                    const float curve[] = {0.4F, 0.7F};
                    auto out = room(kernels, n);
                    kernels.activate[static_cast<size_t>(activation)](
                        gate.data(), gated ? up.data() : nullptr,
                        biased ? gate_bias.data() : nullptr,
                        biased && gated ? up_bias.data() : nullptr, curve, n, out.data());
                    expect_elements("activate", kernels, out, expected);
                }
            }
        }
    });
}

void activations_of_large_numbers_are_finite(void **) {
    for_each_table([&](const Kernels &kernels) {
        const std::vector<float> gate = {-1e4f, -200, -88, -20, 20, 88, 200, 1e4f};
        const auto n = static_cast<int32_t>(gate.size());
        for (const auto activation : {Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
            std::vector<double> expected;
            for (const float g : gate) expected.push_back(g < 0 ? 0 : g);
            auto out = room(kernels, n);
            kernels.activate[static_cast<size_t>(activation)](gate.data(), nullptr, nullptr,
                                                              nullptr, nullptr, n, out.data());
            expect_elements("activate", kernels, out, expected);
        }
    });
}

void caps_and_scales_equal_the_reference(void **) {
    std::mt19937_64 random(seed_of_run());
    for_each_table([&](const Kernels &kernels) {
        for (const int32_t n : kLengths) {
            for (const float softcap : {0.0f, 2.0f, 30.0f}) {
                auto x = random_floats(&random, n, 40);
                std::vector<double> expected;
                for (const float v : x) {
                    const double scaled = v * 0.25;
                    expected.push_back(softcap == 0 ? scaled
                                                    : softcap * std::tanh(scaled / softcap));
                }
                kernels.cap(x.data(), 0.25f, softcap, n);
                // tanh is accurate to a few units of 2^-24, whatever cap it is multiplied by.
                expect_close("cap", kernels, x, expected, 3e-6 + 3e-7 * softcap);
            }
            const auto x = random_floats(&random, n, 1);
            auto to = random_floats(&random, n, 1);
            std::vector<double> expected;
            for (size_t i = 0; i < x.size(); ++i) {
                expected.push_back(to[i] + static_cast<double>(x[i]) * 0.7f);
            }
            kernels.add_scaled(x.data(), 0.7f, n, to.data());
            expect_close("add_scaled", kernels, to, expected, 1e-6);
        }
    });
}

void rotations_equal_the_reference_by_halves_and_by_pairs(void **) {
    std::mt19937_64 random(seed_of_run());
    for_each_table([&](const Kernels &kernels) {
        for (const int32_t half : {1, 6, 16, 20, 64}) {
            const auto x = random_floats(&random, 2 * half, 1);
            std::vector<float> cosine, sine;
            for (const float angle : random_floats(&random, half, 2)) {
                cosine.push_back(std::cos(angle));
                sine.push_back(std::sin(angle));
            }
            for (const bool pairs : {false, true}) {
                std::vector<double> expected(x.size());
                for (size_t i = 0; i < cosine.size(); ++i) {
                    const size_t a = pairs ? 2 * i : i;
                    const size_t b = pairs ? 2 * i + 1 : i + cosine.size();
                    expected[a] =
                        static_cast<double>(x[a]) * cosine[i] - static_cast<double>(x[b]) * sine[i];
                    expected[b] =
                        static_cast<double>(x[b]) * cosine[i] + static_cast<double>(x[a]) * sine[i];
                }
                auto got = x;
                (pairs ? kernels.rope_pairs : kernels.rope)(got.data(), cosine.data(), sine.data(),
                                                            half);
                expect_close(pairs ? "rope_pairs" : "rope", kernels, got, expected, 1e-6);
            }
        }
    });
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(norms_equal_the_reference),
        cmocka_unit_test(activations_equal_the_reference_gated_or_not_with_biases_or_without),
        cmocka_unit_test(activations_of_large_numbers_are_finite),
        cmocka_unit_test(caps_and_scales_equal_the_reference),
        cmocka_unit_test(rotations_equal_the_reference_by_halves_and_by_pairs),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
