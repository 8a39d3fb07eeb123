// The thread pool: each index once, on threads in range, even if threads come late.
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
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

// Runs loops of changing length; true if each index was seen once, by a thread in range, before the
// call returned. The counts are plain integers: only the pool synchronizes their use.
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
        // Longer than a thread spins for the next loop, so that it has gone to sleep.
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

struct Fault {
    int64_t index;
};

// A loop whose tasks throw at the indices given by `throws`: true if the caller got one of the
// exceptions, and no task was still running by then.
template <typename Throws> bool the_fault_reaches_the_caller(ThreadPool *pool, Throws throws) {
    std::atomic<int> running{0};
    try {
        // Larger than a std::function stores in place, and destroyed after the loop.
        std::array<int64_t, 16> lent{};
        pool->parallel_for(200, [&running, lent, throws](int64_t i, int32_t thread) {
            struct Inside {
                std::atomic<int> *count;
                ~Inside() { --*count; }
            } const inside{(++running, &running)};
            if (throws(i, thread)) throw Fault{i + lent[static_cast<size_t>(i % 16)]};
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        });
    } catch (const Fault &fault) {
        return running.load() == 0 && fault.index >= 0 && fault.index < 200;
    }
    return false;
}

void what_a_task_throws_reaches_the_caller_and_no_thread_outlives_the_loop(void **) {
    for (int32_t threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 50; ++round) {
            assert_true(
                the_fault_reaches_the_caller(&pool, [](int64_t i, int32_t) { return i == 3; }));
            assert_true(the_fault_reaches_the_caller(&pool, [](int64_t, int32_t) { return true; }));
            assert_true(the_fault_reaches_the_caller(
                &pool, [](int64_t i, int32_t thread) { return thread == 0 && i > 0; }));
            // The pool is still usable.
            std::atomic<int64_t> sum{0};
            pool.parallel_for(100, [&](int64_t i, int32_t) { sum += i; });
            assert_int_equal(sum.load(), 4950);
        }
    }
}

void a_throw_on_a_worker_alone_reaches_the_caller(void **) {
    ThreadPool pool(2);
    bool thrown = false;
    for (int round = 0; round < 200 && !thrown; ++round) {
        std::atomic<bool> worker_came{false};
        try {
            pool.parallel_for(2000, [&](int64_t, int32_t thread) {
                if (thread == 1) {
                    worker_came = true;
                    throw std::runtime_error("on a worker");
                }
                std::this_thread::sleep_for(std::chrono::microseconds(5));
            });
        } catch (const std::runtime_error &fault) {
            thrown = std::string(fault.what()) == "on a worker";
        }
        assert_true(thrown == worker_came.load());
    }
    assert_true(thrown);
}

// Under a limit on the user's processes; root has none, so another user runs it.
void where_the_system_starts_no_more_threads_the_pool_has_fewer(void **) {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit none = {0, 0};
        if (geteuid() == 0 && setuid(65534) != 0) _exit(77);
        if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(77);
        ThreadPool pool(8);
        int64_t sum = 0;
        if (pool.size() == 1) pool.parallel_for(10, [&](int64_t i, int32_t) { sum += i; });
        _exit(sum == 45 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

void a_pool_takes_no_more_threads_than_the_most(void **) {
    ThreadPool pool(100000);
    assert_true(pool.size() <= ThreadPool::most_threads);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(each_index_is_taken_once_in_loops_without_a_pause),
        cmocka_unit_test(each_index_is_taken_once_when_threads_had_gone_to_sleep),
        cmocka_unit_test(several_pools_run_at_once),
        cmocka_unit_test(a_pool_that_was_never_used_ends),
        cmocka_unit_test(what_a_task_throws_reaches_the_caller_and_no_thread_outlives_the_loop),
        cmocka_unit_test(a_throw_on_a_worker_alone_reaches_the_caller),
        cmocka_unit_test(where_the_system_starts_no_more_threads_the_pool_has_fewer),
        cmocka_unit_test(a_pool_takes_no_more_threads_than_the_most),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
