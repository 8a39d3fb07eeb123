#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "../tests/helpers/cpu_rows.h"
#include "backend/cpu/forward.h"
#include "cpu_bench.h"

namespace batchllm::cpu {
namespace {

using testing::Row;
using testing::RowScheduler;

// Rows per CPU second, which other load on the machine does not change.
double run_job(const RandomModel &random_model, const CpuBenchOptions &options, bool sharing,
               int32_t rows_wanted, bool reproducible = false) {
    const Model &model = random_model.model;
    std::mt19937_64 random(4);
    std::uniform_int_distribution<int32_t> id(0, model.vocabulary - 1);
    std::vector<Row> rows;
    while (static_cast<int32_t>(rows.size()) < rows_wanted) {
        std::vector<int32_t> prefix(2000);
        for (int32_t &t : prefix) t = id(random);
        for (int32_t r = 0; r < 16 && static_cast<int32_t>(rows.size()) < rows_wanted; ++r) {
            Row row;
            row.prompt = prefix;
            for (int32_t i = 0; i < 200; ++i) row.prompt.push_back(id(random));
            row.max_tokens = 32;
            rows.push_back(row);
        }
    }
    ThreadPool pool(options.threads);
    const Kernels &kernels = options.table();
    const int64_t step_tokens = 512;
    auto created = Forward::create(model, kernels, &pool, step_tokens, reproducible);
    check(created.status());
    Forward &forward = **created;
    auto pages = KvPages::create(model, options.type, 16, int64_t{3} << 30);
    check(pages.status());
    const int64_t page_count = pages->pages();
    check(forward.take_pages(std::move(pages).value()));

    RowScheduler scheduler(&rows, sharing, 16, page_count, step_tokens, model.kv_groups.size());
    if (model.state_size() > 0) {
        auto states = StatePool::create(model, DType::f32, scheduler.state_slots());
        check(states.status());
        forward.take_states(std::move(states).value());
    }
    TokenBatch batch;
    std::vector<int32_t> logits_rows, wanted, tokens;
    std::vector<float> logits(static_cast<size_t>(64 * model.vocabulary));
    const auto start = Clock::now();
    const std::clock_t start_clock = std::clock();
    while (scheduler.next(&batch, &logits_rows)) {
        wanted.clear();
        for (const OutputRow &row : batch.outputs) wanted.push_back(row.token);
        check(forward.run(batch, wanted));
        tokens.clear();
        for (size_t first = 0; first < wanted.size(); first += 64) {
            const size_t count = std::min<size_t>(64, wanted.size() - first);
            check(forward.logits(static_cast<int64_t>(first), static_cast<int64_t>(count),
                                 logits.data()));
            for (size_t i = 0; i < count; ++i) {
                const float *row = logits.data() + i * static_cast<size_t>(model.vocabulary);
                tokens.push_back(
                    static_cast<int32_t>(std::max_element(row, row + model.vocabulary) - row));
            }
        }
        scheduler.finish(logits_rows, tokens);
    }
    const double seconds = seconds_since(start);
    const double rate = static_cast<double>(rows.size()) / seconds;
    const PartSeconds &s = forward.seconds();
    const double cpu_seconds = static_cast<double>(std::clock() - start_clock) / CLOCKS_PER_SEC;
    std::printf(
        "  %-10s %3zu rows  %5.2f rows/s  %6.2f s  %7lld tokens  %5lld steps  %7.0f tokens/s  "
        "%.2f CPU seconds\n",
        sharing ? "sharing" : "unshared", rows.size(), rate, seconds,
        static_cast<long long>(scheduler.tokens()), static_cast<long long>(scheduler.steps()),
        static_cast<double>(scheduler.tokens()) / seconds, cpu_seconds);
    std::printf(
        "    seconds: qkv %.2f  output %.2f  gate+up %.2f  down %.2f  head %.2f | attention "
        "%.2f  convolutions %.2f  norm %.2f  rope and KV %.2f  prepare %.2f  rest %.2f\n",
        s.qkv, s.output, s.gate_up, s.down, s.head, s.attention, s.convolution, s.norm, s.rope,
        s.prepare,
        seconds - s.linear() - s.attention - s.convolution - s.norm - s.rope - s.prepare);
    return static_cast<double>(rows.size()) / cpu_seconds;
}

} // namespace

void bench_steps(const RandomModel &random_model, const CpuBenchOptions &options) {
    std::printf("prefix 2000 / own 200 / 16 rows a prefix / 32 new, %d prefixes, %s\n",
                options.groups, dtype_name(options.type));
    const double shared = run_job(random_model, options, true, 16 * options.groups);
    if (options.reproducible) {
        std::printf("  reproducible:\n");
        const double same = run_job(random_model, options, true, 16 * options.groups, true);
        std::printf("  reproducible does %.3f x the rows a CPU second\n", same / shared);
    }
    if (options.only_sharing) return;
    const double alone = run_job(random_model, options, false, 8 * options.groups);
    std::printf("  sharing does %.2f x the rows a CPU second\n", shared / alone);
}

} // namespace batchllm::cpu
