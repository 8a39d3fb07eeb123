/* Engines through the C interface, on the sim backend: rows in, steps, results out, cancel,
 * statistics. */
#include "api_helpers.h"

#include <unistd.h>

static const char *const small = "vocabulary=1000";

/* When the job ends, the counts of what is left must be 0. */
static void destroy_finished(batchllm_engine *engine) {
    batchllm_progress progress;
    progress.struct_size = sizeof progress;
    assert_ok(batchllm_step(engine, &progress));
    assert_int_equal(progress.rows_waiting + progress.rows_running, 0);
    assert_int_equal(progress.tokens_left, 0);
    assert_int_equal(progress.pages_used, 0);
    batchllm_engine_destroy(engine);
}

static void every_row_gets_one_result_of_its_length(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(300, 40, 10);
    add_rows(engine, &rows, 9);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 300);
    assert_int_equal(results->struct_size, sizeof *results);
    for (uint64_t tag = 0; tag < 300; ++tag) {
        const int64_t i = result_of(results, tag, 0);
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_LENGTH);
        assert_int_equal(token_count(results, i), 9);
        assert_int_equal(results->prompt_tokens[i], 50);
        assert_int_equal(results->shared_tokens[i], 40);
        assert_int_equal(results->logprob_offsets[i + 1], 0);
    }
    batchllm_results *none = poll_all(engine);
    assert_int_equal(none->count, 0);
    batchllm_results_free(none);
    batchllm_results_free(results);
    free_rows(&rows);
    batchllm_engine_destroy(engine);
}

static batchllm_info info_of(const batchllm_engine *engine, int32_t device) {
    batchllm_info info;
    memset(&info, 0xab, sizeof info);
    info.struct_size = sizeof info;
    assert_ok(batchllm_engine_info(engine, device, &info));
    assert_int_equal(info.struct_size, sizeof info);
    return info;
}

static void an_engine_says_what_its_options_became(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.devices = "3,1";
    options.backend_options = "vocabulary=1000,pages=77,page_tokens=32";
    options.step_tokens = 300;
    options.max_request_tokens = 200;
    batchllm_engine *engine = sim_engine_with(&options);
    for (int32_t device = 0; device < 2; ++device) {
        const batchllm_info info = info_of(engine, device);
        assert_int_equal(info.device_count, 2);
        assert_string_equal(info.backend, "sim");
        assert_true(strlen(info.compute_type) > 0);
        assert_true(strlen(info.device) > 0);
        assert_int_equal(info.device_number, device == 0 ? 3 : 1);
        assert_int_equal(info.vocabulary, 1000);
        assert_int_equal(info.page_tokens, 32);
        assert_int_equal(info.kv_pages, 77);
        assert_int_equal(info.kv_groups, 1);
        assert_int_equal(info.step_tokens, 300);
        assert_int_equal(info.max_request_tokens, 200);
        assert_int_equal(info.kv_page_bytes, stats_of(engine).kv_page_bytes);
    }
    assert_int_equal(stats_of(engine).kv_pages_total, 2 * 77);
    batchllm_engine_destroy(engine);
}

/* "auto", on a machine with a GPU and on one without. */
static void an_engine_says_what_auto_chose(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "golden/llama_bias_f32";
    options.kv_memory_bytes = 1 << 20;
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&options, &engine));
    const batchllm_info info = info_of(engine, 0);
    assert_true(strcmp(info.backend, "cpu") == 0 || strcmp(info.backend, "cuda") == 0);
    assert_string_equal(info.compute_type, "f32"); /* as in the model's config.json */
    assert_int_equal(info.device_number, 0);
    assert_int_equal(info.vocabulary, 290);
    assert_int_equal(info.hidden, 64);
    assert_true(info.kv_pages > 0 && info.kv_pages * info.kv_page_bytes <= 1 << 20);
    assert_true(info.step_tokens > 0 && info.page_tokens > 0);
    assert_int_equal(info.max_request_tokens, 512);
    batchllm_engine_destroy(engine);
}

/* A caller compiled when the struct was shorter. */
static void info_is_cut_to_what_the_caller_knows(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    batchllm_info info;
    memset(&info, 0xab, sizeof info);
    info.struct_size = (uint32_t)offsetof(batchllm_info, device_number);
    assert_ok(batchllm_engine_info(engine, 0, &info));
    assert_string_equal(info.backend, "sim");
    assert_int_equal(info.struct_size, offsetof(batchllm_info, device_number));
    assert_int_equal(info.device_number, (int32_t)0xabababab);
    batchllm_engine_destroy(engine);
}

static void results_outlive_their_engine(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(3, 0, 20);
    add_rows(engine, &rows, 5);
    batchllm_results *results = run_all(engine);
    batchllm_engine_destroy(engine);
    int64_t sum = 0;
    for (int64_t i = 0; i < results->token_offsets[results->count]; ++i) sum += results->tokens[i];
    assert_true(sum > 0);
    batchllm_results_free(results);
    free_rows(&rows);
}

static void a_rows_tokens_do_not_depend_on_the_company_it_keeps(void **state) {
    (void)state;
    token_rows rows = make_rows(40, 30, 10);
    batchllm_engine *together = sim_engine("vocabulary=1000,eos_token=3,mean_length=20");
    add_rows(together, &rows, 50);
    batchllm_results *all = run_all(together);
    const batchllm_params params = params_of(50);
    for (uint64_t tag = 0; tag < 40; tag += 7) {
        batchllm_engine *alone = sim_engine("vocabulary=1000,eos_token=3,mean_length=20");
        assert_ok(batchllm_add_tokens(alone, 1, rows.tokens, rows.offsets + tag, &tag, &params, 1));
        batchllm_results *one = run_all(alone);
        assert_same_tokens(all, result_of(all, tag, 0), one, result_of(one, tag, 0));
        batchllm_results_free(one);
        batchllm_engine_destroy(alone);
    }
    batchllm_results_free(all);
    batchllm_engine_destroy(together);
    free_rows(&rows);
}

static void bad_rows_get_their_own_error_and_harm_no_other(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = "vocabulary=1000,pages=8";
    options.max_request_tokens = 200;
    batchllm_engine *engine = sim_engine_with(&options);

    int32_t tokens[1000];
    for (int32_t i = 0; i < 1000; ++i) tokens[i] = i % 1000;
    tokens[15] = -1;
    tokens[25] = 1000;
    /* rows: good | -1 | 1000 | empty | too long | good, but too large for the pool | good */
    const int64_t offsets[] = {0, 10, 20, 30, 30, 240, 390, 400};
    const uint64_t tags[] = {1, 2, 3, 4, 5, 6, 7};
    batchllm_params params = params_of(5);
    assert_ok(batchllm_add_tokens(engine, 7, tokens, offsets, tags, &params, 1));
    params.temperature = -1;
    const uint64_t bad_params = 8;
    assert_ok(batchllm_add_tokens(engine, 1, tokens, offsets, &bad_params, &params, 1));

    /* The bad rows have results before anything has run. */
    batchllm_results *bad = poll_all(engine);
    assert_int_equal(bad->count, 6);
    assert_row_error(bad, 2, BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN, "token 5 is -1");
    assert_row_error(bad, 3, BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN, "token 5 is 1000");
    assert_row_error(bad, 4, BATCHLLM_ERROR_ROW_EMPTY, "no tokens");
    assert_row_error(bad, 5, BATCHLLM_ERROR_ROW_TOO_LONG, "200");
    assert_row_error(bad, 6, BATCHLLM_ERROR_ROW_TOO_LARGE, "8 KV pages");
    assert_row_error(bad, 8, BATCHLLM_ERROR_ROW_INVALID_PARAMETER, "temperature");
    batchllm_results_free(bad);

    batchllm_results *good = run_all(engine);
    assert_int_equal(good->count, 2);
    assert_int_equal(token_count(good, result_of(good, 1, 0)), 5);
    assert_int_equal(token_count(good, result_of(good, 7, 0)), 5);
    batchllm_results_free(good);

    const batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.rows, 8);
    assert_int_equal(stats.rows_done, 8);
    assert_int_equal(stats.rows_failed, 6);
    assert_int_equal(stats.logical_prompt_tokens, 20);
    destroy_finished(engine);
}

static void max_tokens_is_clipped_to_the_longest_request(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.max_request_tokens = 64;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(1, 0, 60);
    add_rows(engine, &rows, 1000);
    batchllm_results *results = run_all(engine);
    assert_int_equal(token_count(results, 0), 4);
    assert_int_equal(results->finish_reasons[0], BATCHLLM_FINISH_LENGTH);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static void an_eos_or_stop_token_ends_a_row_and_is_its_last_token(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000,eos_token=3,min_length=4,max_length=4");
    token_rows rows = make_rows(1, 0, 30);
    batchllm_params params[3];
    for (int i = 0; i < 3; ++i) params[i] = params_of(12);
    params[1].ignore_eos = 1;
    uint64_t tag = 0;
    assert_ok(batchllm_add_tokens(engine, 1, rows.tokens, rows.offsets, &tag, &params[0], 1));
    assert_ok(batchllm_add_tokens(engine, 1, rows.tokens, rows.offsets, &tag, &params[1], 1));
    batchllm_results *results = run_all(engine);
    int64_t stopped = results->finish_reasons[0] == BATCHLLM_FINISH_STOP ? 0 : 1;
    assert_int_equal(results->finish_reasons[stopped], BATCHLLM_FINISH_STOP);
    assert_int_equal(token_count(results, stopped), 4);
    assert_int_equal(results->tokens[results->token_offsets[stopped] + 3], 3);
    assert_int_equal(results->finish_reasons[1 - stopped], BATCHLLM_FINISH_LENGTH);
    assert_int_equal(token_count(results, 1 - stopped), 12);

    /* The third token of the long row as a stop token. */
    const int32_t third = results->tokens[results->token_offsets[1 - stopped] + 2];
    params[2].ignore_eos = 1;
    params[2].stop_tokens = &third;
    params[2].stop_token_count = 1;
    assert_ok(batchllm_add_tokens(engine, 1, rows.tokens, rows.offsets, &tag, &params[2], 1));
    batchllm_results *cut = run_all(engine);
    assert_int_equal(cut->finish_reasons[0], BATCHLLM_FINISH_STOP);
    assert_int_equal(token_count(cut, 0), 3);
    assert_int_equal(cut->tokens[2], third);
    batchllm_results_free(cut);
    batchllm_results_free(results);
    destroy_finished(engine);
    free_rows(&rows);
}

static void samples_are_adjacent_and_never_split_by_poll(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(10, 20, 20);
    batchllm_params params = params_of(6);
    params.samples = 3;
    params.temperature = 1;
    params.logprobs = 2;
    assert_ok(batchllm_add_tokens(engine, 10, rows.tokens, rows.offsets, NULL, &params, 1));
    assert_ok(batchllm_run(engine, NULL, NULL));
    int64_t seen = 0;
    while (seen < 30) {
        batchllm_results *results = NULL;
        assert_ok(batchllm_poll(engine, 4, &results));
        assert_int_equal(results->count, 3);
        for (int32_t i = 0; i < 3; ++i) {
            assert_int_equal(results->samples[i], i);
            assert_int_equal(results->tags[i], results->tags[0]);
            assert_int_equal(results->shared_tokens[i], 39);
            assert_int_equal(results->logprob_offsets[i + 1] - results->logprob_offsets[i], 6);
        }
        /* Different samples; each token has its two likeliest. */
        assert_memory_not_equal(results->tokens, results->tokens + 6, 6 * sizeof(int32_t));
        assert_int_equal(results->top_offsets[18], 36);
        for (int i = 0; i < 18; ++i) assert_true(results->logprobs[i] <= 0);
        seen += results->count;
        batchllm_results_free(results);
    }
    const batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.logical_prompt_tokens, 10 * 3 * 40);
    /* The head once, the rest of each prompt once, its last token once per sample. */
    assert_int_equal(stats.processed_prompt_tokens, 20 + 10 * 19 + 10 * 3);
    destroy_finished(engine);
    free_rows(&rows);
}

static void a_poll_limit_below_a_rows_samples_gives_the_whole_row(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(2, 0, 20);
    batchllm_params params = params_of(2);
    params.samples = 5;
    assert_ok(batchllm_add_tokens(engine, 2, rows.tokens, rows.offsets, NULL, &params, 1));
    assert_ok(batchllm_run(engine, NULL, NULL));
    for (int round = 0; round < 2; ++round) {
        batchllm_results *results = NULL;
        assert_ok(batchllm_poll(engine, 1, &results));
        assert_int_equal(results->count, 5);
        batchllm_results_free(results);
    }
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

/* A prefix of 17 tokens leaves most of its second page empty: both rows run without it. */
static void a_row_that_ran_without_its_prefix_shared_nothing(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000,page_tokens=16,pages=2");
    int32_t tokens[2 * 22];
    const int64_t offsets[3] = {0, 22, 44};
    for (int32_t i = 0; i < 44; ++i) tokens[i] = i % 22 < 17 ? i % 22 : 100 + i;
    const batchllm_params params = params_of(8);
    assert_ok(batchllm_add_tokens(engine, 2, tokens, offsets, NULL, &params, 1));
    batchllm_results *results = run_all(engine);
    for (int64_t i = 0; i < 2; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        assert_int_equal(token_count(results, i), 8);
        assert_int_equal(results->shared_tokens[i], 0);
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void equal_greedy_rows_are_computed_once(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    int32_t tokens[5 * 30];
    int64_t offsets[6];
    for (int32_t i = 0; i < 5; ++i) {
        offsets[i] = i * 30;
        for (int32_t j = 0; j < 30; ++j) tokens[i * 30 + j] = i == 2 ? 7 : j;
    }
    offsets[5] = 150;
    batchllm_params params[5];
    for (int i = 0; i < 5; ++i) params[i] = params_of(8);
    params[3].temperature = 0.5f; /* sampled: computed separately */
    params[4].max_tokens = 9;     /* greedy, but longer: computed separately */
    assert_ok(batchllm_add_tokens(engine, 5, tokens, offsets, NULL, params, 5));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 5);
    const batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.rows_deduplicated, 1);
    assert_int_equal(stats.completion_tokens, 8 * 3 + 9);
    assert_same_tokens(results, result_of(results, 0, 0), results, result_of(results, 1, 0));
    assert_int_equal(results->shared_tokens[result_of(results, 1, 0)], 30);
    assert_int_equal(token_count(results, result_of(results, 4, 0)), 9);
    batchllm_results_free(results);
    destroy_finished(engine);
}

static void sharing_switched_off_computes_every_row_for_itself(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.enlarge = BATCHLLM_ENLARGE_NONE;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(20, 50, 0);
    add_rows(engine, &rows, 3);
    batchllm_results *results = run_all(engine);
    const batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.processed_prompt_tokens, 20 * 50);
    assert_int_equal(stats.shared_prompt_tokens, 0);
    assert_int_equal(stats.rows_deduplicated, 0);
    batchllm_results_free(results);
    destroy_finished(engine);
    free_rows(&rows);
}

static void sharing_switched_off_computes_every_greedy_sample_for_itself(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.enlarge = BATCHLLM_ENLARGE_NONE;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(1, 50, 0);
    batchllm_params params = params_of(3);
    params.samples = 4;
    assert_ok(batchllm_add_tokens(engine, 1, rows.tokens, rows.offsets, NULL, &params, 1));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 4);
    for (int32_t sample = 1; sample < 4; ++sample)
        assert_same_tokens(results, 0, results, result_of(results, 0, sample));
    const batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.processed_prompt_tokens, 4 * 50);
    assert_int_equal(stats.shared_prompt_tokens, 0);
    batchllm_results_free(results);
    destroy_finished(engine);
    free_rows(&rows);
}

static void a_pool_of_few_pages_preempts_and_changes_no_token(void **state) {
    (void)state;
    token_rows rows = make_rows(120, 32, 10);
    /* Short rows first, then long rows: more are admitted than the pool can hold to their ends. */
    batchllm_params params[120];
    for (int i = 0; i < 120; ++i) {
        params[i] = params_of(200);
        params[i].ignore_eos = i % 3 == 2;
    }
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.order = BATCHLLM_ORDER_ARRIVAL;
    options.backend_options = "vocabulary=1000,eos_token=3,min_length=2,max_length=4";
    batchllm_engine *wide = sim_engine_with(&options);
    options.backend_options = "vocabulary=1000,eos_token=3,min_length=2,max_length=4,pages=60";
    batchllm_engine *narrow = sim_engine_with(&options);
    assert_ok(batchllm_add_tokens(wide, 120, rows.tokens, rows.offsets, NULL, params, 120));
    assert_ok(batchllm_add_tokens(narrow, 120, rows.tokens, rows.offsets, NULL, params, 120));
    batchllm_results *a = run_all(wide);
    batchllm_results *b = run_all(narrow);
    const batchllm_stats stats = stats_of(narrow);
    assert_true(stats.preemptions > 0);
    assert_true(stats.recomputed_tokens > 0);
    assert_true(stats.kv_pages_peak <= 60);
    assert_int_equal(stats.processed_prompt_tokens, 32 + 120 * 10);
    assert_int_equal(stats_of(wide).preemptions, 0);
    assert_int_equal(stats_of(wide).processed_prompt_tokens, 32 + 120 * 10);
    for (uint64_t tag = 0; tag < 120; ++tag)
        assert_same_tokens(a, result_of(a, tag, 0), b, result_of(b, tag, 0));
    batchllm_results_free(a);
    batchllm_results_free(b);
    destroy_finished(wide);
    destroy_finished(narrow);
    free_rows(&rows);
}

static void scores_come_back_by_continuation(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(3, 20, 5);
    /* row 0: two candidates and a continuation of 3; row 1: one of 2; row 2: none (bad) */
    const int32_t continuations[] = {11, 1, 2, 3, 12, 4, 5};
    const int64_t continuation_offsets[] = {0, 1, 4, 5, 7};
    const int64_t continuation_rows[] = {0, 3, 4, 4};
    assert_ok(batchllm_add_scores(engine, 3, rows.tokens, rows.offsets, continuations,
                                  continuation_offsets, continuation_rows, NULL));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 3);
    assert_row_error(results, 2, BATCHLLM_ERROR_ROW_EMPTY, "continuations");
    const int64_t first = result_of(results, 0, 0);
    assert_int_equal(results->finish_reasons[first], BATCHLLM_FINISH_SCORED);
    assert_int_equal(token_count(results, first), 0);
    const int64_t s = results->score_offsets[first];
    assert_int_equal(results->score_offsets[first + 1] - s, 3);
    const int64_t *ends = results->score_token_offsets + s;
    assert_int_equal(ends[1] - ends[0], 1);
    assert_int_equal(ends[2] - ends[1], 3);
    assert_int_equal(ends[3] - ends[2], 1);
    for (int64_t c = 0; c < 3; ++c) {
        double sum = 0;
        for (int64_t i = ends[c]; i < ends[c + 1]; ++i) {
            assert_true(results->score_logprobs[i] < 0);
            sum += (double)results->score_logprobs[i];
        }
        assert_true(results->scores[s + c] == sum);
    }
    const int64_t second = result_of(results, 1, 0);
    assert_int_equal(results->score_offsets[second + 1] - results->score_offsets[second], 1);
    batchllm_results_free(results);
    destroy_finished(engine);
    free_rows(&rows);
}

static void progress_counts_every_row_and_ends_at_nothing_left(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.step_tokens = 64;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(700, 40, 10);
    add_rows(engine, &rows, 4);
    batchllm_progress progress;
    progress.struct_size = sizeof progress;
    int64_t left = INT64_MAX;
    int64_t steps = 0;
    do {
        assert_ok(batchllm_step(engine, &progress));
        assert_int_equal(progress.rows_waiting + progress.rows_running + progress.rows_done, 700);
        assert_true(progress.decode_tokens + progress.own_tokens + progress.prefix_tokens <= 64);
        assert_true(progress.tokens_left < left);
        assert_true(progress.pages_used <= progress.pages_total);
        left = progress.tokens_left;
        ++steps;
    } while (progress.rows_done < 700);
    assert_int_equal(left, 0);
    assert_int_equal(progress.tokens_done, 40 + 700 * 10 + 700 * 4);
    assert_ok(batchllm_step(engine, &progress));
    assert_int_equal(progress.rows_waiting + progress.rows_running, 0);
    assert_int_equal(stats_of(engine).steps, steps);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static int32_t stop_at_third(void *user, const batchllm_progress *progress) {
    (void)progress;
    return ++*(int *)user == 3;
}

static void a_callback_stops_run_and_the_next_run_goes_on(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(5, 0, 20);
    add_rows(engine, &rows, 20);
    int calls = 0;
    assert_error(batchllm_run(engine, stop_at_third, &calls), BATCHLLM_ERROR_STOPPED, "callback");
    assert_int_equal(calls, 3);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 5);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static void an_interrupt_stops_the_next_run_after_one_step(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(5, 0, 20);
    add_rows(engine, &rows, 20);
    batchllm_interrupt(engine);
    assert_error(batchllm_run(engine, NULL, NULL), BATCHLLM_ERROR_STOPPED, "interrupt");
    assert_int_equal(stats_of(engine).steps, 1);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 5);
    batchllm_results_free(results);
    batchllm_interrupt(NULL);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

typedef struct feeder {
    batchllm_engine *engine;
    token_rows rows;
    int64_t windows_left;
    int64_t results;
} feeder;

static int32_t feed(void *user, const batchllm_progress *progress) {
    feeder *self = user;
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(self->engine, 0, &results));
    self->results += results->count;
    batchllm_results_free(results);
    if (progress->rows_waiting == 0 && self->windows_left > 0) {
        --self->windows_left;
        add_rows(self->engine, &self->rows, 3);
    }
    assert_int_equal(batchllm_step(self->engine, NULL), BATCHLLM_ERROR_STATE);
    assert_int_equal(batchllm_run(self->engine, NULL, NULL), BATCHLLM_ERROR_STATE);
    return 0;
}

static void a_callback_may_poll_and_add_rows(void **state) {
    (void)state;
    feeder self = {sim_engine(small), make_rows(200, 30, 10), 4, 0};
    add_rows(self.engine, &self.rows, 3);
    assert_ok(batchllm_run(self.engine, feed, &self));
    batchllm_results *rest = poll_all(self.engine);
    assert_int_equal(self.results + rest->count, 1000);
    assert_int_equal(self.windows_left, 0);
    batchllm_results_free(rest);
    destroy_finished(self.engine);
    free_rows(&self.rows);
}

static void poll_after_cancel_reports_cancelled(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.max_requests = 2;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(4, 0, 20);
    add_rows(engine, &rows, 20);
    for (int i = 0; i < 4; ++i) assert_ok(batchllm_step(engine, NULL));
    batchllm_progress progress;
    progress.struct_size = sizeof progress;
    assert_ok(batchllm_step(engine, &progress));
    assert_int_equal(progress.rows_running, 2);
    for (uint64_t tag = 0; tag < 4; ++tag) assert_ok(batchllm_cancel(engine, tag));
    assert_ok(batchllm_cancel(engine, 99)); /* unknown: ignored */
    const uint64_t later = 2;               /* added after the cancel: unaffected */
    const batchllm_params params = params_of(20);
    assert_ok(batchllm_add_tokens(engine, 1, rows.tokens, rows.offsets, &later, &params, 1));
    assert_ok(batchllm_step(engine, NULL));
    batchllm_results *results = poll_all(engine);
    assert_int_equal(results->count, 4);
    int64_t with_tokens = 0;
    for (uint64_t tag = 0; tag < 4; ++tag) {
        const int64_t i = result_of(results, tag, 0);
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_CANCELLED);
        with_tokens += token_count(results, i) > 0;
    }
    assert_int_equal(with_tokens, 2);
    batchllm_results_free(results);
    results = run_all(engine);
    assert_int_equal(results->count, 1);
    assert_int_equal(results->finish_reasons[0], BATCHLLM_FINISH_LENGTH);
    batchllm_results_free(results);
    destroy_finished(engine);
    free_rows(&rows);
}

static void rows_that_have_not_started_have_no_prompt_tokens(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.step_tokens = 64;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(200, 40, 10);
    add_rows(engine, &rows, 5);
    assert_ok(batchllm_step(engine, NULL));
    const batchllm_stats before = stats_of(engine);
    assert_true(before.logical_prompt_tokens < 1000);
    assert_true(before.saving_ratio >= 0);
    assert_ok(batchllm_cancel_all(engine));
    batchllm_results_free(run_all(engine));
    const batchllm_stats after = stats_of(engine);
    assert_int_equal(after.rows_done, 200);
    assert_true(after.logical_prompt_tokens < 1000);
    destroy_finished(engine);
    free_rows(&rows);
}

static void all_rows_are_cancelled_at_once(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    token_rows rows = make_rows(30, 40, 10);
    add_rows(engine, &rows, 50);
    assert_ok(batchllm_step(engine, NULL));
    assert_ok(batchllm_cancel_all(engine));
    assert_int_equal(batchllm_cancel_all(NULL), BATCHLLM_ERROR_INVALID_ARGUMENT);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 30);
    for (int64_t i = 0; i < results->count; ++i)
        assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_CANCELLED);
    batchllm_results_free(results);
    free_rows(&rows);
    destroy_finished(engine);
}

static void parameters_are_checked_without_a_row(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    assert_int_equal(params.prompt_logprobs, -1);
    assert_ok(batchllm_engine_check_params(engine, &params));
    assert_ok(batchllm_engine_check_params(engine, NULL));
    params.samples = 0;
    assert_int_equal(batchllm_engine_check_params(engine, &params),
                     BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    assert_non_null(strstr(batchllm_last_error(), "samples (n) is 0"));
    params.struct_size = 3;
    assert_int_equal(batchllm_engine_check_params(engine, &params),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    assert_ok(batchllm_engine_stats(engine, &stats));
    assert_int_equal(stats.rows, 0);
    batchllm_engine_destroy(engine);
}

static void cancelling_one_of_equal_rows_leaves_the_others(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    int32_t tokens[60];
    for (int32_t i = 0; i < 60; ++i) tokens[i] = i % 20;
    const int64_t offsets[] = {0, 20, 40, 60};
    const batchllm_params params = params_of(10);
    assert_ok(batchllm_add_tokens(engine, 3, tokens, offsets, NULL, &params, 1));
    assert_ok(batchllm_build_groups(engine));
    assert_ok(batchllm_cancel(engine, 0)); /* waiting: the first of the three */
    assert_ok(batchllm_step(engine, NULL));
    assert_ok(batchllm_step(engine, NULL));
    assert_ok(batchllm_cancel(engine, 2)); /* running */
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 3);
    assert_int_equal(token_count(results, result_of(results, 0, 0)), 0);
    assert_int_equal(results->finish_reasons[result_of(results, 0, 0)], BATCHLLM_FINISH_CANCELLED);
    assert_int_equal(token_count(results, result_of(results, 2, 0)), 2);
    assert_int_equal(results->finish_reasons[result_of(results, 2, 0)], BATCHLLM_FINISH_CANCELLED);
    assert_int_equal(token_count(results, result_of(results, 1, 0)), 10);
    assert_int_equal(results->finish_reasons[result_of(results, 1, 0)], BATCHLLM_FINISH_LENGTH);
    batchllm_results_free(results);
    destroy_finished(engine);
}

static void a_timeline_has_a_line_for_each_step(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/batchllm_timeline_%d.csv", (int)getpid());
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.timeline_path = path;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(50, 20, 10);
    add_rows(engine, &rows, 7);
    batchllm_results_free(run_all(engine));
    const int64_t steps = stats_of(engine).steps;
    batchllm_engine_destroy(engine);

    /* An engine that cannot be created leaves the timeline of an earlier one unchanged. */
    options.backend = "nonesuch";
    engine = NULL;
    assert_true(batchllm_engine_create(&options, &engine) != BATCHLLM_OK);

    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[256];
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(
        line,
        "step,milliseconds,decode_tokens,own_tokens,prefix_tokens,requests,pages_used,device\n");
    int64_t lines = 0;
    long long prompts = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        long long step, decode, own, prefix, requests, pages, device;
        double milliseconds;
        assert_int_equal(sscanf(line, "%lld,%lf,%lld,%lld,%lld,%lld,%lld,%lld", &step,
                                &milliseconds, &decode, &own, &prefix, &requests, &pages, &device),
                         8);
        assert_int_equal(step, ++lines);
        assert_int_equal(device, 0);
        assert_true(milliseconds > 0 && requests > 0 && pages > 0);
        prompts += own + prefix;
    }
    assert_int_equal(lines, steps);
    assert_int_equal(prompts, 20 + 50 * 10);
    fclose(file);
    unlink(path);
    free_rows(&rows);
}

static void remember_warning(void *user, int32_t level, const char *message) {
    assert_int_equal(level, BATCHLLM_LOG_WARNING);
    snprintf(user, 256, "%s", message);
}

static void a_full_disk_ends_the_timeline_and_not_the_job(void **state) {
    (void)state;
    if (access("/dev/full", W_OK) != 0) skip();
    char warning[256] = "";
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = small;
    options.timeline_path = "/dev/full";
    options.log = remember_warning;
    options.log_user = warning;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows rows = make_rows(5, 20, 10);
    add_rows(engine, &rows, 3);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 5);
    assert_non_null(strstr(warning, "/dev/full"));
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

static void text_without_a_tokenizer_is_refused_as_a_call(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(small);
    assert_error(batchllm_add_prompt(engine, "text", -1, 0, NULL), BATCHLLM_ERROR_STATE,
                 "tokenizer");
    const int64_t offsets[] = {0, 4};
    const int64_t rows[] = {0, 1};
    assert_error(batchllm_add_text(engine, 1, "text", offsets, NULL, NULL, 0), BATCHLLM_ERROR_STATE,
                 "tokenizer");
    assert_error(
        batchllm_add_score_text(engine, 1, "text", offsets, "more", offsets, rows, NULL, NULL),
        BATCHLLM_ERROR_STATE, "tokenizer");
    assert_int_equal(stats_of(engine).rows, 0);
    batchllm_engine_destroy(engine);
}

static void rows_are_embedded_beside_others(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine(NULL);
    assert_int_equal(batchllm_engine_label_count(engine), 0);
    assert_int_equal(batchllm_engine_label_count(NULL), 0);
    assert_null(batchllm_engine_label(engine, 0));
    assert_null(batchllm_engine_label(NULL, 0));
    token_rows rows = make_rows(3, 40, 4);
    batchllm_params params[3];
    for (int i = 0; i < 3; ++i) params[i] = params_of(2);
    params[0].task = BATCHLLM_TASK_EMBED;
    params[0].pooling = BATCHLLM_POOLING_MEAN;
    params[0].normalize = 1;
    params[0].dimensions = 8;
    params[2].task = BATCHLLM_TASK_CLASSIFY;
    assert_ok(batchllm_add_tokens(engine, 3, rows.tokens, rows.offsets, NULL, params, 3));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 3);
    const int64_t i = result_of(results, 0, 0), other = result_of(results, 1, 0);
    assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_EMBEDDED);
    assert_int_equal(results->prompt_tokens[i], 44);
    assert_int_equal(results->shared_tokens[i], 0);
    assert_int_equal(token_count(results, i), 0);
    assert_int_equal(results->embedding_offsets[i + 1] - results->embedding_offsets[i], 8);
    double squares = 0;
    for (int d = 0; d < 8; ++d) {
        const double x = (double)results->embeddings[results->embedding_offsets[i] + d];
        squares += x * x;
    }
    assert_true(squares > 0.9999 && squares < 1.0001);
    assert_int_equal(token_count(results, other), 2);
    assert_int_equal(results->embedding_offsets[other + 1] - results->embedding_offsets[other], 0);
    assert_int_equal(results->label_offsets[3], 0);
    assert_row_error(results, 2, BATCHLLM_ERROR_ROW_INVALID_PARAMETER, "no classification head");
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_embedded_beside_others),
        cmocka_unit_test(every_row_gets_one_result_of_its_length),
        cmocka_unit_test(an_engine_says_what_its_options_became),
        cmocka_unit_test(an_engine_says_what_auto_chose),
        cmocka_unit_test(info_is_cut_to_what_the_caller_knows),
        cmocka_unit_test(results_outlive_their_engine),
        cmocka_unit_test(a_rows_tokens_do_not_depend_on_the_company_it_keeps),
        cmocka_unit_test(bad_rows_get_their_own_error_and_harm_no_other),
        cmocka_unit_test(max_tokens_is_clipped_to_the_longest_request),
        cmocka_unit_test(an_eos_or_stop_token_ends_a_row_and_is_its_last_token),
        cmocka_unit_test(samples_are_adjacent_and_never_split_by_poll),
        cmocka_unit_test(a_poll_limit_below_a_rows_samples_gives_the_whole_row),
        cmocka_unit_test(a_row_that_ran_without_its_prefix_shared_nothing),
        cmocka_unit_test(equal_greedy_rows_are_computed_once),
        cmocka_unit_test(sharing_switched_off_computes_every_row_for_itself),
        cmocka_unit_test(sharing_switched_off_computes_every_greedy_sample_for_itself),
        cmocka_unit_test(a_pool_of_few_pages_preempts_and_changes_no_token),
        cmocka_unit_test(scores_come_back_by_continuation),
        cmocka_unit_test(progress_counts_every_row_and_ends_at_nothing_left),
        cmocka_unit_test(a_callback_stops_run_and_the_next_run_goes_on),
        cmocka_unit_test(an_interrupt_stops_the_next_run_after_one_step),
        cmocka_unit_test(a_callback_may_poll_and_add_rows),
        cmocka_unit_test(poll_after_cancel_reports_cancelled),
        cmocka_unit_test(all_rows_are_cancelled_at_once),
        cmocka_unit_test(rows_that_have_not_started_have_no_prompt_tokens),
        cmocka_unit_test(parameters_are_checked_without_a_row),
        cmocka_unit_test(cancelling_one_of_equal_rows_leaves_the_others),
        cmocka_unit_test(a_timeline_has_a_line_for_each_step),
        cmocka_unit_test(a_full_disk_ends_the_timeline_and_not_the_job),
        cmocka_unit_test(text_without_a_tokenizer_is_refused_as_a_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
