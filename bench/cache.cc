// BatchLLM's first claim as an experiment: the saving ratio of an LRU block cache with rows in
// random order, compared with that of groups found ahead of time.
//
//     bench/cache                                  the job of KERNELS.md, "industry 1"
//     bench/cache --uneven --sharing 4             a job whose figures are near the paper's
#include <CLI/CLI.hpp>
#include <cstdio>

#include "block_cache.h"
#include "job_options.h"

int main(int argc, char **argv) {
    using namespace batchllm;
    JobShape shape;
    BlockCacheOptions cache;
    std::vector<int64_t> capacities;
    CLI::App app("Compares an LRU block cache with prefix groups.");
    add_shape_options(&app, &shape);
    app.add_option("--spread", shape.spread, "of lengths, standard deviation / mean");
    app.add_option("--capacity", capacities, "tokens of KV memory; several are tried in turn");
    app.add_option("--block", cache.block_tokens, "tokens a block");
    app.add_option("--running", cache.running, "most rows at once");
    app.add_option("--decode", cache.decode_tokens, "tokens generated a row");
    CLI11_PARSE(app, argc, argv);
    if (capacities.empty())
        capacities = {200000, 400000, 600000, 800000, 1200000, 1600000, 2400000};

    const JobRows job = make_job_rows(shape);
    std::printf("%zu rows, %zu tokens\n", job.rows.size(), job.tokens.size());
    for (const int64_t capacity : capacities) {
        cache.capacity_tokens = capacity;
        const BlockCacheResult result = BlockCache(cache).run(job.rows);
        std::printf("LRU cache of %8lld tokens    %5.1f%%\n", static_cast<long long>(capacity),
                    100 * result.saving_ratio());
    }
    const struct {
        const char *name;
        int32_t enlarge, levels;
    } kinds[] = {{"groups, Algorithm 1", BATCHLLM_ENLARGE_PAPER, 1},
                 {"groups, optimal", BATCHLLM_ENLARGE_OPTIMAL, 1},
                 {"groups, optimal, two levels", BATCHLLM_ENLARGE_OPTIMAL, 2}};
    for (const auto &kind : kinds) {
        PlanOptions options;
        options.enlarge = kind.enlarge;
        options.levels = kind.levels;
        const Plan plan = make_plan(job.rows, {}, options, nullptr).value();
        std::printf("%-28s   %5.1f%%\n", kind.name, 100 * plan.saving_ratio());
    }
    return 0;
}
