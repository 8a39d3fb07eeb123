// The seed of a test's random numbers, and how many cases it draws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

// A new seed in each run, which is printed; BATCHLLM_TEST_SEED in the environment repeats one.
inline uint64_t seed_of_run() {
    const char *given = std::getenv("BATCHLLM_TEST_SEED");
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed %llu (BATCHLLM_TEST_SEED)\n", static_cast<unsigned long long>(seed));
    return seed;
}

#ifdef BATCHLLM_SANITIZED
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// Sanitizers make everything five to ten times slower, so under them a test tries fewer of its
// cases, but of every kind.
constexpr int32_t cases(int32_t all, int32_t under_sanitizers) {
    return sanitized ? under_sanitizers : all;
}

// Whether a way of running leaves this model to the others: under sanitizers each takes every third.
constexpr bool left_to_other_ways(size_t model, size_t way) {
    return sanitized && model % 3 != way % 3;
}
