// Matrix products of the CPU backend: when they are reproducible, a row's results are the same bits in any place and among
// any others; memory that ran out for one is no error of later ones.
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <pthread.h>
#include <random>
#include <sys/time.h>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/linear.h"
#include "base/narrow_floats.h"
#include "seed.h"

// Last: it defines macros with the names of members of the standard library.
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;

// Allocations of all threads, oneDNN's included, before one fails; below 0: none does.
static std::atomic<int64_t> allocations_left = -1;

void *operator new(size_t size) {
    if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
    void *block = std::malloc(size == 0 ? 1 : size);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}
void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, size_t) noexcept { std::free(block); }

// LeakSanitizer asks for it: oneDNN never frees what it had of a primitive for which memory runs out.
extern "C" const char *__lsan_default_suppressions() { return "leak:libdnnl.so\n"; }

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

// On processors with AVX2 alone, oneDNN's kernels for f32 use the stack pointer for something else; on others this may hold
// by itself. Whether handlers run on the thread's stack, as they may while oneDNN does not use the stack pointer for something else.
struct Stack {
    std::uintptr_t low = 0, high = 0;

    static Stack of_this_thread() {
        pthread_attr_t attributes;
        assert_int_equal(pthread_getattr_np(pthread_self(), &attributes), 0);
        void *address = nullptr;
        size_t size = 0;
        pthread_attr_getstack(&attributes, &address, &size);
        pthread_attr_destroy(&attributes);
        const auto low = reinterpret_cast<std::uintptr_t>(address);
        return {low, low + size};
    }
};
Stack own_stack;
std::atomic<int> handled, elsewhere;

void note_stack(int) {
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    ++handled;
    if (here < own_stack.low || here >= own_stack.high) ++elsewhere;
}

void a_signals_handler_runs_on_the_stack_of_its_thread(void **) {
    own_stack = Stack::of_this_thread();
    handled = elsewhere = 0;
    std::mt19937_64 random(seed_of_run());
    ThreadPool pool(1);
    auto linear = Linear::create(DType::f32, &pool, false);
    assert_true(linear.ok());
    constexpr int64_t n = 512, k = 1024, rows = 64;
    const std::vector<std::byte> w = at_random(DType::f32, n * k, &random);
    Tensor tensor;
    tensor.rows = n;
    tensor.columns = k;
    tensor.dtype = DType::f32;
    tensor.data = w.data();
    const auto packed = (*linear)->pack(tensor);
    assert_true(packed.ok());
    const std::vector<std::byte> x = at_random(DType::f32, Linear::rounded_rows(rows) * k, &random);

    struct sigaction action = {}, before = {};
    action.sa_handler = note_stack;
    action.sa_flags = SA_RESTART;
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    const itimerval often = {{0, 200}, {0, 200}}, never = {};
    assert_int_equal(setitimer(ITIMER_REAL, &often, nullptr), 0);
    while (handled < 500 && elsewhere == 0) {
        const Status status = (*linear)->run(*packed, x.data(), rows, [](const Linear::Tile &) {});
        if (!status.ok()) ++elsewhere;
    }
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before, nullptr);
    assert_int_equal(elsewhere, 0);
}

// The sum of the first row of a product of ones.
Result<float> product(Linear *linear, const Tensor &tensor, const std::vector<std::byte> &x) {
    ASSIGN_OR_RETURN(const PackedMatrix packed, linear->pack(tensor));
    float sum = 0;
    RETURN_IF_ERROR(linear->run(packed, x.data(), 1, [&](const Linear::Tile &tile) {
        for (int64_t i = 0; i < tile.width; ++i) sum += tile.data[i];
    }));
    return sum;
}

// One allocation after another fails. Each time the same product is computed right afterwards, by this Linear and by another
// one, which asks oneDNN for it again.
void a_product_works_once_there_is_memory_again(void **) {
    ThreadPool pool(1);
    for (const DType type : {DType::f32, DType::bf16}) {
        if (type == DType::bf16 && !isa_runs_here(Isa::avx512_bf16)) continue;
        auto linear = Linear::create(type, &pool);
        assert_true(linear.ok());
        int64_t failures = 0;
        for (bool failed = true; failed; failures += failed) {
            constexpr int64_t n = 70;
            const int64_t k = 32 + failures; // so that no earlier product has the same primitives
            std::vector<std::byte> ones(
                static_cast<size_t>(Linear::rounded_rows(n) * k * dtype_bytes(type)));
            for (size_t i = 0; i < ones.size(); i += static_cast<size_t>(dtype_bytes(type))) {
                const float one = 1;
                const uint16_t bits = float_to_bfloat16(one);
                if (type == DType::f32) std::memcpy(ones.data() + i, &one, 4);
                if (type == DType::bf16) std::memcpy(ones.data() + i, &bits, 2);
            }
            Tensor tensor;
            tensor.rows = n;
            tensor.columns = k;
            tensor.dtype = type;
            tensor.data = ones.data();
            allocations_left = failures;
            try {
                const Result<float> first = product(linear->get(), tensor, ones);
                allocations_left = -1;
                failed = !first.ok();
                if (failed) assert_int_equal(first.status().code(), BATCHLLM_ERROR_OUT_OF_MEMORY);
            } catch (const std::bad_alloc &) {
                allocations_left = -1;
            }
            auto another = Linear::create(type, &pool);
            assert_true(another.ok());
            for (Linear *again : {linear->get(), another->get()}) {
                const Result<float> sum = product(again, tensor, ones);
                if (!sum.ok()) fail_msg("%s", sum.status().message().c_str());
                assert_float_equal(*sum, static_cast<float>(n * k), 0);
            }
        }
        assert_true(failures > 20);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_same_bits_among_any_rows),
        cmocka_unit_test(a_product_works_once_there_is_memory_again),
        cmocka_unit_test(a_signals_handler_runs_on_the_stack_of_its_thread),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
