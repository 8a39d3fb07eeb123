// Planning: time, and memory beyond the tokens.
//
//     bench/plan                    3,000 rows (under 10 ms on one core)
//     bench/plan --rows 1000000     1.5 billion tokens, 6 GB of memory (under 10 s, 200 bytes a
//                                   row)
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <new>
#include <xxhash.h>

#include "clock.h"
#include "job_options.h"
#include "plan/plan_file.h"

namespace {

// Bytes allocated by operator new and not yet freed. One thread.
size_t allocated_now = 0, allocated_most = 0;

} // namespace

void *operator new(size_t bytes) {
    void *memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    allocated_now += malloc_usable_size(memory);
    allocated_most = std::max(allocated_most, allocated_now);
    return memory;
}
void operator delete(void *memory) noexcept {
    if (memory == nullptr) return;
    allocated_now -= malloc_usable_size(memory);
    std::free(memory);
}
void operator delete(void *memory, size_t) noexcept { operator delete(memory); }

int main(int argc, char **argv) {
    using namespace batchllm;
    JobShape shape;
    PlanOptions options;
    int repeats = 0;
    CLI::App app("Times planning on made-up rows.");
    add_shape_options(&app, &shape);
    app.add_option("--repeats", repeats, "runs of which the fastest counts (0: by size)");
    CLI11_PARSE(app, argc, argv);
    if (repeats < 1) repeats = shape.rows > 100000 ? 1 : 20;

    const JobRows job = make_job_rows(shape);
    const auto rows = static_cast<double>(job.rows.size());
    std::printf("%zu rows, %.3f billion tokens\n", job.rows.size(),
                static_cast<double>(job.tokens.size()) / 1e9);

    // The yardstick: reading every token once.
    double reading = 1e9;
    uint64_t sum = 0;
    for (int i = 0; i < repeats; ++i) {
        const auto start = Clock::now();
        for (const TokenRow &row : job.rows)
            sum += token_fingerprint({row.tokens, static_cast<size_t>(row.length)}, row.salt);
        reading = std::min(reading, seconds_since(start));
    }
    std::printf("fingerprints alone: %.2f ms (%.1f GB/s)%s\n", reading * 1e3,
                static_cast<double>(job.tokens.size()) * 4 / reading / 1e9, sum == 0 ? " " : "");
    std::printf("%-8s %6s %12s %10s %10s %9s %10s\n", "enlarge", "levels", "ms", "x reading",
                "bytes/row", "groups", "saving");

    const struct {
        const char *name;
        int32_t enlarge, levels;
    } kinds[] = {{"none", BATCHLLM_ENLARGE_NONE, 1},
                 {"paper", BATCHLLM_ENLARGE_PAPER, 1},
                 {"optimal", BATCHLLM_ENLARGE_OPTIMAL, 1},
                 {"optimal", BATCHLLM_ENLARGE_OPTIMAL, 2}};
    Plan last;
    for (const auto &kind : kinds) {
        options.enlarge = kind.enlarge;
        options.levels = kind.levels;
        double best = 1e9;
        size_t bytes = 0;
        for (int i = 0; i < repeats; ++i) {
            last = Plan();
            const size_t before = allocated_most = allocated_now;
            auto plan = make_plan(job.rows, {}, options, nullptr);
            if (!plan.ok()) {
                std::fprintf(stderr, "%s\n", plan.status().message().c_str());
                return 1;
            }
            bytes = allocated_most - before;
            last = std::move(plan).value();
            best = std::min(best, last.seconds);
        }
        std::printf("%-8s %6d %12.2f %10.2f %10.1f %9zu %9.1f%%\n", kind.name, kind.levels,
                    best * 1e3, best / reading, static_cast<double>(bytes) / rows,
                    last.groups.size(), 100 * last.saving_ratio());
    }

    double best_again = 1e9;
    int64_t kept = 0;
    for (int i = 0; i < repeats; ++i) {
        const Plan again = make_plan(job.rows, {}, options, &last).value();
        best_again = std::min(best_again, again.seconds);
        kept = again.reused_rows;
    }
    std::printf("from the same plan: %.2f ms, %lld rows kept\n", best_again * 1e3,
                static_cast<long long>(kept));
    auto start = Clock::now();
    const std::string file = write_plan(last).value();
    const double writing = seconds_since(start);
    start = Clock::now();
    const auto read = read_plan(std::as_bytes(std::span(file.data(), file.size())));
    std::printf("plan file: %.1f bytes a row, written in %.2f ms, read in %.2f ms%s\n",
                static_cast<double>(file.size()) / rows, writing * 1e3, seconds_since(start) * 1e3,
                read.ok() ? "" : " (WRONG)");
    return read.ok() ? 0 : 1;
}
