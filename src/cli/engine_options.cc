#include "cli/engine_options.h"

#include "cli/option_kinds.h"
#include "cli/size_text.h"

namespace batchllm::cli {
namespace {

void add_kv_memory(CLI::App *app, EngineChoice *options) {
    app->add_option_function<std::string>(
           "--kv-memory",
           [options](const std::string &text) {
               const std::optional<double> share = parse_percentage(text);
               const std::optional<int64_t> size = parse_size(text);
               if (share && *share > 0 && *share <= 1) {
                   options->kv_memory_fraction = *share;
               } else if (size && *size > 0) {
                   options->kv_memory_bytes = *size;
               } else {
                   throw CLI::ValidationError("--kv-memory", "\"" + text +
                                                                 "\" is not a size such as 2GiB, "
                                                                 "nor a share such as 40%");
               }
           },
           "memory for keys and values: 2GiB, or a share of the free memory: 40%")
        ->type_name("SIZE");
}

} // namespace

void add_engine(CLI::App *app, EngineChoice *choice) {
    app->add_option("--backend", choice->backend, "auto, cpu, cuda or sim (auto)");
    app->add_option("--backend-options", choice->backend_options,
                    "options of the backend: key=value,key=value");
    app->add_option("--devices", choice->devices, "device numbers, such as 0,1 or 0-3 (0)");
    app->add_option(
           "--tensor-parallel", choice->tensor_parallel,
           "how many devices compute parts of the model and work as one; auto: as few as leave "
           "room (1)")
        ->type_name("N|auto");
    app->add_option("--compute-type", choice->compute_type, "auto, bf16, f16 or f32 (auto)");
    app->add_option("--quantize", choice->quantize,
                    "stored: weights as the checkpoint has them, in fp8 or four bits, where the "
                    "device has such products; fp8: compute all layers in fp8 (cuda); none: all "
                    "in the compute type (stored)")
        ->check(CLI::IsMember({"none", "stored", "fp8"}).description(""))
        ->type_name("none|stored|fp8");
    app->add_option("--kv-type", choice->kv_type,
                    "fp8: keep keys and values in fp8, twice as many in the same memory (cuda); "
                    "auto: in the compute type (auto)")
        ->check(CLI::IsMember({"auto", "fp8"}).description(""))
        ->type_name("auto|fp8");
    app->add_option(
           "--drafts", choice->drafts,
           "auto: where a row's text repeats and a step has room, compute several of its "
           "tokens at once; always: wherever it repeats, for comparisons (auto on a GPU, else "
           "off)")
        ->check(CLI::IsMember({"off", "auto", "always"}).description(""))
        ->type_name("off|auto|always");
    add_kv_memory(app, choice);
    add_size(app, "--step-tokens", &choice->step_tokens, 1,
             "maximum number of tokens computed in a step");
    add_size(app, "--max-request-tokens", &choice->max_request_tokens, 1,
             "maximum length of prompt plus output");
    add_size(app, "--max-requests", &choice->max_requests, 0,
             "maximum number of rows running at once (0: as memory allows)");
    add_size(app, "--adapter-memory", &choice->adapter_memory_bytes, 1,
             "memory for the adapters of running rows, on each device (2GiB at most)");
    app->add_flag("--reproducible", choice->reproducible,
                  "a row's results are the same bits whatever rows run with it");
}

void add_prediction(CLI::App *app, PredictionChoice *choice) {
    app->add_option("--device", choice->device,
                    "predict the time on this device: h200, h100, a description file, or here "
                    "(this machine's device, measured once and kept)")
        ->type_name("NAME");
    add_size(app, "--expected-tokens", &choice->expected_tokens, 1,
             "tokens to predict for rows that the model may end (their --max-tokens)");
}

} // namespace batchllm::cli
