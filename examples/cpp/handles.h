// What the examples share: the library's handles as owners, and failures as exceptions. A program may take it
// as its own start.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include <batchllm.h>

struct Closer {
    void operator()(batchllm_engine *engine) const { batchllm_engine_destroy(engine); }
    void operator()(batchllm_results *results) const { batchllm_results_free(results); }
    void operator()(batchllm_plan *plan) const { batchllm_plan_destroy(plan); }
};
using Engine = std::unique_ptr<batchllm_engine, Closer>;
using Results = std::unique_ptr<batchllm_results, Closer>;
using Plan = std::unique_ptr<batchllm_plan, Closer>;

inline void check(int32_t status) {
    if (status != BATCHLLM_OK)
        throw std::runtime_error(std::string(batchllm_status_name(status)) + ": " +
                                 batchllm_last_error());
}

inline Engine open_engine(const char *model_dir) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = model_dir;
    batchllm_engine *engine = nullptr;
    check(batchllm_engine_create(&options, &engine));
    return Engine(engine);
}

inline Results poll(const Engine &engine) {
    batchllm_results *results = nullptr;
    check(batchllm_poll(engine.get(), 0, &results));
    return Results(results);
}

// Valid as long as the results are.
inline std::string_view text_of(const Results &results, int64_t i) {
    const int64_t begin = results->text_offsets[i];
    return {results->text + begin, static_cast<size_t>(results->text_offsets[i + 1] - begin)};
}
