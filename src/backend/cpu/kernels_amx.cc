// bf16 kernels with attention's products on AMX. Everything else is AVX-512's, including in-order
// attention, because a tile sums the products of a row in an order of its own.
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

// GCC 12 reports the undefined registers in its own intrinsics as errors (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define KERNEL_TARGET                                                                              \
    __attribute__((                                                                                \
        target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,amx-tile,amx-bf16")))

namespace batchllm::cpu {
namespace {

#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/element_avx512_bf16.h"

#include "backend/cpu/kernel_attention.h"

#include "backend/cpu/kernel_tiles.h"

// Not with the intrinsics: GCC's need the tile number as a literal.
struct Tile {
    KERNEL_TARGET static void configure(const TileConfig &config) {
        asm volatile("ldtilecfg %0" ::"m"(config));
    }
    KERNEL_TARGET static void release() { asm volatile("tilerelease"); }
    template <int T> KERNEL_TARGET static void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(T));
    }
    template <int T> KERNEL_TARGET static void load(const void *from, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
    }
    template <int T> KERNEL_TARGET static void store(void *to, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
    }
    template <int C, int A, int B> KERNEL_TARGET static void multiply_add() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};

} // namespace

const Kernels *amx_kernels() {
    static const Kernels kernels = [] {
        Kernels table = *avx512_bf16_kernels();
        table.name = "amx";
        table.attention = attend_by_tiles<Tile>;
        return table;
    }();
    return &kernels;
}

} // namespace batchllm::cpu

#else

namespace batchllm::cpu {
const Kernels *amx_kernels() { return nullptr; }
} // namespace batchllm::cpu

#endif
