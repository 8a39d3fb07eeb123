/* batchllm_journal_*: jobs that are cut anywhere and resumed. */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api_helpers.h"

static char folder[] = "/tmp/batchllm_journal_XXXXXX";
static char output[256], state[280], blocks[280], made[280], retried[280];

static int make_folder(void **unused) {
    (void)unused;
    if (!mkdtemp(folder)) return -1;
    snprintf(output, sizeof output, "%s/out", folder);
    snprintf(state, sizeof state, "%s.state", output);
    snprintf(blocks, sizeof blocks, "%s.blocks", output);
    snprintf(made, sizeof made, "%s.made", output);
    snprintf(retried, sizeof retried, "%s.retry", output);
    return 0;
}

static int empty_folder(void **unused) {
    (void)unused;
    unlink(output);
    unlink(state);
    unlink(blocks);
    unlink(made);
    unlink(retried);
    return 0;
}

static int remove_folder(void **unused) {
    empty_folder(unused);
    return rmdir(folder);
}

static int there(const char *path) { return access(path, F_OK) == 0; }

static int64_t size_of(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(text, 1, strlen(text), file);
    assert_int_equal(fclose(file), 0);
}

/* The file's text; freed by the next call. */
static const char *get(const char *path) {
    static char text[4096];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    return text;
}

static batchllm_journal_options job(int32_t kind, int32_t existing) {
    static const char *const names[] = {"temperature", "words"};
    static const char *const values[] = {"0.5", "\"a\"\n"};
    batchllm_journal_options options;
    batchllm_journal_options_init(&options, sizeof options);
    options.output_path = output;
    options.kind = kind;
    options.existing = existing;
    options.part_names = names;
    options.part_values = values;
    options.part_count = 2;
    return options;
}

static batchllm_journal *open_job(int32_t kind, int32_t existing) {
    const batchllm_journal_options options = job(kind, existing);
    batchllm_journal *journal = NULL;
    assert_ok(batchllm_journal_open(&options, &journal));
    return journal;
}

static int32_t fails_to_open(int32_t kind, int32_t existing) {
    const batchllm_journal_options options = job(kind, existing);
    batchllm_journal *journal = (batchllm_journal *)&options;
    const int32_t status = batchllm_journal_open(&options, &journal);
    assert_null(journal);
    return status;
}

static batchllm_journal_info info_of(const batchllm_journal *journal) {
    batchllm_journal_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    assert_ok(batchllm_journal_get_info(journal, &info));
    return info;
}

static int is_done(const batchllm_journal *journal, int64_t row) {
    const batchllm_journal_info info = info_of(journal);
    return row / 8 < info.done_bytes && info.done[row / 8] >> row % 8 & 1;
}

/* As a state ends whose job is complete (hash: of the output), or drops lines (1). */
static void end_state(uint64_t hash) {
    FILE *file = fopen(state, "r+b");
    assert_non_null(file);
    unsigned char record[16];
    memset(record, 0xFF, 8);
    for (int i = 0; i < 8; ++i) record[8 + i] = (unsigned char)(hash >> 8 * i);
    assert_int_equal(fseek(file, hash == 1 ? 0 : -16, SEEK_END), 0);
    assert_int_equal(fwrite(record, 1, 16, file), 16);
    assert_int_equal(fclose(file), 0);
}

/* "row N" for each row; rows with odd numbers have failed. */
static int32_t add_lines(batchllm_journal *journal, int64_t n, const int64_t *rows) {
    char text[512];
    int64_t offsets[16] = {0};
    uint8_t failed[16];
    for (int64_t i = 0; i < n; ++i) {
        const int bytes = snprintf(text + offsets[i], 32, "row %lld\n", (long long)rows[i]);
        offsets[i + 1] = offsets[i] + bytes;
        failed[i] = (uint8_t)(rows[i] % 2);
    }
    return batchllm_journal_append_lines(journal, n, rows, failed, text, offsets);
}

static int32_t add_block(batchllm_journal *journal, int64_t n, const int64_t *rows,
                         const char *block) {
    uint8_t failed[16];
    for (int64_t i = 0; i < n; ++i) failed[i] = (uint8_t)(rows[i] % 2);
    return batchllm_journal_append_block(journal, n, rows, failed, block, (int64_t)strlen(block));
}

static void lines_cut_anywhere_are_resumed_at_a_whole_line(void **unused) {
    (void)unused;
    const int64_t first[] = {5, 0}, second[] = {9}, more[] = {70};
    for (long cut = 0; cut <= 18; ++cut) {
        empty_folder(NULL);
        batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
        assert_ok(add_lines(journal, 2, first));
        assert_ok(add_lines(journal, 1, second));
        assert_int_equal(info_of(journal).rows_written, 3);
        assert_int_equal(info_of(journal).failed_written, 2);
        assert_int_equal(info_of(journal).rows_done, 0);
        batchllm_journal_destroy(journal);
        assert_string_equal(get(output), "row 5\nrow 0\nrow 9\n");
        assert_int_equal(truncate(output, cut), 0);

        journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
        const long kept = cut / 6;
        assert_int_equal(info_of(journal).rows_done, kept);
        assert_int_equal(info_of(journal).failed_done, (kept >= 1) + (kept >= 3));
        assert_int_equal(is_done(journal, 5), kept >= 1);
        assert_int_equal(is_done(journal, 0), kept >= 2);
        assert_int_equal(is_done(journal, 9), kept >= 3);
        assert_int_equal(is_done(journal, 70), 0);
        assert_int_equal(size_of(output), cut); /* nothing is changed before something is written */
        if (kept >= 1) {
            assert_error(add_lines(journal, 1, first), BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "row 5 has a result already");
        }
        assert_ok(add_lines(journal, 1, more));
        batchllm_journal_destroy(journal);
        char expected[64] = "row 5\nrow 0\nrow 9\n";
        strcpy(expected + 6 * kept, "row 70\n");
        assert_string_equal(get(output), expected);
    }
}

static void blocks_cut_anywhere_are_resumed_at_a_whole_block(void **unused) {
    (void)unused;
    const int64_t first[] = {5, 0}, second[] = {9}, more[] = {70, 3};
    const int64_t ends[] = {16 + 4, 2 * 16 + 4};
    for (long cut = 0; cut <= ends[1]; ++cut) {
        empty_folder(NULL);
        batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_REFUSE);
        assert_ok(add_block(journal, 2, first, "abcd"));
        assert_ok(add_block(journal, 1, second, ""));
        assert_ok(batchllm_journal_sync(journal));
        batchllm_journal_destroy(journal);
        assert_int_equal(size_of(blocks), ends[1]);
        assert_int_equal(truncate(blocks, cut), 0);

        journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
        const int kept = (cut >= ends[0]) + (cut >= ends[1]);
        assert_int_equal(info_of(journal).blocks, kept);
        assert_int_equal(info_of(journal).rows_done, kept == 0 ? 0 : kept + 1);
        assert_int_equal(is_done(journal, 5) && is_done(journal, 0), kept >= 1);
        assert_int_equal(is_done(journal, 9), kept == 2);
        assert_ok(add_block(journal, 2, more, "more"));
        const int64_t *rows = NULL;
        const void *bytes = NULL;
        int64_t n = 0, size = 0;
        assert_ok(batchllm_journal_read_block(journal, kept, &rows, &n, &bytes, &size));
        assert_true(n == 2 && rows[0] == 70 && rows[1] == 3);
        assert_true(size == 4 && memcmp(bytes, "more", 4) == 0);
        if (kept > 0) {
            assert_ok(batchllm_journal_read_block(journal, 0, &rows, &n, NULL, NULL));
            assert_true(n == 2 && rows[0] == 5 && rows[1] == 0);
            assert_ok(batchllm_journal_read_block(journal, 0, NULL, NULL, &bytes, &size));
            assert_true(size == 4 && memcmp(bytes, "abcd", 4) == 0);
        }
        assert_error(batchllm_journal_read_block(journal, kept + 1, &rows, &n, NULL, NULL),
                     BATCHLLM_ERROR_INVALID_ARGUMENT, "block");
        assert_error(add_block(journal, 1, more, "again"), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "row 70 has a result already");
        batchllm_journal_destroy(journal);
        journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
        assert_int_equal(info_of(journal).blocks, kept + 1);
        batchllm_journal_destroy(journal);
    }
}

/* What a crash of the machine leaves of writes that had not been synced. */
static void blocks_that_never_reached_the_disk_are_not_done(void **unused) {
    (void)unused;
    const int64_t rows[] = {1, 2, 3};
    for (long at = 0; at < 3 * (16 + 8); ++at) {
        empty_folder(NULL);
        batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_REFUSE);
        for (int i = 0; i < 3; ++i) assert_ok(add_block(journal, 1, rows + i, "12345678"));
        batchllm_journal_destroy(journal);
        const int file = open(blocks, O_WRONLY);
        char zeros[72] = {0};
        assert_int_equal(pwrite(file, zeros, (size_t)(72 - at), at), 72 - at);
        close(file);
        journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
        assert_int_equal(info_of(journal).rows_done, at / 24);
        assert_ok(batchllm_journal_sync(journal));
        assert_int_equal(size_of(blocks), at / 24 * 24);
        batchllm_journal_destroy(journal);
    }
}

static void an_output_is_finished_once(void **unused) {
    (void)unused;
    const int64_t rows[] = {0, 1};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_REFUSE);
    assert_ok(add_block(journal, 2, rows, "results"));
    assert_error(batchllm_journal_finish(journal, NULL), BATCHLLM_ERROR_STATE,
                 "there is no output");
    assert_error(batchllm_journal_finish(journal, made), BATCHLLM_ERROR_IO, "cannot open");
    put(made, "whole");
    assert_ok(batchllm_journal_finish(journal, made));
    assert_int_equal(info_of(journal).complete, 1);
    assert_error(add_block(journal, 1, rows, "x"), BATCHLLM_ERROR_STATE, "complete");
    assert_error(batchllm_journal_sync(journal), BATCHLLM_ERROR_STATE, "complete");
    batchllm_journal_destroy(journal);
    assert_string_equal(get(output), "whole");
    assert_false(there(made) || there(blocks));

    assert_error(fails_to_open(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_REFUSE),
                 BATCHLLM_ERROR_JOURNAL_EXISTS, "out: exists");
    /* As if the run had been killed before it removed the blocks, and one before it replaced the state. */
    put(blocks, "left");
    char temporary[320];
    snprintf(temporary, sizeof temporary, "%s.tmp.4711.12", state);
    put(temporary, "left");
    journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
    assert_int_equal(info_of(journal).complete, 1);
    assert_int_equal(info_of(journal).rows_done, 2);
    assert_int_equal(info_of(journal).failed_done, 1);
    batchllm_journal_destroy(journal);
    assert_false(there(blocks) || there(temporary));

    /* Without its output, nothing of the job is left. */
    unlink(output);
    journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
    assert_int_equal(info_of(journal).complete, 0);
    assert_int_equal(info_of(journal).rows_done, 0);
    batchllm_journal_destroy(journal);
    assert_false(there(blocks));
}

static void an_output_that_was_begun_again_is_not_complete(void **unused) {
    (void)unused;
    const int64_t rows[] = {0, 1};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_REFUSE);
    assert_ok(add_block(journal, 2, rows, "results"));
    put(made, "whole");
    assert_ok(batchllm_journal_finish(journal, made));
    batchllm_journal_destroy(journal);
    journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_OVERWRITE);
    assert_ok(add_block(journal, 1, rows, "again"));
    batchllm_journal_destroy(journal);
    journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
    assert_int_equal(info_of(journal).complete, 0);
    assert_int_equal(info_of(journal).rows_done, 1);
    batchllm_journal_destroy(journal);
}

static void rows_that_failed_are_tried_again(void **unused) {
    (void)unused;
    const int64_t rows[] = {0, 1, 2, 3}, offsets[] = {0, 2, 4, 6, 8};
    const uint8_t failed[] = {0, 1, 0, 1};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    assert_ok(batchllm_journal_append_lines(journal, 4, rows, failed, "a\nB\nc\nD\n", offsets));
    batchllm_journal_destroy(journal);
    journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RETRY);
    const batchllm_journal_info info = info_of(journal);
    assert_int_equal(info.rows_done, 2);
    assert_int_equal(info.failed_done, 0);
    assert_int_equal(info.done[0], 1 | 1 << 2);
    assert_string_equal(get(output), "a\nB\nc\nD\n"); /* until something is written */
    /* Row 3 fails again, with the same line. */
    assert_ok(batchllm_journal_append_lines(journal, 1, rows + 3, failed + 3, "D\n", offsets));
    assert_error(batchllm_journal_append_lines(journal, 1, rows, NULL, "a\n", offsets),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "row 0 has a result already");
    assert_string_equal(get(output), "a\nc\nD\n");
    assert_int_equal(info_of(journal).failed_written, 1);
    assert_error(fails_to_open(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME),
                 BATCHLLM_ERROR_STATE, "another run is writing");
    batchllm_journal_destroy(journal);
    journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
    assert_int_equal(info_of(journal).rows_done, 3);
    assert_int_equal(info_of(journal).failed_done, 1);
    assert_ok(batchllm_journal_append_lines(journal, 1, rows + 1, NULL, "b\n", offsets));
    batchllm_journal_destroy(journal);
    journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
    assert_int_equal(info_of(journal).rows_done, 4);
    batchllm_journal_destroy(journal);
    assert_string_equal(get(output), "a\nc\nD\nb\n");
    batchllm_journal_options options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RETRY);
    options.output_path = NULL;
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "only rows whose results are in a file");
}

/* Two lines, of which the second's row has failed. */
static void write_a_failed_line(void) {
    const int64_t rows[] = {0, 1};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_OVERWRITE);
    assert_ok(add_lines(journal, 2, rows));
    batchllm_journal_destroy(journal);
}

static void a_file_that_is_not_ours_is_not_replaced(void **unused) {
    (void)unused;
    char target[280];
    snprintf(target, sizeof target, "%s/target", folder);
    char beside_target[300];
    snprintf(beside_target, sizeof beside_target, "%s.retry", target);
    for (int linked = 0; linked < 2; ++linked) {
        if (linked) assert_int_equal(symlink(target, output), 0);
        const char *path = linked ? beside_target : retried;
        write_a_failed_line();
        put(path, "not ours");
        assert_error(fails_to_open(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RETRY),
                     BATCHLLM_ERROR_INVALID_ARGUMENT, ".retry: exists, and is not of this job");
        batchllm_journal_options options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_OVERWRITE);
        options.input_path = path;
        batchllm_journal *journal = NULL;
        assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     ".retry: is the input");
        /* A run that was killed after it had dropped the line has left nothing there. */
        put(output, "row 0\n");
        end_state(1);
        journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RETRY);
        assert_ok(batchllm_journal_sync(journal));
        batchllm_journal_destroy(journal);
        assert_string_equal(get(path), "not ours");
        /* One that comes later. */
        unlink(path);
        write_a_failed_line();
        journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RETRY);
        put(path, "not ours");
        assert_error(batchllm_journal_sync(journal), BATCHLLM_ERROR_IO,
                     ".retry: cannot create: File exists");
        assert_int_equal(info_of(journal).started, 0);
        assert_string_equal(get(output), "row 0\nrow 1\n");
        unlink(path);
        assert_ok(batchllm_journal_sync(journal));
        assert_int_equal(info_of(journal).started, 1);
        batchllm_journal_destroy(journal);
        assert_string_equal(get(output), "row 0\n");
        unlink(output);
    }
    unlink(target);
}

static void what_a_killed_run_has_left_is_removed(void **unused) {
    (void)unused;
    for (int32_t existing = BATCHLLM_JOURNAL_RESUME; existing <= BATCHLLM_JOURNAL_RETRY;
         existing += BATCHLLM_JOURNAL_RETRY - BATCHLLM_JOURNAL_RESUME) {
        write_a_failed_line();
        end_state(1);
        put(retried, "row");
        char temporary[320], other[320];
        snprintf(temporary, sizeof temporary, "%s.tmp.123.0", state);
        snprintf(other, sizeof other, "%s.tmp.123.x", state);
        put(temporary, "{");
        put(other, "{");
        batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, existing);
        assert_true(there(retried) && there(temporary));
        assert_ok(batchllm_journal_sync(journal));
        batchllm_journal_destroy(journal);
        assert_false(there(retried) || there(temporary));
        assert_int_equal(unlink(other), 0);
        assert_string_equal(get(output),
                            existing == BATCHLLM_JOURNAL_RETRY ? "row 0\n" : "row 0\nrow 1\n");
    }
}

static void results_are_taken_again_only_from_what_was_finished(void **unused) {
    (void)unused;
    for (int64_t failed = 0; failed < 2; ++failed) {
        const int64_t rows[] = {0, 2 + failed};
        batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_OVERWRITE);
        assert_ok(add_block(journal, 2, rows, "results"));
        batchllm_journal_destroy(journal);
        journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RETRY); /* as RESUME */
        assert_int_equal(info_of(journal).rows_done, 2);
        assert_int_equal(info_of(journal).failed_done, failed);
        put(made, "whole");
        assert_ok(batchllm_journal_finish(journal, made));
        batchllm_journal_destroy(journal);
        put(blocks, "left");
        journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RETRY);
        assert_int_equal(info_of(journal).complete, 1);
        assert_int_equal(info_of(journal).failed_done, failed);
        if (failed) { /* the caller reads the output now */
            assert_error(fails_to_open(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_OVERWRITE),
                         BATCHLLM_ERROR_STATE, "another run is writing to it");
        }
        batchllm_journal_destroy(journal);
        assert_false(there(blocks));
        put(output, "elohw");
        if (failed) {
            assert_error(fails_to_open(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RETRY),
                         BATCHLLM_ERROR_JOURNAL_FORMAT, "out: is not what the job wrote");
            end_state(0);
            assert_error(fails_to_open(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RETRY),
                         BATCHLLM_ERROR_JOURNAL_FORMAT, "out.state: an earlier version");
        } else {
            batchllm_journal_destroy(open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RETRY));
        }
        assert_string_equal(get(output), "elohw");
        journal = open_job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
        assert_int_equal(info_of(journal).complete, 1);
        batchllm_journal_destroy(journal);
        assert_false(there(blocks));
    }
}

static void another_job_is_refused_by_name(void **unused) {
    (void)unused;
    const int64_t rows[] = {0};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    const int64_t created = info_of(journal).created;
    assert_ok(add_lines(journal, 1, rows));
    batchllm_journal_destroy(journal);
    assert_error(fails_to_open(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE),
                 BATCHLLM_ERROR_JOURNAL_EXISTS, "out: exists");
    const char *const names[] = {"temperature", "seed"};
    const char *const values[] = {"1", "7"};
    batchllm_journal_options options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
    options.part_names = names;
    options.part_values = values;
    journal = NULL;
    const int32_t status = batchllm_journal_open(&options, &journal);
    assert_error(status, BATCHLLM_ERROR_JOURNAL_MISMATCH, "temperature (was 0.5, now 1)");
    assert_non_null(strstr(batchllm_last_error(), "seed (was unset, now 7)"));
    assert_non_null(strstr(batchllm_last_error(), "words (was \"a\"\n, now unset)"));
    options.part_count = 1;
    const char *const same[] = {"model config.json"};
    options.part_names = same;
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "two parts \"model config.json\"");
    journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
    assert_true(info_of(journal).created == created);
    batchllm_journal_destroy(journal);
}

/* States of earlier versions lack them. */
static void files_of_a_pooling_model_are_compared_if_the_state_has_them(void **unused) {
    (void)unused;
    const char *const names[] = {"model modules.json", "model 1_Pooling/config.json"};
    const char *const values[] = {"one", "two"}, *const others[] = {"one", "three"};
    const int64_t rows[] = {0};
    for (int64_t count = 0; count <= 2; ++count) {
        empty_folder(NULL);
        batchllm_journal_options options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
        options.part_names = names;
        options.part_values = values;
        options.part_count = count;
        batchllm_journal *journal = NULL;
        assert_ok(batchllm_journal_open(&options, &journal));
        assert_ok(add_lines(journal, 1, rows));
        batchllm_journal_destroy(journal);
        options.part_count = 2;
        assert_ok(batchllm_journal_open(&options, &journal));
        assert_int_equal(info_of(journal).rows_done, 1);
        batchllm_journal_destroy(journal);
        if (count < 2) continue;
        options.part_values = others;
        assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_JOURNAL_MISMATCH,
                     "model 1_Pooling/config.json (was two, now three)");
    }
}

static void an_input_is_known_by_its_content(void **unused) {
    (void)unused;
    const int64_t rows[] = {0};
    put(made, "the input\n");
    batchllm_journal_options options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
    options.input_path = made;
    batchllm_journal *journal = NULL;
    assert_ok(batchllm_journal_open(&options, &journal));
    assert_ok(add_lines(journal, 1, rows));
    batchllm_journal_destroy(journal);
    put(made, "The input\n");
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_JOURNAL_MISMATCH,
                 "input content (was ");
    for (int32_t kind = BATCHLLM_JOURNAL_LINES; kind <= BATCHLLM_JOURNAL_BLOCKS; ++kind) {
        options = job(kind, BATCHLLM_JOURNAL_OVERWRITE);
        options.input_path = output;
        assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "is the input");
    }
    options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_OVERWRITE);
    options.input_path = folder;
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_IO,
                 "not a regular file");
    assert_string_equal(get(output), "row 0\n");
}

static void changed_lines_and_a_missing_state_are_refused(void **unused) {
    (void)unused;
    const int64_t rows[] = {0, 1};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    assert_ok(add_lines(journal, 2, rows));
    batchllm_journal_destroy(journal);
    put(output, "row 2\nrow 1\n");
    assert_error(fails_to_open(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME),
                 BATCHLLM_ERROR_JOURNAL_FORMAT, "line 1 is not what an earlier run wrote there");
    put(state, "{}\n");
    assert_error(fails_to_open(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME),
                 BATCHLLM_ERROR_JOURNAL_FORMAT, "not a state file");
    unlink(state);
    assert_error(fails_to_open(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME),
                 BATCHLLM_ERROR_JOURNAL_FORMAT, "not known which rows are done");
    journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_OVERWRITE);
    assert_int_equal(size_of(output), 12);
    assert_ok(batchllm_journal_sync(journal));
    assert_int_equal(size_of(output), 0);
    batchllm_journal_destroy(journal);
}

static void one_journal_at_a_time_has_the_output(void **unused) {
    (void)unused;
    for (int32_t kind = BATCHLLM_JOURNAL_LINES; kind <= BATCHLLM_JOURNAL_BLOCKS; ++kind) {
        batchllm_journal *journal = open_job(kind, BATCHLLM_JOURNAL_REFUSE);
        for (int32_t how = BATCHLLM_JOURNAL_REFUSE; how <= BATCHLLM_JOURNAL_OVERWRITE; ++how)
            assert_error(fails_to_open(kind, how), BATCHLLM_ERROR_STATE, "another run is writing");
        batchllm_journal_destroy(journal);
        /* A journal that was not written to leaves nothing behind. */
        assert_false(there(output) || there(state) || there(blocks));
    }
}

static void a_child_of_fork_keeps_no_lock(void **unused) {
    (void)unused;
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    const int64_t row = 3;
    assert_ok(add_lines(journal, 1, &row));
    int held[2];
    assert_int_equal(pipe(held), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte;
        close(held[1]);
        _exit(read(held[0], &byte, 1) == 0 ? 0 : 1); /* until the parent closes its end */
    }
    assert_true(child > 0);
    close(held[0]);
    batchllm_journal_destroy(journal);
    journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_RESUME);
    assert_true(is_done(journal, 3));
    close(held[1]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    batchllm_journal_destroy(journal);
}

static void rows_and_lines_are_checked(void **unused) {
    (void)unused;
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    const int64_t bad[] = {-1, ((int64_t)1 << 40) - 1};
    for (int i = 0; i < 2; ++i)
        assert_error(add_lines(journal, 1, bad + i), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "rows are numbered from 0 to 1099511627774");
    const int64_t twice[] = {4, 3, 4};
    assert_error(add_lines(journal, 3, twice), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "row 4 has a result already");
    const char *const lines[] = {"", "no end", "two\nends\n", "\n\n"};
    for (int i = 0; i < 4; ++i) {
        const int64_t offsets[] = {0, (int64_t)strlen(lines[i])};
        assert_error(batchllm_journal_append_lines(journal, 1, twice, NULL, lines[i], offsets),
                     BATCHLLM_ERROR_INVALID_ARGUMENT, "line 0: a line has one LF");
    }
    const int64_t offsets[] = {0, 4};
    assert_error(batchllm_journal_append_lines(journal, 1, twice, NULL, "a\0b\n", offsets),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "no zero byte");
    assert_error(batchllm_journal_append_lines(journal, 1, NULL, NULL, "abc\n", offsets),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "rows is NULL");
    assert_error(add_block(journal, 1, twice, "x"), BATCHLLM_ERROR_STATE, "lines, not blocks");
    assert_error(batchllm_journal_finish(journal, NULL), BATCHLLM_ERROR_STATE, "lines");
    assert_int_equal(info_of(journal).rows_written, 0);
    assert_ok(add_lines(journal, 2, twice));
    const int64_t part[] = {2, 6};
    const int64_t other[] = {8};
    assert_ok(batchllm_journal_append_lines(journal, 1, other, NULL, "--abc\n", part));
    assert_ok(batchllm_journal_append_lines(journal, 0, NULL, NULL, NULL, part));
    assert_string_equal(get(output), "row 4\nrow 3\nabc\n");
    batchllm_journal_destroy(journal);

    batchllm_journal_options options = job(2, 0);
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "kind is 2");
    options = job(0, 4);
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "existing is 4");
    options = job(0, 0);
    options.output_path = "";
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "output_path is empty");
    options = job(0, BATCHLLM_JOURNAL_RESUME);
    options.keep_state = 0;
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "no state");
    assert_error(batchllm_journal_open(NULL, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "options is NULL");
    assert_error(batchllm_journal_sync(NULL), BATCHLLM_ERROR_INVALID_ARGUMENT, "journal is NULL");
    batchllm_journal_destroy(NULL);
}

/* On a disk that is full, whole entries are kept and counted, and the journal goes on when there is room. */
static void what_fits_is_kept(void **unused) {
    (void)unused;
    signal(SIGXFSZ, SIG_IGN);
    const int64_t rows[] = {1, 2, 3, 4, 5, 6};
    for (int32_t kind = BATCHLLM_JOURNAL_LINES; kind <= BATCHLLM_JOURNAL_BLOCKS; ++kind) {
        empty_folder(NULL);
        batchllm_journal *journal = open_job(kind, BATCHLLM_JOURNAL_REFUSE);
        assert_ok(batchllm_journal_sync(journal));
        /* The state is longer than the lines: its records fit. */
        const rlim_t limit = (rlim_t)size_of(state) + 6 * 16;
        char wide[4096];
        memset(wide, 'w', sizeof wide);
        int64_t offsets[7] = {0};
        for (int i = 0; i < 6; ++i) {
            offsets[i + 1] = offsets[i] + (int64_t)limit / 4;
            wide[offsets[i + 1] - 1] = '\n';
        }
        struct rlimit before, now;
        getrlimit(RLIMIT_FSIZE, &before);
        now = before;
        now.rlim_cur = limit;
        setrlimit(RLIMIT_FSIZE, &now);
        const int lines = kind == BATCHLLM_JOURNAL_LINES;
        const int32_t status =
            lines ? batchllm_journal_append_lines(journal, 6, rows, NULL, wide, offsets)
                  : batchllm_journal_append_block(journal, 6, rows, NULL, wide, offsets[6]);
        setrlimit(RLIMIT_FSIZE, &before);
        assert_error(status, BATCHLLM_ERROR_IO, "cannot write");
        assert_int_equal(info_of(journal).rows_written, lines ? 4 : 0);
        assert_int_equal(info_of(journal).blocks, 0);
        if (lines) {
            const int64_t rest[] = {0, offsets[1], offsets[2]};
            assert_ok(batchllm_journal_append_lines(journal, 2, rows + 4, NULL, wide, rest));
        } else {
            assert_ok(batchllm_journal_append_block(journal, 6, rows, NULL, wide, offsets[6]));
        }
        batchllm_journal_destroy(journal);
        journal = open_job(kind, BATCHLLM_JOURNAL_RESUME);
        assert_int_equal(info_of(journal).rows_done, 6);
        assert_int_equal(info_of(journal).rows_lost, 0);
        batchllm_journal_destroy(journal);
    }
}

static void a_caller_may_keep_the_state(void **unused) {
    (void)unused;
    batchllm_journal_options options = job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_RESUME);
    options.output_path = NULL;
    batchllm_journal *journal = NULL;
    assert_ok(batchllm_journal_open(&options, &journal));
    char kept[1024];
    snprintf(kept, sizeof kept, "%s", info_of(journal).state);
    const int64_t rows[] = {0};
    assert_error(add_block(journal, 1, rows, "x"), BATCHLLM_ERROR_STATE, "no output");
    batchllm_journal_destroy(journal);
    options.earlier_state = kept;
    assert_ok(batchllm_journal_open(&options, &journal));
    assert_string_equal(info_of(journal).state, kept);
    batchllm_journal_destroy(journal);
    options.part_count = 1;
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_JOURNAL_MISMATCH,
                 "words (was ");
    options.earlier_state = "{";
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_JOURNAL_FORMAT,
                 "not a state file");
}

static void an_output_without_a_name_is_only_written_to(void **unused) {
    (void)unused;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    char path[64];
    snprintf(path, sizeof path, "/dev/fd/%d", ends[1]);
    batchllm_journal_options options = job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    options.output_path = path;
    batchllm_journal *journal = NULL;
    assert_ok(batchllm_journal_open(&options, &journal));
    assert_int_equal(info_of(journal).resumable, 0);
    const int64_t rows[] = {1};
    assert_ok(add_lines(journal, 1, rows));
    assert_int_equal(info_of(journal).rows_written, 1);
    batchllm_journal_destroy(journal);
    char text[8] = {0};
    assert_int_equal(read(ends[0], text, sizeof text), 6);
    assert_string_equal(text, "row 1\n");
    options.existing = BATCHLLM_JOURNAL_RESUME;
    assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "not a regular file");
    options = job(BATCHLLM_JOURNAL_BLOCKS, BATCHLLM_JOURNAL_OVERWRITE);
    const char *const names[] = {path, "/dev/null", "-", folder};
    for (int i = 0; i < 4; ++i) {
        options.output_path = names[i];
        assert_error(batchllm_journal_open(&options, &journal), BATCHLLM_ERROR_INVALID_ARGUMENT,
                     i == 3 ? "is a directory" : "not a regular file");
    }
    close(ends[0]);
    close(ends[1]);
}

static void the_output_is_watched(void **unused) {
    (void)unused;
    const int64_t rows[] = {0, 1};
    batchllm_journal *journal = open_job(BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_REFUSE);
    assert_ok(add_lines(journal, 1, rows));
    assert_int_equal(rename(output, made), 0);
    assert_error(add_lines(journal, 1, rows + 1), BATCHLLM_ERROR_IO,
                 "was removed, renamed or replaced");
    assert_error(batchllm_journal_sync(journal), BATCHLLM_ERROR_IO,
                 "was removed, renamed or replaced");
    batchllm_journal_destroy(journal);
    assert_string_equal(get(made), "row 0\n");
}

#define TEST(function) cmocka_unit_test_teardown(function, empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(lines_cut_anywhere_are_resumed_at_a_whole_line),
        TEST(blocks_cut_anywhere_are_resumed_at_a_whole_block),
        TEST(blocks_that_never_reached_the_disk_are_not_done),
        TEST(an_output_is_finished_once),
        TEST(an_output_that_was_begun_again_is_not_complete),
        TEST(rows_that_failed_are_tried_again),
        TEST(a_file_that_is_not_ours_is_not_replaced),
        TEST(what_a_killed_run_has_left_is_removed),
        TEST(results_are_taken_again_only_from_what_was_finished),
        TEST(another_job_is_refused_by_name),
        TEST(files_of_a_pooling_model_are_compared_if_the_state_has_them),
        TEST(an_input_is_known_by_its_content),
        TEST(changed_lines_and_a_missing_state_are_refused),
        TEST(one_journal_at_a_time_has_the_output),
        TEST(a_child_of_fork_keeps_no_lock),
        TEST(rows_and_lines_are_checked),
        TEST(what_fits_is_kept),
        TEST(a_caller_may_keep_the_state),
        TEST(an_output_without_a_name_is_only_written_to),
        TEST(the_output_is_watched),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
