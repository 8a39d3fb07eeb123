/* Text in and out through the C interface: a small model with a tokenizer on the CPU
   (text_model.py), and the tokenizer alone. */
#include "api_helpers.h"

#include <unistd.h>

static const char *model_dir(void) {
    const char *directory = getenv("BATCHLLM_TEXT_MODEL");
    if (directory == NULL) fail_msg("BATCHLLM_TEXT_MODEL is not set: run by meson test");
    return directory;
}

static batchllm_engine *engine_of(const char *model, const char *backend) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = model;
    options.backend = backend;
    options.kv_memory_bytes = 16 << 20;
    options.threads = 2;
    batchllm_engine *engine = NULL;
    assert_ok(batchllm_engine_create(&options, &engine));
    return engine;
}

static batchllm_engine *text_engine(const char *backend) { return engine_of(model_dir(), backend); }

static batchllm_tokenizer *tokenizer(void) {
    batchllm_tokenizer *made = NULL;
    assert_ok(batchllm_tokenizer_create(model_dir(), &made));
    return made;
}

typedef struct texts {
    int64_t n;
    char bytes[4096];
    int64_t offsets[65];
} texts;

static void add(texts *to, const char *text) {
    const size_t length = strlen(text);
    if (to->n == 0) to->offsets[0] = 0;
    memcpy(to->bytes + to->offsets[to->n], text, length);
    to->offsets[to->n + 1] = to->offsets[to->n] + (int64_t)length;
    ++to->n;
}

static void encode_gives_bytes_and_decode_gives_them_back(void **state) {
    (void)state;
    batchllm_tokenizer *made = tokenizer();
    assert_int_equal(batchllm_tokenizer_vocabulary(made), 291);
    assert_true(batchllm_tokenizer_fingerprint(made) != 0);
    texts in = {0, "", {0}};
    add(&in, "ab");
    add(&in, "");
    add(&in, "caf\xc3\xa9 \xe2\x82\xac<s>");
    add(&in, "broken \xc3");
    batchllm_column *tokens = NULL;
    assert_ok(batchllm_tokenizer_encode(made, in.n, in.bytes, in.offsets,
                                        BATCHLLM_ENCODE_ADD_SPECIAL | BATCHLLM_ENCODE_PARSE_SPECIAL,
                                        2, &tokens));
    assert_int_equal(tokens->count, 4);
    assert_null(tokens->text);
    assert_int_equal(tokens->offsets[1], 3); /* <s> a b */
    assert_int_equal(tokens->tokens[0], 256);
    assert_int_equal(tokens->tokens[1], 'a');
    assert_int_equal(tokens->offsets[2] - tokens->offsets[1], 1);
    assert_int_equal(tokens->offsets[3] - tokens->offsets[2], 1 + 9 + 1);
    assert_int_equal(tokens->statuses[3], BATCHLLM_ERROR_ROW_INVALID_UTF8);
    assert_int_equal(tokens->offsets[4], tokens->offsets[3]);

    batchllm_column *text = NULL;
    assert_ok(batchllm_tokenizer_decode(made, tokens->count, tokens->tokens, tokens->offsets,
                                        BATCHLLM_DECODE_SKIP_SPECIAL, 0, &text));
    assert_null(text->tokens);
    for (int64_t i = 0; i < 3; ++i) assert_int_equal(text->statuses[i], BATCHLLM_OK);
    assert_int_equal(text->offsets[1], 2);
    assert_memory_equal(text->text, "ab", 2);
    assert_memory_equal(text->text + text->offsets[2], "caf\xc3\xa9 \xe2\x82\xac", 9);
    assert_int_equal(text->offsets[3] - text->offsets[2], 9);

    const int32_t unknown[] = {97, 9999};
    const int64_t one[] = {0, 2};
    batchllm_column *bad = NULL;
    assert_ok(batchllm_tokenizer_decode(made, 1, unknown, one, 0, 1, &bad));
    assert_int_equal(bad->statuses[0], BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN);
    batchllm_column_free(bad);
    batchllm_column_free(text);
    batchllm_column_free(tokens);
    batchllm_column_free(NULL);
    batchllm_tokenizer_destroy(made);
    batchllm_tokenizer_destroy(NULL);
}

static void a_tokenizer_that_is_not_there_is_named(void **state) {
    (void)state;
    batchllm_tokenizer *made = (batchllm_tokenizer *)state;
    assert_error(batchllm_tokenizer_create("/nowhere/at/all", &made), BATCHLLM_ERROR_IO,
                 "/nowhere");
    assert_null(made);
    batchllm_column *column = NULL;
    assert_error(batchllm_tokenizer_encode(NULL, 0, NULL, NULL, 0, 0, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "tokenizer");
    made = tokenizer();
    assert_error(batchllm_tokenizer_encode(made, 0, NULL, NULL, 64, 0, &column),
                 BATCHLLM_ERROR_UNSUPPORTED, "flags");
    assert_error(batchllm_tokenizer_decode(made, -1, NULL, NULL, 0, 0, &column),
                 BATCHLLM_ERROR_INVALID_ARGUMENT, "n is -1");
    batchllm_tokenizer_destroy(made);
}

static void text_rows_come_back_as_the_text_of_their_tokens(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    texts in = {0, "", {0}};
    for (int i = 0; i < 20; ++i) {
        char text[100];
        snprintf(text, sizeof text, "A common beginning of some length, then row %d", i);
        add(&in, text);
    }
    const batchllm_params params = params_of(16);
    assert_ok(batchllm_add_text(engine, in.n, in.bytes, in.offsets, NULL, &params, 1));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 20);
    batchllm_tokenizer *made = tokenizer();
    batchllm_column *text = NULL;
    assert_ok(batchllm_tokenizer_decode(made, results->count, results->tokens,
                                        results->token_offsets, BATCHLLM_DECODE_SKIP_SPECIAL, 1,
                                        &text));
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        assert_int_equal(results->prompt_tokens[i],
                         1 + in.offsets[results->tags[i] + 1] - in.offsets[results->tags[i]]);
        assert_true(results->shared_tokens[i] > 30);
        const int64_t length = text->offsets[i + 1] - text->offsets[i];
        assert_int_equal(results->text_offsets[i + 1] - results->text_offsets[i], length);
        assert_memory_equal(results->text + results->text_offsets[i], text->text + text->offsets[i],
                            (size_t)length);
    }
    assert_true(stats_of(engine).tokenize_seconds > 0);
    batchllm_column_free(text);
    batchllm_tokenizer_destroy(made);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void text_and_its_tokens_give_the_same_result(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    batchllm_params params = params_of(12);
    params.logprobs = 3;
    assert_ok(batchllm_add_prompt(engine, "Same", -1, 1, &params));
    assert_ok(batchllm_add_prompt(engine, "Same, but cut", 4, 2, &params));
    const int32_t tokens[] = {256, 'S', 'a', 'm', 'e'};
    const int64_t offsets[] = {0, 5};
    const uint64_t tag = 3;
    assert_ok(batchllm_add_tokens(engine, 1, tokens, offsets, &tag, &params, 1));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 3);
    assert_same_tokens(results, result_of(results, 1, 0), results, result_of(results, 2, 0));
    assert_same_tokens(results, result_of(results, 1, 0), results, result_of(results, 3, 0));
    assert_int_equal(stats_of(engine).rows_deduplicated, 2);
    for (int64_t i = 0; i < results->logprob_offsets[3]; ++i) {
        const int64_t top = results->top_offsets[i];
        assert_int_equal(results->top_offsets[i + 1] - top, 3);
        /* Greedy: the likeliest is the chosen one. */
        assert_int_equal(results->top_tokens[top], results->tokens[i]);
        assert_true(results->top_logprobs[top] == results->logprobs[i]);
        assert_true(results->top_logprobs[top + 1] <= results->top_logprobs[top]);
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void bad_text_rows_get_their_own_error(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    texts in = {0, "", {0}};
    add(&in, "good");
    add(&in, "cut \xe2\x82");
    add(&in, "");
    add(&in, "<beyond>");
    add(&in, "good too");
    batchllm_params params[5];
    for (int i = 0; i < 5; ++i) params[i] = params_of(4);
    params[2].add_special = 0; /* so that the empty text has no tokens at all */
    assert_ok(batchllm_add_text(engine, in.n, in.bytes, in.offsets, NULL, params, 5));
    /* The same text, not parsed, is eight plain bytes. */
    params[0].parse_special = 0;
    assert_ok(batchllm_add_prompt(engine, "<beyond>", -1, 5, &params[0]));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 6);
    assert_row_error(results, 1, BATCHLLM_ERROR_ROW_INVALID_UTF8, "");
    assert_row_error(results, 2, BATCHLLM_ERROR_ROW_EMPTY, "no tokens");
    assert_row_error(results, 3, BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN, "290");
    assert_int_equal(token_count(results, result_of(results, 0, 0)), 4);
    assert_int_equal(token_count(results, result_of(results, 4, 0)), 4);
    assert_int_equal(results->prompt_tokens[result_of(results, 5, 0)], 9);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void a_stop_string_ends_the_row_and_is_not_in_its_text(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    batchllm_params params = params_of(40);
    assert_ok(batchllm_add_prompt(engine, "Where to stop", -1, 0, &params));
    batchllm_results *whole = run_all(engine);
    /* The stop string is two neighbouring ASCII letters of the text; random text has some early. */
    const char *text = whole->text;
    const int64_t length = whole->text_offsets[1];
    int64_t at = 1;
    while (at + 2 < length &&
           ((unsigned char)text[at] >= 128 || (unsigned char)text[at + 1] >= 128 || text[at] == 0 ||
            text[at + 1] == 0))
        ++at;
    assert_true(at + 2 < length);
    char stop[3] = {text[at], text[at + 1], 0};
    int64_t first = 0;
    while (memcmp(text + first, stop, 2) != 0) ++first;

    const char *const strings[] = {"never found here", stop};
    params.stop_strings = strings;
    params.stop_string_count = 2;
    assert_ok(batchllm_add_prompt(engine, "Where to stop", -1, 0, &params));
    batchllm_results *cut = run_all(engine);
    assert_int_equal(cut->finish_reasons[0], BATCHLLM_FINISH_STOP);
    assert_true(token_count(cut, 0) < token_count(whole, 0));
    assert_int_equal(cut->text_offsets[1], first);
    assert_memory_equal(cut->text, text, (size_t)first);
    batchllm_results_free(cut);
    batchllm_results_free(whole);
    batchllm_engine_destroy(engine);
}

static void a_stop_string_that_only_the_end_of_the_text_completes_is_cut_too(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    /* The first byte of a three-byte character, which becomes U+FFFD at the end; then, since that
       byte is penalised, the letter b. */
    const int32_t bias_tokens[] = {0xe2, 'b'};
    const float bias_values[] = {1000, 500};
    const int32_t stop_token = 'b';
    const char *const strings[] = {"\xef\xbf\xbd"};
    batchllm_params params = params_of(1);
    params.bias_tokens = bias_tokens;
    params.bias_values = bias_values;
    params.bias_count = 2;
    assert_ok(batchllm_add_prompt(engine, "cut short", -1, 0, &params));
    params.stop_strings = strings;
    params.stop_string_count = 1;
    assert_ok(batchllm_add_prompt(engine, "cut short", -1, 1, &params));
    params.max_tokens = 2;
    params.repetition_penalty = 10;
    params.stop_tokens = &stop_token;
    params.stop_token_count = 1;
    assert_ok(batchllm_add_prompt(engine, "cut short", -1, 2, &params));
    batchllm_results *results = run_all(engine);
    const int64_t plain = result_of(results, 0, 0), length = result_of(results, 1, 0),
                  token = result_of(results, 2, 0);
    assert_int_equal(results->text_offsets[plain + 1] - results->text_offsets[plain], 3);
    assert_memory_equal(results->text + results->text_offsets[plain], strings[0], 3);
    assert_int_equal(results->finish_reasons[plain], BATCHLLM_FINISH_LENGTH);
    assert_int_equal(results->text_offsets[length + 1] - results->text_offsets[length], 0);
    assert_int_equal(results->finish_reasons[length], BATCHLLM_FINISH_STOP);
    assert_int_equal(token_count(results, token), 2);
    assert_int_equal(results->text_offsets[token + 1] - results->text_offsets[token], 0);
    assert_int_equal(results->finish_reasons[token], BATCHLLM_FINISH_STOP);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void scored_text_equals_its_scored_tokens(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    const char prompt[] = "Yes or no?";
    const int64_t prompt_offsets[] = {0, 10};
    const char continuations[] = "YNno";
    const int64_t continuation_offsets[] = {0, 1, 2, 4};
    const int64_t continuation_rows[] = {0, 3};
    const uint64_t tags[] = {1, 2};
    assert_ok(batchllm_add_score_text(engine, 1, prompt, prompt_offsets, continuations,
                                      continuation_offsets, continuation_rows, &tags[0], NULL));
    int32_t tokens[11] = {256};
    for (int i = 0; i < 10; ++i) tokens[i + 1] = (unsigned char)prompt[i];
    const int64_t token_offsets[] = {0, 11};
    const int32_t continuation_tokens[] = {'Y', 'N', 'n', 'o'};
    assert_ok(batchllm_add_scores(engine, 1, tokens, token_offsets, continuation_tokens,
                                  continuation_offsets, continuation_rows, &tags[1]));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 2);
    assert_int_equal(results->score_offsets[2], 6);
    for (int c = 0; c < 3; ++c) {
        assert_true(results->scores[c] < 0);
        assert_true(results->scores[c] - results->scores[3 + c] < 1e-4);
        assert_true(results->scores[c] - results->scores[3 + c] > -1e-4);
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void a_saved_plan_is_used_again_and_refused_with_another_tokenizer(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/batchllm_text_%d.plan", (int)getpid());
    batchllm_engine *engine = text_engine("sim");
    batchllm_plan *plan = NULL;
    assert_error(batchllm_engine_get_plan(engine, &plan), BATCHLLM_ERROR_STATE, "planned");
    texts in = {0, "", {0}};
    for (int i = 0; i < 30; ++i) {
        char text[100];
        snprintf(text, sizeof text, "Document %d says a good many things. Question %d", i / 10, i);
        add(&in, text);
    }
    assert_ok(batchllm_add_text(engine, in.n, in.bytes, in.offsets, NULL, NULL, 0));
    assert_ok(batchllm_build_groups(engine));
    assert_ok(batchllm_engine_get_plan(engine, &plan));
    assert_ok(batchllm_plan_save(plan, path));
    batchllm_plan_destroy(plan);
    batchllm_results_free(run_all(engine));
    const int64_t processed = stats_of(engine).processed_prompt_tokens;
    batchllm_engine_destroy(engine);

    engine = text_engine("sim");
    assert_ok(batchllm_plan_load(path, &plan));
    assert_ok(batchllm_engine_use_plan(engine, plan));
    batchllm_plan_destroy(plan);
    assert_ok(batchllm_add_text(engine, in.n, in.bytes, in.offsets, NULL, NULL, 0));
    batchllm_results *results = run_all(engine);
    assert_int_equal(results->count, 30);
    assert_int_equal(stats_of(engine).processed_prompt_tokens, processed);
    assert_ok(batchllm_engine_get_plan(engine, &plan));
    batchllm_plan_stats stats;
    stats.struct_size = sizeof stats;
    assert_ok(batchllm_plan_get_stats(plan, &stats));
    assert_int_equal(stats.reused_rows, 30);
    batchllm_plan_destroy(plan);
    batchllm_results_free(results);

    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    options.tokenizer_fingerprint = 12345;
    assert_ok(batchllm_plan_create(0, NULL, NULL, NULL, &options, NULL, &plan));
    assert_error(batchllm_engine_use_plan(engine, plan), BATCHLLM_ERROR_PLAN_MISMATCH, "tokenizer");
    batchllm_plan_destroy(plan);
    batchllm_engine_destroy(engine);
    unlink(path);
}

/* Conversations rendered by the template of text_model.py. */
static void conversations_become_text(void **state) {
    (void)state;
    batchllm_tokenizer *made = tokenizer();
    texts in = {0, "", {0}};
    add(&in, "[{\"role\": \"user\", \"content\": \" caf\xc3\xa9 \"}]");
    add(&in, "[{\"role\": \"critic\", \"content\": \"x\"}]");
    add(&in, "{\"messages\": [{\"role\": \"user\", \"content\": \"<s>\"}], "
             "\"add_generation_prompt\": false}");
    /* Parts that spell a special token together, as they are and as templates strip them. */
    add(&in, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a<\"}, "
             "{\"type\": \"text\", \"text\": \"s>\"}]}]");
    add(&in, "[{\"role\": \"user\", \"content\": [\"< \", \" s>\"]}]");
    batchllm_column *text = NULL;
    assert_ok(
        batchllm_tokenizer_apply_chat_template(made, in.n, in.bytes, in.offsets, 0, 2, &text));
    assert_int_equal(text->count, 5);
    assert_null(text->tokens);
    assert_int_equal(text->statuses[0], BATCHLLM_OK);
    const char first[] = "<s>u:caf\xc3\xa9</s>a:";
    assert_int_equal(text->offsets[1], strlen(first));
    assert_memory_equal(text->text, first, strlen(first));
    assert_int_equal(text->error_offsets[1], 0);
    assert_int_equal(text->statuses[1], BATCHLLM_ERROR_ROW_TEMPLATE);
    assert_int_equal(text->offsets[2], text->offsets[1]);
    char error[256] = {0};
    memcpy(error, text->errors, (size_t)text->error_offsets[2]);
    assert_non_null(strstr(error, "line 3: the template refuses: No critics"));
    assert_int_equal(text->statuses[2], BATCHLLM_OK);
    assert_int_equal(text->offsets[3] - text->offsets[2], strlen("<s>u:<s></s>"));
    batchllm_column_free(text);

    assert_ok(batchllm_tokenizer_apply_chat_template(
        made, in.n, in.bytes, in.offsets,
        BATCHLLM_CHAT_NO_GENERATION_PROMPT | BATCHLLM_CHAT_REFUSE_SPECIAL, 0, &text));
    assert_int_equal(text->offsets[1], strlen(first) - 2);
    assert_int_equal(text->statuses[2], BATCHLLM_ERROR_ROW_TEMPLATE);
    for (int64_t i = 3; i < 5; ++i) {
        assert_int_equal(text->statuses[i], BATCHLLM_ERROR_ROW_TEMPLATE);
        assert_non_null(strstr(text->errors + text->error_offsets[i], "its parts together spell"));
    }
    batchllm_column_free(text);
    assert_int_equal(
        batchllm_tokenizer_apply_chat_template(made, in.n, in.bytes, in.offsets, 4, 0, &text),
        BATCHLLM_ERROR_UNSUPPORTED);
    assert_null(text);
    batchllm_tokenizer_destroy(made);
}

static void conversations_are_rows(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    texts in = {0, "", {0}};
    add(&in, "[{\"role\": \"user\", \"content\": \"hi\"}]");
    add(&in, "[{\"role\": \"critic\", \"content\": \"x\"}]");
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 3;
    params.ignore_eos = 1;
    assert_ok(batchllm_add_chat(engine, in.n, in.bytes, in.offsets, NULL, &params, 1));
    /* The same row as text with all special tokens spelled out. */
    params.add_special = 0;
    assert_ok(batchllm_add_prompt(engine, "<s>u:hi</s>a:", -1, 2, &params));
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 3);
    int64_t place[3] = {-1, -1, -1};
    for (int64_t i = 0; i < 3; ++i) place[results->tags[i]] = i;
    assert_int_equal(results->statuses[place[1]], BATCHLLM_ERROR_ROW_TEMPLATE);
    assert_int_equal(results->prompt_tokens[place[0]], 1 + 4 + 1 + 2);
    assert_int_equal(results->prompt_tokens[place[0]], results->prompt_tokens[place[2]]);
    assert_memory_equal(results->tokens + results->token_offsets[place[0]],
                        results->tokens + results->token_offsets[place[2]], 3 * sizeof(int32_t));
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

/* A checkpoint with a vision tower, whose template has a place for images. */
static void a_row_with_an_image_is_an_error_of_its_own(void **state) {
    (void)state;
    const char *directory = getenv("BATCHLLM_VISION_MODEL");
    if (directory == NULL) fail_msg("BATCHLLM_VISION_MODEL is not set: run by meson test");
    batchllm_engine *engine = engine_of(directory, "cpu");
    texts in = {0, "", {0}};
    add(&in, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi\"}]}]");
    add(&in, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hi\"}, "
             "{\"type\": \"image\", \"url\": \"cat.png\"}]}]");
    add(&in, "[{\"role\": \"user\", \"content\": [{\"image\": \"cat.png\"}]}]");
    add(&in, "[{\"role\": \"user\", \"content\": \"hi\"}]");
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 3;
    params.ignore_eos = 1;
    assert_ok(batchllm_add_chat(engine, in.n, in.bytes, in.offsets, NULL, &params, 1));
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 4);
    int64_t place[4] = {-1, -1, -1, -1};
    for (int64_t i = 0; i < 4; ++i) place[results->tags[i]] = i;
    for (int64_t tag = 0; tag < 4; ++tag) {
        const int image = tag == 1 || tag == 2;
        assert_int_equal(results->statuses[place[tag]],
                         image ? BATCHLLM_ERROR_ROW_PICTURE : BATCHLLM_OK);
        assert_int_equal(results->token_offsets[place[tag] + 1] -
                             results->token_offsets[place[tag]],
                         image ? 0 : 3);
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static batchllm_constraint_options constraint_options(int32_t kind, const char *text) {
    batchllm_constraint_options options;
    batchllm_constraint_options_init(&options, sizeof options);
    options.kind = kind;
    options.text = text;
    return options;
}

/* The constraint is destroyed before the rows run. */
static void rows_keep_to_their_constraint(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("cpu");
    const char *choices[] = {"red", "green"};
    batchllm_constraint_options options = constraint_options(BATCHLLM_CONSTRAINT_CHOICES, NULL);
    options.choices = choices;
    options.choice_count = 2;
    batchllm_constraint *colour = NULL, *number = NULL;
    assert_ok(batchllm_constraint_create(engine, &options, &colour));
    assert_string_equal(batchllm_constraint_warnings(colour), "");
    options = constraint_options(BATCHLLM_CONSTRAINT_JSON_SCHEMA,
                                 "{\"type\": \"integer\", \"minimum\": 10, \"maximum\": 12}");
    assert_ok(batchllm_constraint_create(engine, &options, &number));
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.constraint = colour;
    assert_ok(batchllm_add_prompt(engine, "The sky is", -1, 0, &params));
    params.constraint = number;
    assert_ok(batchllm_add_prompt(engine, "The sky is", -1, 1, &params));
    batchllm_constraint_destroy(colour);
    batchllm_constraint_destroy(number);
    assert_ok(batchllm_run(engine, NULL, NULL));
    batchllm_results *results = NULL;
    assert_ok(batchllm_poll(engine, 0, &results));
    assert_int_equal(results->count, 2);
    for (int64_t i = 0; i < 2; ++i) {
        assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_STOP);
        char text[16] = "";
        memcpy(text, results->text + results->text_offsets[i],
               (size_t)(results->text_offsets[i + 1] - results->text_offsets[i]));
        if (results->tags[i] == 0) {
            assert_true(strcmp(text, "red") == 0 || strcmp(text, "green") == 0);
        } else {
            assert_true(strcmp(text, "10") == 0 || strcmp(text, "11") == 0 ||
                        strcmp(text, "12") == 0);
        }
    }
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

static void a_wrong_constraint_says_what_is_wrong(void **state) {
    (void)state;
    batchllm_engine *engine = text_engine("sim");
    batchllm_constraint *made = NULL;
    batchllm_constraint_options options = constraint_options(BATCHLLM_CONSTRAINT_REGEX, "a(b");
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_null(made);
    assert_non_null(strstr(batchllm_last_error(), "regex: character 2"));
    options = constraint_options(BATCHLLM_CONSTRAINT_JSON_SCHEMA,
                                 "{\"type\": \"string\", \"format\": \"idn-email\"}");
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(batchllm_last_error(), "#/format"));
    options.loose = 1;
    assert_ok(batchllm_constraint_create(engine, &options, &made));
    assert_non_null(strstr(batchllm_constraint_warnings(made), "#/format"));
    batchllm_constraint_destroy(made);
    options.whitespace = 2;
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    options = constraint_options(0, "");
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    options = constraint_options(BATCHLLM_CONSTRAINT_CHOICES, NULL);
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    const char *choices[] = {"red"}; /* with fields that belong to another kind */
    options.choices = choices;
    options.choice_count = 1;
    options.text = "red|green";
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(batchllm_last_error(), "text is given"));
    options.kind = BATCHLLM_CONSTRAINT_REGEX;
    assert_int_equal(batchllm_constraint_create(engine, &options, &made),
                     BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(batchllm_last_error(), "choice_count is 1"));
    batchllm_constraint_destroy(NULL);
    batchllm_engine_destroy(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_keep_to_their_constraint),
        cmocka_unit_test(a_wrong_constraint_says_what_is_wrong),
        cmocka_unit_test(conversations_become_text),
        cmocka_unit_test(conversations_are_rows),
        cmocka_unit_test(a_row_with_an_image_is_an_error_of_its_own),
        cmocka_unit_test(encode_gives_bytes_and_decode_gives_them_back),
        cmocka_unit_test(a_tokenizer_that_is_not_there_is_named),
        cmocka_unit_test(text_rows_come_back_as_the_text_of_their_tokens),
        cmocka_unit_test(text_and_its_tokens_give_the_same_result),
        cmocka_unit_test(bad_text_rows_get_their_own_error),
        cmocka_unit_test(a_stop_string_ends_the_row_and_is_not_in_its_text),
        cmocka_unit_test(a_stop_string_that_only_the_end_of_the_text_completes_is_cut_too),
        cmocka_unit_test(scored_text_equals_its_scored_tokens),
        cmocka_unit_test(a_saved_plan_is_used_again_and_refused_with_another_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
