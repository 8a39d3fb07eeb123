// The engine on the CPU against transformers: tests/golden, made by scripts/make_golden.py. Whatever is
// shared, however small the steps or the pool, the tokens are the reference's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "seed.h"
#include "testing.h"

namespace {

// Below this, the reference's two likeliest tokens are practically equal (tests/golden/README.md).
constexpr double margin_limit = 1e-3;
constexpr double logprob_tolerance = 2e-3;

batchllm_params greedy_params(const Golden &golden) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = golden.new_tokens;
    params.logprobs = 0;
    return params;
}

std::string read_text(const std::string &path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

struct Compared {
    int64_t tokens = 0;   // equal to the reference's
    int64_t left_out = 0; // after a choice that rounding decides
    double farthest = 0;  // of a log-probability from the reference's
};

// One result against its row. Ends at the first token that rounding decided otherwise.
void compare(const Golden &golden, const batchllm_results &results, int64_t i, Compared *compared) {
    const GoldenRow &row = golden.rows[results.tags[i]];
    if (results.statuses[i] != BATCHLLM_OK) {
        fail_msg("%s: row %d: %s", golden.directory.c_str(), int(results.tags[i]),
                 batchllm_status_name(results.statuses[i]));
    }
    const int64_t begin = results.token_offsets[i];
    const int64_t count = results.token_offsets[i + 1] - begin;
    for (int64_t t = 0; t < static_cast<int64_t>(row.tokens.size()); ++t) {
        const size_t at = static_cast<size_t>(t);
        const int32_t token = t < count ? results.tokens[begin + t] : -1;
        if (token != row.tokens[at]) {
            if (row.margins[at] >= margin_limit) {
                fail_msg("%s: row %d, token %d is %d and not %d (margin %g)",
                         golden.directory.c_str(), int(results.tags[i]), int(t), token,
                         row.tokens[at], row.margins[at]);
            }
            compared->left_out += static_cast<int64_t>(row.tokens.size()) - t;
            return;
        }
        const double logprob =
            static_cast<double>(results.logprobs[results.logprob_offsets[i] + t]);
        compared->farthest = std::max(compared->farthest, std::fabs(logprob - row.logprobs[at]));
        if (!(std::fabs(logprob - row.logprobs[at]) <= logprob_tolerance)) {
            fail_msg("%s: row %d, token %d: log-probability %g and not %g",
                     golden.directory.c_str(), int(results.tags[i]), int(t), logprob,
                     row.logprobs[at]);
        }
        ++compared->tokens;
    }
    if (count != static_cast<int64_t>(row.tokens.size())) {
        fail_msg("%s: row %d: %d tokens and not %zu", golden.directory.c_str(),
                 int(results.tags[i]), int(count), row.tokens.size());
    }
}

// On the CPU they must end as expected.
void run_and_check_short_rows(batchllm_engine *engine, const Golden &golden) {
    const ResultsHandle results = run_short_rows(engine, golden);
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_STOP);
        assert_int_equal(results->token_offsets[i + 1] - results->token_offsets[i], 1);
    }
}

// Whether the model's heads cannot be divided among the options' ranks.
bool is_refused(const Golden &golden, batchllm_engine_options options) {
    options.model_dir = golden.directory.c_str();
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    const EngineHandle made(engine);
    if (status == BATCHLLM_OK) return false;
    assert_int_equal(status, BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(batchllm_last_error(), "cannot be divided"));
    print_message("%s: %s\n", golden.directory.c_str(), batchllm_last_error());
    return true;
}

// All models (under sanitizers, a third) with these options, the way-th of the file. Returns the
// total of preemptions. refused: counts models with is_refused(); null: there are none.
int64_t compare_all(size_t way, const char *name, const batchllm_engine_options &options,
                    bool after_short_rows = false, int64_t *refused = nullptr) {
    Compared compared;
    int64_t preemptions = 0;
    int64_t shared = 0;
    int64_t models = 0;
    const std::vector<Golden> all = all_golden();
    for (size_t i = 0; i < all.size(); ++i) {
        if (left_to_other_ways(i, way)) continue;
        const Golden &golden = all[i];
        if (refused != nullptr && is_refused(golden, options)) {
            ++*refused;
            continue;
        }
        const EngineHandle engine = make_engine(golden.directory, options);
        if (after_short_rows) run_and_check_short_rows(engine.get(), golden);
        add_prompts(engine.get(), golden, greedy_params(golden));
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, golden.rows.size());
        for (int64_t r = 0; r < results->count; ++r) compare(golden, *results, r, &compared);
        preemptions += stats_of(engine).preemptions;
        shared += stats_of(engine).shared_prompt_tokens;
        ++models;
    }
    print_message("%s: %d models, %d tokens equal, log-probabilities up to %.2g off, %d left out, "
                  "%d prompt tokens shared, %d preemptions\n",
                  name, int(models), int(compared.tokens), compared.farthest,
                  int(compared.left_out), int(shared), int(preemptions));
    assert_true(models >= 10);
    // In float32 nearly all are compared.
    assert_true(compared.left_out * 20 < compared.tokens);
    if (options.enlarge == BATCHLLM_ENLARGE_NONE) {
        assert_int_equal(shared, 0);
    } else {
        assert_true(shared > 0);
    }
    return preemptions;
}

void greedy_tokens_are_the_references_with_sharing(void **) {
    compare_all(0, "sharing", float32_options());
}

void greedy_tokens_are_the_references_without_sharing(void **) {
    batchllm_engine_options options = float32_options();
    options.enlarge = BATCHLLM_ENLARGE_NONE;
    compare_all(1, "no sharing", options);
}

void greedy_tokens_are_the_references_with_shared_heads_of_prefixes(void **) {
    batchllm_engine_options options = float32_options();
    options.levels = 2;
    compare_all(2, "levels 2", options);
}

void greedy_tokens_are_the_references_with_steps_of_64_tokens(void **) {
    batchllm_engine_options options = float32_options();
    options.step_tokens = 64;
    compare_all(3, "64-token steps", options);
}

void greedy_tokens_are_the_references_on_a_pool_of_2_mib_that_preempts(void **) {
    batchllm_engine_options options = float32_options();
    options.kv_memory_bytes = int64_t{2} << 20;
    options.levels = 2;
    assert_true(compare_all(4, "2 MiB of KV pages", options, true) > 0);
}

void greedy_tokens_are_the_references_with_drafts(void **) {
    batchllm_engine_options options = float32_options();
    options.backend_options = "drafts=always";
    compare_all(5, "drafts", options);
}

void greedy_tokens_are_the_references_on_two_ranks(void **) {
    batchllm_engine_options options = float32_options();
    options.backend_options = "tensor_parallel=2";
    int64_t refused = 0;
    compare_all(6, "two ranks", options, false, &refused);
    // Three heads or three groups of them, a norm of all heads before a gate.
    assert_in_range(refused, 1, 10);
    assert_false(is_refused(read_golden("golden/kimi_linear_f16"), options));
}

// More than there are heads of keys: each rank has a copy of one.
void greedy_tokens_are_the_references_on_four_ranks(void **) {
    batchllm_engine_options options = float32_options();
    options.backend_options = "tensor_parallel=4";
    options.threads = 4;
    int64_t refused = 0;
    compare_all(7, "four ranks", options, false, &refused);
    assert_true(refused > 0);
    assert_false(is_refused(read_golden("golden/kimi_linear_f16"), options));
}

// The most pages of a KV group that the tokens of one row use at once, if each sees `window`
// tokens.
int64_t pages_of_row(int64_t tokens, int64_t window, int64_t page_tokens) {
    const int64_t all = (tokens + page_tokens - 1) / page_tokens;
    return std::min(all, 1 + (window - 1 + page_tokens - 1) / page_tokens);
}

void greedy_tokens_are_the_references_on_a_pool_that_holds_a_row_only_by_its_windows(void **) {
    struct Case {
        const char *model;
        int64_t full_groups, window_groups, window;
    };
    constexpr int64_t page_tokens = 16;
    for (const Case &c : {Case{"mistral_window", 0, 1, 27}, Case{"qwen2_window", 1, 2, 40},
                          Case{"llama4_text", 1, 3, 32}}) {
        int64_t models = 0;
        for (const Golden &golden : all_golden()) {
            if (golden.directory.find(c.model) == std::string::npos) continue;
            ++models;
            int64_t longest = 0;
            for (const GoldenRow &row : golden.rows) {
                longest = std::max(longest,
                                   static_cast<int64_t>(row.prompt.size()) + golden.new_tokens - 1);
            }
            const int64_t all = (longest + page_tokens - 1) / page_tokens;
            const int64_t pages = c.full_groups * all +
                                  c.window_groups * pages_of_row(longest, c.window, page_tokens);
            assert_true(pages < (c.full_groups + c.window_groups) * all);
            for (const int32_t levels : {0, 2}) {
                batchllm_engine_options options = float32_options();
                options.levels = std::max(levels, 1);
                options.enlarge = levels == 0 ? BATCHLLM_ENLARGE_NONE : BATCHLLM_ENLARGE_OPTIMAL;
                const int64_t page_bytes =
                    stats_of(make_engine(golden.directory, options)).kv_page_bytes;
                options.kv_memory_bytes = pages * page_bytes;
                const EngineHandle engine = make_engine(golden.directory, options);
                assert_int_equal(stats_of(engine).kv_pages_total, pages);
                add_prompts(engine.get(), golden, greedy_params(golden));
                const ResultsHandle results = run(engine.get());
                assert_int_equal(results->count, golden.rows.size());
                Compared compared;
                for (int64_t i = 0; i < results->count; ++i) {
                    compare(golden, *results, i, &compared);
                }
                assert_true(compared.left_out * 20 < compared.tokens);
            }
            // With one page less, the longest row gets the error that it does not fit.
            batchllm_engine_options options = float32_options();
            options.kv_memory_bytes =
                (pages - 1) * stats_of(make_engine(golden.directory, options)).kv_page_bytes;
            const EngineHandle engine = make_engine(golden.directory, options);
            add_prompts(engine.get(), golden, greedy_params(golden));
            const ResultsHandle results = run(engine.get());
            int64_t refused = 0;
            for (int64_t i = 0; i < results->count; ++i) {
                refused += results->statuses[i] == BATCHLLM_ERROR_ROW_TOO_LARGE;
            }
            assert_true(refused > 0);
        }
        assert_true(models > 0);
    }
}

std::vector<Golden> golden_with_states() {
    std::vector<Golden> all = all_golden();
    std::erase_if(all, [](const Golden &golden) { return !has_states(golden); });
    return all;
}

// Fewer slots than prefixes, prompts cut everywhere, pages for hardly more than the longest row.
void greedy_tokens_are_the_references_on_any_number_of_state_slots(void **) {
    struct Case {
        const char *slots;
        int64_t step_tokens;
    };
    const std::vector<Golden> models = golden_with_states();
    assert_true(models.size() >= 6);
    int64_t preemptions = 0;
    Compared compared;
    for (const Golden &golden : models) {
        for (const Case &c :
             {Case{"state_slots=1", 17}, Case{"state_slots=2", 512}, Case{"state_slots=3", 5},
              Case{"state_slots=5", 17}, Case{"state_slots=64", 512}}) {
            batchllm_engine_options options = float32_options();
            options.backend_options = c.slots;
            options.step_tokens = c.step_tokens;
            options.levels = 2;
            options.kv_memory_bytes = int64_t{1} << 25;
            EngineHandle engine = make_engine(golden.directory, options);
            const batchllm_stats stats = stats_of(engine);
            // Pages for 28 times 16 tokens, the longest row taking 14.
            options.kv_memory_bytes -= (stats.kv_pages_total - 28) * stats.kv_page_bytes;
            engine = make_engine(golden.directory, options);
            assert_int_equal(stats_of(engine).kv_pages_total, 28);
            if (c.step_tokens == 512) run_and_check_short_rows(engine.get(), golden);
            add_prompts(engine.get(), golden, greedy_params(golden));
            const ResultsHandle results = run(engine.get());
            assert_int_equal(results->count, golden.rows.size());
            for (int64_t i = 0; i < results->count; ++i) {
                compare(golden, *results, i, &compared);
            }
            preemptions += stats_of(engine).preemptions;
        }
    }
    print_message("states: %d models, %d tokens equal, %d left out, %d preemptions\n",
                  int(models.size()), int(compared.tokens), int(compared.left_out),
                  int(preemptions));
    assert_true(compared.left_out * 20 < compared.tokens);
    assert_true(preemptions > 0);
}

void scores_are_the_references(void **) {
    int64_t compared = 0;
    const std::vector<Golden> all = all_golden();
    for (const bool sharing : {true, false}) {
        for (size_t m = 0; m < all.size(); ++m) {
            if (left_to_other_ways(m, sharing)) continue;
            const Golden &golden = all[m];
            batchllm_engine_options options = float32_options();
            if (!sharing) options.enlarge = BATCHLLM_ENLARGE_NONE;
            const EngineHandle engine = make_engine(golden.directory, options);
            add_scores(engine.get(), golden);
            const ResultsHandle results = run(engine.get());
            assert_int_equal(results->count, golden.scores.size());
            for (int64_t i = 0; i < results->count; ++i) {
                assert_int_equal(results->finish_reasons[i], BATCHLLM_FINISH_SCORED);
                const GoldenScore &score = golden.scores[results->tags[i]];
                int64_t c = results->score_offsets[i];
                assert_int_equal(results->score_offsets[i + 1] - c, score.continuations.size());
                for (const std::vector<double> &expected : score.logprobs) {
                    int64_t at = results->score_token_offsets[c];
                    assert_int_equal(results->score_token_offsets[c + 1] - at, expected.size());
                    double sum = 0;
                    for (const double logprob : expected) {
                        const double got = static_cast<double>(results->score_logprobs[at++]);
                        if (!(std::fabs(got - logprob) <= logprob_tolerance)) {
                            fail_msg("%s: score row %d: %g and not %g", golden.directory.c_str(),
                                     int(results->tags[i]), got, logprob);
                        }
                        sum += logprob;
                        ++compared;
                    }
                    assert_true(std::fabs(results->scores[c] - sum) <=
                                logprob_tolerance * static_cast<double>(expected.size()));
                    ++c;
                }
            }
        }
    }
    print_message("%d log-probabilities compared\n", int(compared));
    assert_true(compared > 100);
}

// max_request_tokens decides which of longrope's two lists of factors applies, for all rows of the
// job.
void longrope_factors_follow_the_longest_request(void **) {
    const Golden golden = read_golden("golden/phi3_longrope_short_bf16");
    const TemporaryDirectory directory;
    std::string config = read_text(golden.directory + "/config.json");
    const std::string stated = "\"max_position_embeddings\": 512";
    const size_t at = config.find(stated);
    assert_true(at != std::string::npos);
    config.replace(at, stated.size(), "\"max_position_embeddings\": 4096");
    directory.write("config.json", config);
    directory.write("generation_config.json",
                    read_text(golden.directory + "/generation_config.json"));
    std::filesystem::create_symlink(
        std::filesystem::absolute(golden.directory + "/model.safetensors"),
        directory.path() + "/model.safetensors");
    for (const int64_t limit : {512, 513}) {
        batchllm_engine_options options = float32_options();
        options.max_request_tokens = limit;
        Golden moved = golden;
        moved.directory = directory.path();
        const EngineHandle engine = make_engine(moved.directory, options);
        add_prompts(engine.get(), golden, greedy_params(golden));
        const ResultsHandle results = run(engine.get());
        int64_t same = 0;
        for (int64_t i = 0; i < results->count; ++i) {
            const GoldenRow &row = golden.rows[results->tags[i]];
            const int64_t count = results->token_offsets[i + 1] - results->token_offsets[i];
            same += count == static_cast<int64_t>(row.tokens.size()) &&
                    std::equal(row.tokens.begin(), row.tokens.end(),
                               results->tokens + results->token_offsets[i]);
        }
        if (limit == 512) assert_true(same >= results->count - 1);
        if (limit == 513) assert_true(same < results->count / 2);
    }
}

void greedy_samples_of_a_row_are_all_the_reference(void **) {
    for (const char *name : {"golden/llama3_gqa_sharded_bf16", "golden/qwen3_next_bf16"}) {
        const Golden golden = read_golden(name);
        const EngineHandle engine = make_engine(golden.directory, float32_options());
        batchllm_params params = greedy_params(golden);
        params.samples = 3;
        add_prompts(engine.get(), golden, params);
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->count, 3 * golden.rows.size());
        Compared compared;
        for (int64_t i = 0; i < results->count; ++i) {
            assert_int_equal(results->samples[i], i % 3);
            compare(golden, *results, i, &compared);
        }
        assert_true(compared.tokens > 0);
    }
}

// With a temperature, the samples of a row are separate requests that start from the same prefix.
ResultsHandle run_sampled(const Golden &golden,
                          const batchllm_engine_options &options = float32_options()) {
    const EngineHandle engine = make_engine(golden.directory, options);
    batchllm_params params = greedy_params(golden);
    params.samples = 3;
    params.temperature = 1;
    params.top_k = 20;
    params.seed = 7;
    params.logprobs = 4;
    add_prompts(engine.get(), golden, params);
    return run(engine.get());
}

void the_same_sampled_job_twice_gives_the_same_results(void **) {
    const Golden golden = read_golden("golden/qwen3_bf16");
    const ResultsHandle a = run_sampled(golden);
    const ResultsHandle b = run_sampled(golden);
    assert_int_equal(a->count, 3 * golden.rows.size());
    assert_int_equal(b->count, a->count);
    const size_t tokens = static_cast<size_t>(a->token_offsets[a->count]);
    assert_memory_equal(a->tags, b->tags, static_cast<size_t>(a->count) * sizeof *a->tags);
    assert_memory_equal(a->token_offsets, b->token_offsets,
                        static_cast<size_t>(a->count + 1) * sizeof *a->token_offsets);
    assert_memory_equal(a->tokens, b->tokens, tokens * sizeof *a->tokens);
    assert_memory_equal(a->logprobs, b->logprobs, tokens * sizeof *a->logprobs);
    // Samples of one row differ from each other.
    int64_t different = 0;
    for (int64_t i = 0; i + 2 < a->count; i += 3) {
        const int64_t *at = a->token_offsets + i;
        different += at[1] - at[0] != at[2] - at[1] ||
                     std::memcmp(a->tokens + at[0], a->tokens + at[1],
                                 static_cast<size_t>(at[1] - at[0]) * sizeof(int32_t)) != 0;
    }
    assert_true(different > static_cast<int64_t>(golden.rows.size()) / 2);
}

// Whether samples share a snapshot of the prompt or each computes it.
void check_samples(const Golden &golden) {
    batchllm_engine_options alone = float32_options();
    alone.enlarge = BATCHLLM_ENLARGE_NONE;
    const ResultsHandle a = run_sampled(golden);
    const ResultsHandle b = run_sampled(golden, alone);
    assert_int_equal(a->count, 3 * golden.rows.size());
    assert_int_equal(b->count, a->count);
    int64_t same = 0;
    for (int64_t i = 0; i < a->count; ++i) {
        const int64_t begin = a->token_offsets[i], count = a->token_offsets[i + 1] - begin;
        int64_t j = 0; // results come in the order in which rows end
        while (b->tags[j] != a->tags[i] || b->samples[j] != a->samples[i]) ++j;
        same += count == b->token_offsets[j + 1] - b->token_offsets[j] &&
                std::equal(a->tokens + begin, a->tokens + begin + count,
                           b->tokens + b->token_offsets[j]);
    }
    // A draw that rounding decides changes what follows it.
    assert_true(same * 20 >= a->count * 19);
}

void samples_of_a_model_with_states_are_those_without_sharing(void **) {
    for (const char *model :
         {"golden/qwen3_next_bf16", "golden/lfm2_moe_bf16", "golden/nemotron_h_moe_bf16"}) {
        check_samples(read_golden(model));
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_are_the_references_with_sharing),
        cmocka_unit_test(greedy_tokens_are_the_references_without_sharing),
        cmocka_unit_test(greedy_tokens_are_the_references_with_shared_heads_of_prefixes),
        cmocka_unit_test(greedy_tokens_are_the_references_with_steps_of_64_tokens),
        cmocka_unit_test(greedy_tokens_are_the_references_on_a_pool_of_2_mib_that_preempts),
        cmocka_unit_test(greedy_tokens_are_the_references_with_drafts),
        cmocka_unit_test(greedy_tokens_are_the_references_on_two_ranks),
        cmocka_unit_test(greedy_tokens_are_the_references_on_four_ranks),
        cmocka_unit_test(
            greedy_tokens_are_the_references_on_a_pool_that_holds_a_row_only_by_its_windows),
        cmocka_unit_test(greedy_tokens_are_the_references_on_any_number_of_state_slots),
        cmocka_unit_test(scores_are_the_references),
        cmocka_unit_test(longrope_factors_follow_the_longest_request),
        cmocka_unit_test(greedy_samples_of_a_row_are_all_the_reference),
        cmocka_unit_test(the_same_sampled_job_twice_gives_the_same_results),
        cmocka_unit_test(samples_of_a_model_with_states_are_those_without_sharing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
