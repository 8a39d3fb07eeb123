// Shared by the tests of CUDA kernels: seeded random values, arrays on the device that are written
// and read as floats, and the comparison with a float64 reference. Includes cmocka: include this
// last.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/narrow_floats.h"
#include "device/device.h"
#include "testing.h"

namespace batchllm::cuda {

using Random = std::mt19937_64;
inline constexpr uint64_t kSeed = 20261120;

inline int64_t draw(Random &random, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

inline void check(const Status &status) {
    if (!status.ok()) fail_msg("%s", status.message().c_str());
}
inline void check(cudaError_t code) { check(check_cuda(code, "a kernel")); }

// A device array of plain values.
template <typename T> DeviceMemory upload(const std::vector<T> &values) {
    auto memory = DeviceMemory::create(
        std::max<int64_t>(16, static_cast<int64_t>(values.size() * sizeof(T))), "test");
    check(memory.status());
    check(cudaMemcpy(memory->data(), values.data(), values.size() * sizeof(T),
                     cudaMemcpyHostToDevice));
    return std::move(memory).value();
}

template <typename T> std::vector<T> download(const DeviceMemory &memory, size_t count) {
    std::vector<T> values(count);
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(values.data(), memory.data(), count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

// x rounded to an element type.
inline float rounded(float x, DType type) {
    if (type == DType::f32) return x;
    if (type == DType::bf16) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        bits += 0x7fff + (bits >> 16 & 1);
        bits &= 0xffff0000u;
        std::memcpy(&x, &bits, 4);
        return x;
    }
    return float16_to_float(float_to_float16(x));
}

// A device array of a type, copied from and to floats.
class Array {
  public:
    Array(int64_t count, DType type) : count_(count), type_(type) {
        auto memory =
            DeviceMemory::create(std::max<int64_t>(16, count * dtype_bytes(type)), "test");
        check(memory.status());
        memory_ = std::move(memory).value();
        // NaN in every type, so that missing writes are detected.
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
                const uint16_t x = float_to_float16(values[i]);
                std::memcpy(&raw[2 * i], &x, 2);
            }
        }
        check(cudaMemcpy(memory_.data(), raw.data(), raw.size(), cudaMemcpyHostToDevice));
    }
    std::vector<float> read() const {
        const auto raw =
            download<std::byte>(memory_, static_cast<size_t>(count_ * dtype_bytes(type_)));
        std::vector<float> values(static_cast<size_t>(count_));
        for (size_t i = 0; i < values.size(); ++i) {
            if (type_ == DType::f32) {
                std::memcpy(&values[i], &raw[4 * i], 4);
            } else if (type_ == DType::bf16) {
                values[i] = 0;
                std::memcpy(reinterpret_cast<char *>(&values[i]) + 2, &raw[2 * i], 2);
            } else {
                uint16_t x;
                std::memcpy(&x, &raw[2 * i], 2);
                values[i] = float16_to_float(x);
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

inline std::vector<float> normal(Random &random, int64_t count, DType type, float deviation = 1) {
    std::normal_distribution<float> distribution(0, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float &x : values) x = rounded(distribution(random), type);
    return values;
}

inline double tolerance(DType type) {
    return type == DType::f32 ? 1e-5 : type == DType::bf16 ? 6e-3 : 8e-4;
}

// || got - wanted || / || wanted || within the type's rounding; no NaN passes.
inline void assert_close(const std::vector<float> &got, const std::vector<double> &wanted,
                         double limit, const char *what) {
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

// Meson's exit code for a skipped test if there is no device for the backend, else 0.
inline int skipped() {
    int devices = 0;
    cudaDeviceProp properties{};
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
        cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.major >= 8) {
        return 0;
    }
    std::printf("skipped: no device of compute capability 8.0 or later\n");
    return 77;
}

} // namespace batchllm::cuda
