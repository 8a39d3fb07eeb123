// The seed of a test's random numbers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

// Another one in each run, and printed; BATCHLLM_TEST_SEED in the environment repeats one.
inline uint64_t seed_of_run() {
    const char *given = std::getenv("BATCHLLM_TEST_SEED");
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    std::printf("seed %llu (BATCHLLM_TEST_SEED)\n", static_cast<unsigned long long>(seed));
    return seed;
}
