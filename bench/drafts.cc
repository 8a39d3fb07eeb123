// Drafts (docs/drafts.md): a job of extraction-like answers without and with them, in one run.
//
// Rows have prompts of their own, but for the first --shared tokens, which --sharing rows have in common, and their answers are parts of these, whatever the model computes
// (scripted_backend.h): random weights have the time of trained ones, and a simulated device has
// none.
//
//     drafts [--backend sim|cpu|cuda] [--device h100] [--model NAME] [--rows 64] [--prompt 4000]
//            [--generated 400] [--part 40] [--threads N] [--options key=value,..]
//            [--shared 0] [--sharing 16] [--ways off,auto,always] [--steps FILE]
//
// sim and cuda take the models of bench/throughput, cpu a Llama of 100M parameters. With --part 1
// nothing repeats: then drafts must cost nothing. --steps writes each batch, with its measured and its
// predicted milliseconds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda_library.h"
#include "backend/sim/sim_backend.h"
#include "clock.h"
#include "cpu_bench.h"
#include "parameters/row_parameters.h"
#include "runtime/cuda_library.h"
#include "runtime/engine.h"
#include "scripted_backend.h"
#include "throughput_models.h"

using namespace batchllm;

namespace {

struct Job {
    std::string backend = "sim", device = "h100", model = "Mistral-7B", options;
    std::string ways = "off,auto,always", steps;
    int32_t rows = 64, prompt = 4000, generated = 400, part = 40, threads = 0;
    int32_t shared = 0, sharing = 16;
};

// Writes a line for each batch.
class StepFile final : public BatchWatch {
  public:
    explicit StepFile(const char *path) : file_(std::fopen(path, "w")) {
        if (file_ == nullptr) return;
        std::fprintf(file_, "way,rows,tokens,outputs,keys,device_ms,since_last_ms,predicted_ms,"
                            "predicted_attention_ms\n");
    }
    ~StepFile() override {
        if (file_ != nullptr) std::fclose(file_);
    }
    void begin(const char *way, std::shared_ptr<const StepCost> cost) {
        way_ = way;
        cost_ = std::move(cost);
    }
    void began(const TokenBatch &batch) override {
        Step step{0, batch.tokens.size(), batch.outputs.size(), 0, cost_->seconds(batch)};
        for (const ContextNode &node : batch.nodes) {
            step.rows += node.token_count > 0;
            step.keys += node.length;
        }
        steps_.push_back(step);
    }
    void ended(double device_seconds) override {
        const Step step = steps_.front();
        steps_.pop_front();
        if (file_ != nullptr) {
            std::fprintf(file_, "%s,%d,%zu,%zu,%lld,%.3f,%.3f,%.3f,%.3f\n", way_, step.rows,
                         step.tokens, step.outputs, static_cast<long long>(step.keys),
                         1e3 * device_seconds, 1e3 * seconds_since(last_),
                         1e3 * step.predicted.total(), 1e3 * step.predicted.attention);
        }
        last_ = Clock::now();
    }

  private:
    struct Step {
        int32_t rows;
        size_t tokens, outputs;
        int64_t keys;
        StepSeconds predicted;
    };
    std::FILE *file_;
    const char *way_ = "";
    std::shared_ptr<const StepCost> cost_;
    std::deque<Step> steps_;
    Clock::time_point last_ = Clock::now();
};

// A model cannot be copied, since it may own files.
Result<std::unique_ptr<Model>> make_model(const Job &job) {
    if (job.backend == "cpu") {
        static std::unique_ptr<cpu::RandomModel> made; // owns the weights; one engine at a time
        made = std::make_unique<cpu::RandomModel>();
        return std::make_unique<Model>(std::move(made->model));
    }
    ASSIGN_OR_RETURN(BenchModel made, bench_model(job.model));
    return std::make_unique<Model>(std::move(made.model));
}

Result<LoadedModel> load(const Job &job, const EngineOptions &of, const char *way,
                         StepFile *steps) {
    LoadedModel loaded;
    ASSIGN_OR_RETURN(loaded.model, make_model(job));
    BackendOptions own = of.backend_options;
    std::unique_ptr<Backend> backend;
    EngineOptions with_drafts = of;
    with_drafts.drafts = Drafts::where_they_pay;
    if (job.backend == "sim") {
        own.extra.insert(own.extra.end(), {{"device", job.device}, {"eos_token", "-1"}});
        ASSIGN_OR_RETURN(const SimOptions read, read_sim_options(loaded.model.get(), own));
        backend = std::make_unique<SimBackend>(read, own);
        loaded.step_cost = std::make_shared<StepCost>(*read.costs);
    } else if (job.backend == "cpu") {
        ASSIGN_OR_RETURN(backend, make_cpu_backend(*loaded.model, own));
    } else {
        own.extra.emplace_back("random_weights", "1");
        ASSIGN_OR_RETURN(backend, make_cuda_backend(*loaded.model, own));
    }
    if (loaded.step_cost == nullptr)
        loaded.step_cost = step_cost_on(backend->info(), *loaded.model, with_drafts);
    if (steps != nullptr) steps->begin(way, loaded.step_cost);
    loaded.backends.push_back(
        std::make_unique<ScriptedBackend>(std::move(backend), job.part, steps));
    return loaded;
}

Status add_rows(const Job &job, int32_t rows, uint64_t seed, Engine *engine) {
    ASSIGN_OR_RETURN(const batchllm_info info, engine->info(0));
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
    std::mt19937_64 random(seed);
    for (int32_t row = 0; row < rows; ++row) {
        const auto begin = static_cast<ptrdiff_t>(tokens.size());
        for (int32_t i = 0; i < job.prompt; ++i)
            tokens.push_back(
                3 + static_cast<int32_t>(random() % static_cast<uint64_t>(info.vocabulary - 3)));
        if (row % job.sharing > 0)
            std::copy_n(tokens.begin() + begin - job.prompt, job.shared, tokens.begin() + begin);
        offsets.push_back(static_cast<int64_t>(tokens.size()));
    }
    batchllm_params params = default_params();
    params.max_tokens = job.generated;
    params.ignore_eos = 1;
    const auto column = ParamsColumn::open(&params, 1, rows);
    RETURN_IF_ERROR(column.status());
    ASSIGN_OR_RETURN(Intake *const intake, engine->intake());
    return intake->add_tokens({rows, tokens.data(), offsets.data()}, nullptr, *column);
}

// Returns the seconds: simulated ones on sim, those of all threads on cpu.
Result<double> run(const Job &job, Drafts drafts, const char *name, double without,
                   StepFile *steps) {
    EngineOptions options;
    options.backend = job.backend;
    options.drafts = drafts;
    options.max_request_tokens = job.prompt + job.generated;
    options.threads = options.backend_options.threads = job.threads;
    options.log = {
        [](void *, int32_t, const char *message) { std::fprintf(stderr, "%s\n", message); },
        nullptr, BATCHLLM_LOG_WARNING};
    for (size_t begin = 0; begin < job.options.size();) {
        const size_t end = std::min(job.options.find(',', begin), job.options.size());
        const std::string item = job.options.substr(begin, end - begin);
        const size_t equals = std::min(item.find('='), item.size());
        options.backend_options.extra.emplace_back(item.substr(0, equals),
                                                   item.substr(std::min(equals + 1, item.size())));
        begin = end + 1;
    }
    ASSIGN_OR_RETURN(auto engine, Engine::create(options, [&](const EngineOptions &of) {
                         return load(job, of, name, steps);
                     }));
    double seconds = 0, processor = 0;
    uint64_t round = 0;
    DraftWork before;
    batchllm_stats first{};
    // A first round with some rows, for what is done at the first use of a shape.
    for (const int32_t rows : {std::min(job.rows, 4), job.rows}) {
        before = engine->draft_work();
        first = engine->stats();
        RETURN_IF_ERROR(add_rows(job, rows, ++round, engine.get()));
        const auto start = Clock::now();
        const std::clock_t processor_start = std::clock();
        RETURN_IF_ERROR(engine->run(nullptr, nullptr));
        seconds = seconds_since(start);
        processor = static_cast<double>(std::clock() - processor_start) / CLOCKS_PER_SEC;
        engine->poll(0);
    }
    const batchllm_stats stats = engine->stats();
    if (job.backend == "sim") seconds = stats.backend_seconds - first.backend_seconds;
    if (job.backend == "cpu") seconds = processor; // whatever else runs on the machine
    const DraftWork work = engine->draft_work();
    std::printf("drafts %-6s %8.2f s, %5lld steps; %lld tokens generated, %lld proposed, %lld of "
                "them right; schedule %.3f s",
                name, seconds, static_cast<long long>(stats.steps - first.steps),
                static_cast<long long>(stats.completion_tokens - first.completion_tokens),
                static_cast<long long>(work.proposed - before.proposed),
                static_cast<long long>(work.accepted - before.accepted),
                stats.schedule_seconds - first.schedule_seconds);
    if (without > 0) std::printf("; %.2f times", without / seconds);
    std::printf("\n");
    std::fflush(stdout);
    return seconds;
}

Status compare(const Job &job) {
    std::printf("%s: %d rows, prompts of %d tokens, %d generated, in parts of %d\n",
                job.backend.c_str(), job.rows, job.prompt, job.generated, job.part);
    const auto steps = job.steps.empty() ? nullptr : std::make_unique<StepFile>(job.steps.c_str());
    double off = 0;
    for (const auto &[name, drafts] :
         {std::pair("off", Drafts::off), std::pair("auto", Drafts::where_they_pay),
          std::pair("always", Drafts::always)}) {
        if (job.ways.find(name) == std::string::npos) continue;
        ASSIGN_OR_RETURN(const double seconds, run(job, drafts, name, off, steps.get()));
        if (drafts == Drafts::off) off = seconds;
    }
    return {};
}

} // namespace

int main(int count, char **arguments) {
    Job job;
    for (int i = 1; i < count; i += 2) {
        const std::string key = arguments[i];
        if (i + 1 == count) {
            std::fprintf(stderr, "%s: a value is missing\n", key.c_str());
            return 2;
        }
        const char *value = arguments[i + 1];
        if (key == "--backend")
            job.backend = value;
        else if (key == "--device")
            job.device = value;
        else if (key == "--model")
            job.model = value;
        else if (key == "--options")
            job.options = value;
        else if (key == "--rows")
            job.rows = std::atoi(value);
        else if (key == "--prompt")
            job.prompt = std::atoi(value);
        else if (key == "--generated")
            job.generated = std::atoi(value);
        else if (key == "--part")
            job.part = std::atoi(value);
        else if (key == "--shared")
            job.shared = std::clamp(std::atoi(value), 0, job.prompt);
        else if (key == "--sharing")
            job.sharing = std::max(1, std::atoi(value));
        else if (key == "--ways")
            job.ways = value;
        else if (key == "--steps")
            job.steps = value;
        else if (key == "--threads")
            job.threads = std::atoi(value);
        else {
            std::fprintf(stderr, "%s: see the top of bench/drafts.cc\n", key.c_str());
            return 2;
        }
    }
    const Status status = compare(job);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
    return status.ok() ? 0 : 1;
}
