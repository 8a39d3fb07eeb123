/* Handles opened and closed thousands of times, in every state that a caller may leave them in:
 * nothing is left behind. The test itself watches the process's memory; LeakSanitizer and valgrind
 * (which runs `test_api_lifetime CYCLES`, see tests/meson.build) detect every lost byte. */
#include "api_helpers.h"

#include <unistd.h>

static int64_t cycles = 10000;

/* Whether the process's memory is meaningful: not with a tool's own allocator. */
#ifdef BATCHLLM_SANITIZED
static int watch_memory = 0;
#else
static int watch_memory = 1;
#endif

static int64_t resident_bytes(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* One engine, left in the state given by `way`. */
static void engine_cycle(int64_t way, const token_rows *rows) {
    batchllm_engine *engine = sim_engine(way % 2 ? "pages=64,overlap=1" : "pages=64");
    batchllm_results *results = NULL;
    batchllm_plan *plan = NULL;
    if (way >= 1) add_rows(engine, rows, 8);
    if (way >= 2) assert_ok(batchllm_build_groups(engine));
    if (way >= 3)
        for (int step = 0; step < 3; ++step) assert_ok(batchllm_step(engine, NULL));
    if (way >= 4) assert_ok(batchllm_cancel(engine, 2));
    if (way >= 5) assert_ok(batchllm_run(engine, NULL, NULL));
    if (way >= 6) results = poll_all(engine);
    if (way >= 6) assert_int_equal(results->count, rows->n);
    if (way >= 7) assert_ok(batchllm_engine_get_plan(engine, &plan));
    batchllm_engine_destroy(engine);
    /* Both outlive the engine. */
    batchllm_results_free(results);
    batchllm_plan_destroy(plan);
}

static void failed_cycle(void) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "/no/such/folder";
    batchllm_engine *engine = NULL;
    assert_error(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_IO, "/no/such/folder");
    assert_null(engine);
    batchllm_plan *plan = NULL;
    assert_error(batchllm_plan_load("/no/such/file", &plan), BATCHLLM_ERROR_IO, "/no/such/file");
}

static void cycle(int64_t i, const token_rows *rows) {
    if (i % 9 == 8)
        failed_cycle();
    else
        engine_cycle(i % 9, rows);
}

static void engines_left_in_any_state_leave_nothing(void **state) {
    (void)state;
    token_rows rows = make_rows(6, 20, 4);
    for (int64_t i = 0; i < 900 && i < cycles; ++i) cycle(i, &rows);
    const int64_t before = resident_bytes();
    for (int64_t i = 0; i < cycles; ++i) cycle(i, &rows);
    const int64_t grown = resident_bytes() - before;
    free_rows(&rows);
    if (watch_memory && grown > 1 << 20)
        fail_msg("%lld cycles grew the process by %lld bytes", (long long)cycles, (long long)grown);
}

static void tokenizers_and_their_columns_leave_nothing(void **state) {
    (void)state;
    const char *model = getenv("BATCHLLM_TEXT_MODEL");
    if (model == NULL) skip();
    const char text[] = "one\xff two three";
    const int64_t offsets[] = {0, 3, 4, sizeof text - 1};
    const int64_t times = cycles < 1000 ? cycles / 16 : 64;
    /* The least growth of four rounds: a leak shows in each, a new huge page only in one. */
    int64_t before = 0, grown = INT64_MAX;
    for (int64_t i = 0; i < 8 * times; ++i) {
        if (i % times == 0 && i >= 4 * times) before = resident_bytes();
        batchllm_tokenizer *tokenizer = NULL;
        batchllm_column *tokens = NULL, *back = NULL;
        assert_ok(batchllm_tokenizer_create(model, &tokenizer));
        assert_ok(batchllm_tokenizer_encode(tokenizer, 3, text, offsets, 0, 1, &tokens));
        assert_int_equal(tokens->statuses[1], BATCHLLM_ERROR_ROW_INVALID_UTF8);
        assert_ok(
            batchllm_tokenizer_decode(tokenizer, 3, tokens->tokens, tokens->offsets, 0, 1, &back));
        batchllm_tokenizer_destroy(tokenizer);
        batchllm_column_free(tokens);
        batchllm_column_free(back);
        if (i % times == times - 1 && i >= 4 * times && resident_bytes() - before < grown)
            grown = resident_bytes() - before;
    }
    if (watch_memory && grown > 1 << 18)
        fail_msg("%lld tokenizers grew the process by %lld bytes", (long long)times,
                 (long long)grown);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        cycles = atoll(argv[1]);
        watch_memory = 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engines_left_in_any_state_leave_nothing),
        cmocka_unit_test(tokenizers_and_their_columns_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
