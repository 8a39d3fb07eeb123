// Shared by benches of kernels: CUDA calls that end the program if they fail, and arrays on the
// device.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "elementwise/elementwise.h"
#include "elementwise/quantize.h"

#include "device/device.h"

namespace batchllm::cuda {

inline void require(const Status &status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
}
inline void require(cudaError_t code) { require(check_cuda(code, "bench")); }
template <typename T> T require(Result<T> result) {
    require(result.status());
    return std::move(result).value();
}

inline DeviceMemory noise(int64_t count, uint64_t seed, float deviation) {
    DeviceMemory memory = require(DeviceMemory::create(2 * count, "noise"));
    require(launch_random(memory.data(), DType::bf16, count, 0, deviation, seed, nullptr));
    return memory;
}
template <typename T> DeviceMemory upload(const std::vector<T> &values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    DeviceMemory memory = require(DeviceMemory::create(bytes, "a list"));
    require(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(T),
                       cudaMemcpyHostToDevice));
    return memory;
}

// Milliseconds per launch over `times` launches, not counting the first.
template <typename Launch> float time_launches(int times, const Launch &launch) {
    const Event begin = require(Event::create(true)), end = require(Event::create(true));
    launch();
    require(cudaEventRecord(begin, nullptr));
    for (int i = 0; i < times; ++i) launch();
    require(cudaEventRecord(end, nullptr));
    require(cudaEventSynchronize(end));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    return milliseconds / static_cast<float>(times);
}

// Microseconds of each call, which is passed the number of a layer. Calls take turns for about so many seconds each, so that all
// run at the same clock; those of a while at the beginning do not count.
inline std::vector<double> time_in_turn(const std::vector<std::function<void(int)>> &calls,
                                        int layers, double seconds) {
    constexpr int rounds = 4;
    std::vector<double> total(calls.size());
    std::vector<int> times(calls.size());
    double all = 0;
    while (all < seconds * static_cast<double>(calls.size())) {
        for (size_t i = 0; i < calls.size(); ++i) {
            const double took = 1e-3 * rounds * static_cast<double>(time_launches(rounds, [&] {
                                    for (int layer = 0; layer < layers; ++layer) calls[i](layer);
                                }));
            all += took;
            if (all < 0.3 * seconds) continue;
            total[i] += took;
            times[i] += rounds * layers;
        }
    }
    for (size_t i = 0; i < calls.size(); ++i) total[i] *= 1e6 / times[i];
    return total;
}

inline double copy_rate() { // bytes read and written per second
    constexpr int64_t kBytes = int64_t{2} << 30;
    const DeviceMemory from = require(zeroed_memory(kBytes, "copied"));
    const DeviceMemory to = require(zeroed_memory(kBytes, "copied"));
    const float took = time_launches(10, [&] {
        require(cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(kBytes),
                                cudaMemcpyDeviceToDevice, nullptr));
    });
    return 2e3 * static_cast<double>(kBytes) / static_cast<double>(took);
}

// Rows of noise in e4m3, each scaled by its maximum.
inline DeviceMemory noise_in_e4m3(int64_t rows, int32_t width, uint64_t seed, float deviation) {
    constexpr int64_t at_once = 65536;
    DeviceMemory memory = require(DeviceMemory::create(rows * width, "noise"));
    const DeviceMemory scales = require(DeviceMemory::create(4 * at_once, "scales"));
    const DeviceMemory whole = noise(std::min(rows, at_once) * width, seed, deviation);
    for (int64_t row = 0; row < rows; row += at_once) {
        const QuantizeArguments arguments{DType::bf16,
                                          whole.data(),
                                          memory.data() + row * width,
                                          {scales.as<float>()},
                                          static_cast<int32_t>(std::min(at_once, rows - row)),
                                          width};
        require(launch_quantize_rows(arguments, nullptr));
    }
    require(cudaDeviceSynchronize());
    return memory;
}

} // namespace batchllm::cuda
