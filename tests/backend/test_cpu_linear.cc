// Matrix products of the CPU backend that are reproducible: a row's results are the same bits in any place and among any
// others.
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "base/narrow_floats.h"
#include "seed.h"

// Last: it defines macros with the names of members of the standard library.
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;

namespace {

constexpr int64_t kMost = 160;

// [rows, columns] of a type.
std::vector<std::byte> at_random(DType type, int64_t count, std::mt19937_64 *random) {
    std::normal_distribution<float> normal;
    std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(type)));
    for (int64_t i = 0; i < count; ++i) {
        const float x = normal(*random);
        const uint16_t bits = float_to_bfloat16(x);
        const void *from = type == DType::f32 ? static_cast<const void *>(&x) : &bits;
        std::memcpy(bytes.data() + i * dtype_bytes(type), from,
                    static_cast<size_t>(dtype_bytes(type)));
    }
    return bytes;
}

void a_row_is_the_same_bits_among_any_rows(void **) {
    std::mt19937_64 random(seed_of_run());
    ThreadPool pool(2);
    for (const DType type : {DType::f32, DType::bf16}) {
        if (type == DType::bf16 && !isa_runs_here(Isa::avx512_bf16)) continue;
        auto linear = Linear::create(type, &pool, true);
        assert_true(linear.ok());
        // Few rows of weights say little of the order of sums: a gate of a shared expert has one.
        for (const int64_t n : {1, 2, 7, 66}) {
            for (const int64_t k : {24, 40, 64, 200, 1000}) {
                const std::vector<std::byte> w = at_random(type, n * k, &random);
                Tensor tensor;
                tensor.rows = n;
                tensor.columns = k;
                tensor.dtype = type;
                tensor.data = w.data();
                const auto packed = (*linear)->pack(tensor);
                assert_true(packed.ok());
                const int64_t room = Linear::rounded_rows(kMost);
                std::vector<std::byte> x = at_random(type, (room + kMost) * k, &random);
                const auto run = [&](int64_t first, int64_t rows) {
                    std::vector<float> y(static_cast<size_t>(rows * n));
                    const Status status = (*linear)->run(
                        *packed, x.data() + first * k * dtype_bytes(type), rows,
                        [&](const Linear::Tile &tile) {
                            for (int64_t r = 0; r < tile.rows; ++r) {
                                std::copy_n(tile.data + r * tile.width, tile.width,
                                            y.data() + (tile.row + r) * n + tile.column);
                            }
                        });
                    assert_true(status.ok());
                    return y;
                };
                const std::vector<float> all = run(0, kMost);
                for (const int64_t rows : {1, 2, 3, 6, 9, 14, 20, 33, 61, 130}) {
                    const auto first = static_cast<int64_t>(random() % (kMost - rows + 1));
                    const std::vector<float> some = run(first, rows);
                    assert_memory_equal(some.data(), all.data() + first * n,
                                        some.size() * sizeof(float));
                }
            }
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_same_bits_among_any_rows),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
