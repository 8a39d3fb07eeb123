/* The engine: creating, planning, stepping, stopping. */
%ignore batchllm_engine_create;
%ignore batchllm_engine_destroy;
%ignore batchllm_progress_function;
%ignore batchllm_run; /* batchllm_advance */
%ignore batchllm_engine_check_params;
%ignore BATCHLLM_VERSION;

%batchllm_blocking(batchllm_engine::~batchllm_engine)
%nodefaultctor batchllm_engine;
struct batchllm_engine {};
%extend batchllm_engine {
    ~batchllm_engine() { batchllm_engine_destroy($self); }
}

/* Structs that the library fills, created empty with their size set. */
%define %batchllm_filled(NAME)
%ignore NAME::struct_size;
%ignore NAME::reserved;
%immutable;
%extend NAME {
    NAME() {
        NAME *filled = calloc(1, sizeof *filled);
        if (filled) filled->struct_size = sizeof *filled;
        return filled;
    }
    ~NAME() { free($self); }
}
%mutable;
%enddef
%batchllm_filled(batchllm_progress)
%batchllm_filled(batchllm_info)
%batchllm_filled(batchllm_stats)
%batchllm_filled(batchllm_plan_stats)
%batchllm_filled(batchllm_prediction)

%apply batchllm_status {
    int32_t batchllm_build_groups, int32_t batchllm_step, int32_t batchllm_cancel, int32_t batchllm_cancel_all,
    int32_t batchllm_engine_info, int32_t batchllm_engine_stats, int32_t batchllm_engine_use_plan
}
%batchllm_blocking(batchllm_engine_create_from)
%batchllm_blocking(batchllm_build_groups)
%batchllm_blocking(batchllm_step)
%batchllm_blocking(batchllm_advance)
%batchllm_blocking(batchllm_cancel)
%batchllm_blocking(batchllm_cancel_all)
%batchllm_blocking(batchllm_cancel_rows)
%batchllm_blocking(batchllm_engine_use_plan)

%{
#include <time.h>

typedef struct {
    double until; /* monotonic seconds */
    batchllm_progress *progress;
} batchllm_slice;

static double batchllm_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int32_t batchllm_slice_over(void *user, const batchllm_progress *progress) {
    const batchllm_slice *slice = user;
    *slice->progress = *progress;
    return batchllm_seconds() >= slice->until;
}
%}

%newobject batchllm_engine_create_from;
%inline %{
static batchllm_engine *batchllm_engine_create_from(const batchllm_engine_options *options,
                                                    batchllm_status *FAILURE) {
    batchllm_engine *engine = NULL;
    *FAILURE = batchllm_engine_create(options, &engine);
    return engine;
}

/* Runs steps for `seconds` (0: one step), or until nothing is left to do, or until
 * batchllm_interrupt. An interruption is not a failure here: the caller has its own flag for it,
 * which it checks between calls. */
static batchllm_status batchllm_advance(batchllm_engine *engine, double seconds,
                                        batchllm_progress *progress) {
    batchllm_slice slice = {batchllm_seconds() + seconds, progress};
    const int32_t status = batchllm_run(engine, batchllm_slice_over, &slice);
    return status == BATCHLLM_ERROR_STOPPED ? BATCHLLM_OK : status;
}

/* Cancels the rows whose tags are first_tag and those that follow. */
static batchllm_status batchllm_cancel_rows(batchllm_engine *engine, uint64_t first_tag,
                                            int64_t rows) {
    batchllm_status status = BATCHLLM_OK;
    for (int64_t i = 0; i < rows && status == BATCHLLM_OK; ++i)
        status = batchllm_cancel(engine, first_tag + (uint64_t)i);
    return status;
}
%}
