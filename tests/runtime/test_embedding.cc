// Embedded and classified rows on the CPU against transformers: tests/golden/embedding. Sharing and
// the size of steps change nothing.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

#include <unistd.h>

#include "embedding_job.h"
#include "model/pooling.h"

namespace {

namespace fs = std::filesystem;

constexpr double f32_tolerance = 1e-4;
constexpr double bf16_tolerance = 1e-2;

batchllm_engine_options cpu_options(const char *compute_type = "f32") {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "cpu";
    options.compute_type = compute_type;
    options.kv_memory_bytes = int64_t{16} << 20;
    options.threads = 2;
    return options;
}

void results_equal_the_reference(void **) {
    compare_all_embeddings(cpu_options(), f32_tolerance, true);
}

void nothing_shared_and_small_steps_change_nothing(void **) {
    batchllm_engine_options options = cpu_options();
    options.enlarge = BATCHLLM_ENLARGE_NONE;
    compare_all_embeddings(options, f32_tolerance, true);
    options.enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    options.levels = 2;
    options.step_tokens = 48; // means are summed over several batches
    compare_all_embeddings(options, f32_tolerance, true);
}

void results_in_bfloat16_are_close(void **) {
    batchllm_engine_options options = cpu_options("bf16");
    options.model_dir = "golden/embedding/llama_mean_f32";
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    batchllm_engine_destroy(engine);
    if (status == BATCHLLM_ERROR_BACKEND_UNAVAILABLE) skip(); // no bfloat16 instructions here
    compare_all_embeddings(cpu_options("bf16"), bf16_tolerance, false);
}

void defaults_come_from_the_models_files(void **) {
    const EmbeddingGolden last = read_embedding_golden("qwen3_last_bf16");
    EmbeddingJob job(last.directory, cpu_options());
    compare_embeddings("last, normalised", last, *job.run(last, task_params(BATCHLLM_TASK_EMBED)),
                       f32_tolerance, [](const EmbeddingRow &row) { return normalised(row.last); });
    const EmbeddingGolden mean = read_embedding_golden("llama_mean_f32");
    EmbeddingJob other(mean.directory, cpu_options());
    compare_embeddings("mean", mean, *other.run(mean, task_params(BATCHLLM_TASK_EMBED)),
                       f32_tolerance, [](const EmbeddingRow &row) { return row.mean; });
}

void fewer_dimensions_are_normalised_after_the_cut(void **) {
    const EmbeddingGolden golden = read_embedding_golden("qwen3_last_bf16");
    EmbeddingJob job(golden.directory, cpu_options());
    const batchllm_params params = task_params(BATCHLLM_TASK_EMBED, BATCHLLM_POOLING_MODEL, 0, 16);
    compare_embeddings("16 dimensions", golden, *job.run(golden, params), f32_tolerance,
                       [](const EmbeddingRow &row) {
                           return normalised({row.last.begin(), row.last.begin() + 16});
                       });
}

void labels_have_the_models_names(void **) {
    EmbeddingJob job("golden/embedding/qwen3_labels_bf16", cpu_options());
    assert_int_equal(batchllm_engine_label_count(job.engine()), 3);
    assert_string_equal(batchllm_engine_label(job.engine(), 0), "refuted");
    assert_string_equal(batchllm_engine_label(job.engine(), 2), "supported");
    assert_null(batchllm_engine_label(job.engine(), 3));
    assert_null(batchllm_engine_label(job.engine(), -1));
    EmbeddingJob other("golden/qwen3_bf16", cpu_options());
    assert_int_equal(batchllm_engine_label_count(other.engine()), 0);
}

// The last token's state shares what generation shares; a mean only shares whole rows; with the
// first token, nothing else is computed.
void what_is_shared_depends_on_the_pooling(void **) {
    const EmbeddingGolden golden = read_embedding_golden("llama_mean_f32");
    int64_t tokens = 0;
    for (const EmbeddingRow &row : golden.rows) tokens += static_cast<int64_t>(row.prompt.size());
    const auto stats_with = [&](int32_t pooling) {
        EmbeddingJob job(golden.directory, cpu_options());
        const auto results = job.run(golden, task_params(BATCHLLM_TASK_EMBED, pooling));
        for (int64_t i = 0; i < results->count; ++i) {
            assert_int_equal(results->prompt_tokens[i],
                             golden.rows[results->tags[i]].prompt.size());
        }
        return job.stats();
    };
    const batchllm_stats last = stats_with(BATCHLLM_POOLING_LAST);
    assert_int_equal(last.logical_prompt_tokens, tokens);
    assert_true(last.saving_ratio > 0.3);
    assert_int_equal(last.rows_deduplicated, 1);
    const batchllm_stats mean = stats_with(BATCHLLM_POOLING_MEAN);
    assert_int_equal(mean.logical_prompt_tokens, tokens);
    assert_int_equal(mean.rows_deduplicated, 1);
    assert_int_equal(mean.groups, 0);
    const batchllm_stats first = stats_with(BATCHLLM_POOLING_FIRST);
    assert_true(first.processed_prompt_tokens <= static_cast<int64_t>(golden.rows.size()));
    assert_int_equal(first.completion_tokens, 0);
}

// One engine, one call: rows of each kind, equal tokens, each with its own result.
void rows_of_all_tasks_share_an_engine(void **) {
    EmbeddingJob job("golden/qwen3_bf16", cpu_options());
    const Golden golden = read_golden("golden/qwen3_bf16");
    const std::vector<int32_t> &prompt = golden.rows[0].prompt;
    batchllm_params params[4];
    for (batchllm_params &each : params) {
        each = task_params(BATCHLLM_TASK_EMBED, BATCHLLM_POOLING_LAST, 1);
    }
    params[1].pooling = BATCHLLM_POOLING_MEAN;
    params[2].task = BATCHLLM_TASK_GENERATE;
    params[2].pooling = params[2].normalize = 0;
    params[2].max_tokens = 3;
    params[3].temperature = 1; // has no effect: the row equals that of params[0]
    params[3].seed = 7;
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
    for (int i = 0; i < 4; ++i) {
        tokens.insert(tokens.end(), prompt.begin(), prompt.end());
        offsets.push_back(static_cast<int64_t>(tokens.size()));
    }
    CHECK(batchllm_add_tokens(job.engine(), 4, tokens.data(), offsets.data(), nullptr, params, 4));
    CHECK(batchllm_run(job.engine(), nullptr, nullptr));
    batchllm_results *taken = nullptr;
    CHECK(batchllm_poll(job.engine(), 0, &taken));
    const EmbeddingJob::Results results(taken);
    std::vector<std::vector<float>> vectors(4);
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        const bool generated = results->tags[i] == 2;
        assert_int_equal(results->finish_reasons[i] == BATCHLLM_FINISH_EMBEDDED, !generated);
        assert_int_equal(results->token_offsets[i + 1] - results->token_offsets[i],
                         generated ? 3 : 0);
        vectors[results->tags[i]].assign(results->embeddings + results->embedding_offsets[i],
                                         results->embeddings + results->embedding_offsets[i + 1]);
    }
    assert_true(vectors[0] == vectors[3]);
    assert_true(vectors[0] != vectors[1]);
    assert_true(vectors[2].empty());
    assert_int_equal(vectors[1].size(), vectors[0].size());
    assert_int_equal(job.stats().rows_deduplicated, 1);
}

void must_refuse(const char *directory, const batchllm_params &params, const char *text) {
    EmbeddingJob job(directory, cpu_options());
    const auto results = job.run_prompts({{5, 6, 7}}, params);
    assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    if (std::string(results->errors).find(text) == std::string::npos) {
        fail_msg("\"%s\" does not contain \"%s\"", results->errors, text);
    }
}

void what_the_model_cannot_do_is_the_rows_error(void **) {
    const char *text_model = "golden/qwen3_bf16";
    const char *base_model = "golden/embedding/qwen3_last_bf16";
    must_refuse(base_model, task_params(BATCHLLM_TASK_GENERATE), "no lm_head");
    must_refuse("golden/embedding/qwen3_labels_bf16", task_params(BATCHLLM_TASK_GENERATE),
                "no lm_head");
    must_refuse(base_model, task_params(BATCHLLM_TASK_CLASSIFY), "no classification head");
    must_refuse(text_model, task_params(3), "task is 3");
    must_refuse(text_model, task_params(BATCHLLM_TASK_EMBED, 4), "pooling is 4");
    must_refuse(text_model, task_params(BATCHLLM_TASK_EMBED, 0, 2), "normalize is 2");
    must_refuse(text_model, task_params(BATCHLLM_TASK_EMBED, 0, 0, 65), "dimensions is 65");
    must_refuse("golden/embedding/qwen3_labels_bf16",
                task_params(BATCHLLM_TASK_CLASSIFY, BATCHLLM_POOLING_MEAN), "for embedded rows");
}

// A copy of a model's directory in which one file has another text.
struct Changed {
    fs::path directory;

    Changed(const char *from, const std::string &file, const std::string &text) {
        directory = fs::temp_directory_path() / ("batchllm_embedding_" + std::to_string(getpid()));
        fs::remove_all(directory);
        fs::copy(from, directory, fs::copy_options::recursive);
        fs::create_directories((directory / file).parent_path());
        std::ofstream(directory / file) << text;
    }
    ~Changed() { fs::remove_all(directory); }
};

// A file of safetensors with a NaN, of bf16, at the beginning of a tensor.
std::string with_nan(const std::string &path, const std::string &tensor) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const std::string key = "\"data_offsets\":[";
    const size_t offset = bytes.find(key, bytes.find('"' + tensor + '"')) + key.size();
    const size_t begin = sizeof header + header + std::stoull(bytes.substr(offset));
    bytes.replace(begin, 2, "\xc0\x7f");
    return bytes;
}

void labels_that_are_no_numbers_fail_their_row(void **) {
    const char *from = "golden/embedding/qwen3_labels_bf16";
    const std::string weights = "model.safetensors";
    const Changed changed(from, weights,
                          with_nan(std::string(from) + "/" + weights, "score.weight"));
    EmbeddingJob job(changed.directory, cpu_options());
    const auto results = job.run_prompts({{5, 6, 7}}, task_params(BATCHLLM_TASK_CLASSIFY));
    assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_NOT_A_NUMBER);
    assert_string_equal(results->errors, "the labels' logits are not finite");
}

void modules_that_are_not_computed_are_refused_by_name(void **) {
    const char *from = "golden/embedding/qwen3_last_bf16";
    const std::string start =
        R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})";
    const batchllm_params embed = task_params(BATCHLLM_TASK_EMBED);
    {
        const Changed changed(from, "modules.json",
                              start + R"(, {"path": "2_Dense", "type": "st.models.Dense"}])");
        must_refuse(changed.directory.c_str(), embed, "st.models.Dense");
        // Settings from the caller need no file, if they are all there.
        must_refuse(changed.directory.c_str(),
                    task_params(BATCHLLM_TASK_EMBED, BATCHLLM_POOLING_LAST), "st.models.Dense");
        must_refuse(changed.directory.c_str(), task_params(BATCHLLM_TASK_EMBED, 0, 1),
                    "(a row that sets pooling and normalize does without these files)");
        EmbeddingJob job(changed.directory, cpu_options());
        const auto results = job.run_prompts(
            {{5, 6, 7}}, task_params(BATCHLLM_TASK_EMBED, BATCHLLM_POOLING_LAST, 1));
        assert_int_equal(results->statuses[0], BATCHLLM_OK);
    }
    {
        const Changed changed(from, "modules.json",
                              R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "own.Pooling"}])");
        must_refuse(changed.directory.c_str(), embed, "own.Pooling");
    }
    const std::pair<const char *, const char *> refused[] = {
        {R"({"pooling_mode_max_tokens": true})", "pooling_mode_max_tokens"},
        {R"({"pooling_mode_cls_token": true, "pooling_mode_lasttoken": true})", "only one mode"},
        {R"({"pooling_mode": "weightedmean"})", "weightedmean"},
        {R"({"pooling_mode": "mean", "include_prompt": false})", "include_prompt"},
        {R"({"pooling_mode": "mean", "embedding_dimension": 65})", "embedding_dimension"},
        {R"({"pooling_mode": "mean", "pooling_weight": 2})", "pooling_weight"},
        {R"({"pooling_mode_cls_token": false})", "no mode of pooling"}};
    for (const auto &[config, text] : refused) {
        const Changed changed(from, "1_Pooling/config.json", config);
        must_refuse(changed.directory.c_str(), embed, text);
    }
}

void texts_in_lower_case_are_refused_by_name(void **) {
    const char *from = "golden/embedding/qwen3_last_bf16";
    const batchllm_params embed = task_params(BATCHLLM_TASK_EMBED);
    const Changed lower(from, "sentence_bert_config.json", R"({"do_lower_case": true})");
    must_refuse(lower.directory.c_str(), embed, "do_lower_case");
    std::ofstream(lower.directory / "sentence_bert_config.json")
        << R"({"do_lower_case": false, "max_seq_length": 512})";
    EmbeddingJob job(lower.directory, cpu_options());
    assert_int_equal(job.run_prompts({{5, 6, 7}}, embed)->statuses[0], BATCHLLM_OK);
}

void keys_that_would_change_a_vector_are_refused_by_name(void **) {
    const char *from = "golden/embedding/qwen3_last_bf16";
    const char *transformer = "sentence_bert_config.json";
    const char *defaults = "config_sentence_transformers.json";
    const batchllm_params embed = task_params(BATCHLLM_TASK_EMBED);
    const std::tuple<const char *, const char *, const char *> refused[] = {
        {transformer, R"({"config_kwargs": {"rope_theta": 5}})", "config_kwargs.rope_theta"},
        {transformer, R"({"processing_kwargs": {"text": {"max_length": 8}}})",
         "processing_kwargs.text"},
        {transformer, R"({"transformer_task": "fill-mask"})", "transformer_task"},
        {transformer,
         R"({"modality_config": {"text": {"method_output_name": ["hidden_states", 0]}}})",
         "method_output_name"},
        {transformer, R"({"later": 1})", "later"},
        {transformer, "[]", "must be an object"},
        {defaults, R"({"truncate_dim": 16})", "truncate_dim"},
        {"2_Normalize/config.json", R"({"module_input_name": "token_embeddings"})",
         "module_input_name"}};
    for (const auto &[file, text, words] : refused) {
        const Changed changed(from, file, text);
        must_refuse(changed.directory.c_str(), embed, words);
    }
    {
        const Changed changed(from, transformer,
                              R"({"model_args": {"torch_dtype": "float16", "revision": null},
                              "transformer_task": "feature-extraction", "max_seq_length": 8,
                              "modality_config": {"text": {"method": "forward"}}})");
        std::ofstream(changed.directory / defaults)
            << R"({"truncate_dim": null, "default_prompt_name": "query", "prompts": {"query": "q"}})";
        std::string note;
        assert_true(batchllm::read_embedding_form(changed.directory, 64, &note).ok());
        assert_non_null(strstr(note.c_str(), "sentence_bert_config.json: rows are not cut"));
        assert_non_null(strstr(note.c_str(), "default_prompt_name"));
    }
    const Changed code(from, "config.json", [&] {
        std::ifstream file(std::string(from) + "/config.json");
        std::string text(std::istreambuf_iterator<char>(file), {});
        text.insert(text.find('{') + 1, R"("auto_map": {"AutoModel": "own.Model"}, )");
        return text;
    }());
    must_refuse(code.directory.c_str(), embed, "auto_map.AutoModel");
}

batchllm_engine_options sim_options(const char *backend_options) {
    batchllm_engine_options options = cpu_options("auto");
    options.backend = "sim";
    options.backend_options = backend_options;
    return options;
}

void a_mean_on_sim_does_not_depend_on_the_steps(void **) {
    const EmbeddingGolden golden = read_embedding_golden("llama_mean_f32");
    const auto vectors = [&](int64_t step_tokens) {
        batchllm_engine_options options = sim_options(nullptr);
        options.step_tokens = step_tokens;
        EmbeddingJob job(golden.directory, options);
        const auto results =
            job.run(golden, task_params(BATCHLLM_TASK_EMBED, BATCHLLM_POOLING_MEAN));
        std::vector<std::vector<float>> by_tag(golden.rows.size());
        for (int64_t i = 0; i < results->count; ++i) {
            by_tag[results->tags[i]].assign(results->embeddings + results->embedding_offsets[i],
                                            results->embeddings +
                                                results->embedding_offsets[i + 1]);
        }
        return by_tag;
    };
    const auto whole = vectors(4096);
    assert_true(!whole[0].empty() && whole[0] != whole[1]);
    assert_true(whole == vectors(16));
}

// Of the parameters only those of the tokenizer apply: a model without a head cannot generate text.
void scored_text_without_a_head_is_the_rows_own_error(void **) {
    const Changed base("golden/embedding/qwen3_last_bf16", "batchllm_unused", "");
    fs::copy_file("text/digits/tokenizer.json", base.directory / "tokenizer.json");
    EmbeddingJob job(base.directory, cpu_options());
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    const int64_t ends[] = {0, 1}, rows[] = {0, 1};
    CHECK(batchllm_add_score_text(job.engine(), 1, "a", ends, "b", ends, rows, nullptr, &params));
    CHECK(batchllm_run(job.engine(), nullptr, nullptr));
    batchllm_results *taken = nullptr;
    CHECK(batchllm_poll(job.engine(), 0, &taken));
    const EmbeddingJob::Results results(taken);
    assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    assert_non_null(strstr(results->errors, "no scores of tokens"));
}

// Every token of an embedded row is stored: two pages of 16 hold 32.
void a_row_that_no_pool_holds_is_told_its_own_length(void **) {
    const batchllm_params embed = task_params(BATCHLLM_TASK_EMBED, BATCHLLM_POOLING_MEAN);
    EmbeddingJob job("golden/embedding/llama_mean_f32", sim_options("pages=2,page_tokens=16"));
    const auto results =
        job.run_prompts({std::vector<int32_t>(33, 5), std::vector<int32_t>(32, 5)}, embed);
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i],
                         results->tags[i] == 0 ? BATCHLLM_ERROR_ROW_TOO_LARGE : BATCHLLM_OK);
    }
    assert_non_null(strstr(results->errors, "33 tokens of prompt and nothing more"));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(results_equal_the_reference),
        cmocka_unit_test(nothing_shared_and_small_steps_change_nothing),
        cmocka_unit_test(results_in_bfloat16_are_close),
        cmocka_unit_test(defaults_come_from_the_models_files),
        cmocka_unit_test(fewer_dimensions_are_normalised_after_the_cut),
        cmocka_unit_test(labels_have_the_models_names),
        cmocka_unit_test(what_is_shared_depends_on_the_pooling),
        cmocka_unit_test(rows_of_all_tasks_share_an_engine),
        cmocka_unit_test(what_the_model_cannot_do_is_the_rows_error),
        cmocka_unit_test(labels_that_are_no_numbers_fail_their_row),
        cmocka_unit_test(modules_that_are_not_computed_are_refused_by_name),
        cmocka_unit_test(texts_in_lower_case_are_refused_by_name),
        cmocka_unit_test(keys_that_would_change_a_vector_are_refused_by_name),
        cmocka_unit_test(a_mean_on_sim_does_not_depend_on_the_steps),
        cmocka_unit_test(scored_text_without_a_head_is_the_rows_own_error),
        cmocka_unit_test(a_row_that_no_pool_holds_is_told_its_own_length),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
