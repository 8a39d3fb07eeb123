// The thread pool: each index once, on threads in range, whoever comes late.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/thread_pool.h"

// Last: it defines macros with the names of members of the standard library.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

using namespace batchllm;

namespace {

// Runs loops of changing length; true when each index was seen once, by a thread in range, before
// the call returned. The counts are plain integers: the pool alone orders their use.
bool loops_are_right(int32_t threads, int rounds, bool pauses) {
    ThreadPool pool(threads);
    if (pool.size() != threads) return false;
    for (int round = 0; round < rounds; ++round) {
        const int64_t count = round % 7 == 0 ? 0 : round % 13;
        std::vector<int32_t> seen(static_cast<size_t>(count), 0);
        std::vector<int64_t> sums(static_cast<size_t>(threads), 0);
        std::atomic<bool> in_range{true};
        pool.parallel_for(count, [&](int64_t i, int32_t thread) {
            if (thread < 0 || thread >= threads) {
                in_range = false;
                return;
            }
            seen[i] += 1;
            sums[thread] += i;
        });
        int64_t sum = 0;
        for (int64_t part : sums) sum += part;
        for (int32_t times : seen) {
            if (times != 1) return false;
        }
        if (!in_range || sum != count * (count - 1) / 2) return false;
        // Longer than a thread looks out for the next loop, so that it has gone to sleep.
        if (pauses) std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
    return true;
}

void each_index_is_taken_once_in_loops_without_a_pause(void **) {
    assert_true(loops_are_right(1, 100, false));
    assert_true(loops_are_right(2, 4000, false));
    assert_true(loops_are_right(5, 1000, false));
}

void each_index_is_taken_once_when_threads_had_gone_to_sleep(void **) {
    assert_true(loops_are_right(2, 100, true));
    assert_true(loops_are_right(4, 100, true));
}

void several_pools_run_at_once(void **) {
    std::atomic<int> right{0};
    {
        std::vector<std::thread> callers;
        for (int i = 0; i < 3; ++i) {
            callers.emplace_back([&] { right += loops_are_right(3, 300, false) ? 1 : 0; });
        }
        for (std::thread &caller : callers) caller.join();
    }
    assert_int_equal(right.load(), 3);
}

void a_pool_that_was_never_used_ends(void **) {
    for (int32_t threads = 1; threads < 6; ++threads) {
        ThreadPool pool(threads);
        assert_int_equal(pool.size(), threads);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(each_index_is_taken_once_in_loops_without_a_pause),
        cmocka_unit_test(each_index_is_taken_once_when_threads_had_gone_to_sleep),
        cmocka_unit_test(several_pools_run_at_once),
        cmocka_unit_test(a_pool_that_was_never_used_ends),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
