// How long a described device is predicted to take for the jobs of bench/throughput.
//
//     predict [DEVICE]              beside what an H200 took, or an H100 if DEVICE is h100
//                                   (docs/lab/jobs.md): rows/s measured and predicted, the error, and
//                                   where the seconds are predicted to go. A star: a fit to these jobs alone
//                                   was tested on the others
//     predict [DEVICE] --common-prefixes      jobs whose prefixes have a common prefix, on several models: rows/s with
//                                   levels 1, 2 and auto
//     predict [DEVICE] --job NAME ..    the same of one job, and its seconds by part, changed as
//                                       bench/throughput changes it: --model --rows
//                                   --prefix --common --own --sharing --spread --new --step-tokens --kv-gib
//                                   --quantize --kv-type --tensor-parallel
//
// DEVICE: a name, or a file of one (src/backend/sim/device_costs.h); default h200.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "predict_job.h"
#include "throughput_arguments.h"

using namespace batchllm;

namespace {

std::string name_of(const MeasuredJob &job) {
    const NamedJob &of = job.job;
    std::string name = of.name;
    const bool other_rows =
        std::any_of(std::begin(kJobs), std::end(kJobs), [&](const NamedJob &named) {
            return std::strcmp(named.name, of.name) == 0 && named.rows != of.rows;
        });
    if (other_rows) name += " --rows " + std::to_string(of.rows);
    if (!job.sharing_on) name += " --no-sharing";
    for (const auto &[key, value] : job.extra) {
        name += key == "quantize" ? " --quantize fp8" : " --kv-type fp8";
    }
    if (of.generated != 100 && of.generated != 20) name += " --new " + std::to_string(of.generated);
    if (job.step_tokens > 0) name += " --step-tokens " + std::to_string(job.step_tokens);
    if (job.levels > 1) name += " --levels 2";
    if (std::strcmp(of.model, "Mistral-7B") != 0) name.append(", ").append(of.model);
    return name;
}

Status compare_with_measured(const std::string &device) {
    double worst = 0, sum = 0;
    std::vector<MeasuredJob> jobs = device == "h100" ? measured_on_h100() : measured_on_h200();
    for (MeasuredJob &job : measured_models(device)) jobs.push_back(std::move(job));
    if (device == "h100") {
        for (MeasuredJob &job : experts_on_h100()) jobs.push_back(std::move(job));
    }
    std::printf("| job | measured, rows/s | predicted | error | steps | linear, s | attention | "
                "states | elementwise | logits | step |\n"
                "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const MeasuredJob &job : jobs) {
        ASSIGN_OR_RETURN(const Predicted p, predict_job(job, device));
        const double off = p.rows_second / job.rows_second - 1;
        worst = std::max(worst, std::abs(off));
        sum += std::abs(off);
        std::printf(
            "| %s%s | %.1f | %.1f | %+.1f %% | %lld | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
            name_of(job).c_str(), job.fitted ? "*" : "", job.rows_second, p.rows_second, 100 * off,
            static_cast<long long>(p.steps), p.parts.linear, p.parts.attention, p.parts.states,
            p.parts.elementwise, p.parts.logits, p.parts.step);
        std::fflush(stdout);
    }
    std::printf("worst %.1f %%, mean %.1f %%\n", 100 * worst,
                100 * sum / static_cast<double>(jobs.size()));
    return {};
}

// Tokens that the heads of all prefixes save, divided by the tokens that read heads.
Result<double> saved_over_below(const NamedJob &job) {
    const JobRows rows = make_rows(job, 1 << 15);
    PlanOptions options;
    options.levels = 2;
    ASSIGN_OR_RETURN(const Plan plan, plan_job(job, rows, options));
    int64_t saved = 0, below = 0;
    std::vector<bool> heads(plan.prefixes.size());
    for (const PlanPrefix &prefix : plan.prefixes) {
        if (prefix.parent < 0) continue;
        const auto head = static_cast<size_t>(prefix.parent);
        saved += plan.prefixes[head].length;
        if (!heads[head]) saved -= plan.prefixes[head].length;
        heads[head] = true;
        below += prefix.length - plan.prefixes[head].length;
    }
    for (const PlanGroup &group : plan.groups) {
        if (group.prefix < 0) continue;
        const PlanPrefix &prefix = plan.prefixes[static_cast<size_t>(group.prefix)];
        if (prefix.parent < 0) continue;
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const auto row = static_cast<size_t>(plan.rows[static_cast<size_t>(i)]);
            below += plan.lengths[row] - prefix.length + job.generated;
        }
    }
    return below == 0 ? 0 : static_cast<double>(saved) / static_cast<double>(below);
}

Result<double> common_prefix_cost_of(const std::string &name, const std::string &device) {
    ASSIGN_OR_RETURN(const BenchModel model, bench_model(name));
    ASSIGN_OR_RETURN(const DeviceCosts costs, find_device_costs(device));
    return common_prefix_cost(StepCost(costs, model.model));
}

Status show_levels(MeasuredJob job, const std::string &device) {
    ASSIGN_OR_RETURN(const double saved, saved_over_below(job.job));
    ASSIGN_OR_RETURN(job.common_prefix_cost, common_prefix_cost_of(job.job.model, device));
    double rates[3] = {};
    for (const int32_t levels : {1, 2, levels_auto}) {
        job.levels = levels;
        ASSIGN_OR_RETURN(const Predicted predicted, predict_job(job, device));
        rates[levels] = predicted.rows_second;
    }
    const NamedJob &j = job.job;
    std::printf("| %s | %lld, %d, %g, %g, %g, %d%s | %.3f | %.3f | %.5g | %.5g | %.5g | %+.1f %% | "
                "%+.1f %% |\n",
                j.model, static_cast<long long>(j.rows), j.common, j.prefix, j.sharing, j.own,
                j.generated,
                j.spread > 0 ? ("; spread " + std::to_string(j.spread).substr(0, 4)).c_str() : "",
                saved, job.common_prefix_cost, rates[1], rates[2], rates[0],
                100 * (rates[2] / rates[1] - 1), 100 * (rates[0] / rates[1] - 1));
    std::fflush(stdout);
    return {};
}

Status show_common_prefixes(const std::string &device, const Arguments *of_one) {
    std::printf(
        "| model | rows, common prefix, prefix with it, rows a prefix, own, new | saved / below | "
        "its price | levels 1, rows/s | 2 | auto | 2 over 1 | auto over 1 |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
    MeasuredJob job{};
    if (of_one != nullptr) {
        for (const NamedJob &named : kJobs) {
            if (of_one->job == named.name) job.job = changed(named, *of_one);
        }
        if (job.job.model == nullptr) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "no job %s", of_one->job.c_str());
        }
        if (!of_one->model.empty()) job.job.model = of_one->model.c_str();
        job.step_tokens = static_cast<int64_t>(of_one->step_tokens);
        job.kv_gib = of_one->kv_gib;
        for (const auto &[key, value] : of_one->extra) {
            if (key == "tensor_parallel") job.ranks = value;
            if (key == "quantize" || key == "kv_type") job.extra.emplace_back(key, value);
        }
        RETURN_IF_ERROR(show_levels(job, device));
        ASSIGN_OR_RETURN(const Predicted p, predict_job(job, device));
        std::printf("seconds: linear %.2f, attention %.2f, states %.2f, elementwise %.2f, logits "
                    "%.2f, exchange %.2f, "
                    "step %.2f; %lld steps, %lld pages\n",
                    p.parts.linear, p.parts.attention, p.parts.states, p.parts.elementwise,
                    p.parts.logits, p.parts.exchange, p.parts.step, static_cast<long long>(p.steps),
                    static_cast<long long>(p.pages));
        return {};
    }
    for (const char *model : models_with_heads) {
        for (const NamedJob &named : jobs_with_heads()) {
            job.job = named;
            job.job.model = model;
            RETURN_IF_ERROR(show_levels(job, device));
        }
    }
    return {};
}

} // namespace

int main(int count, char **values) {
    std::string device = "h200";
    int first = 1;
    if (count > 1 && values[1][0] != '-') device = values[first++];
    const bool heads = count > first && std::strcmp(values[first], "--common-prefixes") == 0;
    Arguments arguments;
    if (!heads && !read_arguments(count - first + 1, values + first - 1, &arguments)) {
        std::fprintf(stderr, "usage: predict [DEVICE] [--common-prefixes | --job NAME ..]\n");
        return 2;
    }
    const Status status = heads           ? show_common_prefixes(device, nullptr)
                          : count > first ? show_common_prefixes(device, &arguments)
                                          : compare_with_measured(device);
    if (status.ok()) return 0;
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
}
