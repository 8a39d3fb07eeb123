// Random numbers as a function of their purpose: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw:
// Parallel random numbers: as easy as 1, 2, 3; SC 2011), with the request as the key and the
// position as the counter.
#include <array>

#include "sample/sampling.h"

namespace batchllm {
namespace {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    constexpr uint64_t multiplier0 = 0xD2511F53;
    constexpr uint64_t multiplier1 = 0xCD9E8D57;
    constexpr uint32_t weyl0 = 0x9E3779B9;
    constexpr uint32_t weyl1 = 0xBB67AE85;
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = multiplier0 * counter[0];
        const uint64_t product1 = multiplier1 * counter[2];
        counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                   static_cast<uint32_t>(product1),
                   static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                   static_cast<uint32_t>(product0)};
        key[0] += weyl0;
        key[1] += weyl1;
    }
    return counter;
}

constexpr uint64_t join(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

// Mixes another word into a key, also with Philox: every bit of both counts.
uint64_t absorb(uint64_t key, uint64_t word, uint32_t place) {
    const auto out = philox({static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), place,
                             0x6b657931 /* apart from random_uniform's counters */},
                            {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
    return join(out[0], out[1]);
}

} // namespace

uint64_t random_key(uint64_t engine_seed, uint64_t row_seed, uint64_t tag, int32_t sample) {
    uint64_t key = absorb(engine_seed, row_seed, 1);
    key = absorb(key, tag, 2);
    return absorb(key, static_cast<uint32_t>(sample), 3);
}

double random_uniform(uint64_t key, int32_t position) {
    const auto out = philox({static_cast<uint32_t>(position), 0, 0, 0},
                            {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
    return static_cast<double>(join(out[0], out[1]) >> 11) * 0x1p-53;
}

} // namespace batchllm
