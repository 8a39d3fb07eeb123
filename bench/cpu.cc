// The CPU backend's speed, each figure beside its yardstick from the same run.
//
//   cpu [linear] [attention] [steps] [--threads N] [--type bf16|f32] [--groups N] [--only-sharing] [--reproducible]
//       [--kernels NAME] [--convolutions]
//
// linear:    matrix products at the shapes of a 100M-parameter Llama, as a share of oneDNN's own
//            rate for the whole product on the same number of threads.
// attention: prefill, decode, and decode on a shared prefix; rates, and against the same work unshared.
// steps:     prefix 2000 / own 200 / 16 rows per prefix / 32 new tokens, with and without sharing:
//            rows per second, and the seconds by part.
// --reproducible: also runs each in reproducible mode.
// --kernels: uses this table of src/backend/cpu/kernels.h instead of the best.
// --convolutions: steps on layers of LFM2-1.2B's shapes, two with a short convolution and one that attends.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backend/cpu/kernels.h"
#include "backend/cpu/processor.h"
#include "cpu_bench.h"

using namespace batchllm;
using namespace batchllm::cpu;

int main(int count, char **arguments) {
    CpuBenchOptions options;
    options.type = isa_runs_here(Isa::avx512_bf16) ? DType::bf16 : DType::f32;
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        if (argument == "linear")
            options.linear = true;
        else if (argument == "attention")
            options.attention = true;
        else if (argument == "steps")
            options.steps = true;
        else if (argument == "--only-sharing")
            options.only_sharing = true;
        else if (argument == "--reproducible")
            options.reproducible = true;
        else if (argument == "--convolutions")
            options.convolutions = true;
        else if (argument == "--threads" && i + 1 < count)
            options.threads = std::atoi(arguments[++i]);
        else if (argument == "--groups" && i + 1 < count)
            options.groups = std::atoi(arguments[++i]);
        else if (argument == "--type" && i + 1 < count)
            options.type = std::string(arguments[++i]) == "f32" ? DType::f32 : DType::bf16;
        else if (argument == "--kernels" && i + 1 < count && isa_from_name(arguments[i + 1]).ok())
            options.kernels = arguments[++i];
        else {
            std::fprintf(stderr, "usage: cpu [linear] [attention] [steps] [--threads N] "
                                 "[--type bf16|f32] [--groups N] [--only-sharing] [--reproducible] "
                                 "[--kernels NAME] [--convolutions]\n");
            return 1;
        }
    }
    if (!options.linear && !options.attention && !options.steps) {
        options.linear = options.attention = options.steps = true;
    }
    const RandomModel model(options.convolutions);
    std::printf("%s\n", processor_name().c_str());
    if (options.linear) bench_linear(model, options);
    if (options.attention) bench_attention(model, options);
    if (options.steps) bench_steps(model, options);
    return 0;
}
