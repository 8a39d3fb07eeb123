// End to end on the GPU, with random weights of a named shape made on the device and made-up rows.
//
//     throughput --job a16          a job by name (throughput_models.h), or --all of them, or changed by
//                                   --model NAME|DIRECTORY --rows --prefix --own --sharing --spread --new
//     --step-tokens N --kv-gib N --levels 2 --profile --repeat N
//     to see what each idea brings:
//     --no-sharing                  every row computes all of its prompt
//     --order arrival               groups by their first row
//     --cap N                       at most N rows at once
//     --unfused                     attention: prefixes, decode and prefill in launches of their own
//     --unshared                    attention: every row reads its prefix for itself
//     --no-overlap                  a step is planned after the one before it
//     --no-graphs, --no-tuning      --option key=value: any of the backend's
//     --devices 0,1                 the whole engine on so many devices, after the first of them alone
//     --not-alone                   without that
//
// Prints rows/s beside vLLM's (measured on the same kind of GPU; docs/performance.md), and the floor:
// the time of the job's processed tokens in the linear layers at the best rate measured in this run,
// plus attention's flops at 600 TFLOP/s and the keys and values that decoding must read (a prefix once
// a step) at 4.5 TB/s.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"
#include "cuda_backend.h"
#include "jobs.h"
#include "runtime/lane.h"
#include "throughput_arguments.h"
#include "throughput_models.h"

using namespace batchllm;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

Job make_rows(const NamedJob &job, int32_t vocabulary) {
    JobShape shape;
    shape.rows = job.rows;
    shape.prefix = job.prefix;
    shape.common = job.common;
    shape.own = job.own;
    shape.sharing = job.sharing;
    shape.spread = job.spread;
    Job rows = make_job(shape);
    for (int32_t &token : rows.tokens) token %= vocabulary;
    return rows;
}

// What a batch's attention must do at least.
struct AttentionFloor {
    double flops = 0, bytes = 0;

    void add(const TokenBatch &batch, const ModelConfig &c) {
        const double pair = 4.0 * c.heads * c.head_dim * c.layers;
        const double key = 2.0 * c.kv_heads * c.head_dim * 2 * c.layers; // 2-byte elements
        read_.assign(batch.nodes.size(), 0);
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            if (node.token_count == 1) {
                for (auto up = static_cast<int32_t>(n); up >= 0;
                     up = batch.nodes[static_cast<size_t>(up)].parent) {
                    if (read_[static_cast<size_t>(up)] != 0) break;
                    read_[static_cast<size_t>(up)] = 1;
                    bytes += key * batch.nodes[static_cast<size_t>(up)].length;
                }
            } else {
                const double last = node.start + node.length;
                flops += pair * node.token_count * (last - (node.token_count - 1) / 2.0);
            }
        }
    }
    double seconds() const { return flops / 600e12 + bytes / 4.5e12; }

  private:
    std::vector<char> read_;
};

// A backend that outlives the lane.
class Borrowed final : public Backend {
  public:
    explicit Borrowed(Backend *backend) : backend_(backend) {}
    const BackendInfo &info() const override { return backend_->info(); }
    Status submit(const TokenBatch &batch) override { return backend_->submit(batch); }
    Status collect(BatchOutput *output) override { return backend_->collect(output); }
    bool ready() const override { return backend_->ready(); }
    bool feeds(const SampleInput &input) const override { return backend_->feeds(input); }
    double last_run_seconds() const override { return backend_->last_run_seconds(); }

  private:
    Backend *backend_;
};

// Seconds of the linear layers of one step, the median of five.
Result<double> time_linear(cuda::CudaBackend *backend, int64_t tokens, int64_t wanted) {
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
        const auto start = Clock::now();
        RETURN_IF_ERROR(backend->forward().run_linear(tokens, wanted, backend->stream()));
        RETURN_IF_ERROR(cuda::check_cuda(cudaStreamSynchronize(backend->stream()), "linear"));
        if (i > 0) times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

struct Measured {
    int64_t steps = 0, full = 0, tokens = 0, sampled = 0, preemptions = 0;
    double seconds = 0, backend = 0, scheduler = 0, host = 0, waited = 0;
    uint64_t hash = 0; // of all tokens, in the order of the rows
    AttentionFloor attention;
};

Result<Measured> run_job(cuda::CudaBackend *backend, const ModelConfig &config, const Plan &plan,
                         const Job &rows, const NamedJob &job, const Arguments &arguments) {
    const BackendInfo &info = backend->info();
    SchedulerOptions scheduling;
    scheduling.max_requests = static_cast<int64_t>(arguments.cap);
    scheduling.order = arguments.arrival ? BATCHLLM_ORDER_ARRIVAL : BATCHLLM_ORDER_DECODE_FIRST;
    Lane lane(0, std::make_unique<Borrowed>(backend), scheduling);
    SamplingParams params;
    params.max_tokens = job.generated;
    params.ignore_eos = true;
    std::vector<Request> requests(rows.rows.size());
    std::vector<Request *> held;
    for (size_t i = 0; i < requests.size(); ++i) {
        requests[i].prompt = rows.rows[i];
        requests[i].params = &params;
        requests[i].max_tokens = job.generated;
        held.push_back(&requests[i]);
    }

    Measured m;
    m.host = -backend->host_seconds();
    const auto start = Clock::now();
    RETURN_IF_ERROR(lane.scheduler().add(plan, held));
    while (true) {
        auto lap = Clock::now();
        while (lane.takes_another()) {
            const TokenBatch &batch = lane.plan();
            m.scheduler += seconds_since(lap);
            if (batch.tokens.empty()) break;
            RETURN_IF_ERROR(lane.submit(batch));
            m.attention.add(batch, config);
            lap = Clock::now();
        }
        if (lane.in_flight() == 0) break;
        lap = Clock::now();
        RETURN_IF_ERROR(lane.collect());
        m.waited += seconds_since(lap);
        lap = Clock::now();
        const BatchRecord &record = lane.record();
        for (size_t i = 0; i < record.sampled.size(); ++i) {
            Request *request = record.sampled[i];
            if (request == nullptr) continue;
            const SampleOutput &sample = lane.output().samples[i];
            if (!sample.finite) return error(BATCHLLM_ERROR_DEVICE, "logits are not finite");
            request->output.push_back(sample.token);
            request->done = static_cast<int32_t>(request->output.size()) == job.generated;
        }
        const StepCounts &counts = record.counts;
        const int64_t tokens = counts.decode_tokens + counts.own_tokens + counts.prefix_tokens;
        ++m.steps;
        m.tokens += tokens;
        m.full += 10 * tokens >= 9 * info.step_tokens;
        m.preemptions += counts.preemptions;
        m.sampled += static_cast<int64_t>(record.sampled.size());
        m.backend += lane.batch_seconds();
        lane.finish();
        m.scheduler += seconds_since(lap);
    }
    m.seconds = seconds_since(start);
    m.host += backend->host_seconds();
    for (const Request &request : requests) {
        for (const int32_t token : request.output) {
            m.hash = (m.hash ^ static_cast<uint64_t>(token)) * 0x100000001b3u;
        }
    }
    return m;
}

Status bench_job(cuda::CudaBackend *backend, const ModelConfig &config, const NamedJob &job,
                 const Arguments &arguments) {
    const BackendInfo &info = backend->info();
    const Job rows = make_rows(job, config.vocabulary);
    const auto plan_start = Clock::now();
    PlanOptions planning;
    planning.levels = static_cast<int32_t>(arguments.levels);
    if (!arguments.sharing_on) planning.enlarge = BATCHLLM_ENLARGE_NONE;
    if (arguments.arrival) planning.order = BATCHLLM_ORDER_ARRIVAL;
    ASSIGN_OR_RETURN(const Plan plan, make_plan(rows.rows, {}, planning, nullptr));
    const double plan_seconds = seconds_since(plan_start);
    ASSIGN_OR_RETURN(const Measured m, run_job(backend, config, plan, rows, job, arguments));

    double best_rate = 0;
    int64_t best_tokens = 0;
    for (const int64_t at : {int64_t{1024}, int64_t{2048}, int64_t{3072}, info.step_tokens}) {
        if (at > info.step_tokens) continue;
        const int64_t wanted = std::clamp<int64_t>(at * m.sampled / m.tokens, 1, at);
        ASSIGN_OR_RETURN(const double took, time_linear(backend, at, wanted));
        if (!arguments.all) {
            std::printf(
                "linear layers, %lld tokens, %lld logits: %.2f ms, %.1f thousand tokens/s\n",
                static_cast<long long>(at), static_cast<long long>(wanted), took * 1e3,
                static_cast<double>(at) / took * 1e-3);
        }
        if (static_cast<double>(at) / took > best_rate) {
            best_rate = static_cast<double>(at) / took;
            best_tokens = at;
        }
    }
    const double linear_floor = static_cast<double>(m.tokens) / best_rate;
    const double floor = linear_floor + m.attention.seconds();
    const auto count = static_cast<double>(job.rows);
    std::printf("%s%s, %s: %.1f rows/s (vLLM %.1f)  %.0f computed and %.0f generated tokens/s  "
                "floor/measured %.3f\n",
                job.name, arguments.switches.c_str(), info.compute_type.c_str(), count / m.seconds,
                job.vllm, static_cast<double>(m.tokens) / m.seconds,
                count * job.generated / m.seconds, floor / m.seconds);
    std::printf("  %lld rows, %lld prompt tokens, %lld computed (saving %.3f), plan %.0f ms; %lld "
                "steps (%lld full, %.0f tokens each), %lld preemptions, %lld KV pages\n",
                static_cast<long long>(job.rows), static_cast<long long>(plan.logical_tokens()),
                static_cast<long long>(plan.processed_tokens()), plan.saving_ratio(),
                plan_seconds * 1e3, static_cast<long long>(m.steps), static_cast<long long>(m.full),
                static_cast<double>(m.tokens) / static_cast<double>(m.steps),
                static_cast<long long>(m.preemptions), static_cast<long long>(info.pages));
    std::printf("  seconds %.3f: device %.3f; host: scheduler %.3f, worklist and staging %.3f, "
                "waiting %.3f; floor %.3f (linear %.3f at %lld tokens, attention %.3f)\n",
                m.seconds, m.backend, m.scheduler, m.host, m.waited, floor, linear_floor,
                static_cast<long long>(best_tokens), m.attention.seconds());
    const cuda::Graphs &graphs = backend->forward().graphs();
    std::printf("  tokens' hash %016llx; graphs: %lld captured, %lld replays so far\n",
                static_cast<unsigned long long>(m.hash), static_cast<long long>(graphs.captured()),
                static_cast<long long>(graphs.replayed()));
    if (arguments.profile) {
        auto &parts = backend->forward().profile().seconds;
        double all = 0;
        for (const double part : parts) all += part;
        for (size_t i = 1; i < parts.size(); ++i) {
            std::printf("  %-10s %7.3f s  %5.1f %%\n", cuda::kPartNames[i], parts[i],
                        100 * parts[i] / all);
        }
        std::printf("  %-10s %7.3f s, of %.3f on the device\n", "all parts", all, m.backend);
        parts.fill(0);
    }
    std::fflush(stdout);
    return {};
}

// Jobs of one model on one backend.
Status bench_jobs(const std::vector<NamedJob> &jobs, const ModelConfig &config,
                  const Arguments &arguments) {
    BackendOptions options;
    options.extra = arguments.extra;
    options.extra.emplace_back("random_weights", "1");
    options.step_tokens = static_cast<int64_t>(arguments.step_tokens);
    options.kv_memory_bytes = static_cast<int64_t>(arguments.kv_gib * 1024 * 1024 * 1024);
    const Model model = shape_of(config);
    ASSIGN_OR_RETURN(const auto backend, cuda::CudaBackend::create(model, options));
    if (!backend->info().warning.empty()) std::printf("%s\n", backend->info().warning.c_str());
    // Shapes' algorithms are looked for at their first use: not in a job's time.
    const auto start = Clock::now();
    RETURN_IF_ERROR(backend->forward().prepare(backend->stream()));
    std::printf("algorithms of all shapes: %.2f s\n", seconds_since(start));
    size_t before = 0, after = 0, total = 0;
    cudaMemGetInfo(&before, &total);
    for (const NamedJob &job : jobs) {
        for (int i = 0; i < static_cast<int>(arguments.repeat); ++i) {
            RETURN_IF_ERROR(bench_job(backend.get(), config, job, arguments));
        }
    }
    cudaMemGetInfo(&after, &total);
    std::printf("device memory taken meanwhile, graphs included: %.1f MiB\n",
                (static_cast<double>(before) - static_cast<double>(after)) / (1 << 20));
    return {};
}

// ---- The whole engine ----

Status of_api(int32_t status) {
    return status == BATCHLLM_OK ? Status() : Status(status, batchllm_last_error());
}

struct Engines {
    batchllm_engine *engine = nullptr;
    ~Engines() { batchllm_engine_destroy(engine); }
};

Status bench_engine(const NamedJob &job, const ModelConfig &config, const Arguments &arguments) {
    const std::string directory =
        (std::filesystem::temp_directory_path() / "batchllm-throughput").string();
    RETURN_IF_ERROR(write_model_directory(config, directory));
    const Job rows = make_rows(job, config.vocabulary);
    std::vector<int64_t> offsets = {0};
    std::vector<uint64_t> tags;
    for (const TokenRow &row : rows.rows) {
        tags.push_back(tags.size());
        offsets.push_back(offsets.back() + row.length);
    }
    std::string extra = "random_weights=1";
    for (const auto &[key, value] : arguments.extra) extra += "," + key + "=" + value;
    const std::string first = arguments.devices.substr(0, arguments.devices.find(','));
    std::vector<std::string> runs = {arguments.devices};
    if (arguments.alone && first != arguments.devices) runs.insert(runs.begin(), first);
    double alone = 0;
    for (const std::string &devices : runs) {
        Engines engines;
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.model_dir = directory.c_str();
        options.backend = "cuda";
        options.devices = devices.c_str();
        options.backend_options = extra.c_str();
        options.step_tokens = static_cast<int64_t>(arguments.step_tokens);
        options.max_requests = static_cast<int64_t>(arguments.cap);
        options.kv_memory_bytes = static_cast<int64_t>(arguments.kv_gib * 1024 * 1024 * 1024);
        options.levels = static_cast<int32_t>(arguments.levels);
        options.enlarge = arguments.sharing_on ? BATCHLLM_ENLARGE_OPTIMAL : BATCHLLM_ENLARGE_NONE;
        options.order = arguments.arrival ? BATCHLLM_ORDER_ARRIVAL : BATCHLLM_ORDER_DECODE_FIRST;
        RETURN_IF_ERROR(of_api(batchllm_engine_create(&options, &engines.engine)));
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.max_tokens = job.generated;
        params.ignore_eos = 1;
        batchllm_stats before{}, after{};
        double seconds = 0;
        // A first round of some rows: the shapes' algorithms are looked for at their first use.
        for (const int64_t count : {std::min<int64_t>(job.rows, 256), job.rows}) {
            before.struct_size = after.struct_size = sizeof(batchllm_stats);
            RETURN_IF_ERROR(of_api(batchllm_engine_stats(engines.engine, &before)));
            RETURN_IF_ERROR(of_api(batchllm_add_tokens(engines.engine, count, rows.tokens.data(),
                                                       offsets.data(), tags.data(), &params, 1)));
            const auto start = Clock::now();
            RETURN_IF_ERROR(of_api(batchllm_run(engines.engine, nullptr, nullptr)));
            seconds = seconds_since(start);
            RETURN_IF_ERROR(of_api(batchllm_engine_stats(engines.engine, &after)));
            batchllm_results *results = nullptr;
            RETURN_IF_ERROR(of_api(batchllm_poll(engines.engine, 0, &results)));
            const int64_t answered = results->count;
            batchllm_results_free(results);
            if (answered != count || after.rows_failed != before.rows_failed) {
                return error(BATCHLLM_ERROR_INTERNAL, "%lld of %lld rows answered",
                             static_cast<long long>(answered), static_cast<long long>(count));
            }
        }
        const double rate = static_cast<double>(job.rows) / seconds;
        if (alone == 0) alone = rate;
        std::printf(
            "%s%s, the engine on device %s: %.1f rows/s in %.2f s, %.2f times one device; "
            "%lld steps, %lld prompt tokens computed\n",
            job.name, arguments.switches.c_str(), devices.c_str(), rate, seconds, rate / alone,
            static_cast<long long>(after.steps - before.steps),
            static_cast<long long>(after.processed_prompt_tokens - before.processed_prompt_tokens));
        std::fflush(stdout);
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    return {};
}

Status run(const Arguments &arguments) {
    std::vector<NamedJob> left;
    for (const NamedJob &job : kJobs) {
        if (arguments.all || arguments.job == job.name) left.push_back(changed(job, arguments));
    }
    if (left.empty()) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "no job %s", arguments.job.c_str());
    }
    while (!left.empty()) { // one model after the other
        const std::string name = arguments.model.empty() ? left[0].model : arguments.model;
        ModelConfig config = named_model(name);
        if (config.layers == 0) { // a directory with a config.json
            ASSIGN_OR_RETURN(config, load_config(name));
        }
        std::vector<NamedJob> jobs, others;
        for (NamedJob job : left) {
            const bool now = !arguments.model.empty() || name == job.model;
            if (!arguments.model.empty() && name != job.model) job.vllm = 0;
            (now ? jobs : others).push_back(job);
        }
        left = std::move(others);
        if (arguments.devices.empty()) {
            RETURN_IF_ERROR(bench_jobs(jobs, config, arguments));
        } else {
            for (const NamedJob &job : jobs) RETURN_IF_ERROR(bench_engine(job, config, arguments));
        }
    }
    return {};
}

} // namespace

int main(int count, char **values) {
    Arguments arguments;
    if (!read_arguments(count, values, &arguments)) {
        std::fprintf(stderr,
                     "unknown argument; the options are at the top of bench/throughput.cc\n");
        return 2;
    }
    const Status status = run(arguments);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok() ? 0 : 1;
}
