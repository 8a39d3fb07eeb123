// The CPU backend's speed, each figure beside what it is held against in the same run.
//
//   cpu [linear] [attention] [steps] [--threads N] [--type bf16|f32] [--groups N] [--only-sharing]
//
// linear:    matrix products at the shapes of a 100M-parameter Llama, as a share of oneDNN's own rate
//            for the whole product on the same number of threads.
// attention: prefill, decode, and decode on a shared prefix; rates, and against the same work unshared.
// steps:     prefix 2000 / own 200 / 16 rows a prefix / 32 new tokens, with and without sharing: rows
//            a second, and the seconds by part.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include <dnnl.hpp>

#include "../tests/cpu_rows.h"
#include "backend/cpu/bfloat16.h"
#include "backend/cpu/forward.h"
#include "backend/cpu/processor.h"

extern "C" {
__attribute__((weak)) void omp_set_num_threads(int threads);
}

using namespace batchllm;
using namespace batchllm::cpu;
using batchllm::testing::Row;
using batchllm::testing::RowScheduler;

namespace {

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Seconds of one call: the shortest of those made within a fifth of a second, after one to warm up.
// The shortest, because whatever else runs on the machine can only lengthen a call.
template <typename F> double shortest_seconds(F call) {
    call();
    double shortest = 1e9;
    const double start = now();
    for (int calls = 0; calls < 5 || now() - start < 0.2; ++calls) {
        const double before = now();
        call();
        shortest = std::min(shortest, now() - before);
    }
    return shortest;
}

void check(const Status &status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    std::exit(1);
}

// A Llama of about 100M parameters with random weights; owns their memory.
struct RandomModel {
    Model model;
    std::vector<std::vector<uint16_t>> weights;
    std::mt19937_64 random{1};

    Tensor tensor(int64_t rows, int64_t columns, float scale) {
        std::vector<uint16_t> &data = weights.emplace_back(static_cast<size_t>(rows * columns));
        std::uniform_real_distribution<float> uniform(-scale, scale);
        for (uint16_t &x : data) x = float_to_bfloat16(uniform(random));
        return {DType::bf16, reinterpret_cast<const std::byte *>(data.data()), rows, columns};
    }
    Tensor ones(int64_t n) {
        std::vector<uint16_t> &data = weights.emplace_back(static_cast<size_t>(n));
        for (uint16_t &x : data) x = float_to_bfloat16(1);
        return {DType::bf16, reinterpret_cast<const std::byte *>(data.data()), n, 1};
    }
    RandomModel() {
        ModelConfig &c = model.config;
        c.vocabulary = 32000;
        c.hidden = 768;
        c.intermediate = 2048;
        c.layers = 12;
        c.heads = 12;
        c.kv_heads = 4;
        c.head_dim = 64;
        c.max_positions = 8192;
        const float scale = 0.05f;
        model.embedding = tensor(c.vocabulary, c.hidden, 1);
        for (int32_t l = 0; l < c.layers; ++l) {
            LayerWeights layer;
            layer.input_norm = ones(c.hidden);
            layer.q = tensor(c.heads * c.head_dim, c.hidden, scale);
            layer.k = tensor(c.kv_heads * c.head_dim, c.hidden, scale);
            layer.v = tensor(c.kv_heads * c.head_dim, c.hidden, scale);
            layer.o = tensor(c.hidden, c.heads * c.head_dim, scale);
            layer.post_attention_norm = ones(c.hidden);
            layer.gate = tensor(c.intermediate, c.hidden, scale);
            layer.up = tensor(c.intermediate, c.hidden, scale);
            layer.down = tensor(c.hidden, c.intermediate, scale);
            model.layers.push_back(layer);
        }
        model.final_norm = ones(c.hidden);
        model.lm_head = tensor(c.vocabulary, c.hidden, scale);
    }
};

struct Options {
    bool linear = false, attention = false, steps = false, only_sharing = false;
    int32_t threads = 0;
    DType type = DType::f32;
    int32_t groups = 4;
};

// oneDNN's own rate for the whole product, its own threads, weights in its own layout.
double onednn_seconds(int64_t m, int64_t n, int64_t k, DType type, int32_t threads) {
    using namespace dnnl;
    if (omp_set_num_threads != nullptr) omp_set_num_threads(threads);
    const auto data_type = type == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    engine cpu(engine::kind::cpu, 0);
    stream order(cpu);
    matmul::primitive_desc description(
        matmul::desc({{m, k}, data_type, memory::format_tag::ab},
                     {{k, n}, data_type, memory::format_tag::any},
                     {{m, n}, memory::data_type::f32, memory::format_tag::ab}),
        cpu);
    matmul product(description);
    memory x(description.src_desc(), cpu), w(description.weights_desc(), cpu),
        y(description.dst_desc(), cpu);
    std::memset(x.get_data_handle(), 0x3C, description.src_desc().get_size());
    std::memset(w.get_data_handle(), 0x3C, description.weights_desc().get_size());
    const double seconds = shortest_seconds([&] {
        product.execute(order, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
        order.wait();
    });
    if (omp_set_num_threads != nullptr) omp_set_num_threads(1);
    return seconds;
}

void bench_linear(const RandomModel &random_model, const Options &options) {
    ThreadPool pool(options.threads);
    auto created = Linear::create(options.type, &pool);
    check(created.status());
    Linear &linear = **created;
    const LayerWeights &layer = random_model.model.layers[0];
    const Tensor qkv[] = {layer.q, layer.k, layer.v};
    const Tensor gate_up[] = {layer.gate, layer.up};
    const struct {
        const char *name;
        std::span<const Tensor> tensors;
        bool interleaved;
    } shapes[] = {{"qkv", qkv, false},
                  {"output", {&layer.o, 1}, false},
                  {"gate+up", gate_up, true},
                  {"down", {&layer.down, 1}, false},
                  {"head", {&random_model.model.lm_head, 1}, false}};
    std::printf("linear layers, %s, %d threads: GFLOP/s with their copies, oneDNN's own, share\n",
                dtype_name(options.type), pool.size());
    for (int64_t m : {16, 64, 512}) {
        double ours_all = 0, theirs_all = 0;
        for (const auto &shape : shapes) {
            auto packed = linear.pack(shape.tensors, shape.interleaved);
            check(packed.status());
            const int64_t n = packed->rows, k = packed->columns;
            std::vector<std::byte> x(
                static_cast<size_t>(Linear::rounded_rows(m) * k * dtype_bytes(options.type)),
                std::byte{0x3C});
            std::vector<float> y(static_cast<size_t>(m * n));
            const double ours = shortest_seconds([&] {
                check(linear.run(*packed, x.data(), m, [&](const Linear::Tile &tile) {
                    for (int64_t r = 0; r < tile.rows; ++r) {
                        std::memcpy(y.data() + (tile.row + r) * n + tile.column,
                                    tile.data + r * tile.width,
                                    static_cast<size_t>(tile.width) * 4);
                    }
                }));
            });
            const double theirs = onednn_seconds(m, n, k, options.type, pool.size());
            const double flops = 2e-9 * static_cast<double>(m * n * k);
            std::printf("  M %4lld  %-8s N %5lld K %4lld  %7.1f  %7.1f  %4.0f %%\n",
                        static_cast<long long>(m), shape.name, static_cast<long long>(n),
                        static_cast<long long>(k), flops / ours, flops / theirs,
                        100 * theirs / ours);
            const double times = std::strcmp(shape.name, "head") == 0 ? 1 : 12;
            ours_all += times * ours;
            theirs_all += times * theirs;
        }
        std::printf("  M %4lld  the model's pass: %.2f ms, oneDNN %.2f ms: %.0f %%\n",
                    static_cast<long long>(m), ours_all * 1e3, theirs_all * 1e3,
                    100 * theirs_all / ours_all);
    }
}

// Seconds of one layer's attention for a batch of rows on random keys and values.
struct AttentionBench {
    ModelConfig config;
    const Kernels &kernels;
    ThreadPool pool;
    KvPages pages;

    AttentionBench(const ModelConfig &c, const Options &options)
        : config(c), kernels(*kernels_for(best_isa(options.type), options.type)),
          pool(options.threads) {
        config.layers = 1;
        auto made = KvPages::create(config, options.type, 16, int64_t{256} << 20);
        check(made.status());
        pages = std::move(made).value();
        std::mt19937_64 random(2);
        std::normal_distribution<float> normal;
        std::vector<float> x(static_cast<size_t>(config.head_dim));
        for (int32_t page = 0; page < pages.pages(); ++page) {
            for (int32_t h = 0; h < config.kv_heads; ++h) {
                for (int32_t slot = 0; slot < 16; ++slot) {
                    if (slot % 4 == 0) {
                        for (float &v : x) v = normal(random);
                    }
                    kernels.store_key(x.data(), config.head_dim, padded_head_dim(config.head_dim),
                                      slot, pages.keys(0, page, h, 0));
                    kernels.store_value(x.data(), config.head_dim, padded_head_dim(config.head_dim),
                                        slot, pages.values(0, page, h, 0));
                }
            }
        }
    }

    // rows of (own tokens stored, of which the last `count` are queries), behind a prefix or not.
    double seconds(int32_t prefix, int32_t rows, int32_t own, int32_t count, double *pairs,
                   double *bytes) {
        TokenBatch batch;
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
            node.page_begin = static_cast<int32_t>(batch.pages.size());
            node.page_count = (length + 15) / 16;
            for (int32_t i = 0; i < node.page_count; ++i) {
                batch.pages.push_back(order[static_cast<size_t>(next++ % pages.pages())]);
            }
            for (int32_t i = 0; i < tokens; ++i) {
                batch.tokens.push_back(0);
                batch.positions.push_back(start + length - tokens + i);
            }
            batch.nodes.push_back(node);
        };
        if (prefix > 0) add(-1, 0, prefix, 0);
        for (int32_t r = 0; r < rows; ++r) add(prefix > 0 ? 0 : -1, prefix, own, count);
        Worklist list;
        build_worklist(batch, {}, {0, config.gqa_ratio(), config.kv_heads, pool.size()}, &list);
        *pairs = static_cast<double>(rows) * count * (prefix + own - (count - 1) / 2.0);
        const double kv = 2.0 * config.kv_heads * config.head_dim *
                          static_cast<double>(dtype_bytes(kernels.element));
        *bytes = kv * (prefix + static_cast<double>(rows) * own);

        const size_t tokens = batch.tokens.size();
        std::vector<uint16_t> queries(tokens * static_cast<size_t>(config.heads) *
                                          static_cast<size_t>(config.head_dim) * 2,
                                      0x3C80);
        std::vector<std::byte> out(queries.size() * 2);
        Attention attention(config, kernels, pages, &pool);
        return shortest_seconds(
            [&] { check(attention.run(batch, list, 0, queries.data(), out.data())); });
    }
};

void bench_attention(const RandomModel &random_model, const Options &options) {
    AttentionBench bench(random_model.model.config, options);
    const ModelConfig &c = bench.config;
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
        double pairs = 0, bytes = 0;
        const double seconds = bench.seconds(x.prefix, x.rows, x.own, x.count, &pairs, &bytes);
        std::printf("  %-42s %8.1f us  %6.1f GFLOP/s  %5.1f GB/s", x.name, seconds * 1e6,
                    1e-9 * pairs * flops_of_pair / seconds, 1e-9 * bytes / seconds);
        if (x.unshared > 0) {
            double p = 0, b = 0;
            const double alone = bench.seconds(0, x.rows, x.unshared, x.count, &p, &b);
            std::printf("  unshared %8.1f us: %.1f x", alone * 1e6, alone / seconds);
        }
        std::printf("\n");
    }
}

// Rows a CPU second: what the machine's other load does not change.
double run_job(const RandomModel &random_model, const Options &options, bool sharing,
               int32_t rows_wanted) {
    const Model &model = random_model.model;
    std::mt19937_64 random(4);
    std::uniform_int_distribution<int32_t> id(0, model.config.vocabulary - 1);
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
    const Kernels &kernels = *kernels_for(best_isa(options.type), options.type);
    const int64_t step_tokens = 512;
    auto created = Forward::create(model, kernels, &pool, step_tokens);
    check(created.status());
    Forward &forward = **created;
    auto pages = KvPages::create(model.config, options.type, 16, int64_t{3} << 30);
    check(pages.status());
    const int64_t page_count = pages->pages();
    check(forward.take_pages(std::move(pages).value()));

    RowScheduler scheduler(&rows, sharing, 16, page_count, step_tokens);
    TokenBatch batch;
    std::vector<int32_t> logits_rows, wanted, tokens;
    std::vector<float> logits(static_cast<size_t>(64 * model.config.vocabulary));
    const double start = now();
    const std::clock_t start_clock = std::clock();
    while (scheduler.next(&batch, &logits_rows)) {
        wanted.clear();
        for (const LogitsRow &row : batch.logits) wanted.push_back(row.token);
        check(forward.run(batch, wanted));
        tokens.clear();
        for (size_t first = 0; first < wanted.size(); first += 64) {
            const size_t count = std::min<size_t>(64, wanted.size() - first);
            check(forward.logits(static_cast<int64_t>(first), static_cast<int64_t>(count),
                                 logits.data()));
            for (size_t i = 0; i < count; ++i) {
                const float *row = logits.data() + i * static_cast<size_t>(model.config.vocabulary);
                tokens.push_back(static_cast<int32_t>(
                    std::max_element(row, row + model.config.vocabulary) - row));
            }
        }
        scheduler.finish(logits_rows, tokens);
    }
    const double seconds = now() - start;
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
        "%.2f  norm %.2f  rope and KV %.2f  prepare %.2f  rest %.2f\n",
        s.qkv, s.output, s.gate_up, s.down, s.head, s.attention, s.norm, s.rope, s.prepare,
        seconds - s.linear() - s.attention - s.norm - s.rope - s.prepare);
    return static_cast<double>(rows.size()) / cpu_seconds;
}

void bench_steps(const RandomModel &random_model, const Options &options) {
    std::printf("prefix 2000 / own 200 / 16 rows a prefix / 32 new, %d prefixes, %s\n",
                options.groups, dtype_name(options.type));
    const double shared = run_job(random_model, options, true, 16 * options.groups);
    if (options.only_sharing) return;
    const double alone = run_job(random_model, options, false, 8 * options.groups);
    std::printf("  sharing does %.2f x the rows a CPU second\n", shared / alone);
}

} // namespace

int main(int count, char **arguments) {
    Options options;
    options.type = isa_runs_here(Isa::avx512_bf16) ? DType::bf16 : DType::f32;
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        if (argument == "linear")
            options.linear = true;
        else if (argument == "attention")
            options.attention = true;
        else if (argument == "steps")
            options.steps = true;
        else if (argument == "--only-sharing")
            options.only_sharing = true;
        else if (argument == "--threads" && i + 1 < count)
            options.threads = std::atoi(arguments[++i]);
        else if (argument == "--groups" && i + 1 < count)
            options.groups = std::atoi(arguments[++i]);
        else if (argument == "--type" && i + 1 < count)
            options.type = std::string(arguments[++i]) == "f32" ? DType::f32 : DType::bf16;
        else {
            std::fprintf(stderr, "usage: cpu [linear] [attention] [steps] [--threads N] "
                                 "[--type bf16|f32] [--groups N] [--only-sharing]\n");
            return 1;
        }
    }
    if (!options.linear && !options.attention && !options.steps) {
        options.linear = options.attention = options.steps = true;
    }
    const RandomModel model;
    std::printf("%s\n", processor_name().c_str());
    if (options.linear) bench_linear(model, options);
    if (options.attention) bench_attention(model, options);
    if (options.steps) bench_steps(model, options);
    return 0;
}
