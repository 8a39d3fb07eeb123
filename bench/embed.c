/* Rows that share instructions, embedded with and without sharing: the speedup by sharing.
   Usage: embed MODEL [ROWS [SHARED [OWN [ROWS_OF_AN_INSTRUCTION]]]]    2000 rows of 200 + 20 tokens, by 200, on the CPU */
#include <batchllm.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
    int64_t rows, shared, own, group;
} job_shape;

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int32_t token_of(uint64_t seed, int64_t position) {
    const uint64_t mixed = seed * 0x9e3779b97f4a7c15u + (uint64_t)position * 0xbf58476d1ce4e5b9u;
    return (int32_t)((mixed ^ mixed >> 31) * 0x94d049bb133111ebu >> 40) % 250 + 3;
}

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, batchllm_last_error());
    return 1;
}

static int add(batchllm_engine *engine, const job_shape *shape) {
    const int64_t length = shape->shared + shape->own;
    int32_t *tokens = malloc((size_t)(shape->rows * length) * sizeof *tokens);
    int64_t *offsets = malloc((size_t)(shape->rows + 1) * sizeof *offsets);
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.task = BATCHLLM_TASK_EMBED;
    params.pooling = BATCHLLM_POOLING_LAST;
    params.normalize = 1;
    if (!tokens || !offsets) return 1;
    for (int64_t i = 0; i <= shape->rows; ++i) offsets[i] = i * length;
    for (int64_t i = 0; i < shape->rows; ++i)
        for (int64_t j = 0; j < length; ++j)
            tokens[i * length + j] =
                token_of(j < shape->shared ? (uint64_t)(i / shape->group) : ~(uint64_t)i, j);
    const int32_t status =
        batchllm_add_tokens(engine, shape->rows, tokens, offsets, NULL, &params, 1);
    free(tokens);
    free(offsets);
    return status != BATCHLLM_OK ? failed("add") : 0;
}

/* The sum of all vectors' first values shows whether both ways computed the same. */
static int run(const char *model, const job_shape *shape, int32_t enlarge, double *time,
               double *sum) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = model;
    options.backend = "cpu";
    options.enlarge = enlarge;
    batchllm_engine *engine = NULL;
    batchllm_results *results = NULL;
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    if (batchllm_engine_create(&options, &engine) != BATCHLLM_OK) return failed("create");
    if (add(engine, shape)) return 1;
    const double start = seconds();
    if (batchllm_run(engine, NULL, NULL) != BATCHLLM_OK) return failed("run");
    *time = seconds() - start;
    if (batchllm_poll(engine, 0, &results) != BATCHLLM_OK) return failed("poll");
    batchllm_engine_stats(engine, &stats);
    *sum = 0;
    for (int64_t i = 0; i < results->count; ++i) {
        if (results->statuses[i] != BATCHLLM_OK) return failed("a row");
        *sum += (double)results->embeddings[results->embedding_offsets[i]];
    }
    printf("%-16s %8.2f s %10.0f rows/s   %lld of %lld tokens computed\n",
           enlarge == BATCHLLM_ENLARGE_NONE ? "without sharing" : "with sharing", *time,
           (double)shape->rows / *time, (long long)stats.processed_prompt_tokens,
           (long long)stats.logical_prompt_tokens);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: embed MODEL [ROWS [SHARED [OWN [ROWS_OF_AN_INSTRUCTION]]]]\n");
        return 2;
    }
    job_shape shape = {2000, 200, 20, 200};
    int64_t *fields[] = {&shape.rows, &shape.shared, &shape.own, &shape.group};
    for (int i = 0; i < 4 && i + 2 < argc; ++i) {
        *fields[i] = atoll(argv[i + 2]);
        if (*fields[i] < 1) return 2;
    }
    double with, without, sum_with, sum_without;
    if (run(argv[1], &shape, BATCHLLM_ENLARGE_OPTIMAL, &with, &sum_with) ||
        run(argv[1], &shape, BATCHLLM_ENLARGE_NONE, &without, &sum_without))
        return 1;
    printf("%.1f times as fast\n", without / with);
    return fabs(sum_with - sum_without) > 1e-2 * (double)shape.rows;
}
