/* What the C interface rejects, and how it reads structs of other sizes. */
#include "api_helpers.h"

static const int32_t tokens[] = {1, 2, 3, 4, 5};
static const int64_t good[] = {0, 2, 5};
static const int64_t falling[] = {0, 3, 2};
static const int64_t negative[] = {-1, 2, 5};

static batchllm_engine *engine_of(void **state) { return *state; }

static int set_up(void **state) {
    *state = sim_engine("vocabulary=1000");
    return 0;
}

static int tear_down(void **state) {
    /* No rejected call has left a row behind. */
    assert_int_equal(stats_of(*state).rows, 0);
    batchllm_engine_destroy(*state);
    return 0;
}

static void hostile_columns_are_refused_by_name(void **state) {
    batchllm_engine *engine = engine_of(state);
    const int32_t bad = BATCHLLM_ERROR_INVALID_ARGUMENT;
    assert_error(batchllm_add_tokens(NULL, 1, tokens, good, NULL, NULL, 0), bad, "engine");
    assert_error(batchllm_add_tokens(engine, -1, tokens, good, NULL, NULL, 0), bad, "n is -1");
    assert_error(batchllm_add_tokens(engine, 2, tokens, NULL, NULL, NULL, 0), bad,
                 "offsets is NULL");
    assert_error(batchllm_add_tokens(engine, 2, NULL, good, NULL, NULL, 0), bad, "tokens is NULL");
    assert_error(batchllm_add_tokens(engine, 2, tokens, falling, NULL, NULL, 0), bad, "offsets[2]");
    assert_error(batchllm_add_tokens(engine, 2, tokens, negative, NULL, NULL, 0), bad,
                 "offsets[0]");
    assert_error(batchllm_add_text(engine, 2, "abcde", falling, NULL, NULL, 0), bad, "offsets[2]");
    assert_error(batchllm_add_text(engine, 2, NULL, good, NULL, NULL, 0), bad, "text is NULL");
    assert_error(batchllm_add_prompt(engine, NULL, 0, 0, NULL), bad, "text");
    batchllm_params params = params_of(3);
    assert_error(batchllm_add_tokens(engine, 2, tokens, good, NULL, &params, 3), bad,
                 "params_count");
    assert_error(batchllm_add_tokens(engine, 2, tokens, good, NULL, &params, 0), bad,
                 "params_count");

    const int64_t rows_of_2[] = {0, 1, 2};
    assert_error(batchllm_add_scores(engine, 2, tokens, good, tokens, good, falling, NULL), bad,
                 "continuation_rows[2]");
    assert_error(batchllm_add_scores(engine, 2, tokens, good, tokens, falling, rows_of_2, NULL),
                 bad, "continuation_offsets[2]");
    assert_error(batchllm_add_scores(engine, 2, tokens, good, NULL, good, rows_of_2, NULL), bad,
                 "continuations is NULL");
    assert_error(batchllm_add_scores(engine, 2, tokens, good, tokens, good, NULL, NULL), bad,
                 "continuation_rows is NULL");
    const int64_t none[] = {0, 0, 0};
    assert_error(batchllm_add_scores(engine, 2, tokens, good, NULL, NULL, none, NULL), bad,
                 "continuation_offsets is NULL");
    assert_error(batchllm_add_score_text(engine, 2, "abcde", good, NULL, NULL, none, NULL, NULL),
                 bad, "continuation_offsets is NULL");
    assert_error(
        batchllm_add_score_text(engine, 2, "abcde", negative, "ab", good, rows_of_2, NULL, NULL),
        bad, "offsets[0]");

    batchllm_plan *plan = NULL;
    assert_error(batchllm_plan_create(2, tokens, falling, NULL, NULL, NULL, &plan), bad,
                 "offsets[2]");
    assert_null(plan);
}

static void a_column_may_begin_anywhere_and_be_empty(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000");
    const int64_t later[] = {2, 4, 5};
    assert_ok(batchllm_add_tokens(engine, 2, tokens, later, NULL, NULL, 0));
    assert_ok(batchllm_add_tokens(engine, 0, NULL, NULL, NULL, NULL, 0));
    assert_ok(batchllm_add_scores(engine, 0, NULL, NULL, NULL, NULL, NULL, NULL));
    const int64_t empty[] = {5, 5};
    assert_ok(batchllm_add_tokens(engine, 1, NULL, empty, NULL, NULL, 0));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 3);
    assert_int_equal(results->prompt_tokens[result_of(results, 0, 0)], 2);
    assert_int_equal(results->prompt_tokens[result_of(results, 1, 0)], 1);
    assert_row_error(results, 2, BATCHLLM_ERROR_ROW_EMPTY, "no tokens");
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void null_handles_and_outs_are_refused_and_null_frees_do_nothing(void **state) {
    batchllm_engine *engine = engine_of(state);
    const int32_t bad = BATCHLLM_ERROR_INVALID_ARGUMENT;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    batchllm_engine *made = (batchllm_engine *)&options;
    assert_error(batchllm_engine_create(&options, NULL), bad, "out is NULL");
    assert_error(batchllm_engine_create(NULL, &made), bad, "options is NULL");
    assert_null(made);
    assert_error(batchllm_build_groups(NULL), bad, "engine");
    assert_error(batchllm_step(NULL, NULL), bad, "engine");
    assert_error(batchllm_run(NULL, NULL, NULL), bad, "engine");
    assert_error(batchllm_cancel(NULL, 0), bad, "engine");
    assert_error(batchllm_poll(engine, 0, NULL), bad, "out is NULL");
    batchllm_results *results = NULL;
    assert_error(batchllm_poll(NULL, 0, &results), bad, "engine");
    assert_error(batchllm_poll(engine, -1, &results), bad, "max_results");
    assert_error(batchllm_engine_stats(engine, NULL), bad, "stats");
    assert_error(batchllm_engine_info(engine, 0, NULL), bad, "info is NULL");
    batchllm_info info;
    info.struct_size = sizeof info;
    assert_error(batchllm_engine_info(NULL, 0, &info), bad, "engine");
    assert_error(batchllm_engine_info(engine, 1, &info), bad, "device is 1: the engine has 1");
    assert_error(batchllm_engine_info(engine, -1, &info), bad, "device is -1");
    assert_error(batchllm_engine_use_plan(engine, NULL), bad, "plan");
    assert_error(batchllm_plan_save(NULL, "x"), bad, "plan");
    batchllm_plan *plan = NULL;
    assert_error(batchllm_plan_load(NULL, &plan), bad, "path");
    assert_error(batchllm_plan_load("/nowhere/x.plan", &plan), BATCHLLM_ERROR_IO,
                 "/nowhere/x.plan");
    assert_int_equal(batchllm_plan_group_count(NULL), 0);
    assert_int_equal(batchllm_tokenizer_fingerprint(NULL), 0);
    assert_int_equal(batchllm_tokenizer_vocabulary(NULL), 0);
    batchllm_engine_destroy(NULL);
    batchllm_results_free(NULL);
    batchllm_plan_destroy(NULL);
    batchllm_tokenizer_destroy(NULL);
    batchllm_column_free(NULL);
    batchllm_interrupt(NULL);
    batchllm_params_init(NULL, 0);
}

static void bad_options_are_refused_by_name(void **state) {
    (void)state;
    const int32_t bad = BATCHLLM_ERROR_INVALID_ARGUMENT;
    batchllm_engine *made = NULL;
    batchllm_engine_options options;
#define REFUSED(field, value, status, text)                                                        \
    do {                                                                                           \
        batchllm_engine_options_init(&options, sizeof options);                                    \
        options.backend = "sim";                                                                   \
        options.field = value;                                                                     \
        assert_error(batchllm_engine_create(&options, &made), status, text);                       \
        assert_null(made);                                                                         \
    } while (0)
    REFUSED(backend, "tpu", bad, "backend is \"tpu\"");
    REFUSED(backend, "cpu", bad, "model_dir");
    REFUSED(compute_type, "int8", bad, "compute_type");
    REFUSED(backend_options, "pages", bad, "key=value");
    REFUSED(backend_options, "colour=blue", bad, "colour");
    REFUSED(backend_options, "pages=9,vocabulary=50,pages=8", bad, "pages is given twice");
    REFUSED(backend_options, "page_tokens=0", bad, "[1, 4096]");
    REFUSED(backend_options, "page_tokens=4097", bad, "[1, 4096]");
    REFUSED(reserved, 1, bad, "reserved is 1");
    REFUSED(reserved2, -1, bad, "reserved2 is -1");
    REFUSED(threads, -1, bad, "threads");
    REFUSED(kv_memory_bytes, -1, bad, "kv_memory_bytes");
    REFUSED(kv_memory_fraction, 1.5, bad, "kv_memory_fraction");
    REFUSED(step_tokens, -1, bad, "step_tokens");
    REFUSED(step_tokens, INT64_C(1) << 60, bad, "step_tokens"); /* bytes would overflow */
    REFUSED(max_request_tokens, INT64_MAX, bad, "max_request_tokens");
    REFUSED(max_requests, -1, bad, "max_requests");
    REFUSED(enlarge, 3, bad, "enlarge");
    REFUSED(levels, -1, bad, "levels");
    REFUSED(levels, 3, bad, "levels");
    REFUSED(order, 9, bad, "order");
    REFUSED(log_level, 4, bad, "log_level");
    REFUSED(timeline_path, "/nowhere/t.csv", BATCHLLM_ERROR_IO, "/nowhere/t.csv");
    REFUSED(model_dir, "/nowhere/model", BATCHLLM_ERROR_IO, "/nowhere/model");
#undef REFUSED
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "cuda";
    options.model_dir = "golden/llama_bias_f32";
    assert_error(batchllm_engine_create(&options, &made), BATCHLLM_ERROR_BACKEND_UNAVAILABLE,
                 "cuda");
}

/* Structs of an application that forgot to set struct_size. */
static void struct_sizes_that_nobody_compiled_are_refused(void **state) {
    (void)state;
    const uint32_t sizes[] = {0, 4, 7, 9, 20, 4104, 0xabababab, UINT32_MAX};
    batchllm_engine *engine = sim_engine("vocabulary=1000");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.struct_size = sizes[i];
        batchllm_engine *made = NULL;
        assert_error(batchllm_engine_create(&options, &made), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "options->struct_size");
        batchllm_params params[2] = {params_of(1), params_of(1)};
        params[0].struct_size = sizes[i];
        assert_error(batchllm_add_tokens(engine, 2, tokens, good, NULL, params, 2),
                     BATCHLLM_ERROR_INVALID_ARGUMENT, "params->struct_size");
        batchllm_stats stats;
        stats.struct_size = sizes[i];
        assert_error(batchllm_engine_stats(engine, &stats), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "stats->struct_size");
        batchllm_info info;
        info.struct_size = sizes[i];
        assert_error(batchllm_engine_info(engine, 0, &info), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "info->struct_size");
        batchllm_progress progress;
        progress.struct_size = sizes[i];
        assert_error(batchllm_step(engine, &progress), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "progress->struct_size");
    }
    batchllm_engine_destroy(engine);
}

static void each_bad_parameter_is_its_rows_error(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000");
    const char *const names[] = {"max_tokens", "temperature", "top_p",       "min_p",
                                 "top_k",      "samples",     "logprobs",    "repetition_penalty",
                                 "presence",   "stop_tokens", "bias_tokens", "tokenizer"};
    enum { count = 12 };
    batchllm_params params[count];
    for (int i = 0; i < count; ++i) params[i] = params_of(2);
    const int32_t outside = 1000;
    const float value = 1;
    const char *const strings[] = {"stop"};
    params[0].max_tokens = 0;
    params[1].temperature = -0.5f;
    params[2].top_p = 0;
    params[3].min_p = 1;
    params[4].top_k = -2; /* -1 is off */
    params[5].samples = 0;
    params[6].logprobs = 21;
    params[7].repetition_penalty = 0;
    params[8].presence_penalty = 3;
    params[9].stop_tokens = &outside;
    params[9].stop_token_count = 1;
    params[10].bias_tokens = &outside;
    params[10].bias_values = &value;
    params[10].bias_count = 1;
    params[11].stop_strings = strings; /* there is no tokenizer for text */
    params[11].stop_string_count = 1;
    int32_t many[count * 2];
    int64_t offsets[count + 1];
    for (int i = 0; i <= count; ++i) offsets[i] = i * 2;
    for (int i = 0; i < count * 2; ++i) many[i] = i;
    assert_ok(batchllm_add_tokens(engine, count, many, offsets, NULL, params, count));
    batchllm_results *results = poll_all(engine);
    assert_int_equal(results->count, count);
    for (int i = 0; i < count; ++i)
        assert_row_error(results, (uint64_t)i, BATCHLLM_ERROR_ROW_INVALID_PARAMETER, names[i]);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

/* Structs of a caller compiled against an older header: they end after the first fields. */
static void shorter_structs_take_defaults_for_the_rest(void **state) {
    (void)state;
    batchllm_engine_options options;
    memset(&options, 0xab, sizeof options);
    const uint32_t short_size = (uint32_t)offsetof(batchllm_engine_options, devices);
    batchllm_engine_options_init(&options, short_size);
    assert_int_equal(options.struct_size, short_size);
    unsigned char after;
    memcpy(&after, (char *)&options + short_size, 1);
    assert_int_equal(after, 0xab); /* not written beyond */
    options.backend = "sim";
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&options, &engine));

    batchllm_params params[2];
    memset(params, 0xab, sizeof params);
    const uint32_t params_size = (uint32_t)offsetof(batchllm_params, seed);
    char packed[2 * sizeof(batchllm_params)];
    for (int i = 0; i < 2; ++i) {
        batchllm_params_init(&params[i], params_size);
        params[i].max_tokens = 3 + i;
        memcpy(packed + (size_t)i * params_size, &params[i], params_size);
    }
    assert_ok(
        batchllm_add_tokens(engine, 2, tokens, good, NULL, (batchllm_params *)(void *)packed, 2));
    batchllm_results *results = run_all(engine);
    assert_int_equal(token_count(results, result_of(results, 0, 0)), 3);
    assert_int_equal(token_count(results, result_of(results, 1, 0)), 4);
    batchllm_results_free(results);

    batchllm_stats stats;
    memset(&stats, 0xab, sizeof stats);
    stats.struct_size = (uint32_t)offsetof(batchllm_stats, rows_failed);
    assert_ok(batchllm_engine_stats(engine, &stats));
    assert_int_equal(stats.struct_size, offsetof(batchllm_stats, rows_failed));
    assert_int_equal(stats.rows_done, 2);
    assert_true(stats.rows_failed != 0); /* not written */

    batchllm_progress progress;
    progress.struct_size = 0;
    assert_error(batchllm_step(engine, &progress), BATCHLLM_ERROR_INVALID_ARGUMENT, "struct_size");
    batchllm_engine_destroy(engine);
}

/* Structs of a caller compiled against a newer header: they have further fields that this library
 * does not know. */
static void longer_structs_are_read_unless_an_unknown_field_is_set(void **state) {
    (void)state;
    struct {
        batchllm_engine_options known;
        int64_t later;
    } options;
    memset(&options, 0xab, sizeof options);
    batchllm_engine_options_init(&options.known, sizeof options);
    assert_int_equal(options.later, 0);
    options.known.backend = "sim";
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&options.known, &engine));
    options.later = 1;
    batchllm_engine *none = NULL;
    assert_error(batchllm_engine_create(&options.known, &none), BATCHLLM_ERROR_UNSUPPORTED,
                 "does not know");
    struct {
        batchllm_stats known;
        int64_t later;
    } stats;
    memset(&stats, 0xab, sizeof stats);
    stats.known.struct_size = sizeof stats;
    assert_ok(batchllm_engine_stats(engine, &stats.known));
    assert_int_equal(stats.known.struct_size, sizeof stats);
    assert_int_equal(stats.known.rows, 0);
    assert_int_equal(stats.later, 0);

    struct {
        batchllm_params known;
        int64_t later;
    } params[2];
    memset(params, 0, sizeof params);
    for (int i = 0; i < 2; ++i) {
        batchllm_params_init(&params[i].known, sizeof params[i]);
        params[i].known.max_tokens = 5 + i;
    }
    assert_ok(batchllm_add_tokens(engine, 2, tokens, good, NULL, &params[0].known, 2));
    params[1].known.struct_size -= 8;
    assert_error(batchllm_add_tokens(engine, 2, tokens, good, NULL, &params[0].known, 2),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "params[1].struct_size");
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 2);
    assert_int_equal(token_count(results, result_of(results, 1, 0)), 6);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void versions_and_status_names_are_fixed(void **state) {
    (void)state;
    assert_int_equal(batchllm_version(), (BATCHLLM_VERSION_MAJOR << 16) |
                                             (BATCHLLM_VERSION_MINOR << 8) |
                                             BATCHLLM_VERSION_PATCH);
    assert_string_equal(batchllm_status_name(0), "BATCHLLM_OK");
    assert_string_equal(batchllm_status_name(3), "BATCHLLM_ERROR_IO");
    assert_string_equal(batchllm_status_name(67), "BATCHLLM_ERROR_ROW_NOT_A_NUMBER");
    assert_string_equal(batchllm_status_name(68), "BATCHLLM_ERROR_ROW_CONSTRAINT");
    assert_string_equal(batchllm_status_name(12345), "unknown status");
    assert_string_equal(batchllm_finish_name(BATCHLLM_FINISH_LENGTH), "length");
    assert_string_equal(batchllm_finish_name(BATCHLLM_FINISH_CLASSIFIED), "classified");
    assert_string_equal(batchllm_finish_name(12345), "error");
}

static void more_tokens_than_a_row_may_have_are_its_error(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000");
    /* Offsets that claim 2^32 tokens: the row is rejected before any of them is read. */
    const int64_t one[] = {0, 2};
    const int64_t huge[] = {0, INT64_C(1) << 32};
    const int64_t rows[] = {0, 1};
    assert_ok(batchllm_add_scores(engine, 1, tokens, one, tokens, huge, rows, NULL));
    batchllm_results *results = poll_all(engine);
    assert_row_error(results, 0, BATCHLLM_ERROR_ROW_TOO_LONG, "4294967296");
    batchllm_results_free(results);
    const int64_t most[] = {0, INT64_MAX};
    const batchllm_params params = params_of(3);
    assert_ok(batchllm_add_tokens(engine, 1, tokens, most, NULL, &params, 1));
    results = poll_all(engine);
    assert_row_error(results, 1, BATCHLLM_ERROR_ROW_TOO_LONG, "9223372036854775807");
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

/* batchllm.h states these limits. */
static void limits_of_parameters_are_those_of_the_header(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000,page_tokens=4096");
    const int32_t bad = BATCHLLM_ERROR_ROW_INVALID_PARAMETER;
    const int64_t most_items = INT64_C(1) << 24;
    batchllm_params params = params_of(3);
    params.samples = 65536;
    assert_ok(batchllm_engine_check_params(engine, &params));
    params.samples = 65537;
    assert_error(batchllm_engine_check_params(engine, &params), bad, "samples");

    params = params_of(3);
    int32_t *stops = calloc((size_t)most_items + 1, sizeof *stops);
    assert_non_null(stops);
    params.stop_tokens = stops;
    params.stop_token_count = most_items;
    assert_ok(batchllm_engine_check_params(engine, &params));
    params.stop_token_count = most_items + 1;
    assert_error(batchllm_engine_check_params(engine, &params), bad, "stop_token_count");
    free(stops);

    /* Two texts of 65,536 bytes together pass this check, and fail a later one. */
    static char half[32770];
    memset(half, 'a', 32768);
    const char *const texts[] = {half, half};
    params = params_of(3);
    params.stop_strings = texts;
    params.stop_string_count = 2;
    assert_error(batchllm_engine_check_params(engine, &params), bad, "need a tokenizer");
    half[32768] = 'a';
    assert_error(batchllm_engine_check_params(engine, &params), bad, "65536 bytes");
    batchllm_engine_destroy(engine);
}

static void a_longer_error_text_is_cut_before_a_character(void **state) {
    (void)state;
    /* The text begins with the path, whose 1,022nd byte is followed by a character of two. */
    char path[1200] = "/";
    memset(path + 1, 'a', 1021);
    for (size_t i = 1022; i < 1100; i += 2) memcpy(path + i, "\xc3\xa9", 3);
    batchllm_plan *plan = NULL;
    assert_int_equal(batchllm_plan_load(path, &plan), BATCHLLM_ERROR_IO);
    assert_int_equal(strlen(batchllm_last_error()), 1022);
    path[1] = '\0';
    memset(path + 1, 'a', 1099);
    assert_int_equal(batchllm_plan_load(path, &plan), BATCHLLM_ERROR_IO);
    assert_int_equal(strlen(batchllm_last_error()), 1023);
}

static void texts_without_a_tokenizer_are_a_wrong_state(void **state) {
    batchllm_engine *engine = engine_of(state);
    const int32_t wrong = BATCHLLM_ERROR_STATE;
    const int64_t rows_of_2[] = {0, 1, 2};
    assert_error(batchllm_add_text(engine, 2, "abcde", good, NULL, NULL, 0), wrong, "tokenizer");
    assert_error(batchllm_add_prompt(engine, "abc", -1, 0, NULL), wrong, "tokenizer");
    assert_error(batchllm_add_chat(engine, 2, "[][]]", good, NULL, NULL, 0), wrong, "tokenizer");
    assert_error(
        batchllm_add_score_text(engine, 2, "abcde", good, "abcde", good, rows_of_2, NULL, NULL),
        wrong, "tokenizer");
    batchllm_picture_column column;
    memset(&column, 0, sizeof column);
    column.struct_size = sizeof column;
    assert_error(batchllm_add_pictures(engine, 2, "abcde", good, &column, NULL, NULL, 0), wrong,
                 "tokenizer");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hostile_columns_are_refused_by_name, set_up, tear_down),
        cmocka_unit_test(a_column_may_begin_anywhere_and_be_empty),
        cmocka_unit_test_setup_teardown(null_handles_and_outs_are_refused_and_null_frees_do_nothing,
                                        set_up, tear_down),
        cmocka_unit_test(bad_options_are_refused_by_name),
        cmocka_unit_test(struct_sizes_that_nobody_compiled_are_refused),
        cmocka_unit_test(each_bad_parameter_is_its_rows_error),
        cmocka_unit_test(shorter_structs_take_defaults_for_the_rest),
        cmocka_unit_test(longer_structs_are_read_unless_an_unknown_field_is_set),
        cmocka_unit_test(more_tokens_than_a_row_may_have_are_its_error),
        cmocka_unit_test(limits_of_parameters_are_those_of_the_header),
        cmocka_unit_test(a_longer_error_text_is_cut_before_a_character),
        cmocka_unit_test_setup_teardown(texts_without_a_tokenizer_are_a_wrong_state, set_up,
                                        tear_down),
        cmocka_unit_test(versions_and_status_names_are_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
