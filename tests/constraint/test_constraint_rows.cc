// Rows with a constraint: what their log-probabilities refer to, and where a constraint with a
// marker begins.
#include <cmath>

#include "constraint_job.h"
#include "parameters/row_parameters.h"
#include "text/tokenizer.h"

using namespace batchllm;

namespace {

constexpr int32_t think_end = 282;

ConstraintSpecification choices(std::vector<std::string> texts, const char *start_after = "") {
    ConstraintSpecification made;
    made.kind = ConstraintSpecification::Kind::choices;
    made.choices = std::move(texts);
    made.options.start_after = start_after;
    return made;
}

// Log-probabilities of single tokens after the prompt, from the model alone.
std::vector<double> free_logprobs(const std::string &prompt, const std::vector<int32_t> &tokens) {
    const std::unique_ptr<Engine> engine = make_engine({});
    std::vector<int32_t> prompt_tokens(prompt.begin(), prompt.end()); // one byte each
    const int64_t prompt_offsets[2] = {0, static_cast<int64_t>(prompt_tokens.size())};
    std::vector<int64_t> offsets;
    for (size_t i = 0; i <= tokens.size(); ++i) offsets.push_back(static_cast<int64_t>(i));
    const auto count = static_cast<int64_t>(tokens.size());
    const int64_t rows[2] = {0, count};
    const uint64_t tag = 0;
    assert_true((*engine->intake())
                    ->add_scores({1, prompt_tokens.data(), prompt_offsets},
                                 {{count, tokens.data(), offsets.data()}, rows}, &tag,
                                 default_params())
                    .ok());
    assert_true(engine->run(nullptr, nullptr).ok());
    const std::unique_ptr<ResultBatch> results = engine->poll(0);
    assert_int_equal(results->score_offsets[1] - results->score_offsets[0], count);
    return {results->scores, results->scores + count};
}

void log_probabilities_are_of_the_tokens_that_may_come(void **) {
    const std::string prompt = "XYZ! ";
    const std::vector<int32_t> tokens = {'k', 'q', 'w', 'J'};
    std::vector<std::string> texts;
    for (const int32_t token : tokens) texts.push_back(std::string(1, static_cast<char>(token)));
    const std::vector<double> free = free_logprobs(prompt, tokens);
    double all = 0;
    for (const double logprob : free) all += std::exp(logprob);
    assert_true(all < 0.5); // others would take most of it

    for (const float temperature : {0.0f, 1.5f}) { // independent of the parameters' temperature
        const std::unique_ptr<Engine> engine = make_engine({});
        const batchllm_constraint handle = handle_of(engine.get(), choices(texts));
        batchllm_params params;
        batchllm_params_init(&params, sizeof params);
        params.temperature = temperature;
        params.logprobs = 20;
        params.add_special = 0;
        add(engine.get(), prompt, 0, params, &handle);
        assert_true(engine->run(nullptr, nullptr).ok());
        const std::unique_ptr<ResultBatch> results = engine->poll(0);
        // Those of probability 0 are left out.
        const int64_t likely = results->top_offsets[1] - results->top_offsets[0];
        assert_int_equal(likely, tokens.size());
        for (int64_t i = 0; i < likely; ++i) {
            const auto at = std::find(tokens.begin(), tokens.end(), results->top_tokens[i]);
            assert_true(at != tokens.end());
            const double expected = free[static_cast<size_t>(at - tokens.begin())] - std::log(all);
            assert_true(std::abs(results->top_logprobs[i] - expected) < 1e-4);
            if (results->top_tokens[i] == results->tokens[0])
                assert_true(std::abs(results->logprobs[0] - expected) < 1e-4);
        }
    }
}

const std::vector<std::string> &verdicts() {
    static const std::vector<std::string> all = {"the verdict of the age is true",
                                                 "the verdict of the age is blue"};
    return all;
}

AnswersByRow run_chat(const Shape &shape, const batchllm_params &wanted, int32_t rows,
                      batchllm_stats *stats) {
    const std::unique_ptr<Engine> engine = make_engine(shape);
    const batchllm_constraint handle = handle_of(engine.get(), choices(verdicts(), "</think>"));
    batchllm_params params = wanted;
    params.constraint = &handle;
    const auto column = ParamsColumn::open(&params, 1, 1);
    for (int32_t row = 0; row < rows; ++row) {
        const std::string chat =
            "[{\"role\": \"user\", \"content\": \"Number " + std::to_string(row) + "\"}]";
        const int64_t offsets[2] = {0, static_cast<int64_t>(chat.size())};
        const auto tag = static_cast<uint64_t>(row);
        assert_true((*engine->intake())->add_chat({1, chat.data(), offsets}, &tag, *column).ok());
    }
    const Status status = engine->run(nullptr, nullptr);
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    *stats = engine->stats();
    return answers_of(*engine->poll(0));
}

// The marker is a special token of the model: any text before it; only the constraint's text after
// it.
void a_conversation_keeps_to_its_constraint_behind_the_marker(void **) {
    const auto tokenizer = Tokenizer::load(model_directory() + "/tokenizer.json");
    assert_true(tokenizer.ok());
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 100;
    params.temperature = 1.5f;
    params.samples = 8;
    params.seed = 3;
    batchllm_stats stats;
    const AnswersByRow alone = run_chat({}, params, 16, &stats);
    int32_t whole = 0, cut = 0, without = 0;
    for (const auto &[row, answer] : alone) {
        assert_int_equal(answer.status, BATCHLLM_OK);
        const auto marker = std::find(answer.tokens.begin(), answer.tokens.end(), think_end);
        if (marker == answer.tokens.end()) {
            ++without;
            continue;
        }
        const auto text = (*tokenizer)->decode({marker + 1, answer.tokens.end()}, false);
        assert_true(text.ok());
        const bool stopped = answer.finish == BATCHLLM_FINISH_STOP;
        const bool holds =
            std::any_of(verdicts().begin(), verdicts().end(), [&](const std::string &verdict) {
                return stopped ? *text == verdict : verdict.starts_with(*text);
            });
        if (!holds) fail_msg("row %d: \"%s\"", int(row.first), text->c_str());
        ++(stopped ? whole : cut);
    }
    print_message("%d whole, %d cut, %d without the marker\n", whole, cut, without);
    assert_true(whole >= 10 && without > 0);

    int64_t preemptions = 0;
    for (const int64_t memory : {int64_t{64} << 20, int64_t{400'000}}) {
        Shape shape;
        shape.batches_in_flight = 2;
        shape.kv_memory_bytes = memory;
        assert_true(run_chat(shape, params, 16, &stats) == alone);
        preemptions += stats.preemptions;
    }
    assert_true(preemptions > 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_are_of_the_tokens_that_may_come),
        cmocka_unit_test(a_conversation_keeps_to_its_constraint_behind_the_marker),
    };
    return cmocka_run_group_tests_name("constraint_rows", tests, nullptr, nullptr);
}
