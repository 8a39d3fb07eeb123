/* Millions of rows through the engine on the sim backend, in windows: rows per second, peak memory,
   and the time that scheduling takes per step. Usage: rows [ROWS] [WINDOW] [TOKENS A ROW]
   ROWS = WINDOW adds all rows at once. */
#include <batchllm.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

typedef struct job {
    batchllm_engine *engine;
    int64_t rows, window, length;
    int64_t added, done;
    int32_t *tokens;
    int64_t *offsets;
    int32_t status;
} job;

/* Sixteen rows share three quarters of their prompt. */
static int32_t add_window(job *self) {
    const int64_t count =
        self->window < self->rows - self->added ? self->window : self->rows - self->added;
    const int64_t shared = self->length * 3 / 4;
    int32_t *next = self->tokens;
    for (int64_t i = self->added; i < self->added + count; ++i) {
        const uint64_t document = (uint64_t)i / 16;
        for (int64_t j = 0; j < self->length; ++j) {
            const uint64_t seed = j < shared ? document : ~(uint64_t)i;
            *next++ =
                (int32_t)((seed * 0x9e3779b97f4a7c15u + (uint64_t)j * 0xbf58476d1ce4e5b9u) >> 40) &
                0xffff;
        }
        self->offsets[i - self->added + 1] = next - self->tokens;
    }
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 8;
    self->added += count;
    return batchllm_add_tokens(self->engine, count, self->tokens, self->offsets, NULL, &params, 1);
}

static int32_t after_step(void *user, const batchllm_progress *progress) {
    job *self = user;
    batchllm_results *results = NULL;
    self->status = batchllm_poll(self->engine, 0, &results);
    if (results) self->done += results->count;
    batchllm_results_free(results);
    if (self->status == BATCHLLM_OK && self->added < self->rows &&
        progress->rows_waiting < self->window / 4)
        self->status = add_window(self);
    return self->status != BATCHLLM_OK;
}

int main(int argc, char **argv) {
    job self = {0};
    self.rows = argc > 1 ? atoll(argv[1]) : 2000000;
    self.window = argc > 2 ? atoll(argv[2]) : 65536;
    self.length = argc > 3 ? atoll(argv[3]) : 200;
    self.tokens = malloc((size_t)(self.window * self.length) * sizeof(int32_t));
    self.offsets = calloc((size_t)self.window + 1, sizeof(int64_t));
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.step_tokens = 8192;
    int32_t status = self.tokens && self.offsets ? batchllm_engine_create(&options, &self.engine)
                                                 : BATCHLLM_ERROR_OUT_OF_MEMORY;
    if (status == BATCHLLM_OK) status = add_window(&self);
    if (status == BATCHLLM_OK) status = batchllm_run(self.engine, after_step, &self);
    if (self.status != BATCHLLM_OK) status = self.status;
    batchllm_stats stats = {0};
    stats.struct_size = sizeof stats;
    if (status == BATCHLLM_OK) status = batchllm_engine_stats(self.engine, &stats);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (status == BATCHLLM_OK)
        printf("%lld rows of %lld tokens, windows of %lld: %.1f s (%.0f rows a second), %.0f MiB "
               "at most\n"
               "%lld steps, scheduling %.0f us a step, planning %.2f s, saving ratio %.3f\n",
               (long long)self.done, (long long)self.length, (long long)self.window,
               stats.run_seconds, (double)self.done / stats.run_seconds,
               (double)usage.ru_maxrss / 1024, (long long)stats.steps,
               1e6 * stats.schedule_seconds / (double)stats.steps, stats.plan_seconds,
               stats.saving_ratio);
    else
        fprintf(stderr, "%s\n", batchllm_last_error());
    batchllm_engine_destroy(self.engine);
    free(self.tokens);
    free(self.offsets);
    return status == BATCHLLM_OK && self.done == self.rows ? 0 : 1;
}
