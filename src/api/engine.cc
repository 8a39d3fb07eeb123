// batchllm_engine_*, batchllm_add_*, step, run, poll, cancel.
#include "api/engine.h"

#include <cinttypes>
#include <cstring>

#include "api/boundary.h"
#include "api/pictures.h"
#include "api/plan.h"

using namespace batchllm;
using api::EngineUse;
using api::guard;
using api::guard_out;
using api::need;

namespace {

// Checks the columns of prompts and continuations, and the mapping between them.
template <typename T> Status check_scored(int64_t n, const char *items_name, const T *items,
                                          const int64_t *offsets, const T *continuations,
                                          const int64_t *continuation_offsets,
                                          const int64_t *continuation_rows) {
    RETURN_IF_ERROR(check_column(items_name, items, "offsets", offsets, n));
    if (n == 0) return {};
    // The rows' offsets count continuations, so no buffer can be null.
    RETURN_IF_ERROR(check_column("continuations", &n, "continuation_rows", continuation_rows, n));
    RETURN_IF_ERROR(need("continuation_offsets", continuation_offsets));
    return check_column("continuations", continuations, "continuation_offsets",
                        continuation_offsets, continuation_rows[n]);
}

// pictures null: the rows are texts that have none.
Status add_score_text(batchllm_engine *engine, const Column<char> &texts,
                      const PictureColumns *pictures, const char *continuations,
                      const int64_t *continuation_offsets, const int64_t *continuation_rows,
                      const uint64_t *tags, const batchllm_params *params) {
    ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
    RETURN_IF_ERROR(check_scored(texts.n, "text", texts.items, texts.offsets, continuations,
                                 continuation_offsets, continuation_rows));
    ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, 1, texts.n));
    ASSIGN_OR_RETURN(const batchllm_params known, column.at(0));
    if (texts.n == 0) return {};
    const Column<char> scored{continuation_rows[texts.n], continuations, continuation_offsets};
    ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
    return intake->add_score_text(texts, pictures, {scored, continuation_rows}, tags, known);
}

// The callback of batchllm_run, which may use the engine.
struct Callback {
    batchllm_progress_function function;
    void *user;
    const EngineUse *use;

    static int32_t call(void *self, const batchllm_progress *progress) {
        const auto *callback = static_cast<const Callback *>(self);
        const EngineUse::Pause pause(*callback->use);
        return callback->function(callback->user, progress);
    }
};

} // namespace

extern "C" {

int32_t batchllm_engine_create(const batchllm_engine_options *options, batchllm_engine **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("options", options));
        batchllm_engine_options known = default_engine_options();
        RETURN_IF_ERROR(copy_known("options", options, &known, sizeof known));
        ASSIGN_OR_RETURN(EngineOptions read, read_engine_options(known));
        if (known.pictures != nullptr) read.pictures = known.pictures->library;
        auto handle = std::make_unique<batchllm_engine>();
        ASSIGN_OR_RETURN(handle->engine, Engine::create(read));
        *out = handle.release();
        return {};
    });
}

void batchllm_engine_destroy(batchllm_engine *engine) { delete engine; }

int64_t batchllm_engine_label_count(const batchllm_engine *engine) {
    return engine == nullptr ? 0 : static_cast<int64_t>(engine->engine->labels().size());
}

const char *batchllm_engine_label(const batchllm_engine *engine, int64_t label) {
    if (label < 0 || label >= batchllm_engine_label_count(engine)) return nullptr;
    return engine->engine->labels()[static_cast<size_t>(label)].c_str();
}

int32_t batchllm_engine_check_params(batchllm_engine *engine, const batchllm_params *params) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, 1, 1));
        ASSIGN_OR_RETURN(const batchllm_params known, column.at(0));
        return engine->engine->check_params(known);
    });
}

int32_t batchllm_add_tokens(batchllm_engine *engine, int64_t n, const int32_t *tokens,
                            const int64_t *offsets, const uint64_t *tags,
                            const batchllm_params *params, int64_t params_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(check_column("tokens", tokens, "offsets", offsets, n));
        ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, params_count, n));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_tokens({n, tokens, offsets}, tags, column);
    });
}

int32_t batchllm_add_text(batchllm_engine *engine, int64_t n, const char *text,
                          const int64_t *offsets, const uint64_t *tags,
                          const batchllm_params *params, int64_t params_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(check_column("text", text, "offsets", offsets, n));
        ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, params_count, n));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_text({n, text, offsets}, tags, column);
    });
}

int32_t batchllm_add_chat(batchllm_engine *engine, int64_t n, const char *conversations,
                          const int64_t *offsets, const uint64_t *tags,
                          const batchllm_params *params, int64_t params_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(check_column("conversations", conversations, "offsets", offsets, n));
        ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, params_count, n));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_chat({n, conversations, offsets}, tags, column);
    });
}

int32_t batchllm_add_prompt(batchllm_engine *engine, const char *text, int64_t bytes, uint64_t tag,
                            const batchllm_params *params) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(need("text", text));
        const int64_t length = bytes < 0 ? static_cast<int64_t>(std::strlen(text)) : bytes;
        const int64_t offsets[2] = {0, length};
        ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, 1, 1));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_text({1, text, offsets}, &tag, column);
    });
}

int32_t batchllm_add_scores(batchllm_engine *engine, int64_t n, const int32_t *tokens,
                            const int64_t *offsets, const int32_t *continuations,
                            const int64_t *continuation_offsets, const int64_t *continuation_rows,
                            const uint64_t *tags) {
    return batchllm_add_score_tokens(engine, n, tokens, offsets, continuations,
                                     continuation_offsets, continuation_rows, tags, nullptr);
}

int32_t batchllm_add_score_tokens(batchllm_engine *engine, int64_t n, const int32_t *tokens,
                                  const int64_t *offsets, const int32_t *continuations,
                                  const int64_t *continuation_offsets,
                                  const int64_t *continuation_rows, const uint64_t *tags,
                                  const batchllm_params *params) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(check_scored(n, "tokens", tokens, offsets, continuations,
                                     continuation_offsets, continuation_rows));
        ASSIGN_OR_RETURN(const ParamsColumn column, ParamsColumn::open(params, 1, n));
        ASSIGN_OR_RETURN(const batchllm_params known, column.at(0));
        if (n == 0) return {};
        const Column<int32_t> scored{continuation_rows[n], continuations, continuation_offsets};
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_scores({n, tokens, offsets}, {scored, continuation_rows}, tags, known);
    });
}

int32_t batchllm_add_score_text(batchllm_engine *engine, int64_t n, const char *text,
                                const int64_t *offsets, const char *continuations,
                                const int64_t *continuation_offsets,
                                const int64_t *continuation_rows, const uint64_t *tags,
                                const batchllm_params *params) {
    return guard([&]() -> Status {
        const Column<char> texts{n, text, offsets};
        return add_score_text(engine, texts, nullptr, continuations, continuation_offsets,
                              continuation_rows, tags, params);
    });
}

int32_t batchllm_add_score_pictures(batchllm_engine *engine, int64_t n, const char *text,
                                    const int64_t *offsets, const batchllm_picture_column *column,
                                    const char *continuations, const int64_t *continuation_offsets,
                                    const int64_t *continuation_rows, const uint64_t *tags,
                                    const batchllm_params *params) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const PictureColumns pictures, api::read_pictures(column, n));
        const Column<char> texts{n, text, offsets};
        return add_score_text(engine, texts, &pictures, continuations, continuation_offsets,
                              continuation_rows, tags, params);
    });
}

int32_t batchllm_build_groups(batchllm_engine *engine) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        return engine->engine->build_groups();
    });
}

int32_t batchllm_step(batchllm_engine *engine, batchllm_progress *progress) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        batchllm_progress full{};
        full.struct_size = sizeof full;
        // Before the step: if progress cannot be written, a step must not be lost.
        if (progress != nullptr) {
            RETURN_IF_ERROR(api::copy_out("progress", &full, sizeof full, progress));
        }
        RETURN_IF_ERROR(engine->engine->step(&full));
        if (progress == nullptr) return {};
        return api::copy_out("progress", &full, sizeof full, progress);
    });
}

int32_t batchllm_run(batchllm_engine *engine, batchllm_progress_function callback, void *user) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        Callback paused{callback, user, &use};
        return engine->engine->run(callback == nullptr ? nullptr : Callback::call, &paused);
    });
}

void batchllm_interrupt(batchllm_engine *engine) {
    if (engine != nullptr) engine->engine->interrupt();
}

int32_t batchllm_cancel(batchllm_engine *engine, uint64_t tag) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("engine", engine));
        engine->engine->cancel(tag);
        return {};
    });
}

int32_t batchllm_cancel_all(batchllm_engine *engine) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("engine", engine));
        engine->engine->cancel_all();
        return {};
    });
}

int32_t batchllm_poll(batchllm_engine *engine, int64_t max_results, batchllm_results **out) {
    return guard_out(out, [&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        if (max_results < 0) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "max_results is %" PRId64 ": it cannot be negative", max_results);
        }
        *out = engine->engine->poll(max_results).release();
        return {};
    });
}

void batchllm_results_free(batchllm_results *results) {
    delete static_cast<ResultBatch *>(results);
}

int32_t batchllm_engine_info(const batchllm_engine *engine, int32_t device, batchllm_info *info) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("engine", engine));
        RETURN_IF_ERROR(need("info", info));
        ASSIGN_OR_RETURN(const batchllm_info full, engine->engine->info(device));
        return api::copy_out("info", &full, sizeof full, info);
    });
}

int32_t batchllm_engine_stats(const batchllm_engine *engine, batchllm_stats *stats) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(need("stats", stats));
        const batchllm_stats full = engine->engine->stats();
        return api::copy_out("stats", &full, sizeof full, stats);
    });
}

int32_t batchllm_engine_use_plan(batchllm_engine *engine, const batchllm_plan *plan) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        RETURN_IF_ERROR(need("plan", plan));
        return engine->engine->use_plan(plan->plan);
    });
}

int32_t batchllm_engine_get_plan(const batchllm_engine *engine, batchllm_plan **out) {
    return guard_out(out, [&]() -> Status {
        ASSIGN_OR_RETURN(const EngineUse use, EngineUse::begin(engine));
        ASSIGN_OR_RETURN(Plan plan, engine->engine->get_plan());
        *out = api::make_plan_handle(std::move(plan)).release();
        return {};
    });
}

} // extern "C"
