// The cost of scheduling, and its effect on the token batches of a job.
//
//     schedule cost                        microseconds per step with all requests decoding
//     schedule timeline [key=value ...]    a job on the sim backend under five schedulers
//
// timeline keys: rows, prefix, own, sharing (rows a group), min_output, max_output (max_tokens),
// step_tokens, pages, page_tokens, cap (requests of the capped schedulers), seed, the modelled times
// of src/backend/sim/sim_options.h, and csv=PREFIX: writes PREFIX-NAME.csv with one line per step.
// Output lengths are uniform between min_output and a bound that differs from group to group, so
// that groups are decode-heavy or prefill-heavy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../tests/helpers/whole_plan.h"
#include "schedule/scheduler.h"

using namespace batchllm;

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point begin, Clock::time_point end) {
    return std::chrono::duration<double, std::micro>(end - begin).count();
}

// ---- Cost of a step ----

struct CostCase {
    int64_t running; // requests that decode
    int64_t waiting; // requests that wait behind them
    int32_t own;     // prompt tokens
    bool
        by_memory; // the waiting ones wait for memory, so each step makes a forecast; else for a cap
};

int32_t measure_cost(const CostCase &job) {
    constexpr int32_t prefix = 2000, sharing = 16, steps = 400, page_tokens = 16, longest = 2000;
    std::vector<int32_t> tokens(static_cast<size_t>(prefix + job.own), 7);
    const int64_t rows = job.running + job.waiting;
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<Request *> held;
    const SamplingParams params;
    Plan plan;
    for (int64_t i = 0; i < rows; ++i) {
        requests.push_back(std::make_unique<Request>());
        Request &request = *requests.back();
        request.prompt = {tokens.data(), prefix + job.own, prefix};
        request.params = &params;
        request.max_tokens = longest;
        held.push_back(&request);
        plan.rows.push_back(i);
        if (i % sharing == 0) {
            plan.groups.push_back({static_cast<int32_t>(plan.prefixes.size()), i, i});
            plan.prefixes.push_back({i, prefix, -1});
        }
        plan.groups.back().row_end = i + 1;
    }
    SchedulerOptions options;
    options.page_tokens = page_tokens;
    options.pages = job.running * ((job.own + longest) / page_tokens + 1) +
                    (job.running / sharing + 1) * (prefix / page_tokens);
    options.step_tokens = 8192;
    options.paced_tokens = options.step_tokens; // all are admitted at once
    options.max_requests = job.by_memory ? 0 : job.running;
    options.look_ahead = job.by_memory;
    Scheduler scheduler(options);
    const Status status = add_plan(scheduler, plan, held);
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
        return 1;
    }
    std::vector<double> times;
    size_t batch_pages = 0;
    int64_t running = 0, last = -1;
    while (times.size() < static_cast<size_t>(steps)) {
        const auto begin = Clock::now();
        const TokenBatch &batch = scheduler.next_step();
        const auto built = Clock::now();
        for (Request *request : scheduler.sampled()) request->output.push_back(3);
        const auto ran = Clock::now();
        batch_pages = batch.pages[0].list.size();
        scheduler.finish_step();
        const auto end = Clock::now();
        // Once no more requests are admitted.
        running = scheduler.counts().decode_tokens;
        if (running == last && running == scheduler.running())
            times.push_back(microseconds(begin, built) + microseconds(ran, end));
        last = running;
    }
    std::sort(times.begin(), times.end());
    std::printf("%5lld running, %6lld waiting for %s, %6zu pages in the batch: "
                "median %5.1f us, 90 %% %5.1f us\n",
                static_cast<long long>(running), static_cast<long long>(scheduler.waiting()),
                scheduler.waiting() == 0 ? "nothing"
                : job.by_memory          ? "memory "
                                         : "the cap",
                batch_pages, times[times.size() / 2], times[times.size() * 9 / 10]);
    return 0;
}

// ---- Timelines ----

using Keys = std::map<std::string, std::string>;

int64_t number(const Keys &keys, const char *key) {
    return std::strtoll(keys.at(key).c_str(), nullptr, 10);
}

struct Workload {
    std::vector<int32_t> tokens;
    std::vector<int32_t> outputs; // [rows] tokens until a row stops
    int64_t rows, prefix, own, sharing, max_output;
    Plan plan; // groups by expected decode / prefill (Eq. 4), the largest first
};

Workload make_workload(const Keys &keys) {
    Workload work;
    work.rows = number(keys, "rows");
    work.prefix = number(keys, "prefix");
    work.own = number(keys, "own");
    work.sharing = std::max<int64_t>(1, number(keys, "sharing"));
    work.max_output = number(keys, "max_output");
    const int64_t least = number(keys, "min_output");
    work.tokens.assign(static_cast<size_t>(work.prefix + work.own), 7);
    std::mt19937_64 random(static_cast<uint64_t>(number(keys, "seed")));
    const auto draw = [&](int64_t low, int64_t high) {
        return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    std::vector<PlanGroup> groups;
    std::vector<double> ratio;
    for (int64_t begin = 0; begin < work.rows; begin += work.sharing) {
        const int64_t end = std::min(work.rows, begin + work.sharing);
        const int64_t longest = draw(least, work.max_output);
        double decode = 0;
        for (int64_t i = begin; i < end; ++i) {
            work.outputs.push_back(static_cast<int32_t>(draw(least, longest)));
            work.plan.rows.push_back(i);
            decode += static_cast<double>(least + longest) / 2;
        }
        groups.push_back({static_cast<int32_t>(work.plan.prefixes.size()), begin, end});
        work.plan.prefixes.push_back({begin, static_cast<int32_t>(work.prefix), -1});
        ratio.push_back(decode / static_cast<double>(work.prefix + (end - begin) * work.own));
    }
    std::vector<size_t> order(groups.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return ratio[a] > ratio[b]; });
    for (const size_t i : order) work.plan.groups.push_back(groups[i]);
    return work;
}

struct Policy {
    const char *name;
    int64_t cap; // 0: none; 1: that of the job
    bool look_ahead;
    int32_t order;
};

int32_t run_timeline(const Workload &work, const Policy &policy, const Keys &keys) {
    BackendOptions backend_options;
    for (const char *key : {"pages", "page_tokens", "tokens_per_second", "step_floor_us",
                            "kv_bandwidth", "step_overhead_us"})
        backend_options.extra.emplace_back(key, keys.at(key));
    backend_options.step_tokens = number(keys, "step_tokens");
    auto backend = make_sim_backend(nullptr, backend_options);
    if (!backend.ok()) {
        std::fprintf(stderr, "%s\n", backend.status().message().c_str());
        return 1;
    }
    SchedulerOptions options;
    options.pages = (*backend)->info().pages;
    options.page_tokens = (*backend)->info().page_tokens;
    options.step_tokens = (*backend)->info().step_tokens;
    options.max_requests = policy.cap ? number(keys, "cap") : 0;
    options.look_ahead = policy.look_ahead;
    Plan plan = work.plan;
    if (policy.order == BATCHLLM_ORDER_ARRIVAL) {
        std::sort(plan.groups.begin(), plan.groups.end(),
                  [](const PlanGroup &a, const PlanGroup &b) { return a.row_begin < b.row_begin; });
    }
    Scheduler scheduler(options);

    std::vector<std::unique_ptr<Request>> requests;
    std::vector<Request *> held;
    const SamplingParams params;
    for (int64_t i = 0; i < work.rows; ++i) {
        requests.push_back(std::make_unique<Request>());
        Request &request = *requests.back();
        request.prompt = {work.tokens.data(), static_cast<int32_t>(work.prefix + work.own),
                          static_cast<int32_t>(work.prefix)};
        request.params = &params;
        request.row = i;
        request.max_tokens = static_cast<int32_t>(work.max_output);
        held.push_back(&request);
    }
    const Status status = add_plan(scheduler, plan, held);
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message().c_str());
        return 1;
    }
    std::FILE *csv = nullptr;
    if (!keys.at("csv").empty()) {
        csv = std::fopen((keys.at("csv") + "-" + policy.name + ".csv").c_str(), "w");
        if (!csv) {
            std::perror(keys.at("csv").c_str());
            return 1;
        }
        std::fprintf(csv, "step,milliseconds,decode_tokens,own_tokens,prefix_tokens,requests,"
                          "running,pages_used\n");
    }
    BatchOutput output;
    int64_t steps = 0, tokens = 0, valleys = 0, preemptions = 0, recomputed = 0;
    double seconds = 0, valley_seconds = 0, scheduling = 0, pages = 0;
    while (true) {
        const auto begin = Clock::now();
        const TokenBatch &batch = scheduler.next_step();
        scheduling += microseconds(begin, Clock::now());
        if (batch.tokens.empty()) break;
        if (!(*backend)->run(batch, &output).ok()) return 1;
        for (size_t i = 0; i < batch.outputs.size(); ++i) {
            Request *request = scheduler.sampled()[i];
            request->output.push_back(output.samples[i].token);
            request->done = static_cast<int32_t>(request->output.size()) ==
                            work.outputs[static_cast<size_t>(request->row)];
        }
        const StepCounts &counts = scheduler.counts();
        const auto size = static_cast<int64_t>(batch.tokens.size());
        const double step_seconds = (*backend)->last_run_seconds();
        steps += 1;
        tokens += size;
        seconds += step_seconds;
        pages += static_cast<double>(counts.pages_used) * step_seconds;
        if (2 * size < options.step_tokens) {
            valleys += 1;
            valley_seconds += step_seconds;
        }
        preemptions += counts.preemptions;
        recomputed += counts.recomputed_tokens;
        if (csv)
            std::fprintf(csv, "%lld,%.3f,%lld,%lld,%lld,%lld,%lld,%lld\n",
                         static_cast<long long>(steps), step_seconds * 1e3,
                         static_cast<long long>(counts.decode_tokens),
                         static_cast<long long>(counts.own_tokens),
                         static_cast<long long>(counts.prefix_tokens),
                         static_cast<long long>(counts.requests),
                         static_cast<long long>(scheduler.running()),
                         static_cast<long long>(counts.pages_used));
        const auto finishing = Clock::now();
        scheduler.finish_step();
        scheduling += microseconds(finishing, Clock::now());
    }
    if (csv) std::fclose(csv);
    std::printf("%-26s %6lld %9.1f %8.2f %7.1f %% %7.1f %% %7.1f %% %8lld %10lld %8.1f\n",
                policy.name, static_cast<long long>(steps),
                static_cast<double>(tokens) / static_cast<double>(steps), seconds,
                100.0 * static_cast<double>(valleys) / static_cast<double>(steps),
                100.0 * valley_seconds / seconds,
                100.0 * pages / seconds / static_cast<double>(options.pages),
                static_cast<long long>(preemptions), static_cast<long long>(recomputed),
                scheduling / static_cast<double>(steps));
    return 0;
}

int32_t timelines(Keys keys) {
    const Workload work = make_workload(keys);
    std::printf(
        "%lld rows, prefix %lld, own %lld, %lld rows a prefix; %lld KV slots; budget %s tokens "
        "a step\n",
        static_cast<long long>(work.rows), static_cast<long long>(work.prefix),
        static_cast<long long>(work.own), static_cast<long long>(work.sharing),
        static_cast<long long>(number(keys, "pages") * number(keys, "page_tokens")),
        keys.at("step_tokens").c_str());
    std::printf("%-26s %6s %9s %8s %9s %9s %9s %8s %10s %8s\n", "", "steps", "tok/step", "seconds",
                "valleys", "in time", "KV used", "preempt", "recomputed", "us/step");
    const Policy policies[] = {
        {"cap-arrival", 1, false, BATCHLLM_ORDER_ARRIVAL},
        {"cap-decode-first", 1, false, BATCHLLM_ORDER_DECODE_FIRST},
        {"free-page-decode-first", 0, false, BATCHLLM_ORDER_DECODE_FIRST},
        {"memory-centric-arrival", 0, true, BATCHLLM_ORDER_ARRIVAL},
        {"memory-centric", 0, true, BATCHLLM_ORDER_DECODE_FIRST},
    };
    for (const Policy &policy : policies)
        if (run_timeline(work, policy, keys)) return 1;
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    const std::string mode = argc > 1 ? argv[1] : "cost";
    if (mode == "cost") {
        int32_t failed = 0;
        for (const int32_t own : {200, 1600})
            for (const int64_t waiting : {0, 100000})
                for (const bool by_memory : {false, true})
                    if (waiting > 0 || !by_memory)
                        failed |= measure_cost({1000, waiting, own, by_memory});
        return failed;
    }
    Keys keys = {{"rows", "3000"},
                 {"prefix", "1100"},
                 {"own", "400"},
                 {"sharing", "7"},
                 {"min_output", "16"},
                 {"max_output", "512"},
                 {"step_tokens", "2048"},
                 {"pages", "32768"},
                 {"page_tokens", "16"},
                 {"cap", "256"},
                 {"seed", "1"},
                 {"csv", ""},
                 {"tokens_per_second", "40000"},
                 {"step_floor_us", "4000"},
                 {"kv_bandwidth", "4e12"},
                 {"step_overhead_us", "0"}};
    for (int32_t i = 2; i < argc; ++i) {
        const char *equals = std::strchr(argv[i], '=');
        const std::string key =
            equals ? std::string(argv[i], static_cast<size_t>(equals - argv[i])) : argv[i];
        if (mode != "timeline" || !equals || !keys.count(key)) {
            std::fprintf(stderr, "schedule cost | schedule timeline [key=value ...]; not: %s\n",
                         argv[i]);
            return 1;
        }
        keys[key] = equals + 1;
    }
    return timelines(keys);
}
