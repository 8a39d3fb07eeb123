/* batchllm_report_* and batchllm_engine_set_report. The text model is in $BATCHLLM_TEXT_MODEL. */
#define _DEFAULT_SOURCE
#include "api_helpers.h"

#include <math.h>
#include <unistd.h>

static const char *page_of(batchllm_report *report, const batchllm_report_options *options) {
    const char *html = NULL;
    int64_t bytes = 0;
    assert_ok(batchllm_report_html(report, options, &html, &bytes));
    assert_int_equal((int64_t)strlen(html), bytes);
    assert_true(strncmp(html, "<!DOCTYPE html>", 15) == 0);
    assert_true(strcmp(html + bytes - 8, "</html>\n") == 0);
    return html;
}

/* The value of a figure in the page, without commas; -1: it has none. */
static double figure(const char *html, const char *name) {
    char mark[128], digits[64];
    snprintf(mark, sizeof mark, "data-figure=\"%s\">", name);
    const char *at = strstr(html, mark);
    if (!at) return -1;
    size_t n = 0;
    for (at += strlen(mark); *at != '<' && n + 1 < sizeof digits; ++at)
        if (*at != ',') digits[n++] = *at;
    digits[n] = 0;
    return strtod(digits, NULL);
}

static void add_and_run(batchllm_engine *engine, const token_rows *rows, int32_t max_tokens) {
    const batchllm_params params = params_of(max_tokens);
    assert_ok(batchllm_add_tokens(engine, rows->n, rows->tokens, rows->offsets, NULL, &params, 1));
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, rows->n);
    batchllm_results_free(results);
}

static void a_report_has_the_engines_figures(void **state) {
    (void)state;
    batchllm_engine *engine = sim_engine("vocabulary=1000,eos_token=999,pages=4096");
    batchllm_report *report = NULL;
    assert_ok(batchllm_report_create(&report));
    assert_ok(batchllm_engine_set_report(engine, report));
    token_rows rows = make_rows(500, 100, 8);
    add_and_run(engine, &rows, 20);
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    assert_ok(batchllm_engine_stats(engine, &stats));
    const char *html = page_of(report, NULL);
    assert_true(figure(html, "rows_done") == 500);
    assert_true(figure(html, "rows_failed") == 0);
    assert_true(figure(html, "logical_prompt_tokens") == (double)stats.logical_prompt_tokens);
    assert_true(figure(html, "processed_prompt_tokens") == (double)stats.processed_prompt_tokens);
    assert_true(figure(html, "completion_tokens") == (double)stats.completion_tokens);
    assert_true(figure(html, "steps") == (double)stats.steps);
    assert_true(figure(html, "groups") == 1);
    assert_true(figure(html, "pages_peak") == (double)stats.kv_pages_peak);
    assert_non_null(strstr(html, "100 tokens x 500 rows"));
    assert_non_null(strstr(html, "begun with by 500 rows, computed once"));
    assert_non_null(strstr(html, "[0 1 2 3 4 5 6 7 ..]")); /* no tokenizer: token ids */

    /* Only the second job of the engine. */
    batchllm_report *second = NULL;
    assert_ok(batchllm_report_create(&second));
    assert_ok(batchllm_engine_set_report(engine, second));
    rows.n = 7;
    add_and_run(engine, &rows, 3);
    html = page_of(second, NULL);
    assert_true(figure(html, "rows_done") == 7);
    assert_true(figure(html, "completion_tokens") == 21);
    assert_true(figure(page_of(report, NULL), "rows_done") == 500);
    batchllm_report_destroy(second); /* before its engine */

    /* A report that replaces another while a group runs has no times from the other's clock. */
    batchllm_report *early = NULL, *late = NULL;
    assert_ok(batchllm_report_create(&early));
    assert_ok(batchllm_report_create(&late));
    assert_ok(batchllm_engine_set_report(engine, early));
    const batchllm_params params = params_of(20);
    assert_ok(batchllm_add_tokens(engine, 7, rows.tokens, rows.offsets, NULL, &params, 1));
    for (int i = 0; i < 5; ++i) assert_ok(batchllm_step(engine, NULL));
    assert_ok(batchllm_engine_set_report(engine, late));
    assert_ok(batchllm_run(engine, NULL, NULL));
    assert_null(strstr(page_of(late, NULL), "Slowest groups"));
    assert_null(strstr(page_of(early, NULL), "Slowest groups"));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    batchllm_results_free(results);
    batchllm_report_add_failure(late, UINT64_MAX, "ROW_FORMAT", "because");
    assert_non_null(strstr(page_of(late, NULL), "18446744073709551615: because"));
    batchllm_report_destroy(early);
    batchllm_report_destroy(late);
    rows.n = 3;
    add_and_run(engine, &rows, 3);
    batchllm_engine_destroy(engine);
    page_of(report, NULL); /* after its engine */
    batchllm_report_destroy(report);
    free_rows(&rows);
}

static void words_of_prompts_are_in_a_report(void **state) {
    (void)state;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = getenv("BATCHLLM_TEXT_MODEL");
    batchllm_engine *engine = sim_engine_with(&options);
    batchllm_report *report = NULL;
    assert_ok(batchllm_report_create(&report));
    assert_ok(batchllm_engine_set_report(engine, report));
    for (uint64_t i = 0; i < 40; ++i) {
        char text[256];
        snprintf(text, sizeof text,
                 "<script>alert('the same for all of the rows')</script> and so on: %llu",
                 (unsigned long long)i);
        assert_ok(batchllm_add_prompt(engine, text, -1, i, NULL));
    }
    assert_ok(batchllm_run(engine, NULL, NULL));
    const char *html = page_of(report, NULL);
    assert_null(strstr(html, "<script"));
    assert_non_null(strstr(html, "&lt;script&gt;alert("));
    batchllm_report_destroy(report);
    batchllm_engine_destroy(engine);
}

static void a_plan_has_a_report_without_an_engine(void **state) {
    (void)state;
    token_rows rows = make_rows(60, 50, 10);
    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    for (int32_t kept = 0; kept < 2; ++kept) {
        options.self_contained = kept;
        batchllm_plan *plan = NULL;
        assert_ok(batchllm_plan_create(60, rows.tokens, rows.offsets, NULL, &options, NULL, &plan));
        batchllm_report *with = NULL, *without = NULL;
        assert_ok(batchllm_report_create(&with));
        assert_ok(batchllm_report_create(&without));
        assert_ok(batchllm_report_add_plan(with, plan, rows.tokens, rows.offsets, NULL));
        assert_ok(batchllm_report_add_plan(without, plan, NULL, NULL, NULL));
        assert_non_null(strstr(page_of(with, NULL), "[0 1 2 3 4 5 6 7 ..]"));
        const char *html = page_of(without, NULL);
        assert_int_equal(strstr(html, "[0 1 2 3 4 5 6 7 ..]") != NULL, kept);
        assert_non_null(strstr(html, "50 tokens x 60 rows"));
        assert_true(figure(html, "rows") == 60);
        assert_true(figure(html, "logical_prompt_tokens") == 3600);
        assert_true(figure(html, "processed_prompt_tokens") == 650);
        rows.offsets[60] -= 1;
        assert_error(batchllm_report_add_plan(with, plan, rows.tokens, rows.offsets, NULL),
                     BATCHLLM_ERROR_INVALID_ARGUMENT, "row 59 has 59 tokens");
        rows.offsets[60] += 1;
        assert_error(batchllm_report_add_plan(with, plan, rows.tokens, NULL, NULL),
                     BATCHLLM_ERROR_INVALID_ARGUMENT, "offsets is NULL");
        batchllm_report_destroy(with);
        batchllm_report_destroy(without);
        batchllm_plan_destroy(plan);
    }
    free_rows(&rows);
}

static void wrong_arguments_are_told(void **state) {
    (void)state;
    batchllm_report *report = NULL;
    assert_error(batchllm_report_create(NULL), BATCHLLM_ERROR_INVALID_ARGUMENT, "out is NULL");
    assert_ok(batchllm_report_create(&report));
    const char *html = "";
    int64_t bytes = 0;
    assert_error(batchllm_report_html(NULL, NULL, &html, &bytes), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "report");
    assert_null(html);
    assert_error(batchllm_report_html(report, NULL, &html, NULL), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "bytes");
    batchllm_report_options options;
    batchllm_report_options_init(&options, sizeof options);
    assert_true(options.seconds == 0 && options.title == NULL);
    options.seconds = -1;
    assert_error(batchllm_report_html(report, &options, &html, &bytes),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "-1");
    options.seconds = 0;
    options.reserved = 1;
    assert_error(batchllm_report_save(report, &options, "x"), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "reserved");
    options.reserved = 0;
    options.struct_size = 2;
    assert_error(batchllm_report_save(report, &options, "x"), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "struct_size");
    assert_error(batchllm_report_save(report, NULL, NULL), BATCHLLM_ERROR_INVALID_ARGUMENT, "path");
    assert_error(batchllm_report_add_fact(report, NULL, ""), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "name");
    assert_error(batchllm_report_add_failure(report, 1, "a", NULL), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "message");
    assert_error(batchllm_engine_set_report(NULL, report), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "engine");
    assert_error(batchllm_report_add_plan(report, NULL, NULL, NULL, NULL),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "plan");
    for (int i = 0; i < 64; ++i) {
        char name[32];
        snprintf(name, sizeof name, "fact %d", i);
        assert_ok(batchllm_report_add_fact(report, name, "x"));
    }
    assert_error(batchllm_report_add_fact(report, "another", "x"), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "64");
    assert_ok(batchllm_report_add_failure(report, 12, "ROW_<i>", "because of \"<b>\""));
    const char *page = page_of(report, NULL);
    assert_non_null(strstr(page, "12: because of &quot;&lt;b&gt;&quot;"));
    assert_non_null(strstr(page, "ROW_&lt;i&gt;"));

    batchllm_engine *one = sim_engine(NULL), *other = sim_engine(NULL);
    assert_ok(batchllm_engine_set_report(one, report));
    assert_ok(batchllm_engine_set_report(one, report)); /* again */
    assert_error(batchllm_engine_set_report(other, report), BATCHLLM_ERROR_STATE,
                 "another engine's");
    assert_ok(batchllm_engine_set_report(one, NULL));
    assert_ok(batchllm_engine_set_report(other, report));
    batchllm_engine_destroy(other);
    assert_ok(batchllm_engine_set_report(one, report)); /* its engine has been destroyed */
    token_rows rows = make_rows(5, 40, 4);
    add_and_run(one, &rows, 3);
    assert_ok(batchllm_engine_set_report(one, NULL));
    add_and_run(one, &rows, 3); /* not in it */
    assert_ok(batchllm_engine_set_report(one, report));
    add_and_run(one, &rows, 3);
    assert_true(figure(page_of(report, NULL), "completion_tokens") == 2 * 5 * 3);
    free_rows(&rows);
    batchllm_engine_destroy(one);
    batchllm_report_destroy(report);
    batchllm_report_destroy(NULL);
}

static void a_report_is_written_in_one_piece_or_not_at_all(void **state) {
    (void)state;
    char folder[] = "/tmp/batchllm-report-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char path[128], inside[160];
    snprintf(path, sizeof path, "%s/report.html", folder);
    snprintf(inside, sizeof inside, "%s/none/report.html", folder);
    batchllm_report *report = NULL;
    assert_ok(batchllm_report_create(&report));
    batchllm_report_options options;
    batchllm_report_options_init(&options, sizeof options);
    options.title = "a \"title\" of <mine>";
    assert_ok(batchllm_report_save(report, &options, path));
    assert_ok(batchllm_report_save(report, &options, path)); /* replaced */
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const char *wanted = page_of(report, &options);
    char *found = calloc(strlen(wanted) + 2, 1);
    assert_int_equal(fread(found, 1, strlen(wanted) + 1, file), strlen(wanted));
    assert_string_equal(found, wanted);
    assert_non_null(strstr(found, "<title>a &quot;title&quot; of &lt;mine&gt;</title>"));
    free(found);
    fclose(file);
    assert_error(batchllm_report_save(report, NULL, inside), BATCHLLM_ERROR_IO, inside);
    if (access("/dev/full", W_OK) == 0)
        assert_error(batchllm_report_save(report, NULL, "/dev/full"), BATCHLLM_ERROR_IO,
                     "/dev/full");
    batchllm_report_destroy(report);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* no temporary file is left */
}

static void a_prediction_is_in_the_report(void **state) {
    (void)state;
    token_rows rows = make_rows(40, 100, 8);
    for (int64_t i = 0; i < rows.offsets[rows.n]; ++i) rows.tokens[i] %= 200;
    batchllm_plan *plan = NULL;
    assert_ok(batchllm_plan_create(rows.n, rows.tokens, rows.offsets, NULL, NULL, NULL, &plan));
    batchllm_engine_options engine;
    batchllm_engine_options_init(&engine, sizeof engine);
    engine.model_dir = getenv("BATCHLLM_TEXT_MODEL");
    batchllm_predict_options options;
    batchllm_predict_options_init(&options, sizeof options);
    assert_int_equal(options.struct_size, sizeof options);
    options.device = "h200";
    const batchllm_params params = params_of(10);
    batchllm_prediction predicted;
    predicted.struct_size = 0;
    assert_error(batchllm_plan_predict(plan, rows.tokens, rows.offsets, &params, 1, &engine,
                                       &options, &predicted),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "struct_size");
    predicted.struct_size = sizeof predicted;
    assert_ok(batchllm_plan_predict(plan, rows.tokens, rows.offsets, &params, 1, &engine, &options,
                                    &predicted));
    assert_int_equal(predicted.rows, 40);
    assert_int_equal(predicted.completion_tokens, 400);
    assert_true(predicted.seconds > 0);
    batchllm_report *report = NULL;
    assert_ok(batchllm_report_create(&report));
    assert_ok(batchllm_report_add_plan(report, plan, NULL, NULL, NULL));
    assert_ok(batchllm_report_add_prediction(report, &predicted));
    assert_ok(batchllm_report_add_prediction(report, &predicted)); /* the sum of both */
    const char *html = page_of(report, NULL);
    assert_true(figure(html, "predicted_completion_tokens") == 800);
    assert_true(figure(html, "predicted_steps") == 2.0 * (double)predicted.steps);
    assert_non_null(strstr(html, "For NVIDIA H200, before anything ran"));
    predicted.completion_tokens = INT64_MAX; /* a sum stays at the most */
    assert_ok(batchllm_report_add_prediction(report, &predicted));
    html = page_of(report, NULL);
    assert_true(figure(html, "predicted_completion_tokens") == (double)INT64_MAX);
    predicted.completion_tokens = -1;
    assert_error(batchllm_report_add_prediction(report, &predicted),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "completion_tokens");
    predicted.completion_tokens = 1;
    predicted.seconds = NAN;
    assert_error(batchllm_report_add_prediction(report, &predicted),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "prediction->seconds");
    /* Sums without a report. */
    predicted.seconds = 1;
    predicted.completion_tokens = 5;
    batchllm_prediction sum;
    memset(&sum, 0, sizeof sum);
    assert_error(batchllm_prediction_add(&sum, &predicted), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "struct_size");
    sum.struct_size = sizeof sum;
    assert_ok(batchllm_prediction_add(&sum, &predicted));
    assert_ok(batchllm_prediction_add(&sum, &predicted));
    assert_int_equal(sum.rows, 80);
    assert_int_equal(sum.completion_tokens, 10);
    assert_true(sum.seconds == 2);
    assert_string_equal(sum.device, predicted.device);
    predicted.steps = -1;
    assert_error(batchllm_prediction_add(&sum, &predicted), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "part->steps");
    assert_error(batchllm_prediction_add(NULL, &predicted), BATCHLLM_ERROR_INVALID_ARGUMENT, "sum");
    options.reserved = 1;
    assert_error(batchllm_plan_predict(plan, rows.tokens, rows.offsets, &params, 1, &engine,
                                       &options, &predicted),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "reserved");
    batchllm_report_destroy(report);
    batchllm_plan_destroy(plan);
    free_rows(&rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_has_the_engines_figures),
        cmocka_unit_test(words_of_prompts_are_in_a_report),
        cmocka_unit_test(a_plan_has_a_report_without_an_engine),
        cmocka_unit_test(a_prediction_is_in_the_report),
        cmocka_unit_test(wrong_arguments_are_told),
        cmocka_unit_test(a_report_is_written_in_one_piece_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
