/* A program built against the original header of 0.1 (batchllm-0.1.header, never changed), with
 * today's library: with structs of its own size, with shorter ones and with longer ones. Each
 * struct ends at a guard page, so that a read or write beyond struct_size crashes the program. */
#define _GNU_SOURCE
#include "batchllm-0.1.header"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void need(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, batchllm_last_error());
    exit(1);
}

/* Room for `bytes` bytes that end at a guard page, and begin at a multiple of 8 if `bytes` is
 * one. */
static void *guarded(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t room = (bytes + page - 1) / page * page;
    char *pages =
        mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(pages != MAP_FAILED && mprotect(pages + room, page, PROT_NONE) == 0, "mmap");
    memset(pages, 0, room);
    return pages + room - bytes;
}

/* A struct's size in a caller: shorter by whole fields of 8 bytes, the same, or longer by zeros. */
static size_t size_of(size_t own, size_t least, int32_t more) {
    const int64_t size = (int64_t)own + 8 * more;
    return size < (int64_t)least ? least : (size_t)size;
}

static int64_t job(int32_t more) {
    const size_t options_size = size_of(sizeof(batchllm_engine_options), 40, more);
    batchllm_engine_options *options = guarded(options_size);
    batchllm_engine_options_init(options, options_size);
    options->backend = "sim"; /* within the 40 bytes; fields beyond them have their defaults */
    batchllm_engine *engine = NULL;
    need(batchllm_engine_create(options, &engine) == BATCHLLM_OK, "create");

    const size_t params_size = size_of(sizeof(batchllm_params), 32, more);
    char *params = guarded(3 * params_size);
    for (int i = 0; i < 3; ++i) {
        batchllm_params *one = (batchllm_params *)(void *)(params + (size_t)i * params_size);
        batchllm_params_init(one, params_size);
        one->max_tokens = 4 + i;
    }
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int64_t offsets[] = {0, 3, 6, 9};
    need(batchllm_add_tokens(engine, 3, tokens, offsets, NULL,
                             (const batchllm_params *)(void *)params, 3) == BATCHLLM_OK,
         "add_tokens");
    const size_t progress_size = size_of(sizeof(batchllm_progress), 16, more);
    batchllm_progress *progress = guarded(progress_size);
    progress->struct_size = (uint32_t)progress_size;
    need(batchllm_step(engine, progress) == BATCHLLM_OK, "step");
    need(progress->struct_size == progress_size, "progress.struct_size");
    need(batchllm_run(engine, NULL, NULL) == BATCHLLM_OK, "run");

    const size_t stats_size = size_of(sizeof(batchllm_stats), 24, more);
    batchllm_stats *stats = guarded(stats_size);
    stats->struct_size = (uint32_t)stats_size;
    need(batchllm_engine_stats(engine, stats) == BATCHLLM_OK && stats->rows_done == 3, "stats");

    batchllm_results *results = NULL;
    need(batchllm_poll(engine, 0, &results) == BATCHLLM_OK && results->count == 3, "poll");
    need(results->struct_size >= sizeof *results, "results.struct_size");
    uint64_t hash = 0;
    for (int64_t i = 0; i < results->count; ++i) {
        need(results->statuses[i] == BATCHLLM_OK &&
                 results->finish_reasons[i] == BATCHLLM_FINISH_LENGTH,
             "result");
        for (int64_t t = results->token_offsets[i]; t < results->token_offsets[i + 1]; ++t)
            hash = hash * 31 + (uint64_t)results->tokens[t] + results->tags[i];
    }
    need(results->token_offsets[3] == 4 + 5 + 6, "tokens");
    batchllm_results_free(results);

    const size_t plan_size = size_of(sizeof(batchllm_plan_options), 16, more);
    batchllm_plan_options *plan_options = guarded(plan_size);
    batchllm_plan_options_init(plan_options, plan_size);
    batchllm_plan *plan = NULL;
    need(batchllm_plan_create(3, tokens, offsets, NULL, plan_options, NULL, &plan) == BATCHLLM_OK,
         "plan_create");
    const size_t plan_stats_size = size_of(sizeof(batchllm_plan_stats), 24, more);
    batchllm_plan_stats *plan_stats = guarded(plan_stats_size);
    plan_stats->struct_size = (uint32_t)plan_stats_size;
    need(batchllm_plan_get_stats(plan, plan_stats) == BATCHLLM_OK && plan_stats->rows == 3,
         "plan_stats");
    const size_t info_size = size_of(sizeof(batchllm_plan_group_info), 16, more);
    batchllm_plan_group_info *info = guarded(info_size);
    info->struct_size = (uint32_t)info_size;
    need(batchllm_plan_group(plan, 0, info) == BATCHLLM_OK, "plan_group");
    batchllm_plan_destroy(plan);
    batchllm_engine_destroy(engine);
    return hash;
}

/* A field that the caller sets and today's library does not have is rejected, not ignored. */
static void unknown_fields_are_refused(void) {
    const size_t size = 4096;
    batchllm_engine_options *options = guarded(size);
    batchllm_engine_options_init(options, size);
    options->backend = "sim";
    ((char *)options)[size - 1] = 1;
    batchllm_engine *engine = NULL;
    need(batchllm_engine_create(options, &engine) == BATCHLLM_ERROR_UNSUPPORTED && engine == NULL,
         "an option of a later version is taken in silence");
}

int main(void) {
    const int64_t expected = job(0);
    for (int32_t more = -40; more <= 40; ++more)
        need(job(more) == expected, "other tokens with other struct sizes");
    unknown_fields_are_refused();
    return 0;
}
