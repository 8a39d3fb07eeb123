// kernel_tiles.h over tiles in memory. It asserts where the processor would fault.
#include "cpu_tables.h"

#if defined(__x86_64__)

#include <cstdlib>
#include <cstring>
#include <immintrin.h>

#include "base/narrow_floats.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define KERNEL_TARGET                                                                              \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))

namespace batchllm::cpu {
namespace {

#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/element_avx512_bf16.h"

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_tiles.h"

thread_local TileConfig config; // palette 0: no tiles
thread_local uint8_t tiles[8][16][64];

void demand(bool holds) {
    if (!holds) std::abort();
}
bool in_use(int tile) {
    return config.palette == 1 && config.rows[tile] > 0 && config.row_bytes[tile] > 0;
}

struct Tile {
    static void configure(const TileConfig &to) {
        for (int tile = 0; tile < 8; ++tile) {
            demand(to.rows[tile] <= 16 && to.row_bytes[tile] <= 64 && to.row_bytes[tile] % 4 == 0);
            demand((to.rows[tile] == 0) == (to.row_bytes[tile] == 0));
        }
        config = to;
        std::memset(tiles, 0, sizeof tiles);
    }
    static void release() { config = TileConfig{}; }
    template <int T> static void zero() {
        demand(in_use(T));
        std::memset(tiles[T], 0, sizeof tiles[T]);
    }
    template <int T> static void load(const void *from, int64_t stride) {
        demand(in_use(T));
        for (int64_t row = 0; row < config.rows[T]; ++row) {
            std::memcpy(tiles[T][row], static_cast<const char *>(from) + row * stride,
                        config.row_bytes[T]);
        }
    }
    template <int T> static void store(void *to, int64_t stride) {
        demand(in_use(T));
        for (int64_t row = 0; row < config.rows[T]; ++row) {
            std::memcpy(static_cast<char *>(to) + row * stride, tiles[T][row], config.row_bytes[T]);
        }
    }
    template <int C, int A, int B> static void multiply_add() {
        demand(in_use(C) && in_use(A) && in_use(B));
        demand(config.rows[C] == config.rows[A] && config.row_bytes[C] == config.row_bytes[B]);
        demand(config.row_bytes[A] == 4 * config.rows[B]);
        const auto number = [](const uint8_t *at) {
            uint16_t bits;
            std::memcpy(&bits, at, 2);
            return bfloat16_to_float(bits);
        };
        for (int m = 0; m < config.rows[C]; ++m) {
            for (int n = 0; n < config.row_bytes[C] / 4; ++n) {
                float sums[2] = {0, 0}, c;
                for (int k = 0; k < config.rows[B]; ++k) {
                    for (int i = 0; i < 2; ++i) {
                        sums[i] += number(tiles[A][m] + 4 * k + 2 * i) *
                                   number(tiles[B][k] + 4 * n + 2 * i);
                    }
                }
                std::memcpy(&c, tiles[C][m] + 4 * n, 4);
                c += sums[0] + sums[1];
                std::memcpy(tiles[C][m] + 4 * n, &c, 4);
            }
        }
    }
};

} // namespace
} // namespace batchllm::cpu

const batchllm::cpu::Kernels *emulated_tile_kernels() {
    using namespace batchllm::cpu;
    static const Kernels kernels = [] {
        Kernels table = *avx512_bf16_kernels();
        table.name = "amx (emulated)";
        table.attention = attend_by_tiles<Tile>;
        return table;
    }();
    return &kernels;
}

#else

const batchllm::cpu::Kernels *emulated_tile_kernels() { return nullptr; }

#endif
