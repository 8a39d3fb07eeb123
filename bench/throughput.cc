// End to end on the GPU, with random weights of a named shape made on the device and made-up rows:
//
//     throughput --job a16 [--model Mistral-7B | config.json] [--rows N] [--no-sharing] [--arrival]
//                [--cap 256] [--levels 2] [--step-tokens N] [--kv-gib N] [--profile] [--option key=value]
//
// Prints rows/s beside vLLM's (measured on the same kind of GPU; docs/performance.md), and the floor:
// the time of the job's processed tokens in the linear layers at the best rate measured in this run,
// plus attention's flops at 600 TFLOP/s and the keys and values that decoding must read (a prefix once
// a step) at 4.5 TB/s.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda_backend.h"
#include "jobs.h"
#include "schedule/scheduler.h"

using namespace batchllm;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct NamedJob {
    const char *name, *model;
    int64_t rows;
    double prefix;
    int32_t common;
    double own, sharing;
    int32_t generated;
    double spread;
    double vllm; // rows/s; 0: not measured
};

const NamedJob kJobs[] = {
    {"a16", "Mistral-7B", 1024, 2000, 0, 200, 16, 100, 0, 59.9},
    {"a4", "Mistral-7B", 768, 2000, 0, 200, 4, 100, 0, 38.3},
    {"b16", "Mistral-7B", 640, 1000, 0, 1000, 16, 100, 0, 27.9},
    {"b4", "Mistral-7B", 640, 1000, 0, 1000, 4, 100, 0, 0},
    {"c16", "Mistral-7B", 384, 200, 0, 2000, 16, 100, 0, 16.9},
    {"c4", "Mistral-7B", 384, 200, 0, 2000, 4, 100, 0, 0},
    {"one", "Mistral-7B", 1024, 2000, 0, 200, 1024, 100, 0, 74.4},
    {"industry1", "Mistral-7B", 3000, 1100, 275, 400, 7, 100, 0.2, 49.9},
    {"industry2", "Qwen2-7B", 1000, 770, 0, 978, 11.36, 20, 0.2, 40.2},
};

ModelConfig named_model(const std::string &name) {
    ModelConfig c;
    c.dtype = DType::bf16;
    c.hidden = 4096;
    c.layers = 32;
    c.heads = 32;
    c.kv_heads = 8;
    c.head_dim = 128;
    c.intermediate = 14336;
    c.max_positions = 32768;
    c.norm_epsilon = 1e-5;
    if (name == "Mistral-7B") {
        c.architecture = Architecture::mistral;
        c.vocabulary = 32768;
        c.rope.theta = 1e6;
    } else if (name == "Llama-3-8B") {
        c.vocabulary = 128256;
        c.rope.theta = 5e5;
    } else if (name == "Qwen2-7B") {
        c.architecture = Architecture::qwen2;
        c.vocabulary = 152064;
        c.hidden = 3584;
        c.layers = 28;
        c.heads = 28;
        c.kv_heads = 4;
        c.intermediate = 18944;
        c.rope.theta = 1e6;
        c.attention_bias = true;
        c.norm_epsilon = 1e-6;
    } else {
        c.layers = 0;
    }
    return c;
}

// A model whose tensors have shapes alone: the backend makes the weights.
Model shape_of(const ModelConfig &c) {
    static const std::byte anything{};
    const auto tensor = [](int64_t rows, int64_t columns) {
        return Tensor{DType::bf16, &anything, rows, columns};
    };
    const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
    Model model;
    model.config = c;
    model.embedding = tensor(c.vocabulary, c.hidden);
    model.final_norm = tensor(c.hidden, 1);
    static const std::byte other{};
    model.lm_head = tensor(c.vocabulary, c.hidden);
    if (!c.tied_embeddings) model.lm_head.data = &other;
    for (int32_t i = 0; i < c.layers; ++i) {
        LayerWeights w;
        w.input_norm = w.post_attention_norm = tensor(c.hidden, 1);
        w.q = tensor(q, c.hidden);
        w.k = w.v = tensor(kv, c.hidden);
        if (c.attention_bias) {
            w.q_bias = tensor(q, 1);
            w.k_bias = w.v_bias = tensor(kv, 1);
        }
        if (c.qk_norm) w.q_norm = w.k_norm = tensor(c.head_dim, 1);
        w.o = tensor(c.hidden, q);
        w.gate = w.up = tensor(c.intermediate, c.hidden);
        w.down = tensor(c.hidden, c.intermediate);
        model.layers.push_back(w);
    }
    return model;
}

struct Arguments {
    std::string job = "a16", model;
    int64_t rows = 0, cap = 0, step_tokens = 0;
    double prefix = -1, own = -1, sharing = -1, spread = -1;
    int32_t generated = 0, levels = 1;
    double kv_gib = 0;
    bool sharing_on = true, arrival = false, profile = false;
    std::vector<std::pair<std::string, std::string>> extra;
};

bool read_arguments(int count, char **values, Arguments *out) {
    for (int i = 1; i < count; ++i) {
        const std::string name = values[i];
        if (name == "--no-sharing") {
            out->sharing_on = false;
        } else if (name == "--arrival") {
            out->arrival = true;
        } else if (name == "--profile") {
            out->profile = true;
        } else if (i + 1 < count) {
            const char *value = values[++i];
            if (name == "--job")
                out->job = value;
            else if (name == "--model")
                out->model = value;
            else if (name == "--rows")
                out->rows = std::atoll(value);
            else if (name == "--prefix")
                out->prefix = std::atof(value);
            else if (name == "--own")
                out->own = std::atof(value);
            else if (name == "--sharing")
                out->sharing = std::atof(value);
            else if (name == "--spread")
                out->spread = std::atof(value);
            else if (name == "--new")
                out->generated = std::atoi(value);
            else if (name == "--cap")
                out->cap = std::atoll(value);
            else if (name == "--levels")
                out->levels = std::atoi(value);
            else if (name == "--step-tokens")
                out->step_tokens = std::atoll(value);
            else if (name == "--kv-gib")
                out->kv_gib = std::atof(value);
            else if (name == "--option" && std::strchr(value, '=') != nullptr)
                out->extra.emplace_back(std::string(value, std::strchr(value, '=')),
                                        std::strchr(value, '=') + 1);
            else
                return false;
        } else {
            return false;
        }
    }
    return true;
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

int32_t fail(const Status &status) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
}

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

int32_t run(const Arguments &arguments) {
    const auto *named = std::find_if(std::begin(kJobs), std::end(kJobs), [&](const NamedJob &job) {
        return arguments.job == job.name;
    });
    if (named == std::end(kJobs)) {
        std::fprintf(stderr, "no job %s\n", arguments.job.c_str());
        return 1;
    }
    NamedJob job = *named;
    const std::string model_name = arguments.model.empty() ? job.model : arguments.model;
    ModelConfig config = named_model(model_name);
    if (config.layers == 0) {
        auto loaded = load_config(model_name); // a directory with a config.json
        if (!loaded.ok()) return fail(loaded.status());
        config = std::move(loaded).value();
    }
    if (model_name != job.model) job.vllm = 0;
    if (arguments.rows > 0) job.rows = arguments.rows;
    if (arguments.prefix >= 0) job.prefix = arguments.prefix;
    if (arguments.own >= 0) job.own = arguments.own;
    if (arguments.sharing >= 0) job.sharing = arguments.sharing;
    if (arguments.spread >= 0) job.spread = arguments.spread;
    if (arguments.generated > 0) job.generated = arguments.generated;

    BackendOptions options;
    options.extra = arguments.extra;
    options.extra.emplace_back("random_weights", "1");
    if (arguments.profile) options.extra.emplace_back("profile", "1");
    options.step_tokens = arguments.step_tokens;
    options.kv_memory_bytes = static_cast<int64_t>(arguments.kv_gib * 1024 * 1024 * 1024);
    const Model model = shape_of(config);
    auto created = cuda::CudaBackend::create(model, options);
    if (!created.ok()) return fail(created.status());
    cuda::CudaBackend &backend = **created;
    const BackendInfo &info = backend.info();

    JobShape shape;
    shape.rows = job.rows;
    shape.prefix = job.prefix;
    shape.common = job.common;
    shape.own = job.own;
    shape.sharing = job.sharing;
    shape.spread = job.spread;
    const Job rows = make_job(shape);
    const auto plan_start = Clock::now();
    PlanOptions planning;
    planning.levels = arguments.levels;
    if (!arguments.sharing_on) planning.enlarge = BATCHLLM_ENLARGE_NONE;
    if (arguments.arrival) planning.order = BATCHLLM_ORDER_ARRIVAL;
    auto plan = make_plan(rows.rows, {}, planning, nullptr);
    if (!plan.ok()) return fail(plan.status());
    const double plan_seconds = seconds_since(plan_start);

    // Shapes' algorithms are looked for at their first use: not in the job's time.
    for (int64_t tokens = 64; tokens <= info.step_tokens; tokens += 64) {
        const Status status =
            backend.forward().run_linear(tokens, std::min<int64_t>(tokens, 2048), backend.stream());
        if (!status.ok()) return fail(status);
    }
    cudaStreamSynchronize(backend.stream());

    SchedulerOptions scheduling;
    scheduling.pages = info.pages;
    scheduling.page_tokens = info.page_tokens;
    scheduling.step_tokens = info.step_tokens;
    scheduling.max_requests = arguments.cap;
    scheduling.order = planning.order;
    Scheduler scheduler(scheduling);
    SamplingParams params;
    params.max_tokens = job.generated;
    params.ignore_eos = true;
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<Request *> held;
    for (const TokenRow &row : rows.rows) {
        requests.push_back(std::make_unique<Request>());
        requests.back()->prompt = row;
        requests.back()->params = &params;
        requests.back()->max_tokens = job.generated;
        held.push_back(requests.back().get());
    }

    const auto start = Clock::now();
    const Status added = scheduler.add(*plan, held);
    if (!added.ok()) return fail(added);
    BatchOutput output;
    AttentionFloor attention;
    int64_t steps = 0, tokens = 0, decoded = 0, sampled = 0, preemptions = 0, full = 0;
    double scheduling_seconds = 0, backend_seconds = 0, floor_seconds = 0;
    while (true) {
        auto lap = Clock::now();
        const TokenBatch &batch = scheduler.next_step();
        scheduling_seconds += seconds_since(lap);
        if (batch.tokens.empty()) break;
        const Status status = backend.run(batch, &output);
        if (!status.ok()) return fail(status);
        backend_seconds += backend.last_run_seconds();
        lap = Clock::now();
        for (size_t i = 0; i < batch.logits.size(); ++i) {
            Request *request = scheduler.sampled()[i];
            if (!output.samples[i].finite) {
                std::fprintf(stderr, "logits are not finite\n");
                return 1;
            }
            request->output.push_back(output.samples[i].token);
            request->done = static_cast<int32_t>(request->output.size()) == job.generated;
        }
        ++steps;
        tokens += static_cast<int64_t>(batch.tokens.size());
        full += 10 * static_cast<int64_t>(batch.tokens.size()) >= 9 * info.step_tokens;
        decoded += scheduler.counts().decode_tokens;
        preemptions += scheduler.counts().preemptions;
        sampled += static_cast<int64_t>(batch.logits.size());
        const auto floor_start = Clock::now();
        attention.add(batch, config);
        floor_seconds += seconds_since(floor_start);
        scheduler.finish_step();
        scheduling_seconds += seconds_since(lap);
    }
    const double seconds = seconds_since(start) - floor_seconds;
    scheduling_seconds -= floor_seconds;

    double best_rate = 0;
    int64_t best_tokens = 0;
    for (const int64_t at : {int64_t{1024}, int64_t{2048}, int64_t{3072}, info.step_tokens}) {
        if (at > info.step_tokens) continue;
        const int64_t wanted = std::clamp<int64_t>(at * sampled / tokens, 1, at);
        auto took = time_linear(&backend, at, wanted);
        if (!took.ok()) return fail(took.status());
        std::printf("linear layers, %lld tokens, %lld logits: %.2f ms, %.1f thousand tokens/s\n",
                    static_cast<long long>(at), static_cast<long long>(wanted), *took * 1e3,
                    static_cast<double>(at) / *took * 1e-3);
        if (static_cast<double>(at) / *took > best_rate) {
            best_rate = static_cast<double>(at) / *took;
            best_tokens = at;
        }
    }
    const double linear_floor = static_cast<double>(tokens) / best_rate;
    const double floor = linear_floor + attention.seconds();
    const auto count = static_cast<double>(job.rows);
    std::printf("%s, %s, %s%s%s\n", job.name, model_name.c_str(), info.compute_type.c_str(),
                arguments.sharing_on ? "" : ", no sharing", arguments.arrival ? ", arrival" : "");
    std::printf("rows %lld  prompt tokens %lld, computed %lld (saving %.3f)  generated %lld  plan "
                "%.0f ms\n",
                static_cast<long long>(job.rows), static_cast<long long>(plan->logical_tokens()),
                static_cast<long long>(plan->processed_tokens()), plan->saving_ratio(),
                static_cast<long long>(job.rows * job.generated), plan_seconds * 1e3);
    std::printf("steps %lld (%lld full, %.0f tokens each)  preemptions %lld  KV pages %lld\n",
                static_cast<long long>(steps), static_cast<long long>(full),
                static_cast<double>(tokens) / static_cast<double>(steps),
                static_cast<long long>(preemptions), static_cast<long long>(info.pages));
    std::printf(
        "seconds %.2f: backend %.2f (of it host, before the device begins %.2f), scheduler %.2f\n",
        seconds, backend_seconds, backend.host_seconds(), scheduling_seconds);
    std::printf("rows/s %.1f  tokens/s %.0f computed, %.0f generated  vLLM %.1f rows/s\n",
                count / seconds, static_cast<double>(tokens) / seconds,
                count * job.generated / seconds, job.vllm);
    std::printf("floor %.2f s (linear %.2f at %lld tokens, attention %.2f): %.1f rows/s; "
                "floor/measured %.3f\n",
                floor, linear_floor, static_cast<long long>(best_tokens), attention.seconds(),
                count / floor, floor / seconds);
    if (arguments.profile) {
        const auto &parts = backend.forward().profile().seconds;
        double all = 0;
        for (const double part : parts) all += part;
        for (size_t i = 1; i < parts.size(); ++i) {
            std::printf("  %-10s %7.3f s  %5.1f %%\n", cuda::kPartNames[i], parts[i],
                        100 * parts[i] / all);
        }
        std::printf("  %-10s %7.3f s, of %.3f in the backend\n", "all parts", all, backend_seconds);
    }
    return 0;
}

} // namespace

int main(int count, char **values) {
    Arguments arguments;
    if (!read_arguments(count, values, &arguments)) {
        std::fprintf(stderr,
                     "unknown argument; the options are at the top of bench/throughput.cc\n");
        return 2;
    }
    return run(arguments);
}
