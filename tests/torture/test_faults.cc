// Calls of the library that must make few system calls; these are counted.
#include <cstdlib>
#include <cstring>
#include <string>
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

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(encoding_starts_no_more_threads_than_there_are_texts),
        cmocka_unit_test(threads_that_cannot_be_made_are_done_without),
        cmocka_unit_test(a_stat_that_fails_ends_the_creation_of_an_engine),
        cmocka_unit_test(a_plan_that_memory_fails_for_is_not_called_damaged),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
