// min_tokens, bad_words and prompt_logprobs in the engine, with and without batches in flight, with
// pools that preempt, and in small steps: compared with rows that score their own prompts, and with
// a slow check of every token.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "constraint_job.h"
#include "parameters/row_parameters.h"

namespace batchllm {
namespace {

constexpr int64_t rows = 24;

// Groups of six prompts that begin alike.
std::string prompt_of(uint64_t row) {
    std::string text = "name " + std::to_string(row / 6) + ": a long beginning of some rows, ";
    for (uint64_t i = 0; i <= row % 6; ++i) text += "no yes red " + std::to_string(row * i);
    return text;
}

batchllm_params params_of(int32_t max_tokens) {
    batchllm_params params = default_params();
    params.max_tokens = max_tokens;
    return params;
}

const std::vector<Shape> &shapes() {
    static const std::vector<Shape> all = {
        {},
        {.batches_in_flight = 2},
        {.batches_in_flight = 2, .step_tokens = 24, .feeds_but_one_in = 3},
        {.kv_memory_bytes = int64_t{160} << 10, .step_tokens = 40},
        {.batches_in_flight = 2, .drafts = Drafts::always},
    };
    return all;
}

std::unique_ptr<ResultBatch> run(Engine *engine) {
    assert_true(engine->run(nullptr, nullptr).ok());
    return engine->poll(0);
}

// ---- Special tokens in the text ----

void special_tokens_are_in_the_text_of_rows_that_want_them(void **) {
    const int32_t special[] = {285}; // of the model's tokenizer: <unused-285>
    const float always[] = {1000};
    const char *const stops[] = {"285><"};
    for (const Shape &shape : shapes()) {
        const auto engine = make_engine(shape);
        for (uint64_t row = 0; row < 4; ++row) {
            batchllm_params params = params_of(3);
            params.bias_tokens = special;
            params.bias_values = always;
            params.bias_count = 1;
            params.skip_special = row % 2 == 0 ? 1 : 0;
            params.stop_strings = stops;
            params.stop_string_count = row < 2 ? 0 : 1;
            add(engine.get(), prompt_of(0), row, params, nullptr);
        }
        const AnswersByRow answers = answers_of(*run(engine.get()));
        assert_string_equal(answers.at({0, 0}).text.c_str(), "");
        assert_string_equal(answers.at({1, 0}).text.c_str(),
                            "<unused-285><unused-285><unused-285>");
        assert_int_equal(answers.at({2, 0}).tokens.size(), 3);
        assert_string_equal(answers.at({3, 0}).text.c_str(), "<unused-");
        assert_int_equal(answers.at({3, 0}).tokens.size(), 2);
    }
}

// ---- Log-probabilities of the prompt ----

struct PromptLogprobs {
    std::vector<float> values;
    std::vector<std::vector<int32_t>> likeliest;
    std::vector<std::vector<float>> logprobs;
};

PromptLogprobs prompt_logprobs_of(const ResultBatch &results, int64_t i) {
    PromptLogprobs read;
    const int64_t *const offsets = results.prompt_logprob_offsets;
    for (int64_t t = offsets[i]; t < offsets[i + 1]; ++t) {
        read.values.push_back(results.prompt_logprobs[t]);
        const int64_t begin = results.prompt_top_offsets[t],
                      end = results.prompt_top_offsets[t + 1];
        read.likeliest.emplace_back(results.prompt_top_tokens + begin,
                                    results.prompt_top_tokens + end);
        read.logprobs.emplace_back(results.prompt_top_logprobs + begin,
                                   results.prompt_top_logprobs + end);
    }
    return read;
}

std::vector<int32_t> tokens_of(const std::string &text) {
    const auto tokenizer = Tokenizer::load(model_directory());
    assert_true(tokenizer.ok());
    std::vector<int32_t> tokens;
    assert_true((*tokenizer)->encode(text, {true, true}, &tokens).ok());
    return tokens;
}

// The log-probabilities of each prompt's tokens after the first, from scoring.
std::map<uint64_t, std::vector<float>> scored_prompts() {
    const auto engine = make_engine({});
    std::map<uint64_t, std::vector<float>> expected;
    for (uint64_t row = 0; row < rows; ++row) {
        const std::vector<int32_t> tokens = tokens_of(prompt_of(row));
        const int64_t offsets[] = {0, 1};
        const int64_t continuation[] = {0, static_cast<int64_t>(tokens.size()) - 1};
        const int64_t of_row[] = {0, 1};
        const Column<int32_t> scored{1, tokens.data() + 1, continuation};
        assert_true(
            (*engine->intake())
                ->add_scores({1, tokens.data(), offsets}, {scored, of_row}, &row, default_params())
                .ok());
    }
    const auto results = run(engine.get());
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        expected[results->tags[i]].assign(
            results->score_logprobs + results->score_token_offsets[results->score_offsets[i]],
            results->score_logprobs + results->score_token_offsets[results->score_offsets[i] + 1]);
    }
    return expected;
}

void check_prompt(const ResultBatch &results, int64_t i, const std::vector<float> &expected) {
    const PromptLogprobs got = prompt_logprobs_of(results, i);
    const std::vector<int32_t> tokens = tokens_of(prompt_of(results.tags[i]));
    assert_int_equal(got.values.size(), tokens.size() - 1);
    for (size_t t = 0; t < got.values.size(); ++t) {
        assert_true(std::fabs(got.values[t] - expected[t]) < 1e-3f);
        assert_int_equal(got.likeliest[t].size(), 3);
        assert_true(std::is_sorted(got.logprobs[t].rbegin(), got.logprobs[t].rend()));
        // The token itself is among the likeliest with its own value, or less likely than all of them.
        const auto own = std::find(got.likeliest[t].begin(), got.likeliest[t].end(), tokens[t + 1]);
        if (own == got.likeliest[t].end()) {
            assert_true(got.values[t] <= got.logprobs[t].back());
        } else {
            const auto place = static_cast<size_t>(own - got.likeliest[t].begin());
            assert_true(got.logprobs[t][place] == got.values[t]);
        }
    }
}

void prompts_have_the_log_probabilities_that_scoring_gives(void **) {
    const auto expected = scored_prompts();
    const auto plain = make_engine({});
    for (uint64_t row = 0; row < rows; ++row)
        add(plain.get(), prompt_of(row), row, params_of(40), nullptr);
    const AnswersByRow answers = answers_of(*run(plain.get()));
    int64_t preemptions = 0;
    for (const Shape &shape : shapes()) {
        const auto engine = make_engine(shape);
        for (uint64_t row = 0; row < rows; ++row) {
            batchllm_params params = params_of(40);
            if (row % 3 != 2) params.prompt_logprobs = 3;
            add(engine.get(), prompt_of(row), row, params, nullptr);
        }
        const auto results = run(engine.get());
        assert_int_equal(results->count, rows);
        for (int64_t i = 0; i < results->count; ++i) {
            const uint64_t row = results->tags[i];
            assert_int_equal(results->statuses[i], BATCHLLM_OK);
            if (row % 3 != 2) {
                check_prompt(*results, i, expected.at(row));
                assert_int_equal(results->shared_tokens[i], 0);
            } else {
                assert_true(prompt_logprobs_of(*results, i).values.empty());
                assert_true(results->shared_tokens[i] > 16);
            }
        }
        // The generated text is the same with or without them.
        const AnswersByRow got = answers_of(*results);
        for (const auto &[of, answer] : answers) assert_true(got.at(of).tokens == answer.tokens);
        preemptions += engine->stats().preemptions;
    }
    if (preemptions == 0) fail_msg("no row was preempted");
}

void a_rows_first_sample_has_them_and_the_others_share_its_prompt(void **) {
    const auto expected = scored_prompts();
    for (const float temperature : {0.0f, 1.0f}) {
        for (const Shape &shape : shapes()) {
            const auto engine = make_engine(shape);
            batchllm_params params = params_of(4);
            params.prompt_logprobs = 3;
            params.samples = 4;
            params.temperature = temperature;
            for (uint64_t row = 0; row < rows; ++row)
                add(engine.get(), prompt_of(row), row, params, nullptr);
            const auto results = run(engine.get());
            assert_int_equal(results->count, 4 * rows);
            for (int64_t i = 0; i < results->count; ++i) {
                assert_int_equal(results->statuses[i], BATCHLLM_OK);
                if (results->samples[i] == 0) {
                    check_prompt(*results, i, expected.at(results->tags[i]));
                } else {
                    assert_true(prompt_logprobs_of(*results, i).values.empty());
                }
            }
            const batchllm_stats stats = engine->stats();
            // Once on its own, and once for the others if they are sampled.
            const int64_t times = temperature == 0 ? 4 : 2;
            assert_true(stats.processed_prompt_tokens * times >= stats.logical_prompt_tokens);
            assert_true(stats.saving_ratio > 0.45);
        }
    }
}

void equal_rows_are_computed_once_and_each_has_its_own(void **) {
    const auto engine = make_engine({});
    batchllm_params params = params_of(4);
    params.prompt_logprobs = 0;
    for (uint64_t row = 0; row < 6; ++row) add(engine.get(), prompt_of(1), row, params, nullptr);
    const auto results = run(engine.get());
    assert_int_equal(engine->stats().rows_deduplicated, 5);
    const PromptLogprobs first = prompt_logprobs_of(*results, 0);
    assert_true(first.values.size() > 30);
    for (int64_t i = 1; i < results->count; ++i) {
        assert_true(prompt_logprobs_of(*results, i).values == first.values);
        assert_true(prompt_logprobs_of(*results, i).likeliest[0].empty());
    }
}

// ---- Tokens that are forbidden ----

bool has(const std::vector<int32_t> &tokens, const std::vector<int32_t> &sequence) {
    return std::search(tokens.begin(), tokens.end(), sequence.begin(), sequence.end()) !=
           tokens.end();
}

// A row's first token and its third, or its last if it ended earlier.
std::array<int32_t, 2> stops_of(const std::vector<int32_t> &tokens) {
    assert_true(!tokens.empty());
    return {tokens[0], tokens[std::min<size_t>(2, tokens.size() - 1)]};
}

void stop_tokens_come_only_behind_min_tokens(void **) {
    const auto plain = make_engine({});
    for (uint64_t row = 0; row < rows; ++row)
        add(plain.get(), prompt_of(row), row, params_of(12), nullptr);
    const AnswersByRow free = answers_of(*run(plain.get()));
    for (const Shape &shape : shapes()) {
        for (const int32_t least : {0, 1, 5}) {
            const auto engine = make_engine(shape);
            for (uint64_t row = 0; row < rows; ++row) {
                batchllm_params params = params_of(12);
                const std::array stops = stops_of(free.at({row, 0}).tokens);
                params.stop_tokens = stops.data();
                params.stop_token_count = 2;
                params.min_tokens = least;
                add(engine.get(), prompt_of(row), row, params, nullptr);
            }
            for (const auto &[of, answer] : answers_of(*run(engine.get()))) {
                const std::array stops = stops_of(free.at(of).tokens);
                assert_int_equal(answer.status, BATCHLLM_OK);
                if (least == 0) assert_int_equal(answer.tokens.size(), 1);
                assert_true(static_cast<int32_t>(answer.tokens.size()) > least);
                for (int32_t t = 0; t < least; ++t) {
                    assert_int_not_equal(answer.tokens[static_cast<size_t>(t)], stops[0]);
                    assert_int_not_equal(answer.tokens[static_cast<size_t>(t)], stops[1]);
                }
            }
        }
    }
}

void eos_comes_only_behind_min_tokens_on_sim_too(void **) {
    for (const int32_t in_flight : {1, 2}) {
        Shape shape{.backend = "sim", .batches_in_flight = in_flight};
        const auto engine = make_engine(shape);
        batchllm_params params = params_of(40);
        params.min_tokens = 20;
        for (uint64_t row = 0; row < 50; ++row)
            add(engine.get(), prompt_of(row), row, params, nullptr);
        for (const auto &[of, answer] : answers_of(*run(engine.get())))
            assert_true(answer.tokens.size() > 20);
    }
}

// An EOS id, which a bias makes the likeliest token, ends a row with a constraint even if ignore_eos is set.
void min_tokens_holds_with_a_constraint_until_nothing_can_follow(void **) {
    using Kind = ConstraintSpecification::Kind;
    std::array<ConstraintSpecification, 3> specifications;
    specifications[0].kind = Kind::regex;
    specifications[0].text = "[a-z]*";
    specifications[1].kind = Kind::choices;
    specifications[1].choices = {"yes"};
    specifications[2].kind = Kind::regex;
    specifications[2].text = "(){1}";
    const int32_t eos = 281;
    const float likely = 1000;
    for (const int32_t ignore_eos : {0, 1}) {
        const auto engine = make_engine({});
        std::array<batchllm_constraint, 3> constraints;
        for (uint64_t row = 0; row < constraints.size(); ++row) {
            constraints[row] = handle_of(engine.get(), specifications[row]);
            batchllm_params params = params_of(12);
            params.min_tokens = 5;
            params.ignore_eos = ignore_eos;
            params.bias_tokens = &eos;
            params.bias_values = &likely;
            params.bias_count = 1;
            add(engine.get(), prompt_of(row), row, params, &constraints[row]);
        }
        AnswersByRow answers = answers_of(*run(engine.get()));
        const Answer &letters = answers[{0, 0}], &yes = answers[{1, 0}], &none = answers[{2, 0}];
        assert_int_equal(letters.finish, BATCHLLM_FINISH_STOP);
        assert_int_equal(letters.tokens.size(), 6);
        assert_int_equal(letters.tokens.back(), eos);
        assert_int_equal(yes.finish, BATCHLLM_FINISH_STOP);
        assert_string_equal(yes.text.c_str(), "yes");
        assert_true(yes.tokens.size() < 5);
        assert_int_equal(none.status, BATCHLLM_ERROR_ROW_NOT_A_NUMBER);
    }
}

void a_stop_string_counts_only_behind_min_tokens(void **) {
    const auto plain = make_engine({});
    for (uint64_t row = 0; row < rows; ++row)
        add(plain.get(), prompt_of(row), row, params_of(12), nullptr);
    const AnswersByRow free = answers_of(*run(plain.get()));
    int64_t cut = 0;
    for (const auto &[of, answer] : free) {
        if (answer.text.size() < 8 || answer.text.find('\0') != std::string::npos) continue;
        const std::string stop = answer.text.substr(0, 1);
        if (static_cast<unsigned char>(stop[0]) >= 0x80) continue; // not a whole character
        const char *strings[] = {stop.c_str()};
        for (const int32_t least : {0, 3}) {
            const auto engine = make_engine({});
            batchllm_params params = params_of(12);
            params.stop_strings = strings;
            params.stop_string_count = 1;
            params.min_tokens = least;
            add(engine.get(), prompt_of(of.first), 0, params, nullptr);
            const Answer got = answers_of(*run(engine.get())).at({0, 0});
            if (least == 0) {
                assert_string_equal(got.text.c_str(), "");
                ++cut;
            } else {
                assert_true(got.tokens.size() > 3);
                assert_true(got.text.starts_with(stop));
            }
        }
    }
    assert_true(cut > 3);
}

void bad_words_are_not_generated(void **) {
    const auto plain = make_engine({});
    for (uint64_t row = 0; row < rows; ++row)
        add(plain.get(), prompt_of(row), row, params_of(16), nullptr);
    const AnswersByRow free = answers_of(*run(plain.get()));
    int64_t banned_pairs = 0;
    for (const Shape &shape : shapes()) {
        const auto engine = make_engine(shape);
        std::map<uint64_t, std::vector<std::vector<int32_t>>> sequences;
        const auto tokenizer = Tokenizer::load(model_directory());
        for (uint64_t row = 0; row < rows; ++row) {
            // The second and third token of what it would generate, if they form a valid text.
            const Answer &answer = free.at({row, 0});
            if (answer.tokens.size() < 3) continue;
            const auto text = (*tokenizer)->decode({answer.tokens.data() + 1, 2}, false);
            std::vector<int32_t> again;
            if (!text.ok() || text->find('\0') != std::string::npos || text->empty() ||
                text->front() == ' ' || !(*tokenizer)->encode(*text, {false, false}, &again).ok() ||
                again != std::vector(answer.tokens.begin() + 1, answer.tokens.begin() + 3)) {
                continue;
            }
            const char *words[] = {text->c_str(), "never said"};
            batchllm_params params = params_of(16);
            params.bad_words = words;
            params.bad_word_count = 2;
            params.logprobs = 2;
            add(engine.get(), prompt_of(row), row, params, nullptr);
            sequences[row] = {again};
            ++banned_pairs;
        }
        for (const auto &[of, answer] : answers_of(*run(engine.get()))) {
            assert_int_equal(answer.status, BATCHLLM_OK);
            assert_true(has(free.at(of).tokens, sequences[of.first][0]));
            assert_false(has(answer.tokens, sequences[of.first][0]));
            // The tokens before it are the same: the sequence is banned, not its first token.
            assert_int_equal(answer.tokens[0], free.at(of).tokens[0]);
            assert_int_equal(answer.tokens[1], free.at(of).tokens[1]);
        }
    }
    assert_true(banned_pairs > 8);
}

void words_that_cannot_be_are_the_rows_errors(void **) {
    const auto engine = make_engine({});
    batchllm_params params = params_of(4);
    params.min_tokens = 5;
    add(engine.get(), "a", 0, params, nullptr);
    params.min_tokens = -1;
    add(engine.get(), "a", 1, params, nullptr);
    params.min_tokens = 0;
    params.prompt_logprobs = 21;
    add(engine.get(), "a", 2, params, nullptr);
    params.prompt_logprobs = -1;
    const char *words[] = {""};
    params.bad_words = words;
    params.bad_word_count = 1;
    add(engine.get(), "a", 3, params, nullptr);
    // No token is left to generate.
    params.bad_word_count = 0;
    params.min_tokens = 1;
    const int32_t stops[] = {281};
    params.stop_tokens = stops;
    params.stop_token_count = 1;
    std::vector<int32_t> all(290);
    std::vector<float> none(290, -INFINITY);
    for (int32_t i = 0; i < 290; ++i) all[static_cast<size_t>(i)] = i;
    none[281] = 0;
    params.bias_tokens = all.data();
    params.bias_values = none.data();
    params.bias_count = 290;
    add(engine.get(), "a", 4, params, nullptr);
    const AnswersByRow answers = answers_of(*run(engine.get()));
    const auto says = [&](uint64_t row, const char *text) {
        if (answers.at({row, 0}).error.find(text) == std::string::npos)
            fail_msg("\"%s\" lacks \"%s\"", answers.at({row, 0}).error.c_str(), text);
    };
    says(0, "min_tokens is 5: it must be at most max_tokens, 4");
    says(1, "min_tokens is -1");
    says(2, "prompt_logprobs is 21: must be from -1 (none) to 20");
    says(3, "bad_words[0] is empty");
    says(4, "min_tokens, bad_words");
    assert_int_equal(answers.at({4, 0}).status, BATCHLLM_ERROR_ROW_NOT_A_NUMBER);
    // The same immediately, without a row.
    params = params_of(4);
    params.min_tokens = 5;
    const Status refused = engine->check_params(params);
    assert_int_equal(refused.code(), BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    params.min_tokens = 4;
    params.top_k = -1;
    assert_true(engine->check_params(params).ok());
}

void all_rows_can_be_cancelled(void **) {
    const auto engine = make_engine({});
    batchllm_params params = params_of(200);
    params.ignore_eos = 1;
    for (uint64_t row = 0; row < rows; ++row)
        add(engine.get(), prompt_of(row), row, params, nullptr);
    batchllm_progress progress{};
    for (int step = 0; step < 5; ++step) assert_true(engine->step(&progress).ok());
    engine->cancel_all();
    params.max_tokens = 3;
    add(engine.get(), prompt_of(0), rows, params, nullptr); // unaffected
    const AnswersByRow answers = answers_of(*run(engine.get()));
    assert_int_equal(answers.size(), rows + 1);
    for (const auto &[of, answer] : answers)
        assert_int_equal(answer.finish,
                         of.first == rows ? BATCHLLM_FINISH_LENGTH : BATCHLLM_FINISH_CANCELLED);
}

} // namespace
} // namespace batchllm

int main() {
    using namespace batchllm;
    const CMUnitTest tests[] = {
        cmocka_unit_test(special_tokens_are_in_the_text_of_rows_that_want_them),
        cmocka_unit_test(prompts_have_the_log_probabilities_that_scoring_gives),
        cmocka_unit_test(a_rows_first_sample_has_them_and_the_others_share_its_prompt),
        cmocka_unit_test(equal_rows_are_computed_once_and_each_has_its_own),
        cmocka_unit_test(stop_tokens_come_only_behind_min_tokens),
        cmocka_unit_test(eos_comes_only_behind_min_tokens_on_sim_too),
        cmocka_unit_test(min_tokens_holds_with_a_constraint_until_nothing_can_follow),
        cmocka_unit_test(a_stop_string_counts_only_behind_min_tokens),
        cmocka_unit_test(bad_words_are_not_generated),
        cmocka_unit_test(words_that_cannot_be_are_the_rows_errors),
        cmocka_unit_test(all_rows_can_be_cancelled),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
