#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_pages.h"
#include "backend/cpu/worklist.h"
#include "base/thread_pool.h"
#include "cpu_bench.h"

namespace batchllm::cpu {
namespace {

// A batch's attention in one layer, and the work that it must do.
struct Timed {
    double seconds;
    double pairs; // pairs of a query token and a key
    double bytes; // of keys and values
};

Model one_layer(const Attention &shape) {
    Model model;
    model.layers.resize(1);
    model.layers[0].mixer = shape;
    place_keys_and_values(&model);
    return model;
}

// One layer's attention for a batch of rows over random keys and values.
struct AttentionBench {
    Model model; // a model of one layer
    const Attention &layer;
    const Kernels &kernels;
    ThreadPool pool;
    KvPages pages;
    int32_t stretch = 0; // as in CpuWorklistOptions

    AttentionBench(const Attention &shape, const CpuBenchOptions &options)
        : model(one_layer(shape)), layer(*model.layers[0].attention()), kernels(options.table()),
          pool(options.threads) {
        auto made = KvPages::create(model, options.type, 16, int64_t{256} << 20);
        check(made.status());
        pages = std::move(made).value();
        std::mt19937_64 random(2);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<size_t>(layer.head_dim));
        for (int32_t page = 0; page < pages.pages(); ++page) {
            for (int32_t h = 0; h < layer.kv_heads; ++h) {
                for (int32_t slot = 0; slot < 16; ++slot) {
                    if (slot % 4 == 0) {
                        for (float &v : x) v = normal(random);
                    }
                    kernels.store_key(x.data(), layer.head_dim, padded_head_dim(layer.head_dim),
                                      slot, pages.keys(layer, page, h, 0));
                    kernels.store_value(x.data(), layer.head_dim, padded_head_dim(layer.head_dim),
                                        slot, pages.values(layer, page, h, 0));
                }
            }
        }
    }

    // Times `rows` rows with `own` stored tokens each, the last `count` of which are queries, with
    // or without a shared prefix.
    Timed time(int32_t prefix, int32_t rows, int32_t own, int32_t count) {
        TokenBatch batch;
        batch.pages.resize(1);
        std::vector<int32_t> order(static_cast<size_t>(pages.pages()));
        std::iota(order.begin(), order.end(), 0);
        std::mt19937_64 random(3);
        std::shuffle(order.begin(), order.end(), random);
        int64_t next = 0;
        const auto add = [&](int32_t parent, int32_t start, int32_t length, int32_t tokens) {
            ContextNode node{};
            node.parent = parent;
            node.start = start;
            node.length = length;
            node.token_begin = static_cast<int32_t>(batch.tokens.size());
            node.token_count = tokens;
            GroupPages &group = batch.pages[0];
            group.nodes.push_back({static_cast<int32_t>(group.list.size()), 0});
            for (int32_t i = 0; i < (length + 15) / 16; ++i) {
                group.list.push_back(order[static_cast<size_t>(next++ % pages.pages())]);
            }
            for (int32_t i = 0; i < tokens; ++i) {
                batch.tokens.push_back(0);
                batch.positions.push_back(start + length - tokens + i);
            }
            batch.nodes.push_back(node);
        };
        if (prefix > 0) add(-1, 0, prefix, 0);
        for (int32_t r = 0; r < rows; ++r) add(prefix > 0 ? 0 : -1, prefix, own, count);
        CpuWorklist list;
        build_worklist(batch, {},
                       {.gqa_ratio = layer.gqa_ratio(),
                        .kv_heads = layer.kv_heads,
                        .threads = pool.size(),
                        .stretch = stretch},
                       &list);
        const double pairs = static_cast<double>(rows) * count * (prefix + own - (count - 1) / 2.0);
        const double kv = 2.0 * layer.kv_heads * layer.head_dim *
                          static_cast<double>(dtype_bytes(kernels.element));
        const double bytes = kv * (prefix + static_cast<double>(rows) * own);

        const size_t tokens = batch.tokens.size();
        std::vector<uint16_t> queries(tokens * static_cast<size_t>(layer.heads) *
                                          static_cast<size_t>(layer.head_dim) * 2,
                                      0x3C80);
        std::vector<std::byte> out(queries.size() * 2);
        PagedAttention attention(kernels, pages, &pool);
        const double seconds = shortest_seconds(
            [&] { check(attention.run(batch, list, layer, {}, queries.data(), out.data())); });
        return {seconds, pairs, bytes};
    }
};

} // namespace

void bench_attention(const RandomModel &random_model, const CpuBenchOptions &options) {
    AttentionBench bench(*random_model.model.layers[0].attention(), options);
    const Attention &c = bench.layer;
    const double flops_of_pair = 4.0 * c.heads * c.head_dim;
    std::printf("attention of a layer, %s, %s, %d threads, heads %d/%d of %d\n", bench.kernels.name,
                dtype_name(options.type), bench.pool.size(), c.heads, c.kv_heads, c.head_dim);
    const struct {
        const char *name;
        int32_t prefix, rows, own, count;
        int32_t unshared; // context of the same row without sharing; 0: nothing to compare
    } cases[] = {
        {"prefill, 512 tokens, causal", 0, 1, 512, 512, 0},
        {"prefill, last 512 of 2000", 0, 1, 2000, 512, 0},
        {"prefill, 2 x 200 behind a prefix of 2000", 2000, 2, 200, 200, 2200},
        {"decode, 16 rows x 2216", 0, 16, 2216, 1, 0},
        {"decode, 64 rows x 216", 0, 64, 216, 1, 0},
        {"decode, 16 rows, prefix 2000, own 216", 2000, 16, 216, 1, 2216},
        {"decode, 64 rows, prefix 2000, own 216", 2000, 64, 216, 1, 2216},
        {"decode, 64 rows, prefix 2000, own 16", 2000, 64, 16, 1, 2016},
    };
    for (const auto &x : cases) {
        const auto [seconds, pairs, bytes] = bench.time(x.prefix, x.rows, x.own, x.count);
        std::printf("  %-42s %8.1f us  %6.1f GFLOP/s  %5.1f GB/s", x.name, seconds * 1e6,
                    1e-9 * pairs * flops_of_pair / seconds, 1e-9 * bytes / seconds);
        if (x.unshared > 0) {
            const double alone = bench.time(0, x.rows, x.unshared, x.count).seconds;
            std::printf("  unshared %8.1f us: %.1f x", alone * 1e6, alone / seconds);
        }
        if (options.reproducible) {
            bench.stretch = kStretchKeys;
            const double in_order = bench.time(x.prefix, x.rows, x.own, x.count).seconds;
            bench.stretch = 0;
            std::printf("  reproducible %8.1f us: %.2f x", in_order * 1e6, in_order / seconds);
        }
        std::printf("\n");
    }
}

} // namespace batchllm::cpu
