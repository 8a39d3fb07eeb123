// The jobs of bench/throughput as they ran on an H200 and an H100, and the same jobs through the
// real planner and scheduler with modelled steps. For bench/predict and tests/runtime/test_predict.cc.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../tests/helpers/whole_plan.h"
#include "backend/sim/sim_backend.h"
#include "runtime/lane.h"
#include "throughput_models.h"

namespace batchllm {

// Measured rates; docs/lab/jobs.md has their tables and commands.
struct MeasuredJob {
    NamedJob job;
    double kv_gib = 0;       // 0: all that the weights leave
    double rows_second = 0;  // measured
    bool fitted = false;     // a fit to these jobs alone was tested on the others
    bool sharing_on = true;  // false: --no-sharing
    int64_t step_tokens = 0; // 0: today's default, not that of the measured commit
    int32_t levels = 1;
    double common_prefix_cost = 0;                               // for levels 0
    std::string ranks = "1";                                     // devices that work as one
    std::vector<std::pair<std::string, std::string>> extra = {}; // quantize, kv_type
    bool chooses_by_context = false;                             // StepCost::choose_by_context
};

// A job by name, with the differences from it.
struct MeasuredRate {
    const char *name;
    int64_t rows;        // 0: as in the job
    int64_t step_tokens; // 0: the default of the device description
    double rows_second;
    bool fitted;
};

// With Mistral-7B (industry2 with Qwen2-7B) at 35886e2; some with 4,096 at 9c9dcb7, which has the
// same kernels.
constexpr MeasuredRate kMeasuredRates[] = {
    {"a16", 0, 0, 91.0, true},
    {"one", 0, 0, 124.7, true},
    {"industry2", 800, 0, 45.0, false},
    {"a16", 0, 8192, 90.0, false},
    {"a4", 0, 8192, 49.0, false},
    {"b16", 0, 8192, 33.8, false},
    {"c16", 0, 8192, 18.8, true},
    {"one", 0, 8192, 123.4, false},
    {"industry2", 800, 8192, 45.1, false},
    {"a16", 0, 4096, 88.2, true},
    {"a4", 0, 4096, 48.3, false},
    {"b16", 0, 4096, 33.6, false},
    {"b4", 0, 4096, 29.1, false},
    {"c16", 0, 4096, 18.8, true},
    {"c4", 0, 4096, 18.6, false},
    {"one", 0, 4096, 121.5, true},
    {"industry1", 0, 4096, 60.5, false},
    {"industry2", 0, 4096, 44.8, false},
    {"industry2", 800, 4096, 44.3, false},
};

// At 2edf6d3. None was used for the description.
constexpr MeasuredRate kMeasuredOnH100[] = {
    {"a16", 0, 0, 88.9, false},  {"one", 0, 0, 121.9, false},         {"c16", 256, 0, 17.6, false},
    {"a4", 512, 0, 46.9, false}, {"industry1", 1000, 0, 57.4, false}, {"a16", 0, 4096, 84.8, false},
};

// Measured in fp8, or with models whose layers have states.
struct MeasuredModel {
    const char *name;
    int64_t rows;        // 0: as in the job
    int32_t generated;   // the same
    int64_t step_tokens; // 0: the default of the device description
    const char *model;   // null: the job's
    const char *types;   // "", "fp8": of products, "fp8, kv": of keys and values too
    double rows_second;
};

// At 903545b, 3796592 and d4e9e66; with states as docs/lab/jobs.md says.
constexpr MeasuredModel kModelsOnH200[] = {
    {"a16", 0, 0, 0, nullptr, "fp8", 130.3},
    {"one", 0, 0, 0, nullptr, "fp8", 174.6},
    {"c16", 0, 0, 0, nullptr, "fp8", 27.1},
    {"industry1", 1000, 0, 0, nullptr, "fp8", 86.2},
    {"c16", 96, 400, 0, nullptr, "fp8", 13.6},
    {"a16", 0, 0, 0, nullptr, "fp8, kv", 135.7},
    {"one", 0, 0, 0, nullptr, "fp8, kv", 181.9},
    {"c16", 0, 0, 0, nullptr, "fp8, kv", 29.1},
    {"industry1", 1000, 0, 0, nullptr, "fp8, kv", 90.7},
    {"c16", 96, 400, 0, nullptr, "fp8, kv", 16.1},
    {"a16", 0, 0, 8192, "qwen3-30b-a3b", "fp8", 164.1},
    {"a16", 0, 0, 16384, "qwen3-30b-a3b", "fp8", 167.1},
    {"c16", 0, 0, 8192, "qwen3-30b-a3b", "fp8", 37.4},
    {"c16", 0, 0, 16384, "qwen3-30b-a3b", "fp8", 38.1},
    {"a16", 512, 0, 16384, "qwen3.5-9b", "", 77.9},
    {"a16", 512, 0, 0, "granite-4.0-h-micro", "", 117},
    {"a16", 64, 0, 0, "granite-4.0-h-micro", "", 73.2},
    {"a16", 512, 0, 0, "nemotron-h-8b", "", 66.2},
    {"a16", 512, 0, 0, "nemotron-3-nano", "", 96.3},
    {"a16", 1024, 0, 0, "lfm2-1.2b", "", 588},
};

// At 89f89b7 and 2edf6d3.
constexpr MeasuredModel kModelsOnH100[] = {
    {"a16", 0, 0, 0, nullptr, "fp8", 121.1},
    {"one", 0, 0, 0, nullptr, "fp8", 168.0},
    {"c16", 256, 0, 0, nullptr, "fp8", 24.3},
    {"a16", 0, 0, 0, nullptr, "fp8, kv", 130.4},
    {"a16", 256, 0, 0, "qwen3.5-9b", "", 69.3},
    {"a16", 512, 0, 0, "granite-4.0-h-micro", "", 100.1},
    {"a16", 1024, 0, 0, "lfm2-1.2b", "", 575},
};

// With experts, latents or both, by jobs at 659febb6 and later (docs/lab/jobs.md).
constexpr MeasuredModel kExpertsOnH100[] = {
    {"a16", 384, 0, 0, "qwen3-30b-a3b", "", 90.2},
    {"a16", 768, 0, 0, "qwen3-30b-a3b", "", 90.4},
    {"a16", 512, 400, 0, "qwen3-30b-a3b", "", 24.2},
    {"a16", 512, 0, 0, "gpt-oss-20b", "", 121.9},
    {"a16", 0, 0, 0, "gpt-oss-20b", "", 142.9},
    {"c16", 0, 0, 0, "gpt-oss-20b", "", 31.8},
    {"a16", 512, 0, 0, "gemma-4-26b-a4b", "", 64.6},
    {"a16", 0, 0, 0, "glm-4.7-flash", "", 81.1},
    {"c16", 0, 0, 0, "glm-4.7-flash", "", 20.0},
    {"a16", 0, 0, 0, "glm-4.7-flash", "fp8", 113.2},
    {"a16", 0, 0, 4096, "glm-4.7-flash", "", 84.5},
    {"a16", 0, 0, 0, "deepseek-v2-lite", "", 165.3},
    {"c16", 0, 0, 0, "deepseek-v2-lite", "", 36.4},
};

inline MeasuredJob measured_job(const MeasuredRate &rate) {
    MeasuredJob job{};
    for (const NamedJob &named : kJobs) {
        if (std::string(named.name) == rate.name) job.job = named;
    }
    if (rate.rows > 0) job.job.rows = rate.rows;
    job.step_tokens = rate.step_tokens;
    job.rows_second = rate.rows_second;
    job.fitted = rate.fitted;
    return job;
}

// With the random weights of bench/throughput rows of Qwen3-30B-A3B that decode behind one prefix choose the same experts
// (docs/lab/jobs.md).
inline void take_model(const char *model, MeasuredJob *job) {
    job->job.model = model;
    job->chooses_by_context = std::string(model) == "qwen3-30b-a3b";
}

inline MeasuredJob measured_job(const MeasuredModel &of) {
    MeasuredJob job = measured_job({of.name, of.rows, of.step_tokens, of.rows_second, false});
    if (of.generated > 0) job.job.generated = of.generated;
    if (of.model != nullptr) take_model(of.model, &job);
    if (*of.types != 0) job.extra.emplace_back("quantize", "fp8");
    if (std::string(of.types) == "fp8, kv") job.extra.emplace_back("kv_type", "fp8");
    return job;
}

// In fp8, and with states.
inline std::vector<MeasuredJob> measured_models(const std::string &device) {
    std::vector<MeasuredJob> jobs;
    if (device == "h100") {
        for (const MeasuredModel &of : kModelsOnH100) jobs.push_back(measured_job(of));
    } else {
        for (const MeasuredModel &of : kModelsOnH200) jobs.push_back(measured_job(of));
    }
    return jobs;
}

inline std::vector<MeasuredJob> experts_on_h100() {
    std::vector<MeasuredJob> jobs;
    for (const MeasuredModel &of : kExpertsOnH100) jobs.push_back(measured_job(of));
    return jobs;
}

inline std::vector<MeasuredJob> measured_on_h100() {
    std::vector<MeasuredJob> jobs;
    for (const MeasuredRate &rate : kMeasuredOnH100) jobs.push_back(measured_job(rate));
    return jobs;
}

inline std::vector<MeasuredJob> measured_on_h200() {
    std::vector<MeasuredJob> jobs;
    const auto add = [&](const MeasuredRate &rate) {
        jobs.push_back(measured_job(rate));
        return &jobs.back();
    };
    for (const MeasuredRate &rate : kMeasuredRates) add(rate);
    MeasuredJob gemma{{"c16", "Gemma-3-12B", 40, 200, 0, 7700, 16, 200, 0, 0}, 24, 2.5, false};
    gemma.step_tokens = 4096;
    jobs.push_back(gemma);
    add({"a16", 0, 4096, 16.7, false})->sharing_on = false;
    add({"industry1", 700, 4096, 57.3, true})->levels = 2;
    for (const MeasuredRate &rate : {MeasuredRate{"a16", 0, 8192, 127.2, true},
                                     {"a16", 0, 4096, 121.3, false},
                                     {"a4", 0, 4096, 66.7, false},
                                     {"c16", 0, 8192, 29.2, false},
                                     {"c16", 256, 4096, 26.6, false}}) {
        take_model("qwen3-30b-a3b", add(rate));
    }
    MeasuredJob small{
        {"small", "examples/catalogue/model", 8000, 300, 0, 40, 10, 16, 0, 0}, 0, 43200, true};
    small.step_tokens = 4096;
    jobs.push_back(small);
    small.rows_second = 14000;
    small.step_tokens = 512;
    jobs.push_back(small);
    return jobs;
}

// Jobs whose prefixes have a common prefix (`common`), on several models: what sharing the common
// prefix gains (docs/planning.md).
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
    planning.common_prefix_cost = of.common_prefix_cost;
    if (!of.sharing_on) planning.enlarge = BATCHLLM_ENLARGE_NONE;
    ASSIGN_OR_RETURN(const Plan plan, plan_job(job, rows, planning));
    BackendOptions options;
    options.extra = of.extra;
    options.extra.emplace_back("device", device);
    options.extra.emplace_back("tensor_parallel", of.ranks);
    options.step_tokens = of.step_tokens;
    options.kv_memory_bytes = static_cast<int64_t>(of.kv_gib * 1024 * 1024 * 1024);
    ASSIGN_OR_RETURN(SimOptions read, read_sim_options(&model.model, options));
    if (of.chooses_by_context) read.costs->choose_by_context();
    auto backend = std::make_unique<SimBackend>(read, options);
    const SimBackend &sim = *backend;
    Lane lane(0, std::move(backend), {});
    const JobRequests requests(rows, job);
    Predicted predicted;
    RETURN_IF_ERROR(add_plan(lane.scheduler(), plan, requests.held));
    while (true) {
        while (lane.takes_another()) {
            ASSIGN_OR_RETURN(const TokenBatch *next, lane.next_batch());
            const TokenBatch &batch = *next;
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
