// Calls of the library that must make few system calls, and calls whose system calls fail.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#include <batchllm.h>

#include "faults.h"

// Last: it defines macros with the names of members of the standard library.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

namespace {

const char *model_dir() { return getenv("BATCHLLM_TEXT_MODEL"); }

long threads_started_for(int64_t texts, int32_t threads) {
    batchllm_tokenizer *tokenizer = nullptr;
    assert_int_equal(batchllm_tokenizer_create(model_dir(), &tokenizer), BATCHLLM_OK);
    const std::string text(static_cast<size_t>(texts), 'a');
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i <= texts; ++i) offsets.push_back(i);
    batchllm_column *tokens = nullptr;
    faults_begin(FAULT_THREAD, 0, 0);
    const int32_t status = batchllm_tokenizer_encode(tokenizer, texts, text.data(), offsets.data(),
                                                     0, threads, &tokens);
    const long started = faults_end();
    assert_int_equal(status, BATCHLLM_OK);
    assert_int_equal(tokens->offsets[texts], texts);
    batchllm_column_free(tokens);
    batchllm_tokenizer_destroy(tokenizer);
    return started;
}

void encoding_starts_no_more_threads_than_there_are_texts(void **) {
    assert_int_equal(threads_started_for(1, 8), 0);
    assert_int_equal(threads_started_for(2, 100000), 1);
    assert_int_equal(threads_started_for(5, 3), 2);
    assert_in_range(threads_started_for(2000, 100000), 1, 1023);
}

void threads_that_cannot_be_made_are_done_without(void **) {
    for (long k = 1; k < 6; ++k) {
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.model_dir = model_dir();
        options.backend = "cpu";
        options.kv_memory_bytes = 1 << 20;
        options.threads = 4;
        batchllm_engine *engine = nullptr;
        faults_begin(FAULT_THREAD, k, 1);
        assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_OK);
        assert_int_equal(batchllm_add_prompt(engine, "text", -1, 0, nullptr), BATCHLLM_OK);
        assert_int_equal(batchllm_run(engine, nullptr, nullptr), BATCHLLM_OK);
        faults_end();
        batchllm_results *results = nullptr;
        assert_int_equal(batchllm_poll(engine, 0, &results), BATCHLLM_OK);
        assert_int_equal(results->count, 1);
        assert_int_equal(results->statuses[0], BATCHLLM_OK);
        batchllm_results_free(results);
        batchllm_engine_destroy(engine);
    }
}

// A file that cannot be examined is not treated as absent: the job would continue with other stop
// tokens.
void a_stat_that_fails_ends_the_creation_of_an_engine(void **) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = model_dir();
    options.backend = "sim";
    batchllm_engine *engine = nullptr;
    faults_begin(FAULT_STAT, 0, 0);
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_OK);
    const long calls = faults_end();
    batchllm_engine_destroy(engine);
    assert_true(calls > 5);
    for (long k = 1; k <= calls; ++k) {
        faults_begin(FAULT_STAT, k, 0);
        const int32_t status = batchllm_engine_create(&options, &engine);
        faults_end();
        assert_int_equal(status, BATCHLLM_ERROR_IO);
        assert_non_null(strstr(batchllm_last_error(), model_dir()));
    }
}

void a_plan_that_memory_fails_for_is_not_called_damaged(void **) {
    const char *path = "plan/version-1-tokens.plan";
    batchllm_plan *plan = nullptr;
    faults_begin(FAULT_ALLOC, 0, 0);
    assert_int_equal(batchllm_plan_load(path, &plan), BATCHLLM_OK);
    const long calls = faults_end();
    batchllm_plan_destroy(plan);
    assert_true(calls > 5);
    for (long k = 1; k <= calls; ++k) {
        faults_begin(FAULT_ALLOC, k, 0);
        const int32_t status = batchllm_plan_load(path, &plan);
        faults_end();
        assert_int_equal(status, BATCHLLM_ERROR_OUT_OF_MEMORY);
    }
}

// A journal in a folder of its own, which is removed with it.
class JournalInFolder {
  public:
    explicit JournalInFolder(int32_t kind) : kind_(kind) {
        assert_non_null(mkdtemp(folder_));
        open(BATCHLLM_JOURNAL_REFUSE);
    }
    ~JournalInFolder() {
        batchllm_journal_destroy(journal_);
        for (const char *end : {"", ".state", ".blocks", ".made"}) unlink((output() + end).c_str());
        rmdir(folder_);
    }
    void open(int32_t existing) {
        batchllm_journal_destroy(journal_);
        const std::string path = output();
        batchllm_journal_options options;
        batchllm_journal_options_init(&options, sizeof options);
        options.output_path = path.c_str();
        options.kind = kind_;
        options.existing = existing;
        assert_int_equal(batchllm_journal_open(&options, &journal_), BATCHLLM_OK);
    }
    // "row N" for rows 0 to 2 of a call.
    int32_t append(int64_t first) {
        const int64_t rows[] = {first, first + 1, first + 2}, offsets[] = {0, 6, 12, 18};
        char text[32];
        int bytes = 0;
        for (const int64_t row : rows)
            bytes += snprintf(text + bytes, 8, "row %d\n", static_cast<int>(row));
        return kind_ == BATCHLLM_JOURNAL_BLOCKS
                   ? batchllm_journal_append_block(journal_, 3, rows, nullptr, text, bytes)
                   : batchllm_journal_append_lines(journal_, 3, rows, nullptr, text, offsets);
    }
    std::string output() const { return folder_ + std::string("/out"); }
    batchllm_journal *get() const { return journal_; }
    batchllm_journal_info info() const {
        batchllm_journal_info info{};
        info.struct_size = sizeof info;
        assert_int_equal(batchllm_journal_get_info(journal_, &info), BATCHLLM_OK);
        return info;
    }

  private:
    char folder_[32] = "/tmp/batchllm_faults_XXXXXX";
    int32_t kind_;
    batchllm_journal *journal_ = nullptr;
};

void results_that_memory_fails_for_can_be_appended_again(void **) {
    for (const int32_t kind : {BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_BLOCKS}) {
        // With a short write, the error's text needs memory after part of the results is written.
        for (const int kinds : {int{FAULT_ALLOC}, FAULT_ALLOC | FAULT_SHORT}) {
            bool failed = true;
            for (long k = 1; failed; ++k) {
                JournalInFolder journal(kind);
                faults_begin(static_cast<unsigned>(kinds), k, kinds != FAULT_ALLOC);
                const int32_t status = journal.append(0);
                faults_end();
                failed = status != BATCHLLM_OK;
                assert_true(!failed || k < 1000);
                const int64_t written = journal.info().rows_written;
                const int64_t blocks = kind == BATCHLLM_JOURNAL_BLOCKS && written > 0 ? 1 : 0;
                assert_int_equal(journal.info().blocks, blocks);
                if (!failed || written > 0) continue;
                assert_int_equal(journal.append(0), BATCHLLM_OK);
                journal.open(BATCHLLM_JOURNAL_RESUME);
                assert_int_equal(journal.info().rows_done, 3);
                if (kind == BATCHLLM_JOURNAL_LINES) continue;
                const int64_t *rows = nullptr;
                const void *bytes = nullptr;
                int64_t n = 0, size = 0;
                assert_int_equal(
                    batchllm_journal_read_block(journal.get(), 0, &rows, &n, &bytes, &size),
                    BATCHLLM_OK);
                assert_int_equal(n, 3);
                assert_memory_equal(bytes, "row 0\nrow 1\nrow 2\n", 18);
            }
        }
    }
}

void nothing_is_appended_to_a_torn_line(void **) {
    for (const int32_t kind : {BATCHLLM_JOURNAL_LINES, BATCHLLM_JOURNAL_BLOCKS}) {
        for (long k = 1; k <= 2; ++k) { // the records; the results
            JournalInFolder journal(kind);
            assert_int_equal(journal.append(0), BATCHLLM_OK);
            faults_begin(FAULT_SHORT | FAULT_TRUNCATE, k, 1);
            assert_int_equal(journal.append(3), BATCHLLM_ERROR_IO);
            faults_end();
            const bool some = kind == BATCHLLM_JOURNAL_LINES && k == 2;
            assert_int_equal(journal.info().rows_written, some ? 5 : 3);
            faults_begin(FAULT_TRUNCATE, 1, 1);
            assert_int_equal(journal.append(6), BATCHLLM_ERROR_IO);
            faults_end();
            assert_int_equal(journal.append(6), BATCHLLM_OK);
            journal.open(BATCHLLM_JOURNAL_RESUME);
            assert_int_equal(journal.info().rows_done, some ? 8 : 6);
            assert_int_equal(journal.info().rows_lost, 0);
        }
    }
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const std::string path = "/dev/fd/" + std::to_string(ends[1]);
    batchllm_journal_options options;
    batchllm_journal_options_init(&options, sizeof options);
    options.output_path = path.c_str();
    batchllm_journal *journal = nullptr;
    assert_int_equal(batchllm_journal_open(&options, &journal), BATCHLLM_OK);
    const int64_t rows[] = {0}, offsets[] = {0, 2};
    faults_begin(FAULT_SHORT, 1, 1);
    const int32_t torn = batchllm_journal_append_lines(journal, 1, rows, nullptr, "a\n", offsets);
    faults_end();
    assert_int_equal(torn, BATCHLLM_ERROR_IO);
    assert_int_equal(batchllm_journal_append_lines(journal, 1, rows, nullptr, "b\n", offsets),
                     BATCHLLM_ERROR_IO);
    batchllm_journal_destroy(journal);
    close(ends[1]);
    char text[8];
    assert_int_equal(read(ends[0], text, sizeof text), 1);
    close(ends[0]);
}

void an_output_that_could_not_be_finished_can_be_finished_again(void **) {
    const unsigned kinds = FAULT_WRITE | FAULT_SYNC | FAULT_RENAME | FAULT_OPEN;
    long failures = 0;
    for (bool failed = true; failed;) {
        JournalInFolder journal(BATCHLLM_JOURNAL_BLOCKS);
        assert_int_equal(journal.append(0), BATCHLLM_OK);
        const std::string made = journal.output() + ".made";
        FILE *file = std::fopen(made.c_str(), "w");
        std::fputs("made of all blocks", file);
        std::fclose(file);
        faults_begin(kinds, failures + 1, 0);
        failed = batchllm_journal_finish(journal.get(), made.c_str()) != BATCHLLM_OK;
        faults_end();
        failures += failed ? 1 : 0;
        if (failed && journal.info().complete == 0) {
            assert_int_equal(batchllm_journal_finish(journal.get(), made.c_str()), BATCHLLM_OK);
        }
        journal.open(BATCHLLM_JOURNAL_RESUME);
        assert_int_equal(journal.info().complete, 1);
        assert_int_equal(journal.info().rows_done, 3);
    }
    assert_true(failures > 5);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(encoding_starts_no_more_threads_than_there_are_texts),
        cmocka_unit_test(threads_that_cannot_be_made_are_done_without),
        cmocka_unit_test(a_stat_that_fails_ends_the_creation_of_an_engine),
        cmocka_unit_test(a_plan_that_memory_fails_for_is_not_called_damaged),
        cmocka_unit_test(results_that_memory_fails_for_can_be_appended_again),
        cmocka_unit_test(nothing_is_appended_to_a_torn_line),
        cmocka_unit_test(an_output_that_could_not_be_finished_can_be_finished_again),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
