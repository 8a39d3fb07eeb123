/* Shared by the tests of the C interface: engines on the sim backend, columns, results by tag. */
#ifndef BATCHLLM_TESTS_API_HELPERS_H
#define BATCHLLM_TESTS_API_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <batchllm.h>

/* The call must succeed; if it does not, its error text is shown. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        const int32_t status_ = (call);                                                            \
        if (status_ != BATCHLLM_OK)                                                                \
            fail_msg("%s: %s: %s", #call, batchllm_status_name(status_), batchllm_last_error());   \
    } while (0)

/* The call must fail with this status, and its error text must contain `text`. */
#define assert_error(call, expected, text)                                                         \
    do {                                                                                           \
        const int32_t status_ = (call);                                                            \
        if (status_ != (expected))                                                                 \
            fail_msg("%s: %s instead of %s: %s", #call, batchllm_status_name(status_),             \
                     batchllm_status_name(expected), batchllm_last_error());                       \
        if (strstr(batchllm_last_error(), text) == NULL)                                           \
            fail_msg("%s: \"%s\" does not contain \"%s\"", #call, batchllm_last_error(), text);    \
    } while (0)

static inline batchllm_engine *sim_engine_with(batchllm_engine_options *options) {
    batchllm_engine *engine = NULL;
    options->backend = "sim";
    assert_ok(batchllm_engine_create(options, &engine));
    return engine;
}

/* A simulated engine of 1,000 token ids; backend_options as in docs/backends.md. */
static inline batchllm_engine *sim_engine(const char *backend_options) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = backend_options;
    return sim_engine_with(&options);
}

static inline batchllm_params params_of(int32_t max_tokens) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = max_tokens;
    return params;
}

/* Rows of tokens: `shared` ids that all rows have, then `own` that differ. */
typedef struct token_rows {
    int64_t n;
    int32_t *tokens;
    int64_t *offsets;
} token_rows;

static inline token_rows make_rows(int64_t n, int32_t shared, int32_t own) {
    token_rows rows = {n, malloc((size_t)(n * (shared + own) + 1) * sizeof(int32_t)),
                       malloc((size_t)(n + 1) * sizeof(int64_t))};
    int32_t *next = rows.tokens;
    rows.offsets[0] = 0;
    for (int64_t i = 0; i < n; ++i) {
        for (int32_t j = 0; j < shared; ++j) *next++ = j % 900;
        /* Two ids name the row, so that no two rows are equal. */
        for (int32_t j = 0; j < own; ++j)
            *next++ = (int32_t)(j == 0 ? i % 997 : j == 1 ? i / 997 : (i * 31 + j * 7) % 997);
        rows.offsets[i + 1] = next - rows.tokens;
    }
    return rows;
}

static inline void free_rows(token_rows *rows) {
    free(rows->tokens);
    free(rows->offsets);
}

static inline void add_rows(batchllm_engine *engine, const token_rows *rows, int32_t max_tokens) {
    const batchllm_params params = params_of(max_tokens);
    assert_ok(batchllm_add_tokens(engine, rows->n, rows->tokens, rows->offsets, NULL, &params, 1));
}

static inline batchllm_results *poll_all(batchllm_engine *engine) {
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_non_null(results);
    return results;
}

static inline batchllm_results *run_all(batchllm_engine *engine) {
    assert_ok(batchllm_run(engine, NULL, NULL));
    return poll_all(engine);
}

/* Index of the result with this tag and sample; the test fails unless there is exactly one. */
static inline int64_t result_of(const batchllm_results *results, uint64_t tag, int32_t sample) {
    int64_t found = -1;
    for (int64_t i = 0; i < results->count; ++i) {
        if (results->tags[i] != tag || results->samples[i] != sample) continue;
        if (found >= 0) fail_msg("two results of tag %llu", (unsigned long long)tag);
        found = i;
    }
    if (found < 0) fail_msg("no result of tag %llu", (unsigned long long)tag);
    return found;
}

static inline int64_t token_count(const batchllm_results *results, int64_t i) {
    return results->token_offsets[i + 1] - results->token_offsets[i];
}

static inline void assert_row_error(const batchllm_results *results, uint64_t tag, int32_t status,
                                    const char *text) {
    const int64_t i = result_of(results, tag, 0);
    char message[512];
    const int64_t length = results->error_offsets[i + 1] - results->error_offsets[i];
    snprintf(message, sizeof message, "%.*s", (int)length,
             results->errors + results->error_offsets[i]);
    if (results->statuses[i] != status || strstr(message, text) == NULL)
        fail_msg("tag %llu: %s: %s", (unsigned long long)tag,
                 batchllm_status_name(results->statuses[i]), message);
    assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_ERROR);
}

static inline void assert_same_tokens(const batchllm_results *a, int64_t i,
                                      const batchllm_results *b, int64_t j) {
    assert_int_equal(token_count(a, i), token_count(b, j));
    assert_memory_equal(a->tokens + a->token_offsets[i], b->tokens + b->token_offsets[j],
                        (size_t)token_count(a, i) * sizeof(int32_t));
}

static inline batchllm_stats stats_of(const batchllm_engine *engine) {
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    assert_ok(batchllm_engine_stats(engine, &stats));
    return stats;
}

#endif
