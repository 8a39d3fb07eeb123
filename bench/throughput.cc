// End to end on the GPU, with random weights of a named shape, made on the device, and synthetic
// rows.
//
//     throughput --job a16          a job by name (throughput_models.h), or --all of them, or
//                                   changed by --model NAME|DIRECTORY --rows --prefix --common
//                                   --own --sharing --spread --new
//                                   (common: this many tokens of each prefix are a common prefix of all)
//     --step-tokens N --kv-gib N --levels 2|auto --profile --repeat N
//     to see the effect of each idea:
//     --no-sharing                  every row computes all of its prompt
//     --order arrival               groups by their first row
//     --cap N                       at most N rows at once
//     --unfused                     attention: prefixes, decode and prefill in separate launches
//     --unshared                    attention: every row reads its prefix separately
//     --no-overlap                  a step is planned after the previous one has ended
//     --quantize fp8                the layers' matrices in e4m3 with a scale per row, as at load
//     --kv-type fp8                 keys and values in e4m3
//     --tensor-parallel N           the first N devices as one; times and floor are of one of them
//     --adapters N --rank R         N adapters of rank R (16 by default; 0: rows differ as if they had adapters)
//     --adapted all|attention|experts   which matrices they change: all but experts', or these alone
//     --adapter-gib N               room for them on the device
//     --reproducible                a row's results are the same bits in any step
//     --by-size                     time on the device and its floor, by the steps' number of tokens
//     --skew                        again with half of the turns for an eighth of the experts; ratio
//     --no-graphs, --no-tuning      --option key=value: any of the backend's
//     --devices 0,1                 the whole engine on these devices, after the first one alone
//     --not-alone                   without the run on the first one
//
// Prints rows/s beside vLLM's (measured on the same kind of GPU; docs/lab/jobs.md), and the floor
// (throughput_floor.h).
#include <cstdio>
#include <string>
#include <vector>

#include "throughput_arguments.h"
#include "throughput_jobs.h"
#include "throughput_models.h"

using namespace batchllm;

namespace {

Status bench_alone(const std::vector<NamedJob> &jobs, const Model &model,
                   const Arguments &arguments) {
    ASSIGN_OR_RETURN(const std::vector<double> even, bench_backend(jobs, model, arguments));
    if (!arguments.skew) return {};
    ASSIGN_OR_RETURN(const std::vector<double> skewed,
                     bench_backend(jobs, model, arguments, "skewed"));
    for (size_t i = 0; i < jobs.size(); ++i) {
        std::printf("%s: %.3f of its rate with skewed routing\n", jobs[i].name,
                    skewed[i] / even[i]);
    }
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
        ASSIGN_OR_RETURN(const BenchModel model, bench_model(name));
        std::vector<NamedJob> jobs, others;
        for (NamedJob job : left) {
            const bool now = !arguments.model.empty() || name == job.model;
            if (!arguments.model.empty() && name != job.model) job.vllm = 0;
            (now ? jobs : others).push_back(job);
        }
        left = std::move(others);
        if (arguments.devices.empty()) {
            RETURN_IF_ERROR(bench_alone(jobs, model.model, arguments));
        } else {
            for (const NamedJob &job : jobs) RETURN_IF_ERROR(bench_engine(job, model, arguments));
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
