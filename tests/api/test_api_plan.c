/* Plans without an engine, and engines that use them. */
#include "api_helpers.h"

#include <unistd.h>

static batchllm_plan_stats plan_stats(const batchllm_plan *plan) {
    batchllm_plan_stats stats;
    stats.struct_size = sizeof stats;
    assert_ok(batchllm_plan_get_stats(plan, &stats));
    return stats;
}

static batchllm_plan *plan_of(const token_rows *rows, const batchllm_plan_options *options,
                              const batchllm_plan *previous) {
    batchllm_plan *plan = NULL;
    assert_ok(
        batchllm_plan_create(rows->n, rows->tokens, rows->offsets, NULL, options, previous, &plan));
    return plan;
}

static void a_plan_has_each_row_in_one_group_and_counts_what_it_saves(void **state) {
    (void)state;
    token_rows rows = make_rows(50, 100, 10);
    batchllm_plan *plan = plan_of(&rows, NULL, NULL);
    const batchllm_plan_stats stats = plan_stats(plan);
    assert_int_equal(stats.rows, 50);
    assert_int_equal(stats.groups, 1);
    assert_int_equal(stats.grouped_rows, 50);
    assert_int_equal(stats.largest_group, 50);
    assert_int_equal(stats.longest_prefix, 100);
    assert_int_equal(stats.logical_tokens, 50 * 110);
    assert_int_equal(stats.processed_tokens, 100 + 50 * 10);
    assert_true(stats.saving_ratio > 0.89 && stats.saving_ratio < 0.90);
    int seen[50] = {0};
    for (int64_t g = 0; g < batchllm_plan_group_count(plan); ++g) {
        batchllm_plan_group_info info;
        info.struct_size = sizeof info;
        assert_ok(batchllm_plan_group(plan, g, &info));
        assert_int_equal(info.prefix_tokens, 100);
        assert_int_equal(info.common_prefix_tokens, 0);
        for (int64_t i = 0; i < info.row_count; ++i) ++seen[info.rows[i]];
    }
    for (int i = 0; i < 50; ++i) assert_int_equal(seen[i], 1);
    batchllm_plan_group_info info;
    info.struct_size = sizeof info;
    assert_error(batchllm_plan_group(plan, batchllm_plan_group_count(plan), &info),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "group");
    batchllm_plan_destroy(plan);
    free_rows(&rows);
}

static void options_choose_what_is_shared(void **state) {
    (void)state;
    token_rows rows = make_rows(20, 60, 10);
    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    options.enlarge = BATCHLLM_ENLARGE_NONE;
    batchllm_plan *none = plan_of(&rows, &options, NULL);
    assert_int_equal(plan_stats(none).groups, 0);
    assert_int_equal(plan_stats(none).processed_tokens, 20 * 70);
    batchllm_plan_destroy(none);
    options.enlarge = BATCHLLM_ENLARGE_PAPER;
    options.tokenizer_fingerprint = 77;
    batchllm_plan *paper = plan_of(&rows, &options, NULL);
    assert_int_equal(plan_stats(paper).enlarge, BATCHLLM_ENLARGE_PAPER);
    assert_int_equal(plan_stats(paper).processed_tokens, 60 + 20 * 10);
    assert_int_equal(plan_stats(paper).tokenizer_fingerprint, 77);
    batchllm_plan_destroy(paper);
    batchllm_plan *plan = NULL;
    options.levels = 3;
    assert_error(batchllm_plan_create(20, rows.tokens, rows.offsets, NULL, &options, NULL, &plan),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "levels");
    free_rows(&rows);
}

static void a_saved_plan_is_the_same_when_loaded(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/batchllm_plan_%d.plan", (int)getpid());
    token_rows rows = make_rows(30, 40, 5);
    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    options.self_contained = 1;
    batchllm_plan *plan = plan_of(&rows, &options, NULL);
    assert_ok(batchllm_plan_save(plan, path));
    batchllm_plan *loaded = NULL;
    assert_ok(batchllm_plan_load(path, &loaded));
    const batchllm_plan_stats a = plan_stats(plan);
    const batchllm_plan_stats b = plan_stats(loaded);
    assert_int_equal(a.processed_tokens, b.processed_tokens);
    assert_int_equal(a.groups, b.groups);
    assert_int_equal(b.self_contained, 1);
    assert_true(b.seconds == 0);
    batchllm_plan_destroy(loaded);

    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fputs("not a plan", file);
    fclose(file);
    assert_error(batchllm_plan_load(path, &loaded), BATCHLLM_ERROR_PLAN_FORMAT, path);
    assert_null(loaded);
    batchllm_plan_destroy(plan);
    unlink(path);
    free_rows(&rows);
}

static void rows_that_have_not_changed_keep_their_groups(void **state) {
    (void)state;
    token_rows before = make_rows(40, 50, 10);
    batchllm_plan *old = plan_of(&before, NULL, NULL);
    token_rows after = make_rows(60, 50, 10); /* the same 40, and 20 more */
    batchllm_plan *plan = plan_of(&after, NULL, old);
    assert_int_equal(plan_stats(plan).reused_rows, 40);
    assert_int_equal(plan_stats(plan).known_rows, 40);
    assert_int_equal(plan_stats(plan).rows, 60);
    batchllm_plan_destroy(plan);
    batchllm_plan_destroy(old);
    free_rows(&before);
    free_rows(&after);
}

static void an_engine_uses_a_plan_and_gives_its_own(void **state) {
    (void)state;
    token_rows rows = make_rows(40, 50, 10);
    batchllm_plan *plan = plan_of(&rows, NULL, NULL);
    batchllm_engine *engine = sim_engine("vocabulary=1000");
    batchllm_plan *none = NULL;
    assert_error(batchllm_engine_get_plan(engine, &none), BATCHLLM_ERROR_STATE, "planned");
    assert_ok(batchllm_engine_use_plan(engine, plan));
    batchllm_plan_destroy(plan); /* it was copied */

    /* A bad row keeps its number in the plan. */
    const int64_t empty[] = {0, 0};
    assert_ok(batchllm_add_tokens(engine, 1, NULL, empty, NULL, NULL, 0));
    add_rows(engine, &rows, 3);
    assert_ok(batchllm_build_groups(engine));
    assert_ok(batchllm_engine_get_plan(engine, &plan));
    assert_int_equal(plan_stats(plan).rows, 41);
    assert_int_equal(plan_stats(plan).reused_rows, 40);
    assert_int_equal(plan_stats(plan).logical_tokens, 40 * 60);
    batchllm_plan_destroy(plan);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 41);
    assert_int_equal(stats_of(engine).processed_prompt_tokens, 50 + 40 * 10);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
}

/* The first row of each of the engine's groups, in their order. */
static void first_rows_of_groups(batchllm_engine *engine, int64_t *rows, int64_t n) {
    batchllm_plan *plan = NULL;
    assert_ok(batchllm_engine_get_plan(engine, &plan));
    assert_int_equal(batchllm_plan_group_count(plan), n);
    for (int64_t g = 0; g < n; ++g) {
        batchllm_plan_group_info info;
        info.struct_size = sizeof info;
        assert_ok(batchllm_plan_group(plan, g, &info));
        rows[g] = info.rows[0];
    }
    batchllm_plan_destroy(plan);
}

static void a_plan_of_just_these_rows_is_taken_in_its_order(void **state) {
    (void)state;
    token_rows rows = make_rows(6, 0, 20);
    const int32_t lengths[] = {10, 20, 30, 40, 50, 60}; /* the longest first: row 5, 4, ... */
    batchllm_plan *plan = NULL;
    assert_ok(batchllm_plan_create(6, rows.tokens, rows.offsets, lengths, NULL, NULL, &plan));
    batchllm_engine *engine = sim_engine("vocabulary=1000");
    assert_ok(batchllm_engine_use_plan(engine, plan));
    add_rows(engine, &rows, 3);
    assert_ok(batchllm_build_groups(engine));
    int64_t order[12];
    first_rows_of_groups(engine, order, 6);
    for (int64_t i = 0; i < 6; ++i) assert_int_equal(order[i], 5 - i);

    /* When the next plan comes, rows that have not started come before it, in their own order. */
    assert_ok(batchllm_engine_use_plan(engine, plan));
    const int64_t empty[] = {0, 0};
    token_rows more = make_rows(6, 0, 20);
    for (int64_t i = 0; i < more.offsets[6]; ++i) more.tokens[i] = (more.tokens[i] + 7) % 1000;
    batchllm_plan_destroy(plan);
    assert_ok(batchllm_plan_create(6, more.tokens, more.offsets, lengths, NULL, NULL, &plan));
    assert_ok(batchllm_engine_use_plan(engine, plan));
    add_rows(engine, &more, 3);
    assert_ok(batchllm_build_groups(engine));
    first_rows_of_groups(engine, order, 12);
    for (int64_t i = 0; i < 6; ++i) {
        assert_int_equal(order[i], i); /* numbered by position */
        assert_int_equal(order[6 + i], 6 + 5 - i);
    }
    batchllm_plan_destroy(plan);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 12);
    batchllm_results_free(results);

    /* For other rows the plan is only a hint. */
    plan = plan_of(&rows, NULL, NULL);
    assert_ok(batchllm_engine_use_plan(engine, plan));
    assert_ok(batchllm_add_tokens(engine, 1, NULL, empty, NULL, NULL, 0));
    add_rows(engine, &more, 3);
    assert_ok(batchllm_build_groups(engine));
    first_rows_of_groups(engine, order, 7);
    results = run_all(engine);
    assert_int_equal(results->count, 7);
    batchllm_results_free(results);
    batchllm_plan_destroy(plan);
    batchllm_engine_destroy(engine);
    free_rows(&rows);
    free_rows(&more);
}

static void remember_warning(void *user, int32_t level, const char *message) {
    assert_int_equal(level, BATCHLLM_LOG_WARNING);
    snprintf(user, 256, "%s", message);
}

static void a_plan_of_other_rows_is_warned_of(void **state) {
    (void)state;
    token_rows rows = make_rows(40, 50, 10);
    batchllm_plan *plan = plan_of(&rows, NULL, NULL);
    /* 30 of the plan's rows; one of them, which is in no group any more; 30 others. */
    const struct {
        int64_t rows;
        int32_t shift;
        int warned;
    } cases[] = {{30, 0, 0}, {1, 0, 0}, {30, 1, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; ++c) {
        char warning[256] = "";
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.log = remember_warning;
        options.log_user = warning;
        batchllm_engine *engine = sim_engine_with(&options);
        assert_ok(batchllm_engine_use_plan(engine, plan));
        /* Rows without tokens say nothing about the plan. */
        const int64_t empty[] = {0, 0};
        assert_ok(batchllm_add_tokens(engine, 1, NULL, empty, NULL, NULL, 0));
        assert_ok(batchllm_build_groups(engine));
        assert_string_equal(warning, "");

        token_rows added = make_rows(cases[c].rows, 50, 10);
        for (int64_t i = 0; i < added.offsets[cases[c].rows]; ++i) {
            added.tokens[i] += cases[c].shift;
        }
        assert_ok(batchllm_engine_use_plan(engine, plan));
        add_rows(engine, &added, 3);
        assert_ok(batchllm_build_groups(engine));
        if (cases[c].warned) {
            assert_non_null(strstr(warning, "none of these rows is in the plan"));
        } else {
            assert_string_equal(warning, "");
        }
        batchllm_results_free(run_all(engine));
        batchllm_engine_destroy(engine);
        free_rows(&added);
    }
    batchllm_plan_destroy(plan);
    free_rows(&rows);
}

static void rows_added_before_a_step_are_planned_with_those_that_wait(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend_options = "vocabulary=1000";
    options.step_tokens = 16;
    batchllm_engine *engine = sim_engine_with(&options);
    token_rows first = make_rows(2000, 0, 20);
    token_rows second = make_rows(2100, 0, 20);
    add_rows(engine, &first, 1);
    assert_ok(batchllm_step(engine, NULL));
    /* Most of the first rows have not started: equal rows of the second batch are computed with
     * them. */
    add_rows(engine, &second, 1);
    batchllm_plan *plan = NULL;
    assert_ok(batchllm_build_groups(engine));
    assert_ok(batchllm_engine_get_plan(engine, &plan));
    assert_true(plan_stats(plan).rows > 2100 + 1000);
    batchllm_plan_destroy(plan);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 4100);
    assert_true(stats_of(engine).rows_deduplicated > 1000);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
    free_rows(&first);
    free_rows(&second);
}

static void common_heads_of_prefixes_are_computed_once(void **state) {
    (void)state;
    /* 30 documents of 100 tokens after one head of 200, 10 rows each. */
    enum { documents = 30, each = 10, length = 320 };
    token_rows rows = {documents * each, malloc(documents * each * length * sizeof(int32_t)),
                       malloc((documents * each + 1) * sizeof(int64_t))};
    for (int32_t i = 0; i < documents * each; ++i) {
        rows.offsets[i] = (int64_t)i * length;
        for (int32_t j = 0; j < length; ++j)
            rows.tokens[i * length + j] = j < 200   ? j
                                          : j < 300 ? 200 + (i / each * 17 + j) % 700
                                                    : (i * 13 + j) % 900;
    }
    rows.offsets[documents * each] = (int64_t)documents * each * length;
    int64_t processed[3];
    for (int32_t levels = 0; levels <= 2; ++levels) {
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.backend_options = "vocabulary=1000,common_prefix_cost=0.1875";
        options.step_tokens = 64; /* far fewer than rows: they are added a few at a time */
        options.levels = levels;
        batchllm_engine *engine = sim_engine_with(&options);
        add_rows(engine, &rows, 2);
        batchllm_results *results = run_all(engine);
        assert_int_equal(results->count, documents * each);
        assert_int_equal(results->shared_tokens[0] >= 300, 1);
        processed[levels] = stats_of(engine).processed_prompt_tokens;
        batchllm_results_free(results);
        batchllm_engine_destroy(engine);
    }
    assert_int_equal(processed[1] - processed[2], (documents - 1) * 200);
    /* 200 tokens saved, 320 below each head: it is also shared by cost. */
    assert_int_equal(processed[0], processed[2]);
    free_rows(&rows);
}

static void what_a_common_prefix_costs_is_asked_of_an_engine(void **state) {
    (void)state;
    batchllm_engine_options engine_options;
    batchllm_engine_options_init(&engine_options, sizeof engine_options);
    assert_int_equal(engine_options.levels, 0);
    engine_options.backend_options = "common_prefix_cost=0.25";
    batchllm_engine *engine = sim_engine_with(&engine_options);
    batchllm_info info = {.struct_size = sizeof info};
    assert_ok(batchllm_engine_info(engine, 0, &info));
    assert_true(info.common_prefix_cost == 0.25);
    batchllm_engine_destroy(engine);

    /* Two documents of 60 tokens after a head of 40, two rows each. */
    enum { length = 110 };
    int32_t tokens[4 * length];
    int64_t offsets[5] = {0};
    for (int32_t i = 0; i < 4; ++i) {
        for (int32_t j = 0; j < length; ++j)
            tokens[i * length + j] = j < 40 ? 1 : j < 100 ? 2 + i / 2 : 10 + i;
        offsets[i + 1] = (int64_t)(i + 1) * length;
    }
    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    assert_int_equal(options.levels, 0);
    /* 40 tokens saved, 2 * 60 + 4 * (10 + 1) read the head. */
    const double costs[] = {0, 0.23, 0.25, 1e300};
    const int64_t computed[] = {240, 200, 240, 240};
    for (int i = 0; i < 4; ++i) {
        options.common_prefix_cost = costs[i];
        batchllm_plan *plan = NULL;
        assert_ok(batchllm_plan_create(4, tokens, offsets, NULL, &options, NULL, &plan));
        assert_int_equal(plan_stats(plan).processed_tokens, computed[i]);
        batchllm_plan_destroy(plan);
    }
    batchllm_plan *plan = NULL;
    options.common_prefix_cost = -1;
    assert_error(batchllm_plan_create(4, tokens, offsets, NULL, &options, NULL, &plan),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "common_prefix_cost");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_common_prefix_costs_is_asked_of_an_engine),
        cmocka_unit_test(a_plan_has_each_row_in_one_group_and_counts_what_it_saves),
        cmocka_unit_test(options_choose_what_is_shared),
        cmocka_unit_test(a_saved_plan_is_the_same_when_loaded),
        cmocka_unit_test(rows_that_have_not_changed_keep_their_groups),
        cmocka_unit_test(an_engine_uses_a_plan_and_gives_its_own),
        cmocka_unit_test(a_plan_of_just_these_rows_is_taken_in_its_order),
        cmocka_unit_test(a_plan_of_other_rows_is_warned_of),
        cmocka_unit_test(rows_added_before_a_step_are_planned_with_those_that_wait),
        cmocka_unit_test(common_heads_of_prefixes_are_computed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
