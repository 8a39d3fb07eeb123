#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include <dnnl.hpp>

#include "backend/cpu/linear.h"
#include "base/thread_pool.h"
#include "cpu_bench.h"

extern "C" {
__attribute__((weak)) void omp_set_num_threads(int threads);
}

namespace batchllm::cpu {
namespace {

// oneDNN's own time for the whole product, with its own threads and weights in its own layout.
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

double product_seconds(Linear *linear, const PackedMatrix &matrix, int64_t m, DType type) {
    const int64_t n = matrix.rows, k = matrix.columns;
    std::vector<std::byte> x(static_cast<size_t>(Linear::rounded_rows(m) * k * dtype_bytes(type)),
                             std::byte{0x3C});
    std::vector<float> y(static_cast<size_t>(m * n));
    return shortest_seconds([&] {
        check(linear->run(matrix, x.data(), m, [&](const Linear::Tile &tile) {
            for (int64_t r = 0; r < tile.rows; ++r) {
                std::memcpy(y.data() + (tile.row + r) * n + tile.column, tile.data + r * tile.width,
                            static_cast<size_t>(tile.width) * 4);
            }
        }));
    });
}

} // namespace

void bench_linear(const RandomModel &random_model, const CpuBenchOptions &options) {
    ThreadPool pool(options.threads);
    auto created = Linear::create(options.type, &pool);
    check(created.status());
    Linear &linear = **created;
    auto reproducible = Linear::create(options.type, &pool, true);
    check(reproducible.status());
    const Attention &attention = *random_model.model.layers[0].attention();
    const FeedForward &feed_forward = *random_model.model.layers[0].feed_forward();
    const Tensor *const qkv[] = {&attention.q.values, &attention.k.values, &attention.v.values};
    const Tensor *const gate_up[] = {&feed_forward.gate.values, &feed_forward.up.values};
    const Tensor *const output[] = {&attention.o.values};
    const Tensor *const down[] = {&feed_forward.down.values};
    const Tensor *const head[] = {&random_model.model.head.values};
    const struct {
        const char *name;
        std::span<const Tensor *const> tensors;
        bool interleaved;
    } shapes[] = {{"qkv", qkv, false},
                  {"output", output, false},
                  {"gate+up", gate_up, true},
                  {"down", down, false},
                  {"head", head, false}};
    std::printf("linear layers, %s, %d threads: GFLOP/s with their copies, oneDNN's own, share\n",
                dtype_name(options.type), pool.size());
    for (int64_t m : {16, 64, 512}) {
        double ours_all = 0, theirs_all = 0;
        for (const auto &shape : shapes) {
            auto packed = linear.pack(shape.tensors, shape.interleaved);
            check(packed.status());
            const int64_t n = packed->rows, k = packed->columns;
            const double ours = product_seconds(&linear, *packed, m, options.type);
            if (options.reproducible) {
                auto same = (*reproducible)->pack(shape.tensors, shape.interleaved);
                check(same.status());
                const double seconds = product_seconds(reproducible->get(), *same, m, options.type);
                std::printf("  M %4lld  %-8s reproducible: %.2f x the time\n",
                            static_cast<long long>(m), shape.name, seconds / ours);
            }
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

} // namespace batchllm::cpu
