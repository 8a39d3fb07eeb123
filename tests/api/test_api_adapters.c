/* Adapters by the C interface. That they change tokens as PEFT does: runtime/test_engine_adapters.cc. */
#include "api_helpers.h"

static const char base[] = "golden/llama_bias_f32";
static const char directory[] = "golden/adapters/llama_qv_r4";
static const char other_directory[] = "golden/adapters/llama_patterns";

/* The first prompt of the base's golden rows, and the first tokens after it, with `directory` and
 * without (adapters.json, golden.json). */
static const int32_t prompt[] = {206, 282, 168, 262, 30, 247};
static const int32_t with[] = {141, 58, 180, 266}, without[] = {141, 44, 145, 58};

static batchllm_engine *cpu_engine(void) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = base;
    options.backend = "cpu";
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&options, &engine));
    return engine;
}

static void rows_name_an_adapter_or_none(void **state) {
    (void)state;
    batchllm_engine *engine = cpu_engine();
    batchllm_adapter *adapter = NULL;
    assert_ok(batchllm_adapter_load(engine, "fr", directory, &adapter));
    batchllm_params params[2] = {params_of(4), params_of(4)};
    params[0].adapter = adapter;
    int32_t tokens[12];
    memcpy(tokens, prompt, sizeof prompt);
    memcpy(tokens + 6, prompt, sizeof prompt);
    const int64_t offsets[] = {0, 6, 12};
    assert_ok(batchllm_add_tokens(engine, 2, tokens, offsets, NULL, params, 2));
    /* Its rows keep what they need. */
    batchllm_adapter_destroy(adapter);
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 2);
    for (uint64_t row = 0; row < 2; ++row) {
        const int64_t at = result_of(results, row, 0);
        assert_int_equal(results->token_offsets[at + 1] - results->token_offsets[at], 4);
        assert_memory_equal(results->tokens + results->token_offsets[at], row == 0 ? with : without,
                            sizeof with);
    }
    batchllm_results_free(results);
    batchllm_stats stats = {.struct_size = sizeof stats};
    assert_ok(batchllm_engine_stats(engine, &stats));
    assert_int_equal(stats.adapters, 1);
    assert_true(stats.adapter_loads == 1 && stats.adapter_load_bytes > 0);
    batchllm_engine_destroy(engine);
}

static void scores_have_an_adapter_too(void **state) {
    (void)state;
    batchllm_engine *engine = cpu_engine();
    batchllm_adapter *adapter = NULL;
    assert_ok(batchllm_adapter_load(engine, "fr", directory, &adapter));
    const int64_t offsets[] = {0, 6}, ends[] = {0, 1}, of_row[] = {0, 1};
    float scores[2];
    for (int i = 0; i < 2; ++i) {
        batchllm_params params = params_of(1);
        params.adapter = i == 0 ? adapter : NULL;
        assert_ok(batchllm_add_score_tokens(engine, 1, prompt, offsets, &with[1], ends, of_row,
                                            NULL, &params));
        batchllm_results *results = run_all(engine);
        assert_int_equal(results->score_token_offsets[1], 1);
        scores[i] = results->score_logprobs[0];
        batchllm_results_free(results);
    }
    assert_true(scores[0] < 0 && scores[1] < 0 && scores[0] != scores[1]);
    batchllm_adapter_destroy(adapter);
    batchllm_engine_destroy(engine);
}

static void an_adapter_is_identified_by_its_content(void **state) {
    (void)state;
    batchllm_engine *engine = cpu_engine();
    batchllm_adapter *adapter = NULL;
    assert_ok(batchllm_adapter_load(engine, "fr", directory, &adapter));
    batchllm_adapter_info loaded = {.struct_size = sizeof loaded}, found = loaded, other = loaded;
    assert_ok(batchllm_adapter_get_info(adapter, &loaded));
    assert_int_equal(loaded.largest_rank, 4);
    assert_true(loaded.matrices > 0 && loaded.memory_bytes > 0 && loaded.salt != 0);
    assert_ok(batchllm_adapter_identify(directory, &found));
    assert_string_equal(found.identity, loaded.identity);
    assert_true(found.salt == loaded.salt && found.file_bytes == loaded.file_bytes);
    assert_ok(batchllm_adapter_identify(other_directory, &other));
    assert_string_not_equal(other.identity, loaded.identity);
    batchllm_adapter_destroy(adapter);
    batchllm_engine_destroy(engine);
}

static void what_is_wrong_is_said(void **state) {
    (void)state;
    batchllm_engine *engine = cpu_engine();
    batchllm_adapter *adapter = NULL;
    assert_error(batchllm_adapter_load(engine, "fr", "golden/none", &adapter), BATCHLLM_ERROR_IO,
                 "golden/none");
    assert_error(batchllm_adapter_load(engine, "", directory, &adapter),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "name");
    assert_error(batchllm_adapter_load(engine, "fr", "golden/adapters/phi3_fused", &adapter),
                 BATCHLLM_ERROR_ADAPTER_FORMAT, "phi3_fused");
    batchllm_adapter_info info = {.struct_size = sizeof info};
    assert_error(batchllm_adapter_identify("golden/none", &info), BATCHLLM_ERROR_IO, "golden/none");
    assert_null(adapter);
    batchllm_adapter_destroy(NULL);
    batchllm_engine_destroy(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_name_an_adapter_or_none),
        cmocka_unit_test(scores_have_an_adapter_too),
        cmocka_unit_test(an_adapter_is_identified_by_its_content),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
