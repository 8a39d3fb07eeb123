/* Pictures by the C interface. That rows say what transformers says: runtime/test_engine_pictures.cc. */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api_helpers.h"

static const char directory[] = "golden/qwen3_vl_pictures";
static const char text[] = "<|vision_start|><|image_pad|><|vision_end|>What is this?";

static batchllm_engine *engine_with(const batchllm_pictures *pictures) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = directory;
    options.backend = "cpu";
    options.compute_type = "f32";
    options.kv_memory_bytes = 16 << 20;
    options.threads = 2;
    options.pictures = pictures;
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&options, &engine));
    return engine;
}

static batchllm_pictures *pictures_in(const char *folder) {
    batchllm_pictures_options options;
    batchllm_pictures_options_init(&options, sizeof options);
    options.model_dir = directory;
    options.folders = &folder;
    options.folder_count = folder != NULL;
    batchllm_pictures *pictures = NULL;
    assert_ok(batchllm_pictures_create(&options, &pictures));
    return pictures;
}

static void rows_name_pictures_in_folders(void **state) {
    (void)state;
    batchllm_pictures *pictures = pictures_in(directory);
    batchllm_engine *engine = engine_with(pictures);
    const char names[] = "picture_0.pngnone.png";
    const int64_t offsets[] = {0, 13, 21}, rows[] = {0, 1, 2};
    const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME, BATCHLLM_PICTURE_NAME};
    const int64_t length = (int64_t)strlen(text);
    char twice[2 * sizeof text];
    snprintf(twice, sizeof twice, "%s%s", text, text);
    const int64_t text_offsets[] = {0, length, 2 * length};
    batchllm_picture_column column = {sizeof column,          0,       rows,
                                      (const uint8_t *)names, offsets, kinds};
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 3;
    params.ignore_eos = 1;
    assert_ok(batchllm_add_pictures(engine, 2, twice, text_offsets, &column, NULL, &params, 1));
    batchllm_pictures_destroy(pictures); /* the engine keeps what it needs */
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 2);
    for (int64_t i = 0; i < 2; ++i) {
        const int good = results->tags[i] == 0;
        assert_int_equal(results->statuses[i], good ? BATCHLLM_OK : BATCHLLM_ERROR_ROW_PICTURE);
        assert_int_equal(results->token_offsets[i + 1] - results->token_offsets[i], good ? 3 : 0);
    }
    batchllm_results_free(results);
    batchllm_info info;
    info.struct_size = sizeof info;
    assert_ok(batchllm_engine_info(engine, 0, &info));
    assert_true(info.picture_slots > 0 && info.picture_tokens > 0);
    batchllm_engine_destroy(engine);
}

/* A text, a conversation and the tokens of both are scored alike; a picture that is missing is its row's error. */
static void rows_with_pictures_are_scored(void **state) {
    (void)state;
    batchllm_pictures *pictures = pictures_in(directory);
    batchllm_engine *engine = engine_with(pictures);
    static const char conversation[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, "
                                       "{\"type\": \"text\", \"text\": \"What is this?\"}]}]";
    char rendered[256];
    snprintf(rendered, sizeof rendered, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n",
             text);
    const char *prompts[] = {rendered, conversation};
    const char answers[] = "yesno";
    const int64_t answer_offsets[] = {0, 3, 5}, answer_rows[] = {0, 2};
    const int64_t rows[] = {0, 1};
    const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME};
    const char *names[] = {"picture_0.png", "picture_0.png", "none.png"};
    for (int i = 0; i < 3; ++i) {
        const char *prompt = prompts[i % 2];
        const int64_t offsets[] = {0, (int64_t)strlen(prompt)};
        const int64_t name_offsets[] = {0, (int64_t)strlen(names[i])};
        const batchllm_picture_column column = {
            sizeof column, i % 2, rows, (const uint8_t *)names[i], name_offsets, kinds};
        const uint64_t tag = (uint64_t)i;
        assert_ok(batchllm_add_score_pictures(engine, 1, prompt, offsets, &column, answers,
                                              answer_offsets, answer_rows, &tag, NULL));
    }
    const int64_t offsets[] = {0, (int64_t)strlen(rendered)}, name_offsets[] = {0, 13};
    const batchllm_picture_column column = {sizeof column, 0,    rows, (const uint8_t *)names[0],
                                            name_offsets,  kinds};
    batchllm_column *prompt = NULL, *ends = NULL;
    assert_ok(batchllm_pictures_encode(pictures, 1, rendered, offsets, &column,
                                       BATCHLLM_ENCODE_PARSE_SPECIAL, 1, &prompt));
    assert_ok(batchllm_pictures_encode(pictures, 2, answers, answer_offsets, NULL, 0, 1, &ends));
    const uint64_t last = 3;
    assert_ok(batchllm_add_score_tokens(engine, 1, prompt->tokens, prompt->offsets, ends->tokens,
                                        ends->offsets, answer_rows, &last, NULL));
    batchllm_column_free(prompt);
    batchllm_column_free(ends);
    batchllm_pictures_destroy(pictures);
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 4);
    double scores[4][2] = {{0}};
    for (int64_t i = 0; i < 4; ++i) {
        const uint64_t tag = results->tags[i];
        assert_int_equal(results->statuses[i], tag == 2 ? BATCHLLM_ERROR_ROW_PICTURE : BATCHLLM_OK);
        const int64_t first = results->score_offsets[i],
                      count = results->score_offsets[i + 1] - first;
        assert_int_equal(count, tag == 2 ? 0 : 2);
        for (int64_t c = 0; c < count; ++c) scores[tag][c] = results->scores[first + c];
    }
    for (int c = 0; c < 2; ++c) {
        assert_true(scores[3][c] < 0);
        assert_float_equal(scores[0][c], scores[3][c], 1e-4);
        assert_float_equal(scores[1][c], scores[3][c], 1e-4);
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void ids_come_from_the_content(void **state) {
    (void)state;
    const int64_t length = (int64_t)strlen(text), text_offsets[] = {0, length};
    const char *names[] = {"picture_0.png", "picture_0.png", "picture_1.png"};
    int32_t ids[3] = {0, 0, 0};
    for (int i = 0; i < 3; ++i) {
        batchllm_pictures *pictures = pictures_in(directory);
        const int64_t rows[] = {0, 1}, offsets[] = {0, 13};
        const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME};
        const batchllm_picture_column column = {
            sizeof column, 0, rows, (const uint8_t *)names[i], offsets, kinds};
        batchllm_column *made = NULL;
        assert_ok(batchllm_pictures_encode(pictures, 1, text, text_offsets, &column,
                                           BATCHLLM_ENCODE_PARSE_SPECIAL, 1, &made));
        batchllm_pictures_destroy(pictures); /* the column keeps what it needs */
        assert_int_equal(made->statuses[0], BATCHLLM_OK);
        for (int64_t t = 0; t < made->offsets[1]; ++t) {
            if (made->tokens[t] >= 1 << 30) ids[i] = made->tokens[t];
        }
        batchllm_column_free(made);
    }
    assert_true(ids[0] >= 1 << 30);
    assert_int_equal(ids[0], ids[1]);
    assert_int_not_equal(ids[0], ids[2]);
}

/* A conversation's pictures come before the template's text; a cell that is null stays an error. */
static void rows_of_a_table_have_pictures(void **state) {
    (void)state;
    batchllm_pictures *pictures = pictures_in(directory);
    batchllm_engine *engine = engine_with(pictures);
    const int64_t cells[] = {0, 13, 13};
    const uint8_t first_valid = 1;
    const batchllm_table_column given = {sizeof given,    0,     "q",
                                         "What is this?", cells, &first_valid};
    const int32_t counts[] = {1, 1};
    batchllm_table_options options;
    batchllm_table_options_init(&options, sizeof options);
    options.template_text = "{q}";
    options.chat = 1;
    options.pictures = counts;
    batchllm_table *table = NULL;
    assert_ok(batchllm_table_create(2, &given, 1, &options, &table));
    const batchllm_column *prompts = batchllm_table_prompts(table);
    const char expected[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},"
                            "{\"type\":\"text\",\"text\":\"What is this?\"}]}]";
    assert_int_equal(prompts->offsets[1], strlen(expected));
    assert_memory_equal(prompts->text, expected, strlen(expected));
    const int64_t offsets[] = {0, 13, 26}, rows[] = {0, 1, 2};
    const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME, BATCHLLM_PICTURE_NAME};
    const char names[] = "picture_0.pngpicture_0.png";
    batchllm_picture_column column = {sizeof column,          0,       rows,
                                      (const uint8_t *)names, offsets, kinds};
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 3;
    params.ignore_eos = 1;
    assert_ok(batchllm_add_table_pictures(engine, table, &column, NULL, &params, 1));
    batchllm_table_destroy(table);
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 2);
    for (int64_t i = 0; i < 2; ++i) {
        const int good = results->tags[i] == 0;
        assert_int_equal(results->statuses[i], good ? BATCHLLM_OK : BATCHLLM_ERROR_ROW_NULL);
    }
    batchllm_results_free(results);
    const int32_t negative[] = {1, -1};
    options.pictures = negative;
    assert_int_equal(batchllm_table_create(2, &given, 1, &options, &table),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    batchllm_pictures_destroy(pictures);
    batchllm_engine_destroy(engine);
}

static void copy(const char *from, const char *to, int change) {
    static unsigned char bytes[1 << 16];
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    const size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    bytes[size - 1] ^= (unsigned char)change;
    file = fopen(to, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* Reads the picture for a row and appends the row's result. */
static int32_t read_and_append(const char *output, const char *folder, int64_t row) {
    batchllm_journal_options options;
    batchllm_journal_options_init(&options, sizeof options);
    options.output_path = output;
    options.existing = BATCHLLM_JOURNAL_RESUME;
    batchllm_journal *journal = NULL;
    assert_ok(batchllm_journal_open(&options, &journal));
    batchllm_pictures *pictures = pictures_in(folder);
    const int32_t status = batchllm_journal_use_pictures(journal, pictures);
    if (status == BATCHLLM_OK) {
        const int64_t text_offsets[] = {0, (int64_t)strlen(text)}, rows[] = {0, 1};
        const int64_t offsets[] = {0, 5}, line[] = {0, 2};
        const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME};
        const batchllm_picture_column column = {sizeof column, 0,    rows, (const uint8_t *)"a.png",
                                                offsets,       kinds};
        batchllm_column *made = NULL;
        assert_ok(batchllm_pictures_encode(pictures, 1, text, text_offsets, &column,
                                           BATCHLLM_ENCODE_PARSE_SPECIAL, 1, &made));
        batchllm_column_free(made);
        assert_ok(batchllm_journal_append_lines(journal, 1, &row, NULL, "x\n", line));
    }
    batchllm_pictures_destroy(pictures);
    batchllm_journal_destroy(journal);
    return status;
}

static void a_journal_knows_the_pictures_of_its_job(void **state) {
    (void)state;
    char folder[] = "/tmp/batchllm_pictures_XXXXXX", picture[64], output[64], listed[80];
    char states[80];
    assert_non_null(mkdtemp(folder));
    snprintf(picture, sizeof picture, "%s/a.png", folder);
    snprintf(output, sizeof output, "%s/out", folder);
    snprintf(listed, sizeof listed, "%s.pictures", output);
    snprintf(states, sizeof states, "%s.state", output);
    copy("golden/qwen3_vl_pictures/picture_0.png", picture, 0);
    assert_ok(read_and_append(output, folder, 0));
    assert_ok(read_and_append(output, folder, 1));
    copy("golden/qwen3_vl_pictures/picture_0.png", picture, 1);
    assert_int_equal(read_and_append(output, folder, 2), BATCHLLM_ERROR_JOURNAL_MISMATCH);
    assert_non_null(strstr(batchllm_last_error(), "a.png"));
    copy("golden/qwen3_vl_pictures/picture_0.png", picture, 0);
    assert_ok(read_and_append(output, folder, 2));
    assert_int_equal(batchllm_journal_use_pictures(NULL, NULL), BATCHLLM_ERROR_INVALID_ARGUMENT);
    const char *files[] = {picture, output, listed, states};
    for (int i = 0; i < 4; ++i) assert_int_equal(unlink(files[i]), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void a_name_that_has_become_wrong_is_its_row_s_error(void **state) {
    (void)state;
    char folder[] = "/tmp/batchllm_pictures_XXXXXX", picture[64];
    assert_non_null(mkdtemp(folder));
    snprintf(picture, sizeof picture, "%s/a.png", folder);
    copy("golden/qwen3_vl_pictures/picture_0.png", picture, 0);
    batchllm_pictures *pictures = pictures_in(folder);
    const int64_t text_offsets[] = {0, (int64_t)strlen(text)}, rows[] = {0, 1};
    const int64_t offsets[] = {0, 5};
    const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME};
    const batchllm_picture_column column = {sizeof column, 0,    rows, (const uint8_t *)"a.png",
                                            offsets,       kinds};
    batchllm_column *made[2];
    for (int i = 0; i < 2; ++i) {
        assert_ok(batchllm_pictures_encode(pictures, 1, text, text_offsets, &column,
                                           BATCHLLM_ENCODE_PARSE_SPECIAL, 1, &made[i]));
        assert_int_equal(made[i]->statuses[0], i == 0 ? BATCHLLM_OK : BATCHLLM_ERROR_ROW_PICTURE);
        assert_int_equal(unlink(picture), 0);
        if (i == 0) assert_int_equal(symlink("a.png", picture), 0); /* leads to itself */
    }
    for (int i = 0; i < 2; ++i) batchllm_column_free(made[i]);
    batchllm_pictures_destroy(pictures);
    assert_int_equal(rmdir(folder), 0);
}

static batchllm_journal *journal_at(const char *output, batchllm_pictures *pictures) {
    batchllm_journal_options options;
    batchllm_journal_options_init(&options, sizeof options);
    options.output_path = output;
    batchllm_journal *journal = NULL;
    assert_ok(batchllm_journal_open(&options, &journal));
    assert_ok(batchllm_journal_use_pictures(journal, pictures));
    return journal;
}

/* How often a file's text has the name. */
static int count_in(const char *path, const char *name) {
    char listed[4096];
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    listed[fread(listed, 1, sizeof listed - 1, file)] = 0;
    fclose(file);
    int count = 0;
    for (const char *at = strstr(listed, name); at; at = strstr(at + 1, name)) ++count;
    return count;
}

/* Also one that another call has read before, and holds. */
static void each_journal_lists_the_pictures_of_its_rows(void **state) {
    (void)state;
    char folder[] = "/tmp/batchllm_pictures_XXXXXX", path[256];
    char outputs[3][64];
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 3; ++i) snprintf(outputs[i], sizeof outputs[i], "%s/out%d", folder, i);
    batchllm_pictures *pictures = pictures_in(directory);
    batchllm_journal *journals[3] = {journal_at(outputs[0], pictures),
                                     journal_at(outputs[1], pictures), NULL};
    const int64_t text_offsets[] = {0, (int64_t)strlen(text)}, rows[] = {0, 1}, row = 0;
    const int64_t offsets[] = {0, 13}, line[] = {0, 2};
    const uint8_t kinds[] = {BATCHLLM_PICTURE_NAME};
    const batchllm_picture_column column = {
        sizeof column, 0, rows, (const uint8_t *)"picture_0.png", offsets, kinds};
    batchllm_column *made[3];
    for (int i = 0; i < 3; ++i) {
        if (i == 2) journals[2] = journal_at(outputs[2], pictures);
        assert_ok(batchllm_pictures_encode(pictures, 1, text, text_offsets, &column,
                                           BATCHLLM_ENCODE_PARSE_SPECIAL, 1, &made[i]));
    }
    for (int i = 0; i < 3; ++i) {
        batchllm_column_free(made[i]);
        assert_ok(batchllm_journal_append_lines(journals[i], 1, &row, NULL, "x\n", line));
        batchllm_journal_destroy(journals[i]);
        snprintf(path, sizeof path, "%s.pictures", outputs[i]);
        assert_int_equal(count_in(path, "picture_0.png"), 1);
        assert_int_equal(unlink(path), 0);
        snprintf(path, sizeof path, "%s.state", outputs[i]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(unlink(outputs[i]), 0);
    }
    batchllm_pictures_destroy(pictures);
    assert_int_equal(rmdir(folder), 0);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    batchllm_pictures_options options;
    batchllm_pictures_options_init(&options, sizeof options);
    batchllm_pictures *pictures = NULL;
    assert_int_equal(batchllm_pictures_create(&options, &pictures),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_int_equal(batchllm_pictures_create(NULL, &pictures), BATCHLLM_ERROR_INVALID_ARGUMENT);
    options.model_dir = directory;
    const char *missing = "golden/none";
    options.folders = &missing;
    options.folder_count = 1;
    assert_int_equal(batchllm_pictures_create(&options, &pictures), BATCHLLM_ERROR_IO);
    assert_null(pictures);
    batchllm_pictures_destroy(NULL);

    batchllm_engine *engine = engine_with(NULL);
    const int64_t text_offsets[] = {0, 1}, offsets[] = {0, 1}, falling[] = {1, 0}, rows[] = {0, 1};
    const uint8_t kinds[] = {7};
    batchllm_picture_column column = {sizeof column, 0, falling, kinds, offsets, NULL};
    const int32_t status = BATCHLLM_ERROR_INVALID_ARGUMENT;
    assert_int_equal(batchllm_add_pictures(engine, 1, "a", text_offsets, &column, NULL, NULL, 0),
                     status);
    column.rows = rows;
    column.kinds = kinds;
    assert_int_equal(batchllm_add_pictures(engine, 1, "a", text_offsets, &column, NULL, NULL, 0),
                     status);
    column.kinds = NULL;
    column.bytes = NULL;
    assert_int_equal(batchllm_add_pictures(engine, 1, "a", text_offsets, &column, NULL, NULL, 0),
                     status);
    batchllm_column *made = NULL;
    assert_int_equal(batchllm_pictures_encode(NULL, 0, NULL, NULL, NULL, 0, 1, &made), status);
    batchllm_engine_destroy(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_name_pictures_in_folders),
        cmocka_unit_test(rows_with_pictures_are_scored),
        cmocka_unit_test(ids_come_from_the_content),
        cmocka_unit_test(rows_of_a_table_have_pictures),
        cmocka_unit_test(a_journal_knows_the_pictures_of_its_job),
        cmocka_unit_test(a_name_that_has_become_wrong_is_its_row_s_error),
        cmocka_unit_test(each_journal_lists_the_pictures_of_its_rows),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
