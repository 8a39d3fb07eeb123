#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "batchllm.h"
#include "clock.h"
#include "throughput_jobs.h"

namespace batchllm {
namespace {

Status of_api(int32_t status) {
    return status == BATCHLLM_OK ? Status() : Status(status, batchllm_last_error());
}

struct EngineHandle {
    batchllm_engine *handle = nullptr;
    ~EngineHandle() { batchllm_engine_destroy(handle); }
};

} // namespace

Status bench_engine(const NamedJob &job, const BenchModel &model, const Arguments &arguments) {
    const std::string directory =
        (std::filesystem::temp_directory_path() / "batchllm-throughput").string();
    RETURN_IF_ERROR(write_model_directory(model, directory));
    const JobRows rows = make_rows(job, model.model.vocabulary);
    std::vector<int64_t> offsets = {0};
    std::vector<uint64_t> tags;
    for (const TokenRow &row : rows.rows) {
        tags.push_back(tags.size());
        offsets.push_back(offsets.back() + row.length);
    }
    std::string extra = "random_weights=1";
    for (const auto &[key, value] : arguments.extra) extra += "," + key + "=" + value;
    const std::string first = arguments.devices.substr(0, arguments.devices.find(','));
    std::vector<std::string> runs = {arguments.devices};
    if (arguments.alone && first != arguments.devices) runs.insert(runs.begin(), first);
    double alone = 0;
    for (const std::string &devices : runs) {
        EngineHandle engine;
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.model_dir = directory.c_str();
        options.backend = "cuda";
        options.devices = devices.c_str();
        options.backend_options = extra.c_str();
        options.step_tokens = static_cast<int64_t>(arguments.step_tokens);
        options.max_requests = static_cast<int64_t>(arguments.cap);
        options.kv_memory_bytes = static_cast<int64_t>(arguments.kv_gib * 1024 * 1024 * 1024);
        options.levels = static_cast<int32_t>(arguments.levels);
        options.enlarge = arguments.sharing_on ? BATCHLLM_ENLARGE_OPTIMAL : BATCHLLM_ENLARGE_NONE;
        options.reproducible = arguments.reproducible ? 1 : 0;
        options.order = arguments.arrival ? BATCHLLM_ORDER_ARRIVAL : BATCHLLM_ORDER_DECODE_FIRST;
        RETURN_IF_ERROR(of_api(batchllm_engine_create(&options, &engine.handle)));
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.max_tokens = job.generated;
        params.ignore_eos = 1;
        batchllm_stats before{}, after{};
        double seconds = 0;
        // A first round with some rows, because algorithms for each shape are searched at its first
        // use.
        for (const int64_t count : {std::min<int64_t>(job.rows, 256), job.rows}) {
            before.struct_size = after.struct_size = sizeof(batchllm_stats);
            RETURN_IF_ERROR(of_api(batchllm_engine_stats(engine.handle, &before)));
            RETURN_IF_ERROR(of_api(batchllm_add_tokens(engine.handle, count, rows.tokens.data(),
                                                       offsets.data(), tags.data(), &params, 1)));
            const auto start = Clock::now();
            RETURN_IF_ERROR(of_api(batchllm_run(engine.handle, nullptr, nullptr)));
            seconds = seconds_since(start);
            RETURN_IF_ERROR(of_api(batchllm_engine_stats(engine.handle, &after)));
            batchllm_results *results = nullptr;
            RETURN_IF_ERROR(of_api(batchllm_poll(engine.handle, 0, &results)));
            const int64_t answered = results->count;
            batchllm_results_free(results);
            if (answered != count || after.rows_failed != before.rows_failed) {
                return error(BATCHLLM_ERROR_INTERNAL, "%lld of %lld rows answered",
                             static_cast<long long>(answered), static_cast<long long>(count));
            }
        }
        const double rate = static_cast<double>(job.rows) / seconds;
        std::printf(
            "%s%s, the engine on device %s: %.1f rows/s in %.2f s; %lld steps, %lld prompt tokens "
            "computed",
            job.name, arguments.switches.c_str(), devices.c_str(), rate, seconds,
            static_cast<long long>(after.steps - before.steps),
            static_cast<long long>(after.processed_prompt_tokens - before.processed_prompt_tokens));
        if (alone > 0) std::printf("; %.2f times one device", rate / alone);
        std::printf("\n");
        if (runs.size() > 1) alone = rate; // the first run's rate, for the second
        std::fflush(stdout);
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    return {};
}

} // namespace batchllm
