// Drafts in the engine: rows have the tokens that they have without, however they share, stop or are
// preempted, with and without batches in flight; and where a step has no room, nothing is proposed.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "../../bench/scripted_backend.h"
#include "../../bench/throughput_models.h"
#include "constraint_job.h"
#include "parameters/row_parameters.h"
#include "runtime/backend_choice.h"
#include "runtime/lane_drafts.h"
#include "seed.h"

namespace batchllm {
namespace {

struct Outcome {
    AnswersByRow answers;
    DraftWork drafts;
    batchllm_stats stats{};
};

// ---- Golden models, with answers long enough to repeat ----

struct Way {
    const char *name;
    batchllm_params params;
    int64_t kv_memory_bytes = int64_t{64} << 20;
    int64_t step_tokens = 0;
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    int32_t batches_in_flight = 1;
    bool reproducible = false;
};

Outcome run(const Golden &golden, const Way &way, Drafts drafts) {
    EngineOptions options;
    options.model_dir = golden.directory;
    options.backend = "cpu";
    options.enlarge = way.enlarge;
    options.drafts = drafts;
    options.backend_options.compute_type = "f32";
    options.backend_options.kv_memory_bytes = way.kv_memory_bytes;
    options.backend_options.step_tokens = way.step_tokens;
    options.backend_options.reproducible = way.reproducible;
    options.backend_options.threads = options.threads = 2;
    auto made = Engine::create(options, [&](const EngineOptions &of) -> Result<LoadedModel> {
        ASSIGN_OR_RETURN(LoadedModel loaded, load_model_and_backend(of));
        LateOptions late;
        late.batches_in_flight = way.batches_in_flight;
        loaded.backends[0] = std::make_unique<LateBackend>(std::move(loaded.backends[0]), late);
        return loaded;
    });
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    Engine &engine = **made;
    const Prompts prompts = prompts_of(golden);
    const auto params = ParamsColumn::open(&way.params, 1, prompts.count());
    assert_true(params.ok() &&
                (*engine.intake())
                    ->add_tokens({prompts.count(), prompts.tokens.data(), prompts.offsets.data()},
                                 nullptr, *params)
                    .ok());
    const Status status = engine.run(nullptr, nullptr);
    if (!status.ok()) fail_msg("%s: %s", way.name, status.message().c_str());
    Outcome outcome;
    outcome.stats = engine.stats();
    outcome.drafts = engine.draft_work();
    outcome.answers = answers_of(*engine.poll(0));
    return outcome;
}

// Of a few tokens, so that some of their sequences repeat.
constexpr int32_t few_tokens[] = {40, 41, 42, 43};
constexpr float favoured[] = {60, 60, 60, 60};
constexpr int32_t stop_tokens[] = {43};

std::vector<Way> ways() {
    batchllm_params params = default_params();
    params.max_tokens = 40;
    params.logprobs = 0;
    std::vector<Way> all;
    all.push_back({"greedy", params});
    all.push_back({"small steps", params, int64_t{64} << 20, 24});
    all.push_back({"few pages", params, int64_t{1} << 20});
    all.push_back({"no sharing", params, int64_t{64} << 20, 0, BATCHLLM_ENLARGE_NONE});
    all.push_back({"batches in flight", params, int64_t{64} << 20, 0, BATCHLLM_ENLARGE_OPTIMAL, 2});
    params.temperature = 1;
    params.samples = 3;
    params.bias_tokens = few_tokens;
    params.bias_values = favoured;
    params.bias_count = 4;
    all.push_back({"drawn", params});
    all.push_back({"drawn, batches in flight, few pages", params, int64_t{1} << 20, 32,
                   BATCHLLM_ENLARGE_OPTIMAL, 2});
    params.stop_tokens = stop_tokens;
    params.stop_token_count = 1;
    params.min_tokens = 12;
    all.push_back({"drawn, with stop tokens", params});
    return all;
}

// Reproducible rows have the same bits; others the same tokens, and nearly the same numbers.
void compare(const Golden &golden, const Way &way, const Outcome &with, const Outcome &without) {
    assert_int_equal(with.answers.size(), without.answers.size());
    for (const auto &[of, expected] : without.answers) {
        const Answer &got = with.answers.at(of);
        if (got.tokens != expected.tokens || got.finish != expected.finish ||
            got.status != BATCHLLM_OK || got.logprobs.size() != expected.logprobs.size() ||
            (way.reproducible && got.logprobs != expected.logprobs))
            fail_msg("%s: %s: row %d", golden.directory.c_str(), way.name, int(of.first));
        for (size_t i = 0; i < expected.logprobs.size(); ++i) {
            if (!(std::fabs(got.logprobs[i] - expected.logprobs[i]) < 2e-3F))
                fail_msg("%s: %s: row %d: log-probability %d", golden.directory.c_str(), way.name,
                         int(of.first), int(i));
        }
    }
    assert_int_equal(with.stats.completion_tokens, without.stats.completion_tokens);
}

void rows_have_the_tokens_that_they_have_without_drafts(void **) {
    DraftWork all;
    int64_t preemptions = 0, stopped = 0;
    size_t model = 0;
    for (const char *name : {"llama3_gqa_sharded_bf16", "mistral_window_bf16", "qwen2_window_bf16",
                             "gpt_oss_bf16", "deepseek_v2_lite_bf16"}) {
        const Golden golden = read_golden(std::string("golden/") + name);
        size_t number = model++;
        for (Way way : ways()) {
            if (left_to_other_ways(number++, 0)) continue;
            const Outcome without = run(golden, way, Drafts::off);
            assert_int_equal(without.drafts.proposed, 0);
            const Outcome with = run(golden, way, Drafts::always);
            compare(golden, way, with, without);
            // One step less for each token that was right, if only one row decodes.
            assert_true(with.drafts.accepted <= with.drafts.proposed);
            all.proposed += with.drafts.proposed;
            all.accepted += with.drafts.accepted;
            preemptions += with.stats.preemptions;
            for (const auto &[of, answer] : with.answers)
                stopped += answer.finish == BATCHLLM_FINISH_STOP;
            if (way.step_tokens > 0) continue;
            way.reproducible = true;
            compare(golden, way, run(golden, way, Drafts::always), run(golden, way, Drafts::off));
        }
    }
    print_message("%d tokens proposed, %d accepted, %d preemptions, %d stopped\n",
                  int(all.proposed), int(all.accepted), int(preemptions), int(stopped));
    assert_true(all.accepted > cases(500, 150) && all.proposed > all.accepted);
    assert_true(preemptions > 0 && stopped > 0);
}

void models_with_states_have_no_drafts(void **) {
    const Golden golden = read_golden("golden/qwen3_next_bf16");
    const Way way = ways().front();
    const Outcome with = run(golden, way, Drafts::always);
    assert_int_equal(with.drafts.proposed, 0);
    compare(golden, way, with, run(golden, way, Drafts::off));
}

// ---- Answers that end in the middle of accepted tokens ----

void a_row_ends_in_the_middle_of_accepted_tokens(void **) {
    const int32_t special[] = {285}; // of the model's tokenizer: <unused-285>
    const float always[] = {1000};
    const char *const stops[] = {
        "285><unused-285><unused-285><unused-285><unused-285><unused-285>"};
    for (const int32_t in_flight : {1, 2}) {
        Shape shape;
        shape.batches_in_flight = in_flight;
        shape.drafts = Drafts::always;
        const auto engine = make_engine(shape);
        for (uint64_t row = 0; row < 6; ++row) {
            batchllm_params params = default_params();
            params.max_tokens = 30;
            params.logprobs = 0;
            params.bias_tokens = special;
            params.bias_values = always;
            params.bias_count = 1;
            params.skip_special = 0;
            params.stop_strings = stops;
            params.stop_string_count = row < 3 ? 0 : 1;
            params.min_tokens = row == 5 ? 9 : 0;
            add(engine.get(), "some prompt", row, params, nullptr);
        }
        assert_true(engine->run(nullptr, nullptr).ok());
        const AnswersByRow answers = answers_of(*engine->poll(0));
        for (const auto &[of, answer] : answers) {
            const bool stops_early = of.first >= 3;
            const size_t expected = of.first < 3 ? 30 : of.first < 5 ? 6 : 15;
            assert_int_equal(answer.tokens.size(), expected);
            assert_int_equal(answer.logprobs.size(), expected);
            assert_int_equal(answer.finish,
                             stops_early ? BATCHLLM_FINISH_STOP : BATCHLLM_FINISH_LENGTH);
        }
        assert_string_equal(answers.at({4, 0}).text.c_str(), "<unused-");
        assert_true(engine->draft_work().accepted > 10);
        assert_int_equal(engine->stats().draft_tokens, engine->draft_work().proposed);
        assert_int_equal(engine->stats().draft_tokens_accepted, engine->draft_work().accepted);
    }
}

// ---- Rows that have none ----

void rows_with_penalties_have_no_drafts(void **) {
    Shape shape;
    shape.drafts = Drafts::always;
    const auto engine = make_engine(shape);
    batchllm_params params = default_params();
    params.max_tokens = 40;
    params.bias_tokens = few_tokens;
    params.bias_values = favoured;
    params.bias_count = 1;
    params.repetition_penalty = 1.01F;
    add(engine.get(), "a prompt", 0, params, nullptr);
    params.repetition_penalty = 1;
    params.frequency_penalty = 0.01F;
    add(engine.get(), "a prompt", 1, params, nullptr);
    params.frequency_penalty = 0;
    const char *const bad[] = {"abc"};
    params.bad_words = bad;
    params.bad_word_count = 1;
    add(engine.get(), "a prompt", 2, params, nullptr);
    params.bad_word_count = 0;
    assert_true(engine->run(nullptr, nullptr).ok());
    assert_int_equal(engine->draft_work().proposed, 0);
    add(engine.get(), "a prompt", 3, params, nullptr);
    assert_true(engine->run(nullptr, nullptr).ok());
    assert_true(engine->draft_work().accepted > 10);
}

// ---- Rows with a constraint ----

// A text of so many pairs of tokens, in which forced tokens come again and again.
AnswersByRow constrained(Drafts drafts, int32_t logprobs, DraftWork *work) {
    Shape shape;
    shape.drafts = drafts;
    const auto engine = make_engine(shape);
    ConstraintSpecification specification;
    specification.kind = ConstraintSpecification::Kind::regex;
    specification.text = "([ab]{6}(, colour: |; ))*";
    batchllm_params params = default_params();
    params.max_tokens = 120;
    params.logprobs = logprobs;
    params.ignore_eos = 1;
    const batchllm_constraint handle = handle_of(engine.get(), specification);
    for (uint64_t row = 0; row < 4; ++row) {
        const std::string prompt = "abbaba, colour: " + std::to_string(row);
        add(engine.get(), prompt, row, params, &handle);
    }
    assert_true(engine->run(nullptr, nullptr).ok());
    *work = engine->draft_work();
    return answers_of(*engine->poll(0));
}

void rows_with_a_constraint_keep_their_masks_and_forced_tokens(void **) {
    for (const int32_t logprobs : {0, -1}) { // with log-probabilities no token is forced
        DraftWork none, work;
        const AnswersByRow without = constrained(Drafts::off, logprobs, &none);
        const AnswersByRow with = constrained(Drafts::always, logprobs, &work);
        assert_int_equal(none.proposed, 0);
        print_message("%d proposed, %d right\n", int(work.proposed), int(work.accepted));
        assert_true(work.accepted > 10);
        for (const auto &[row, answer] : with) {
            assert_int_equal(answer.status, BATCHLLM_OK);
            assert_true(answer.tokens == without.at(row).tokens);
        }
    }
}

// ---- When a step has room ----

// How many tokens a step of so many rows with this context would compute beyond one for each, on a
// device. good: their answers copy their prompts; else each of their proposals was wrong.
int64_t proposed_on(const char *device, int32_t rows, int32_t context, bool good) {
    BackendInfo info;
    info.batches_in_flight = 2;
    const auto model = bench_model("Mistral-7B");
    assert_true(model.ok());
    DraftOptions options{Drafts::where_they_pay, nullptr};
    if (device != nullptr)
        options.cost = std::make_shared<StepCost>(*named_device_costs(device), model->model);
    LaneDrafts drafts(options, info);
    if (!drafts.on()) return -1;
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < context; ++i) prompt.push_back(i);
    const SamplingParams params;
    std::vector<Sequence> sequences(static_cast<size_t>(rows));
    std::vector<Request *> requests;
    for (Sequence &sequence : sequences) {
        sequence.prompt = {prompt.data(), context, 0};
        sequence.params = &params;
        sequence.computed = context;
        requests.push_back(&sequence);
    }
    int64_t proposed = 0;
    for (int32_t i = 0; i < 60; ++i) {
        for (Sequence &sequence : sequences)
            sequence.output.push_back(good || i % 4 != 3 ? 100 + i : 5000 + i);
        drafts.propose(requests);
        proposed = 0;
        for (const Request *request : requests)
            proposed += static_cast<int64_t>(request->proposed.size());
    }
    return proposed;
}

void tokens_are_proposed_where_a_step_has_room(void **) {
    assert_true(proposed_on("h100", 1, 2000, true) >= 8);
    assert_true(proposed_on("h100", 16, 4000, true) >= 16 * 4);
    assert_int_equal(proposed_on("h100", 300, 500, true), 0);
    assert_int_equal(proposed_on("h100", 16, 4000, false), 0);
    assert_int_equal(proposed_on(nullptr, 1, 2000, true), -1);
}

void without_the_option_only_a_gpu_has_drafts(void **) {
    const auto model = bench_model("Mistral-7B");
    assert_true(model.ok());
    const EngineOptions options;
    for (const DeviceKind kind : {DeviceKind::gpu, DeviceKind::processor}) {
        BackendInfo info;
        info.computes_on.kind = kind;
        const auto cost = step_cost_on(info, model->model, options);
        assert_true(LaneDrafts({options.drafts, cost}, info).on() == (kind == DeviceKind::gpu));
    }
}

} // namespace
} // namespace batchllm

int main() {
    using namespace batchllm;
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_tokens_that_they_have_without_drafts),
        cmocka_unit_test(models_with_states_have_no_drafts),
        cmocka_unit_test(a_row_ends_in_the_middle_of_accepted_tokens),
        cmocka_unit_test(rows_with_penalties_have_no_drafts),
        cmocka_unit_test(rows_with_a_constraint_keep_their_masks_and_forced_tokens),
        cmocka_unit_test(tokens_are_proposed_where_a_step_has_room),
        cmocka_unit_test(without_the_option_only_a_gpu_has_drafts),
    };
    return cmocka_run_group_tests_name("engine_drafts", tests, nullptr, nullptr);
}
