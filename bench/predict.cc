// What a described device is predicted to take for the jobs of bench/throughput, beside what an H200 took
// (docs/performance.md).
//
//     predict [DEVICE]     a name, or a file of one (src/backend/sim/device_costs.h); default h200
//
// Prints rows/s measured and predicted, the error, and where the seconds are predicted to go. A star: the
// description was fitted to this job.
#include <cmath>
#include <cstdio>

#include "predict_job.h"

using namespace batchllm;

int main(int count, char **values) {
    const std::string device = count > 1 ? values[1] : "h200";
    double worst = 0, sum = 0;
    const std::vector<MeasuredJob> jobs = measured_on_h200();
    std::printf("| job | measured, rows/s | predicted | error | steps | linear, s | attention | "
                "elementwise | logits | step |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (const MeasuredJob &job : jobs) {
        const Result<Predicted> result = predict_job(job, device);
        if (!result.ok()) {
            std::fprintf(stderr, "%s\n", result.status().message().c_str());
            return 1;
        }
        const Predicted &p = *result;
        const double off = p.rows_second / job.rows_second - 1;
        worst = std::max(worst, std::abs(off));
        sum += std::abs(off);
        std::string name = job.job.name;
        if (std::string(job.job.model) != "Mistral-7B") name += std::string(", ") + job.job.model;
        if (!job.sharing_on) name += " --no-sharing";
        if (job.step_tokens > 0) name += " --step-tokens " + std::to_string(job.step_tokens);
        if (job.levels > 1) name += " --levels 2";
        std::printf("| %s%s | %.1f | %.1f | %+.1f %% | %lld | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
                    name.c_str(), job.fitted ? "*" : "", job.rows_second, p.rows_second, 100 * off,
                    static_cast<long long>(p.steps), p.parts.linear, p.parts.attention,
                    p.parts.elementwise, p.parts.logits, p.parts.step);
        std::fflush(stdout);
    }
    std::printf("worst %.1f %%, mean %.1f %%\n", 100 * worst,
                100 * sum / static_cast<double>(jobs.size()));
    return 0;
}
