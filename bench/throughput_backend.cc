#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/tensor_parallel.h"
#include "clock.h"
#include "cuda_backend.h"
#include "runtime/common_prefix_cost.h"
#include "tensor_parallel_backend.h"
#include "throughput_jobs.h"
#include "throughput_lane.h"
#include "throughput_linear.h"

namespace batchllm {
namespace {

// Prints the share of turns of the busiest eighth of the experts. It is that of the last step,
// whose tokens random weights generated, not that of the whole job.
Status print_turns(cuda::CudaBackend *backend) {
    ASSIGN_OR_RETURN(std::vector<int64_t> turns, backend->step().parts().experts.turns_of_each());
    if (turns.empty()) return {};
    std::sort(turns.rbegin(), turns.rend());
    const auto eighth = static_cast<int64_t>(turns.size() / 8);
    const auto all = static_cast<double>(std::reduce(turns.begin(), turns.end()));
    std::printf("  in the last step an eighth of the experts has %.3f of the turns, the most of "
                "one %.1f of the mean\n",
                static_cast<double>(std::reduce(turns.begin(), turns.begin() + eighth)) / all,
                static_cast<double>(turns[0]) * static_cast<double>(turns.size()) / all);
    return {};
}

// Prints where a profiled job's time on the device went.
void print_profile(cuda::Profile *profile, double device_seconds) {
    double all = 0;
    for (const double part : profile->seconds) all += part;
    for (size_t i = 1; i < profile->seconds.size(); ++i) {
        std::printf("  %-11s %7.3f s  %5.1f %%\n", cuda::kPartNames[i], profile->seconds[i],
                    100 * profile->seconds[i] / all);
    }
    std::printf("  %-11s %7.3f s, of %.3f on the device\n", "all parts", all, device_seconds);
    profile->seconds.fill(0);
}

// In its exchanges a device also waits for slower ones. The least time of all ranks is that of the exchange.
void print_exchange(const Backend &all, double device_seconds) {
    const auto *several = dynamic_cast<const cuda::TensorParallelBackend *>(&all);
    if (several == nullptr) return;
    constexpr auto exchange = static_cast<size_t>(cuda::Part::exchange);
    std::printf("  exchange on each device:");
    for (int32_t rank = 0; rank < several->ranks(); ++rank) {
        cuda::Profile &profile = several->backend_of(rank).step().parts().profile;
        std::printf(" %.3f s, %.1f %%%s", profile.seconds[exchange],
                    100 * profile.seconds[exchange] / device_seconds,
                    rank + 1 < several->ranks() ? ";" : "\n");
        if (rank > 0) profile.seconds.fill(0);
    }
}

// Measures the rate of the linear layers between the job's first steps, which run again for this.
Result<LinearRate> linear_rate(const BenchBackend &bench, const Plan &plan, const JobRows &rows,
                               const NamedJob &job, const Arguments &arguments,
                               const BenchAdapters *adapters, const Measured &measured) {
    cuda::CudaBackend *backend = bench.first;
    const bool profiled = backend->step().parts().profile.on;
    backend->step().parts().profile.on = false;
    LinearProbe probe(backend, measured.sampled, measured.tokens, measured.most_rows);
    RETURN_IF_ERROR(run_job(bench, plan, rows, job, arguments, adapters, &probe).status());
    while (!probe.done()) RETURN_IF_ERROR(probe.run()); // for a job with few steps
    backend->step().parts().profile.on = profiled;
    return probe.best(!arguments.all);
}

// Prints the three forms of the floor (throughput_floor.h), one line each.
void print_floor(const Measured &m, const LinearRate &linear, const WeightsRead &weights) {
    const AttentionFloor &attention = m.attention;
    const double products = static_cast<double>(m.tokens) / linear.tokens_a_second;
    const double floor = products + attention.seconds();
    std::printf(
        "  floor/measured %.3f: %.3f s (linear %.3f at %lld tokens, attention %.3f, of which "
        "states %.3f)\n",
        floor / m.seconds, floor, products, static_cast<long long>(linear.tokens),
        attention.seconds(), attention.state_seconds());
    std::printf("  floor/measured %.3f with decode's arithmetic: %.3f s more\n",
                (floor + attention.decode_excess) / m.seconds, attention.decode_excess);
    double excess = attention.decode_excess;
    for (const int64_t tokens : m.step_tokens) {
        excess += std::max(0.0, weights.bytes(tokens) / attention.bandwidth -
                                    static_cast<double>(tokens) / linear.tokens_a_second);
    }
    std::printf(
        "  floor/measured %.3f with weights read in each step too: %.3f s more (%.2f TB/s)\n",
        (floor + excess) / m.seconds, excess, attention.bandwidth * 1e-12);
}

// Prints what steps of similar size took beside their floor with weights. One line for each power of two
// of tokens that a step has at most.
void print_sizes(const Measured &m, const LinearRate &linear, const WeightsRead &weights) {
    struct Class {
        int64_t steps = 0, tokens = 0;
        double seconds = 0, products = 0, attention = 0;
    };
    std::map<uint64_t, Class> classes;
    for (size_t i = 0; i < m.step_tokens.size(); ++i) {
        Class &c = classes[std::bit_ceil(static_cast<uint64_t>(m.step_tokens[i]))];
        ++c.steps;
        c.tokens += m.step_tokens[i];
        c.seconds += m.step_seconds[i];
        c.products += std::max(static_cast<double>(m.step_tokens[i]) / linear.tokens_a_second,
                               weights.bytes(m.step_tokens[i]) / m.attention.bandwidth);
        c.attention += m.step_attention[i];
    }
    std::printf("  steps of up to   steps  tokens each  seconds    floor (products, attention)\n");
    for (const auto &[most, c] : classes) {
        std::printf("  %14llu  %6lld  %11.0f  %7.3f  %.3f: %.3f (%.3f, %.3f)\n",
                    static_cast<unsigned long long>(most), static_cast<long long>(c.steps),
                    static_cast<double>(c.tokens) / static_cast<double>(c.steps), c.seconds,
                    (c.products + c.attention) / c.seconds, c.products + c.attention, c.products,
                    c.attention);
    }
}

// Returns rows/s.
Result<double> bench_job(const BenchBackend &bench, const Model &model, const NamedJob &job,
                         const Arguments &arguments) {
    cuda::CudaBackend *backend = bench.first;
    const BackendInfo &info = bench.all->info();
    JobRows rows = make_rows(job, model.vocabulary);
    std::unique_ptr<BenchAdapters> adapters;
    if (arguments.adapters > 0) {
        ASSIGN_OR_RETURN(adapters, BenchAdapters::make(model, *bench.all, arguments, job, &rows));
    }
    const auto plan_start = Clock::now();
    PlanOptions planning;
    planning.levels = static_cast<int32_t>(arguments.levels);
    planning.common_prefix_cost = common_prefix_cost_on(info, model);
    if (!arguments.sharing_on) planning.enlarge = BATCHLLM_ENLARGE_NONE;
    if (arguments.arrival) planning.order = BATCHLLM_ORDER_ARRIVAL;
    ASSIGN_OR_RETURN(const Plan plan, plan_job(job, rows, planning));
    const double plan_seconds = seconds_since(plan_start);
    ASSIGN_OR_RETURN(const Measured m, run_job(bench, plan, rows, job, arguments, adapters.get()));

    const auto count = static_cast<double>(job.rows);
    std::printf("%s%s, %s: %.1f rows/s (vLLM %.1f)  %.0f computed and %.0f generated tokens/s\n",
                job.name, arguments.switches.c_str(), info.compute_type.c_str(), count / m.seconds,
                job.vllm, static_cast<double>(m.tokens) / m.seconds,
                count * job.generated / m.seconds);
    std::printf("  %lld rows, %lld prompt tokens, %lld computed (saving %.3f), plan %.0f ms; %lld "
                "steps (%lld full, %.0f tokens each), at most %lld rows decoding, %lld "
                "preemptions, %lld KV pages, %lld state slots\n",
                static_cast<long long>(job.rows), static_cast<long long>(plan.logical_tokens()),
                static_cast<long long>(plan.processed_tokens()), plan.saving_ratio(),
                plan_seconds * 1e3, static_cast<long long>(m.steps), static_cast<long long>(m.full),
                static_cast<double>(m.tokens) / static_cast<double>(m.steps),
                static_cast<long long>(m.most_rows), static_cast<long long>(m.preemptions),
                static_cast<long long>(info.pages), static_cast<long long>(info.state_slots));
    std::printf("  %lld steps that decode alone, %.2f ms each\n",
                static_cast<long long>(m.decode_steps),
                1e3 * m.decode_seconds / static_cast<double>(std::max<int64_t>(1, m.decode_steps)));
    std::printf("  seconds %.3f: device %.3f; host: scheduler %.3f, worklist and staging %.3f, "
                "waiting %.3f\n",
                m.seconds, m.backend, m.scheduler, m.host, m.waited);
    const cuda::Graphs &graphs = backend->step().graphs();
    std::printf("  tokens' hash %016llx; graphs: %lld captured, %lld replays, %lld steps on merged "
                "layers so far\n",
                static_cast<unsigned long long>(m.hash), static_cast<long long>(graphs.captured()),
                static_cast<long long>(graphs.replayed()),
                static_cast<long long>(backend->adapter_use().merged_batches));
    if (arguments.profile) {
        print_exchange(*bench.all, m.backend);
        print_profile(&backend->step().parts().profile, m.backend);
    }
    if (arguments.skew) RETURN_IF_ERROR(print_turns(backend));
    ASSIGN_OR_RETURN(const LinearRate linear,
                     linear_rate(bench, plan, rows, job, arguments, adapters.get(), m));
    const WeightsRead weights(backend->step().parts().model, backend->info().weight_bytes);
    print_floor(m, linear, weights);
    if (arguments.by_size) print_sizes(m, linear, weights);
    std::fflush(stdout);
    return count / m.seconds;
}

Result<BenchBackend> make_backend(const Model &model, const BackendOptions &options) {
    BenchBackend made;
    ASSIGN_OR_RETURN(const int32_t ranks, tensor_parallel_of(options));
    // Algorithms for each shape are searched at its first use, which must not count in a job's time.
    const auto prepare = [&](cuda::CudaBackend *backend) -> Status {
        made.first = backend;
        RETURN_IF_CUDA(cudaSetDevice(backend->device()));
        return backend->step().prepare(backend->stream());
    };
    if (ranks == 1) {
        ASSIGN_OR_RETURN(auto alone, cuda::CudaBackend::create(model, options));
        RETURN_IF_ERROR(prepare(alone.get()));
        made.all = std::move(alone);
        return made;
    }
    ASSIGN_OR_RETURN(auto several, cuda::TensorParallelBackend::create(model, options, ranks));
    for (int32_t rank = ranks - 1; rank >= 0; --rank) {
        RETURN_IF_ERROR(prepare(&several->backend_of(rank)));
    }
    made.all = std::move(several);
    return made;
}

} // namespace

Result<std::vector<double>> bench_backend(const std::vector<NamedJob> &jobs, const Model &model,
                                          const Arguments &arguments, const std::string &weights) {
    BackendOptions options;
    options.extra = arguments.extra;
    options.extra.emplace_back("random_weights", weights);
    options.reproducible = arguments.reproducible;
    options.step_tokens = static_cast<int64_t>(arguments.step_tokens);
    options.adapter_memory_bytes = static_cast<int64_t>(arguments.adapter_gib * 1024 * 1024 * 1024);
    options.kv_memory_bytes = static_cast<int64_t>(arguments.kv_gib * 1024 * 1024 * 1024);
    const auto made = Clock::now();
    ASSIGN_OR_RETURN(const BenchBackend backend, make_backend(model, options));
    std::printf("backend, and algorithms of all shapes: %.2f s\n", seconds_since(made));
    const BackendInfo &info = backend.all->info();
    if (!info.warning.empty()) std::printf("%s\n", info.warning.c_str());
    size_t before = 0, after = 0, total = 0;
    cudaMemGetInfo(&before, &total);
    std::vector<double> rates;
    for (const NamedJob &job : jobs) {
        double best = 0;
        for (int i = 0; i < static_cast<int>(arguments.repeat); ++i) {
            ASSIGN_OR_RETURN(const double rate, bench_job(backend, model, job, arguments));
            best = std::max(best, rate);
        }
        rates.push_back(best);
    }
    cudaMemGetInfo(&after, &total);
    std::printf("device memory taken meanwhile, graphs included: %.1f MiB\n",
                (static_cast<double>(before) - static_cast<double>(after)) / (1 << 20));
    return rates;
}

} // namespace batchllm
