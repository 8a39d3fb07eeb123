// The jobs of bench/throughput as they ran on an H200, and the same jobs through the real planner and
// scheduler with modelled steps. For bench/predict and tests/test_predict.cc.
#pragma once

#include <memory>
#include <vector>

#include "backend/sim/sim_backend.h"
#include "runtime/lane.h"
#include "throughput_models.h"

namespace batchllm {

// docs/performance.md: the tables and commands that the rates are of.
struct MeasuredJob {
    NamedJob job;
    double kv_gib = 0;       // 0: what the weights leave
    double rows_second = 0;  // measured
    bool fitted = false;     // the description of the device was fitted to it
    bool sharing_on = true;  // else --no-sharing
    int64_t step_tokens = 0; // 0: the backend's
    int32_t levels = 1;
    double head_cost = 0; // with levels 0
};

inline std::vector<MeasuredJob> measured_on_h200() {
    const auto named = [](const char *name) {
        for (const NamedJob &job : kJobs) {
            if (std::string(job.name) == name) return job;
        }
        return kJobs[0];
    };
    std::vector<MeasuredJob> jobs;
    const auto add = [&](const char *name, double rate, bool fitted) {
        jobs.push_back({named(name), 0, rate, fitted});
    };
    add("a16", 88.2, true);
    add("a4", 48.3, false);
    add("b16", 33.6, false);
    add("b4", 29.1, false);
    add("c16", 18.8, true);
    add("c4", 18.6, false);
    add("one", 120.5, true);
    add("industry1", 60.5, false);
    add("industry2", 44.8, false);
    MeasuredJob gemma{{"c16", "Gemma-3-12B", 40, 200, 0, 7700, 16, 200, 0, 0}, 24, 2.5, false};
    jobs.push_back(gemma);
    MeasuredJob alone{named("a16"), 0, 16.7, false};
    alone.sharing_on = false;
    jobs.push_back(alone);
    MeasuredJob wide{named("a16"), 0, 84.9, false};
    wide.step_tokens = 8192;
    jobs.push_back(wide);
    MeasuredJob levels{named("industry1"), 0, 57.3, true};
    levels.job.rows = 700;
    levels.levels = 2;
    jobs.push_back(levels);
    const auto sparse = [&](const char *name, double rate, int64_t step_tokens, bool fitted) {
        MeasuredJob job{named(name), 0, rate, fitted};
        job.job.model = "qwen3-30b-a3b";
        job.step_tokens = step_tokens;
        return job;
    };
    jobs.push_back(sparse("a16", 127.2, 0, true));
    jobs.push_back(sparse("a16", 121.3, 4096, false));
    jobs.push_back(sparse("a4", 66.7, 4096, false));
    jobs.push_back(sparse("c16", 29.2, 0, false));
    MeasuredJob fewer = sparse("c16", 26.6, 4096, false);
    fewer.job.name = "c16 --rows 256";
    fewer.job.rows = 256;
    jobs.push_back(fewer);
    MeasuredJob small{
        {"small", "examples/catalogue/model", 8000, 300, 0, 40, 10, 16, 0, 0}, 0, 43200, true};
    jobs.push_back(small);
    small.job.name = "small";
    small.rows_second = 14000;
    small.step_tokens = 512;
    jobs.push_back(small);
    return jobs;
}

// Jobs with a head of all prefixes (`common`), and models: what a head brings (docs/planning.md).
inline std::vector<NamedJob> jobs_with_heads() {
    return {{"", "", 1500, 1000, 500, 400, 16, 100, 0.2, 0},
            {"", "", 3000, 1100, 275, 400, 7, 100, 0.2, 0}, // industry1
            {"", "", 1500, 1100, 400, 400, 7, 100, 0, 0},
            {"", "", 1500, 1100, 500, 400, 7, 100, 0.2, 0},
            {"", "", 1500, 1100, 600, 400, 7, 100, 0, 0},
            {"", "", 1500, 1100, 750, 400, 7, 100, 0, 0},
            {"", "", 1500, 1100, 800, 400, 7, 100, 0.2, 0},
            {"", "", 1500, 1100, 900, 200, 12, 60, 0, 0},
            {"", "", 3000, 2000, 800, 60, 12, 30, 0, 0},
            {"", "", 1500, 700, 400, 60, 10, 20, 0, 0},
            {"", "", 700, 2400, 900, 300, 2, 100, 0, 0}};
}
constexpr const char *models_with_heads[] = {
    "Mistral-7B", "Qwen2-7B",     "Gemma-3-12B",  "qwen3-30b-a3b",
    "Qwen3-4B",   "Llama-3.2-3B", "Llama-3.2-1B", "examples/catalogue/model"};

struct Predicted {
    double seconds = 0;
    int64_t steps = 0, tokens = 0, preemptions = 0, pages = 0;
    StepSeconds parts;
    double rows_second = 0;
};

inline Result<Predicted> predict_job(const MeasuredJob &of, const std::string &device) {
    const NamedJob &job = of.job;
    ASSIGN_OR_RETURN(const BenchModel model, bench_model(job.model));
    const JobRows rows = make_rows(job, model.model.vocabulary);
    PlanOptions planning;
    planning.levels = of.levels;
    planning.head_cost = of.head_cost;
    if (!of.sharing_on) planning.enlarge = BATCHLLM_ENLARGE_NONE;
    ASSIGN_OR_RETURN(const Plan plan, plan_job(job, rows, planning));
    BackendOptions options;
    options.extra.emplace_back("device", device);
    options.step_tokens = of.step_tokens;
    options.kv_memory_bytes = static_cast<int64_t>(of.kv_gib * 1024 * 1024 * 1024);
    ASSIGN_OR_RETURN(const SimOptions read, read_sim_options(&model.model, options));
    auto backend = std::make_unique<SimBackend>(read, options);
    const SimBackend &sim = *backend;
    Lane lane(0, std::move(backend), {});
    const JobRequests requests(rows, job);
    Predicted predicted;
    RETURN_IF_ERROR(lane.scheduler().add(plan, requests.held));
    while (true) {
        while (lane.takes_another()) {
            const TokenBatch &batch = lane.next_batch();
            if (batch.tokens.empty()) break;
            RETURN_IF_ERROR(lane.forward(batch));
            RETURN_IF_ERROR(lane.sample({}));
        }
        if (lane.in_flight() == 0) break;
        RETURN_IF_ERROR(lane.collect());
        const BatchRecord &record = lane.record();
        for (size_t i = 0; i < record.sampled.size(); ++i) {
            Request *request = record.sampled[i];
            if (request == nullptr) continue;
            request->output.push_back(lane.output().samples[i].token);
            request->done = static_cast<int32_t>(request->output.size()) == job.generated;
        }
        const StepCounts &counts = record.counts;
        ++predicted.steps;
        predicted.tokens += counts.decode_tokens + counts.own_tokens + counts.prefix_tokens;
        predicted.preemptions += counts.preemptions;
        lane.finish();
    }
    predicted.seconds = lane.seconds();
    predicted.pages = sim.info().pages;
    predicted.parts = sim.spent();
    predicted.rows_second = static_cast<double>(job.rows) / predicted.seconds;
    return predicted;
}

} // namespace batchllm
