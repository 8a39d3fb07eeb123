/* What may happen at once: cancel and interrupt during run, engines and tokenizers in many threads. */
#include "api_helpers.h"

#include <pthread.h>

enum { thread_count = 4, row_count = 400 };

static batchllm_results *job(uint64_t seed, const token_rows *rows) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = "vocabulary=1000,eos_token=3,mean_length=12,pages=200";
    options.seed = seed;
    batchllm_engine *engine = sim_engine_with(&options);
    add_rows(engine, rows, 40);
    batchllm_results *results = run_all(engine);
    batchllm_engine_destroy(engine);
    return results;
}

typedef struct worker {
    pthread_t thread;
    uint64_t seed;
    const token_rows *rows;
    batchllm_results *results;
} worker;

static void *work(void *user) {
    worker *self = user;
    self->results = job(self->seed, self->rows);
    return NULL;
}

static void engines_in_several_threads_give_what_one_thread_gives(void **state) {
    (void)state;
    token_rows rows = make_rows(row_count, 30, 10);
    worker workers[thread_count];
    for (int i = 0; i < thread_count; ++i) {
        workers[i] = (worker){0, (uint64_t)i % 2, &rows, NULL};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < thread_count; ++i) pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < thread_count; ++i) {
        batchllm_results *reference = job(workers[i].seed, &rows);
        assert_int_equal(workers[i].results->count, row_count);
        for (uint64_t tag = 0; tag < row_count; ++tag)
            assert_same_tokens(reference, result_of(reference, tag, 0), workers[i].results,
                               result_of(workers[i].results, tag, 0));
        batchllm_results_free(reference);
    }
    for (int i = 0; i < thread_count; ++i) batchllm_results_free(workers[i].results);
    free_rows(&rows);
}

typedef struct canceller {
    pthread_t thread;
    batchllm_engine *engine;
    uint64_t first_tag;
} canceller;

static void *cancel_many(void *user) {
    canceller *self = user;
    for (uint64_t tag = self->first_tag; tag < row_count; tag += 4)
        if (batchllm_cancel(self->engine, tag) != BATCHLLM_OK) return self;
    batchllm_interrupt(self->engine);
    return NULL;
}

static void cancel_from_other_threads_during_run_gives_each_row_one_result(void **state) {
    (void)state;
    token_rows rows = make_rows(row_count, 30, 10);
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = "vocabulary=1000";
    options.max_requests = 8;
    batchllm_engine *engine = sim_engine_with(&options);
    add_rows(engine, &rows, 60);
    canceller cancellers[2];
    for (int i = 0; i < 2; ++i) {
        cancellers[i] = (canceller){0, engine, (uint64_t)i};
        assert_int_equal(pthread_create(&cancellers[i].thread, NULL, cancel_many, &cancellers[i]),
                         0);
    }
    int32_t status;
    do {
        status = batchllm_run(engine, NULL, NULL);
    } while (status == BATCHLLM_ERROR_STOPPED);
    assert_int_equal(status, BATCHLLM_OK);
    for (int i = 0; i < 2; ++i) {
        void *failed = NULL;
        pthread_join(cancellers[i].thread, &failed);
        assert_null(failed);
    }
    batchllm_results *results = poll_all(engine);
    assert_int_equal(results->count, row_count);
    for (uint64_t tag = 0; tag < row_count; ++tag) {
        const int64_t i = result_of(results, tag, 0);
        if (tag % 4 >= 2) {
            assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_LENGTH);
            assert_int_equal(token_count(results, i), 60);
        } else if (results->finish_reasons[i] != BATCHLLM_FINISH_LENGTH) {
            assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_CANCELLED);
            assert_true(token_count(results, i) < 60);
        }
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static void *run_until_stopped(void *user) {
    int32_t status;
    do { // rejected while the main thread is in a call
        status = batchllm_run(user, NULL, NULL);
    } while (status == BATCHLLM_ERROR_STATE);
    return status == BATCHLLM_ERROR_STOPPED ? NULL : user;
}

static void a_call_that_would_overlap_another_threads_is_refused(void **state) {
    (void)state;
    token_rows rows = make_rows(4, 30, 10);
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = "vocabulary=1000,page_tokens=1024,pages=65536";
    options.max_request_tokens = 50000000;
    batchllm_engine *engine = sim_engine_with(&options);
    add_rows(engine, &rows, 10000000);
    pthread_t runner;
    assert_int_equal(pthread_create(&runner, NULL, run_until_stopped, engine), 0);
    batchllm_stats stats = {.struct_size = sizeof stats};
    int32_t status;
    do { // until the other thread is in its call
        status = batchllm_engine_stats(engine, &stats);
    } while (status == BATCHLLM_OK);
    assert_int_equal(status, BATCHLLM_ERROR_STATE);
    assert_non_null(strstr(batchllm_last_error(), "another call on this engine is under way"));
    batchllm_results *results = NULL;
    assert_int_equal(batchllm_poll(engine, 0, &results), BATCHLLM_ERROR_STATE);
    assert_null(results);
    assert_int_equal(batchllm_run(engine, NULL, NULL), BATCHLLM_ERROR_STATE);
    assert_int_equal(batchllm_step(engine, NULL), BATCHLLM_ERROR_STATE);
    assert_int_equal(batchllm_add_prompt(engine, "x", -1, 0, NULL), BATCHLLM_ERROR_STATE);
    assert_ok(batchllm_cancel(engine, 1)); // from any thread
    batchllm_interrupt(engine);
    void *failed = NULL;
    pthread_join(runner, &failed);
    assert_null(failed);
    assert_ok(batchllm_engine_stats(engine, &stats));
    assert_int_equal(stats.rows, 4);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static void *poll_one(void *user) {
    batchllm_results *results = NULL;
    const int32_t status = batchllm_poll(user, 0, &results);
    batchllm_results_free(results);
    return status == BATCHLLM_OK ? NULL : user;
}

typedef struct {
    batchllm_engine *engine;
    int32_t calls, polls; // calls of the callback; polls of another thread that succeeded
} polling;

// Contains no asserts, since C++ calls it.
static int32_t poll_in_another_thread(void *user, const batchllm_progress *progress) {
    (void)progress;
    polling *seen = user;
    pthread_t poller;
    void *failed = NULL;
    ++seen->calls;
    if (pthread_create(&poller, NULL, poll_one, seen->engine) != 0) return 1;
    pthread_join(poller, &failed);
    seen->polls += failed == NULL;
    return 0;
}

static void a_callback_may_wait_for_another_threads_call(void **state) {
    (void)state;
    token_rows rows = make_rows(20, 30, 10);
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = "vocabulary=1000";
    batchllm_engine *engine = sim_engine_with(&options);
    add_rows(engine, &rows, 5);
    polling seen = {.engine = engine};
    assert_ok(batchllm_run(engine, poll_in_another_thread, &seen));
    assert_true(seen.calls > 0);
    assert_int_equal(seen.polls, seen.calls);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static void *fail_here(void *user) {
    batchllm_engine *engine = NULL;
    const int32_t status = batchllm_engine_create(NULL, &engine);
    snprintf(user, 64, "%d %s", (int)status, batchllm_last_error());
    return NULL;
}

static void the_last_error_is_the_calling_threads_own(void **state) {
    (void)state;
    batchllm_results *results = NULL;
    assert_error(batchllm_poll(NULL, 0, &results), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "engine is NULL");
    char other[64];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_here, other), 0);
    pthread_join(thread, NULL);
    assert_string_equal(other, "1 options is NULL");
    assert_string_equal(batchllm_last_error(), "engine is NULL");
}

typedef struct encoder {
    pthread_t thread;
    const batchllm_tokenizer *tokenizer;
    int64_t tokens;
} encoder;

static void *encode_often(void *user) {
    encoder *self = user;
    static const char text[] = "One tokenizer, any number of threads. Caf\xc3\xa9!";
    const int64_t offsets[] = {0, (int64_t)sizeof text - 1};
    for (int i = 0; i < 200; ++i) {
        batchllm_column *column = NULL;
        if (batchllm_tokenizer_encode(self->tokenizer, 1, text, offsets, 0, 1, &column) != 0) break;
        self->tokens += column->offsets[1];
        batchllm_column_free(column);
    }
    return NULL;
}

static void a_tokenizer_serves_several_threads(void **state) {
    (void)state;
    const char *directory = getenv("BATCHLLM_TEXT_MODEL");
    if (directory == NULL) fail_msg("BATCHLLM_TEXT_MODEL is not set: run by meson test");
    batchllm_tokenizer *tokenizer = NULL;
    assert_ok(batchllm_tokenizer_create(directory, &tokenizer));
    encoder encoders[thread_count];
    for (int i = 0; i < thread_count; ++i) {
        encoders[i] = (encoder){0, tokenizer, 0};
        assert_int_equal(pthread_create(&encoders[i].thread, NULL, encode_often, &encoders[i]), 0);
    }
    for (int i = 0; i < thread_count; ++i) pthread_join(encoders[i].thread, NULL);
    for (int i = 0; i < thread_count; ++i) assert_int_equal(encoders[i].tokens, 200 * 44);
    batchllm_tokenizer_destroy(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_in_several_threads_give_what_one_thread_gives),
        cmocka_unit_test(cancel_from_other_threads_during_run_gives_each_row_one_result),
        cmocka_unit_test(a_call_that_would_overlap_another_threads_is_refused),
        cmocka_unit_test(a_callback_may_wait_for_another_threads_call),
        cmocka_unit_test(the_last_error_is_the_calling_threads_own),
        cmocka_unit_test(a_tokenizer_serves_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
