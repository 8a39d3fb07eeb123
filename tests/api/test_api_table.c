/* batchllm_table_*, batchllm_add_table and batchllm_plan_get_advice. The text model is in
 * $BATCHLLM_TEXT_MODEL. */
#include "api_helpers.h"

#define ROWS 60

/* Three columns over ROWS rows: a text of the row's own, one of three texts, and the same text for
 * all; row 7 has no own text. */
typedef struct {
    char own[ROWS * 64], kind[ROWS * 64], all[ROWS * 64];
    int64_t offsets[3][ROWS + 1];
    uint8_t validity[ROWS / 8 + 1];
    batchllm_table_column columns[3];
} table_input;

static void make_input(table_input *in) {
    memset(in, 0, sizeof *in);
    char *texts[3] = {in->own, in->kind, in->all};
    const char *names[3] = {"own", "kind", "all"};
    memset(in->validity, 0xff, sizeof in->validity);
    in->validity[0] = 0x7f;
    for (int64_t i = 0; i < ROWS; ++i) {
        char cells[3][64];
        snprintf(cells[0], 64, "item %lld", (long long)i);
        snprintf(cells[1], 64, "one of the kind %lld of things", (long long)(i % 3));
        snprintf(cells[2], 64, "the same words in every row");
        if (i == 7) cells[0][0] = 0;
        for (int c = 0; c < 3; ++c) {
            const int64_t at = in->offsets[c][i];
            strcpy(texts[c] + at, cells[c]);
            in->offsets[c][i + 1] = at + (int64_t)strlen(cells[c]);
        }
    }
    for (int c = 0; c < 3; ++c) {
        in->columns[c].struct_size = sizeof in->columns[c];
        in->columns[c].name = names[c];
        in->columns[c].text = texts[c];
        in->columns[c].offsets = in->offsets[c];
    }
    in->columns[0].validity = in->validity;
}

static batchllm_table_options options_of(const char *text, int32_t fields) {
    batchllm_table_options options;
    batchllm_table_options_init(&options, sizeof options);
    assert_int_equal(options.fields, BATCHLLM_FIELDS_GIVEN);
    assert_int_equal(options.template_bytes, -1);
    options.template_text = text;
    options.fields = fields;
    return options;
}

static void assert_prompt(const batchllm_table *table, int64_t row, const char *wanted) {
    const batchllm_column *prompts = batchllm_table_prompts(table);
    const int64_t bytes = prompts->offsets[row + 1] - prompts->offsets[row];
    assert_int_equal(bytes, (int64_t)strlen(wanted));
    assert_memory_equal(prompts->text + prompts->offsets[row], wanted, (size_t)bytes);
}

static const char lines[] = "Judge.\n{own}\nKind: {kind}\n{all}\nAnswer:";

static void a_table_is_made_of_columns(void **state) {
    (void)state;
    table_input in;
    make_input(&in);
    batchllm_table *table = NULL;
    batchllm_table_options options = options_of(lines, BATCHLLM_FIELDS_GIVEN);
    assert_ok(batchllm_table_create(ROWS, in.columns, 3, &options, &table));
    const batchllm_column *prompts = batchllm_table_prompts(table);
    assert_int_equal(prompts->count, ROWS);
    assert_prompt(table, 4,
                  "Judge.\nitem 4\nKind: one of the kind 1 of things\nthe same words in every "
                  "row\nAnswer:");
    assert_int_equal(prompts->statuses[7], BATCHLLM_ERROR_ROW_NULL);
    assert_string_equal(batchllm_status_name(prompts->statuses[7]), "BATCHLLM_ERROR_ROW_NULL");
    assert_prompt(table, 7, "");
    batchllm_table_info info;
    info.struct_size = sizeof info;
    assert_ok(batchllm_table_get_info(table, &info));
    assert_int_equal(info.rows, ROWS);
    assert_int_equal(info.fields, 3);
    assert_true(info.hit_rate == 0);
    assert_int_equal(info.row_order[ROWS - 1], ROWS - 1);
    assert_int_equal(info.field_orders[3 * 5 + 1], 1);
    batchllm_table_destroy(table);

    options.fields = BATCHLLM_FIELDS_REORDER;
    options.template_bytes = (int64_t)strlen(lines) - 1; /* without the colon */
    assert_ok(batchllm_table_create(ROWS, in.columns, 3, &options, &table));
    assert_prompt(table, 4,
                  "Judge.\nall: the same words in every row\nKind: one of the kind 1 of "
                  "things\nown: item 4\nAnswer");
    info.struct_size = sizeof info;
    assert_ok(batchllm_table_get_info(table, &info));
    assert_true(info.given_hit_rate == 0);
    assert_true(info.hit_rate > 0.6);
    assert_true(info.hit_rate >= info.sorted_hit_rate);
    assert_int_equal(info.row_order[ROWS - 1], 7); /* without a prompt */
    assert_int_equal(info.field_orders[3 * 4], 2);
    assert_int_equal(info.field_orders[3 * 4 + 2], 0);
    /* A caller that only knows the beginning of the struct. */
    int64_t small[2] = {16, -5};
    memcpy(small, &(uint32_t){16}, 4);
    assert_ok(batchllm_table_get_info(table, (batchllm_table_info *)(void *)small));
    assert_int_equal(small[1], ROWS);
    batchllm_table_destroy(table);
}

static void what_is_wrong_with_a_table_is_said(void **state) {
    (void)state;
    table_input in;
    make_input(&in);
    batchllm_table *table = (batchllm_table *)&in;
    batchllm_table_options options = options_of("{own} {", 0);
    const int32_t bad = BATCHLLM_ERROR_INVALID_ARGUMENT;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad, "at byte 6");
    assert_null(table);
    options = options_of("{title}", 0);
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "no column \"title\"");
    assert_error(batchllm_table_create(ROWS, NULL, 0, &options, &table), bad, "\"title\"");
    assert_error(batchllm_table_create(ROWS, NULL, 1, &options, &table), bad, "columns is NULL");
    assert_error(batchllm_table_create(-1, in.columns, 3, &options, &table), bad, "-1 rows");
    assert_error(batchllm_table_create(ROWS, in.columns, 3, NULL, &table), bad, "options is NULL");
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, NULL), bad, "out is NULL");
    options = options_of(NULL, 0);
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "template_text is NULL");
    options = options_of("{own}", 2);
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad, "fields is 2");
    options = options_of("{own}", 0);
    options.system = "Be kind.";
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad, "without chat");
    options = options_of("{own}", 0);
    in.columns[1].struct_size = 8;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "column 1: struct_size is 8");
    in.columns[1].struct_size = 4096; /* would reach far beyond the array */
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "column 1: struct_size is 4096");
    in.columns[1].struct_size = sizeof in.columns[1];
    in.columns[0].struct_size = 0;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "column 0: struct_size is 0");
    in.columns[0].struct_size = sizeof in.columns[0];
    in.columns[2].reserved = 1;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "column 2: reserved is 1");
    in.columns[2].reserved = 0;
    options.reserved = -1;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "options->reserved is -1");
    options.reserved = 0;
    in.columns[1].name = NULL;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad,
                 "column 1: name is NULL");
    in.columns[1].name = "kind";
    in.offsets[2][3] = 100000;
    assert_error(batchllm_table_create(ROWS, in.columns, 3, &options, &table), bad, "column 2");
    assert_null(batchllm_table_prompts(NULL));
    batchllm_table_destroy(NULL);
}

/* Impossible sizes, columns without text, zero bytes. */
static void odd_columns_are_read_or_refused(void **state) {
    (void)state;
    const int32_t bad = BATCHLLM_ERROR_INVALID_ARGUMENT;
    batchllm_table_options options = options_of("<{a}>", BATCHLLM_FIELDS_REORDER);
    batchllm_table *table = NULL;
    batchllm_table_column column = {.struct_size = sizeof column, .name = "a"};
    assert_error(batchllm_table_create(INT64_MAX, &column, 1, &options, &table), bad,
                 "column 0: offsets is NULL");
    assert_error(batchllm_table_create(INT64_MAX, NULL, 0, &options, &table), bad, "no column");
    assert_error(batchllm_table_create(1, &column, INT64_MIN, &options, &table), bad, "negative");
    /* Every cell is empty, at any offset. */
    const int64_t empty[] = {5, 5, 5, 5};
    column.offsets = empty;
    assert_ok(batchllm_table_create(3, &column, 1, &options, &table));
    assert_prompt(table, 2, "<>");
    batchllm_table_destroy(table);
    const int64_t filled[] = {5, 5, 6, 6};
    column.offsets = filled;
    assert_error(batchllm_table_create(3, &column, 1, &options, &table), bad, "text is NULL");
    const int64_t falling[] = {0, 4, 2, 6};
    column.text = "a\0b{a}";
    column.offsets = falling;
    assert_error(batchllm_table_create(3, &column, 1, &options, &table), bad,
                 "column 0: offsets[2] is 2, below the 4");
    const int64_t negative[] = {-1, 0, 2, 6};
    column.offsets = negative;
    assert_error(batchllm_table_create(3, &column, 1, &options, &table), bad, "offsets[0] is -1");
    const int64_t good[] = {0, 3, 3, 6};
    column.offsets = good;
    options.chat = 1;
    assert_ok(batchllm_table_create(3, &column, 1, &options, &table));
    assert_prompt(table, 0, "[{\"role\":\"user\",\"content\":\"<a\\u0000b>\"}]");
    assert_prompt(table, 2, "[{\"role\":\"user\",\"content\":\"<{a}>\"}]");
    batchllm_table_destroy(table);
    options.chat = 0;
    options.template_text = "\0{a}\0";
    options.template_bytes = 5;
    assert_ok(batchllm_table_create(3, &column, 1, &options, &table));
    const batchllm_column *prompts = batchllm_table_prompts(table);
    assert_int_equal(prompts->offsets[1], 5);
    assert_memory_equal(prompts->text, "\0a\0b\0", 5);
    batchllm_table_destroy(table);
    /* No rows, so no text is needed. */
    const batchllm_table_column none = {.struct_size = sizeof none, .name = "a"};
    assert_ok(batchllm_table_create(0, &none, 1, &options, &table));
    assert_int_equal(batchllm_table_prompts(table)->count, 0);
    batchllm_table_info info = {.struct_size = 4};
    assert_error(batchllm_table_get_info(table, &info), bad, "struct_size is 4");
    batchllm_table_destroy(table);
}

/* Results by row, whatever the order of fields: each row's prompt has the same number of tokens in
 * both. */
static void rows_of_a_table_get_their_results(void **state) {
    (void)state;
    table_input in;
    make_input(&in);
    batchllm_engine_options engine_options;
    batchllm_engine_options_init(&engine_options, sizeof engine_options);
    engine_options.model_dir = getenv("BATCHLLM_TEXT_MODEL");
    engine_options.backend = "cpu";
    engine_options.kv_memory_bytes = 1 << 24;
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&engine_options, &engine));
    batchllm_table_options options = options_of("{own}\n{kind}\n{all}", BATCHLLM_FIELDS_REORDER);
    batchllm_table *table = NULL;
    assert_ok(batchllm_table_create(ROWS, in.columns, 3, &options, &table));
    const batchllm_params params = params_of(2);
    assert_error(batchllm_add_table(NULL, table, NULL, &params, 1), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "engine is NULL");
    assert_error(batchllm_add_table(engine, NULL, NULL, &params, 1),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "table is NULL");
    assert_ok(batchllm_add_table(engine, table, NULL, &params, 1));
    /* The same prompts as text. */
    const batchllm_column *prompts = batchllm_table_prompts(table);
    assert_ok(batchllm_add_text(engine, ROWS, prompts->text, prompts->offsets, NULL, &params, 1));
    batchllm_table_destroy(table);
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 2 * ROWS);
    int64_t place[2 * ROWS];
    for (int64_t i = 0; i < 2 * ROWS; ++i) place[results->tags[i]] = i;
    for (int64_t i = 0; i < ROWS; ++i) {
        const int64_t a = place[i], b = place[ROWS + i];
        if (i == 7) {
            assert_int_equal(results->statuses[a], BATCHLLM_ERROR_ROW_NULL);
            const int64_t from = results->error_offsets[a];
            assert_memory_equal(results->errors + from, "field \"own\" is null", 19);
            continue;
        }
        assert_int_equal(results->statuses[a], BATCHLLM_OK);
        assert_int_equal(results->prompt_tokens[a], results->prompt_tokens[b]);
        const int64_t tokens = results->token_offsets[a + 1] - results->token_offsets[a];
        assert_int_equal(results->token_offsets[b + 1] - results->token_offsets[b], tokens);
        assert_memory_equal(results->tokens + results->token_offsets[a],
                            results->tokens + results->token_offsets[b],
                            (size_t)tokens * sizeof(int32_t));
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

/* A cell that is not UTF-8 is an error of its row only, in text and in conversations. */
static void a_cell_that_is_not_utf8_is_its_row_s_error(void **state) {
    (void)state;
    const int64_t offsets[] = {0, 3, 5, 8};
    const batchllm_table_column column = {
        .struct_size = sizeof column, .name = "a", .text = "one\xff\xfetwo", .offsets = offsets};
    batchllm_engine_options engine_options;
    batchllm_engine_options_init(&engine_options, sizeof engine_options);
    engine_options.model_dir = getenv("BATCHLLM_TEXT_MODEL");
    engine_options.backend = "cpu";
    engine_options.kv_memory_bytes = 1 << 24;
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&engine_options, &engine));
    for (int32_t reorder = 0; reorder < 2; ++reorder) {
        batchllm_table_options options = options_of("Tell: {a}", reorder);
        batchllm_table *table = NULL;
        assert_ok(batchllm_table_create(3, &column, 1, &options, &table));
        const batchllm_params params = params_of(2);
        assert_ok(batchllm_add_table(engine, table, NULL, &params, 1));
        batchllm_table_destroy(table);
        assert_ok(batchllm_run(engine, NULL, NULL));
        batchllm_results *results = NULL;
        assert_ok(batchllm_poll(engine, 0, &results));
        assert_int_equal(results->count, 3);
        for (int64_t i = 0; i < 3; ++i) {
            assert_int_equal(results->statuses[i], results->tags[i] % 3 == 1
                                                       ? BATCHLLM_ERROR_ROW_INVALID_UTF8
                                                       : BATCHLLM_OK);
        }
        batchllm_results_free(results);
    }
    batchllm_engine_destroy(engine);
}

static int warnings;
static char last_warning[1024];
static void take_warning(void *user, int32_t level, const char *message) {
    (void)user;
    if (level != BATCHLLM_LOG_WARNING) return;
    ++warnings;
    snprintf(last_warning, sizeof last_warning, "%s", message);
}

/* 200 rows of tokens: 10 of the row's own and 90 that all share, in this order or the other. */
static void add_hundred_token_rows(batchllm_engine *engine, int own_first) {
    int32_t tokens[200 * 100];
    int64_t offsets[201];
    for (int64_t i = 0; i < 200; ++i) {
        offsets[i] = 100 * i;
        for (int32_t j = 0; j < 100; ++j) {
            const int own = own_first ? j < 10 : j >= 90;
            tokens[100 * i + j] = (int32_t)(own ? (i * 37 + j * 11 + i * j) % 997 : j * 7);
        }
    }
    offsets[200] = 100 * 200;
    const batchllm_params params = params_of(1);
    assert_ok(batchllm_add_tokens(engine, 200, tokens, offsets, NULL, &params, 1));
    assert_ok(batchllm_build_groups(engine));
}

static void advice_is_given_once_and_only_where_it_helps(void **state) {
    (void)state;
    for (int own_first = 0; own_first < 2; ++own_first) {
        warnings = 0;
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.log = take_warning;
        batchllm_engine *engine = sim_engine_with(&options);
        add_hundred_token_rows(engine, own_first);
        batchllm_plan *plan = NULL;
        assert_ok(batchllm_engine_get_plan(engine, &plan));
        assert_int_equal(warnings, own_first);
        assert_ok(batchllm_run(engine, NULL, NULL));
        add_hundred_token_rows(engine, own_first);
        batchllm_plan_advice advice;
        advice.struct_size = sizeof advice;
        assert_ok(batchllm_plan_get_advice(plan, &advice));
        assert_int_equal(warnings, own_first);
        if (own_first) {
            assert_int_equal(advice.kind, BATCHLLM_ADVICE_COMMON_FIRST);
            assert_int_equal(advice.common_tokens, 90);
            assert_int_equal(advice.begin, 10);
            assert_non_null(strstr(last_warning, "Put what rows have in common first"));
            // A plan numbers its rows, but a reader of the log knows their tags.
            assert_non_null(strstr(advice.text, "(tokens 10 to 100 of row 0)"));
            assert_non_null(strstr(last_warning, "(tokens 10 to 100 of the row with tag 0)"));
        } else {
            assert_int_equal(advice.kind, BATCHLLM_ADVICE_NONE);
            assert_string_equal(advice.text, "");
        }
        batchllm_plan_destroy(plan);
        batchllm_engine_destroy(engine);
    }
    batchllm_plan_advice advice;
    advice.struct_size = sizeof advice;
    assert_error(batchllm_plan_get_advice(NULL, &advice), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "plan is NULL");
}

static void assert_items(const batchllm_column *column, int64_t n, const char *const *items) {
    assert_int_equal(column->count, n);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t bytes = column->offsets[i + 1] - column->offsets[i];
        assert_int_equal(bytes, (int64_t)strlen(items[i]));
        assert_memory_equal(column->text + column->offsets[i], items[i], (size_t)bytes);
        assert_int_equal(column->statuses[i], BATCHLLM_OK);
    }
}

static void a_template_is_split_into_texts_and_columns(void **state) {
    (void)state;
    const char *text = "A {{brace}}\n{own}\nKind: {kind} (of it)\nAnswer:";
    batchllm_column *column = NULL;
    assert_ok(batchllm_template_split(text, -1, NULL, 0, &column));
    const char *const given[] = {"A {brace}\n", "own", "\nKind: ", "kind", " (of it)\nAnswer:"};
    assert_items(column, 5, given);
    batchllm_column_free(column);
    const int32_t order[] = {1, 0}, twice[] = {1, 1}, beyond[] = {0, 2};
    assert_ok(batchllm_template_split(text, (int64_t)strlen(text), order, 2, &column));
    const char *const moved[] = {"A {brace}\nKind: ", "kind", " (of it)\nown: ", "own",
                                 "\nAnswer:"};
    assert_items(column, 5, moved);
    batchllm_column_free(column);
    assert_error(batchllm_template_split(text, -1, twice, 2, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "order: 1");
    assert_null(column);
    assert_error(batchllm_template_split(text, -1, beyond, 2, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "order: 2");
    assert_error(batchllm_template_split(text, -1, order, 1, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "order_count is 1 and the template has 2 columns");
    assert_error(batchllm_template_split("{a} {b}", -1, order, 2, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "in one line");
    assert_error(batchllm_template_split("{a", -1, NULL, 0, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "at byte 0");
    assert_error(batchllm_template_split(NULL, -1, NULL, 0, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "template_text is NULL");
}

/* A text of each row's own, a key of 50 values, a long text that the key determines, two values. */
static void a_template_is_ordered_by_what_a_sample_shares(void **state) {
    (void)state;
    enum { rows = 500 };
    static uint64_t cells[rows * 4];
    static int32_t bytes[rows * 4];
    for (int i = 0; i < rows; ++i) {
        const uint64_t values[] = {(uint64_t)i, (uint64_t)(i * 7 % 50),
                                   (uint64_t)(i * 7 % 50) << 40, (uint64_t)(i / 3 % 2)};
        const int32_t lengths[] = {40, 5, 200, 3};
        memcpy(cells + 4 * i, values, sizeof values);
        memcpy(bytes + 4 * i, lengths, sizeof lengths);
    }
    const char *text = "{own}\n{key}\n{long}\n{two}";
    int32_t order[4];
    assert_ok(batchllm_template_order(text, -1, rows, cells, bytes, order, 4));
    const int32_t expected[] = {2, 1, 3, 0};
    assert_memory_equal(order, expected, sizeof order);
    assert_ok(batchllm_template_order(text, -1, 0, NULL, NULL, order, 4));
    for (int32_t i = 0; i < 4; ++i) assert_int_equal(order[i], i);
    assert_error(batchllm_template_order(text, -1, rows, cells, bytes, order, 3),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "order_count is 3");
    assert_error(batchllm_template_order(text, -1, 1, NULL, bytes, order, 4),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "cells is NULL");
}

/* Which range a prompt is in, as the header says. */
static int64_t range_of(const batchllm_ranges *ranges, const char *head, int64_t place) {
    int64_t range = 0;
    for (int64_t i = 0; i < ranges->count; ++i) {
        const size_t bytes = (size_t)(ranges->offsets[i + 1] - ranges->offsets[i]),
                     own = strlen(head);
        int order = memcmp(head, ranges->starts + ranges->offsets[i], own < bytes ? own : bytes);
        if (order == 0) order = own < bytes ? -1 : own > bytes;
        range += order > 0 || (order == 0 && place >= ranges->places[i]);
    }
    return range;
}

static void ranges_do_not_cut_prefixes(void **state) {
    (void)state;
    enum { groups = 8, each = 10, head = 100 };
    static char starts[groups * each * head];
    static int64_t offsets[groups * each + 1], lengths[groups * each], places[groups * each];
    for (int i = 0; i < groups * each; ++i) { /* out of order; a prefix of 90 bytes each */
        const int group = i * 3 % groups;
        memset(starts + i * head, 'a' + group, 90);
        snprintf(starts + i * head + 90, 10, "%09d", i);
        starts[i * head + 99] = '.';
        offsets[i + 1] = offsets[i] + head;
        lengths[i] = head;
        places[i] = i;
    }
    batchllm_ranges_options options;
    batchllm_ranges_options_init(&options, sizeof options);
    options.partitions = 4;
    batchllm_ranges *ranges = NULL;
    assert_ok(
        batchllm_ranges_choose(groups * each, starts, offsets, lengths, places, &options, &ranges));
    assert_int_equal(ranges->count, 3);
    assert_int_equal(ranges->blind, 0);
    for (int64_t i = 0; i < 3; ++i) { /* the shortest head that separates */
        assert_int_equal(ranges->offsets[i + 1] - ranges->offsets[i], 1);
        assert_int_equal(ranges->starts[ranges->offsets[i]], 'a' + 2 * (i + 1));
    }
    const char *const prompts[] = {"a", "bz", "c", "fzz", "g", "zz", ""};
    const int64_t expected[] = {0, 0, 1, 2, 3, 3, 0};
    for (int i = 0; i < 7; ++i) assert_int_equal(range_of(ranges, prompts[i], 0), expected[i]);
    batchllm_ranges_free(ranges);

    /* Of one byte, starts are equal within a group, which is then divided by places. */
    options.start_bytes = 1;
    options.partitions = 16;
    assert_ok(
        batchllm_ranges_choose(groups * each, starts, offsets, lengths, places, &options, &ranges));
    assert_int_equal(ranges->count, 15);
    assert_int_equal(ranges->blind, 1);
    batchllm_ranges_free(ranges);
    options.partitions = 1000;
    assert_ok(batchllm_ranges_choose(3, starts, offsets, lengths, places, &options, &ranges));
    assert_int_equal(ranges->count, 2); /* no more ranges than rows */
    batchllm_ranges_free(ranges);
    assert_ok(batchllm_ranges_choose(0, NULL, offsets, NULL, NULL, NULL, &ranges));
    assert_int_equal(ranges->count, 0);
    batchllm_ranges_free(ranges);
    batchllm_ranges_free(NULL);
    const int64_t negative[] = {1, -1, 1};
    assert_error(batchllm_ranges_choose(3, starts, offsets, negative, places, &options, &ranges),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "lengths[1] is -1");
    options.partitions = 0;
    assert_error(batchllm_ranges_choose(3, starts, offsets, lengths, places, &options, &ranges),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "0 partitions");
    options.partitions = 1;
    options.rows = 2;
    assert_error(batchllm_ranges_choose(3, starts, offsets, lengths, places, &options, &ranges),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "a sample of 3 rows from 2");
    assert_error(batchllm_ranges_choose(3, starts, offsets, NULL, places, NULL, &ranges),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "lengths is NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_made_of_columns),
        cmocka_unit_test(what_is_wrong_with_a_table_is_said),
        cmocka_unit_test(odd_columns_are_read_or_refused),
        cmocka_unit_test(rows_of_a_table_get_their_results),
        cmocka_unit_test(a_cell_that_is_not_utf8_is_its_row_s_error),
        cmocka_unit_test(advice_is_given_once_and_only_where_it_helps),
        cmocka_unit_test(a_template_is_split_into_texts_and_columns),
        cmocka_unit_test(a_template_is_ordered_by_what_a_sample_shares),
        cmocka_unit_test(ranges_do_not_cut_prefixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
