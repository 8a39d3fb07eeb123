// The engine with two batches in flight and on several devices, against a model that checks every batch
// and every stored token, and against itself on the CPU with one batch in flight.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "checked_model.h"
#include "late_backend.h"
#include "parameters/row_parameters.h"
#include "runtime/engine.h" // before cmocka, whose fail() is a macro

#include "golden_files.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

using Random = std::mt19937_64;

int64_t draw(Random &random, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// ---- The checked model as a backend ----

struct CheckedShape {
    int64_t pages = 0;
    int32_t page_tokens = 0;
    int64_t step_tokens = 0;
    int32_t mean_length = 8;
    std::vector<int32_t> kv_windows = {0};
};

class CheckedBackend : public Backend {
  public:
    explicit CheckedBackend(const CheckedShape &shape)
        : model_(shape.pages, shape.page_tokens, shape.step_tokens, shape.mean_length,
                 shape.kv_windows) {
        info_.name = "checked";
        info_.vocabulary = model_vocabulary;
        info_.page_tokens = shape.page_tokens;
        info_.pages = shape.pages;
        info_.kv_windows = shape.kv_windows;
        info_.step_tokens = shape.step_tokens;
        info_.eos_token = model_eos;
    }
    const BackendInfo &info() const override { return info_; }
    double last_run_seconds() const override { return 1e-3; }

    Status forward(const TokenBatch &batch) override {
        const std::string wrong = model_.run(batch, &output_);
        return wrong.empty() ? Status() : error(BATCHLLM_ERROR_INTERNAL, "%s", wrong.c_str());
    }
    Status sample(std::span<const TokenMask>) override { return {}; }
    Status collect(BatchOutput *output) override {
        std::swap(*output, output_);
        return {};
    }

  private:
    CheckedModel model_;
    BatchOutput output_;
    BackendInfo info_;
};

// ---- Rows and their expected results ----

struct TestRow {
    std::vector<int32_t> prompt;
    std::vector<std::vector<int32_t>> continuations; // if any, the row is scored
    batchllm_params params;
    int32_t stop_token = -1;
    bool cancelled = false;

    std::vector<int32_t> expected;
    std::vector<float> expected_scores;
};

void expect(TestRow *row, int32_t mean_length) {
    uint64_t hash = 1;
    for (const int32_t token : row->prompt) hash = context_hash(hash, token);
    for (const std::vector<int32_t> &continuation : row->continuations) {
        uint64_t at = hash;
        for (const int32_t token : continuation) {
            row->expected_scores.push_back(target_logprob(at, token));
            at = context_hash(at, token);
        }
    }
    while (row->continuations.empty() &&
           static_cast<int32_t>(row->expected.size()) < row->params.max_tokens) {
        const int32_t token = next_token(hash, mean_length);
        row->expected.push_back(token);
        if ((token == model_eos && !row->params.ignore_eos) || token == row->stop_token) break;
        hash = context_hash(hash, token);
    }
}

std::vector<int32_t> some_tokens(Random &random, int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t &token : tokens) token = static_cast<int32_t>(draw(random, 1, 3));
    return tokens;
}

std::vector<TestRow> make_rows(Random &random, int32_t mean_length) {
    std::vector<TestRow> rows;
    std::vector<std::vector<int32_t>> heads{{}};
    for (int64_t i = draw(random, 1, 4); i > 0; --i) {
        std::vector<int32_t> head =
            heads[static_cast<size_t>(draw(random, 0, static_cast<int64_t>(heads.size()) - 1))];
        const std::vector<int32_t> more = some_tokens(random, draw(random, 1, 20));
        head.insert(head.end(), more.begin(), more.end());
        heads.push_back(std::move(head));
    }
    for (int64_t i = draw(random, 1, 40); i > 0; --i) {
        TestRow row;
        row.prompt =
            heads[static_cast<size_t>(draw(random, 0, static_cast<int64_t>(heads.size()) - 1))];
        const std::vector<int32_t> own = some_tokens(random, draw(random, 1, 12));
        row.prompt.insert(row.prompt.end(), own.begin(), own.end());
        if (!rows.empty() && draw(random, 0, 9) < 2) row.prompt = rows.back().prompt;
        batchllm_params_init(&row.params, sizeof row.params);
        row.params.max_tokens = static_cast<int32_t>(draw(random, 1, 16));
        if (draw(random, 0, 5) == 0) row.params.samples = static_cast<int32_t>(draw(random, 2, 4));
        if (draw(random, 0, 2) == 0) row.params.temperature = 1;
        if (draw(random, 0, 5) == 0) row.params.presence_penalty = 1;
        row.params.ignore_eos = draw(random, 0, 5) == 0;
        if (draw(random, 0, 4) == 0) {
            for (int64_t c = draw(random, 1, 4); c > 0; --c)
                row.continuations.push_back(some_tokens(random, draw(random, 1, 5)));
            row.params.samples = 1;
        }
        expect(&row, mean_length);
        if (row.expected.size() > 2 && draw(random, 0, 3) == 0) {
            row.stop_token = row.expected[1];
            row.expected.clear();
            expect(&row, mean_length);
        }
        rows.push_back(std::move(row));
    }
    return rows;
}

bool add(Engine *engine, const TestRow &row, uint64_t tag) {
    const int64_t offsets[2] = {0, static_cast<int64_t>(row.prompt.size())};
    const Column<int32_t> prompt{1, row.prompt.data(), offsets};
    if (row.continuations.empty()) {
        batchllm_params params = row.params;
        if (row.stop_token >= 0) {
            params.stop_tokens = &row.stop_token;
            params.stop_token_count = 1;
        }
        return (*engine->intake())
            ->add_tokens(prompt, &tag, *ParamsColumn::open(&params, 1, 1))
            .ok();
    }
    std::vector<int32_t> tokens;
    std::vector<int64_t> ends{0};
    for (const std::vector<int32_t> &continuation : row.continuations) {
        tokens.insert(tokens.end(), continuation.begin(), continuation.end());
        ends.push_back(static_cast<int64_t>(tokens.size()));
    }
    const int64_t count = static_cast<int64_t>(row.continuations.size());
    const int64_t of_row[2] = {0, count};
    return (*engine->intake())
        ->add_scores(prompt, {{count, tokens.data(), ends.data()}, of_row}, &tag, default_params())
        .ok();
}

// Returns "" or what is wrong: every row must have exactly its results, each as expected.
std::string check_results(const std::vector<TestRow> &rows, const ResultBatch &results) {
    std::vector<int32_t> given(rows.size(), 0);
    for (int64_t i = 0; i < results.count; ++i) {
        const auto tag = static_cast<size_t>(results.tags[i]);
        const TestRow &row = rows[tag];
        if (results.samples[i] != given[tag]++) return fault("samples not one after the other");
        if (results.statuses[i] != BATCHLLM_OK) return fault("a row failed", results.statuses[i]);
        const std::vector<int32_t> tokens(results.tokens + results.token_offsets[i],
                                          results.tokens + results.token_offsets[i + 1]);
        if (results.finish_reasons[i] == BATCHLLM_FINISH_CANCELLED) {
            if (!row.cancelled) return fault("cancelled without being asked to");
            if (tokens.size() > row.expected.size() ||
                !std::equal(tokens.begin(), tokens.end(), row.expected.begin()))
                return fault("a cancelled row's tokens are not the first of its own");
            continue;
        }
        if (tokens != row.expected) return fault("wrong tokens", results.samples[i]);
        const std::vector<float> scores(
            results.score_logprobs + results.score_token_offsets[results.score_offsets[i]],
            results.score_logprobs + results.score_token_offsets[results.score_offsets[i + 1]]);
        if (scores != row.expected_scores) return fault("wrong scores");
    }
    for (size_t i = 0; i < rows.size(); ++i)
        if (given[i] != rows[i].params.samples)
            return fault("not one result a row and sample", given[i], rows[i].params.samples);
    return "";
}

struct Totals {
    int64_t fed_tokens = 0;
    int64_t preemptions = 0;
    int64_t steps = 0;
    int64_t lost_devices = 0;
    int64_t compared = 0; // jobs whose prompt tokens on one device are the fewest
    DraftWork drafts;
};

// KV slots of the longest row.
int64_t longest_of(const std::vector<TestRow> &rows) {
    int64_t longest = 1;
    for (const TestRow &row : rows) {
        int64_t more = row.params.max_tokens;
        for (const auto &continuation : row.continuations)
            more = std::max(more, static_cast<int64_t>(continuation.size()));
        longest = std::max(longest, static_cast<int64_t>(row.prompt.size()) + more);
    }
    return longest;
}

struct JobShape {
    bool all_at_once = true;
    bool cancels = false;
    // How the first devices fail: after how many batches, and in which call.
    std::vector<std::pair<int64_t, LateOptions::Call>> failing;
};

// Counts warnings.
void count_warning(void *user, int32_t, const char *) { ++*static_cast<int64_t *>(user); }

// Runs the rows through an engine on checked models. Returns "" or what went wrong.
std::string run_job(Random &random, const CheckedShape &shape, const EngineOptions &options,
                    const LateOptions &late, const JobShape &job, std::vector<TestRow> *rows_of_job,
                    batchllm_stats *stats, DraftWork *drafts) {
    std::vector<TestRow> &rows = *rows_of_job;
    auto made = Engine::create(options, [&](const EngineOptions &) -> Result<LoadedModel> {
        LoadedModel loaded;
        for (size_t i = 0; i < options.devices.size(); ++i) {
            LateOptions own = late;
            if (i < job.failing.size()) std::tie(own.fails_after, own.fails_in) = job.failing[i];
            loaded.backends.push_back(
                std::make_unique<LateBackend>(std::make_unique<CheckedBackend>(shape), own));
        }
        return loaded;
    });
    if (!made.ok()) return made.status().message();
    Engine &engine = **made;

    for (TestRow &row : rows) row.cancelled = false;
    size_t added = 0;
    batchllm_progress progress{};
    for (int64_t steps = 0;; ++steps) {
        if (steps > 100000) return "no end";
        const size_t until = job.all_at_once ? rows.size() : added + rows.size() / 3 + 1;
        while (added < std::min(until, rows.size())) {
            if (!add(&engine, rows[added], added)) return "a row was refused";
            ++added;
        }
        if (job.cancels && draw(random, 0, 5) == 0) {
            const int64_t tag = draw(random, 0, static_cast<int64_t>(added) - 1);
            rows[static_cast<size_t>(tag)].cancelled = true;
            engine.cancel(static_cast<uint64_t>(tag));
        }
        const Status status = engine.step(&progress);
        if (!status.ok()) return status.message();
        if (progress.rows_waiting + progress.rows_running + progress.rows_done !=
            static_cast<int64_t>(added))
            return fault("waiting, running and done are not all");
        if (progress.rows_waiting + progress.rows_running == 0 && added == rows.size()) break;
    }
    if (const Status status = engine.step(&progress); !status.ok()) return status.message();
    if (progress.tokens_left != 0) return fault("tokens left", progress.tokens_left);
    if (progress.pages_used != 0) return fault("pages leaked", progress.pages_used);
    *stats = engine.stats();
    drafts->proposed += engine.draft_work().proposed;
    drafts->accepted += engine.draft_work().accepted;
    return check_results(rows, *engine.poll(0));
}

// A random job: one batch at a time on one device, then with batches in flight and on several.
std::string check_job(Random &random, Totals *totals) {
    CheckedShape shape;
    shape.mean_length = static_cast<int32_t>(draw(random, 2, 20));
    std::vector<TestRow> rows = make_rows(random, shape.mean_length);
    shape.page_tokens = static_cast<int32_t>(draw(random, 1, 6));
    shape.step_tokens = draw(random, 1, draw(random, 0, 1) ? 8 : 80);
    if (draw(random, 0, 1)) {
        const auto window = static_cast<int32_t>(draw(random, 2, 20));
        shape.kv_windows = {window, 0, window};
    }
    int64_t fewest = 0; // pages that hold the longest row
    for (const int32_t window : shape.kv_windows) {
        const int64_t all = (longest_of(rows) + shape.page_tokens - 1) / shape.page_tokens;
        fewest += window == 0 ? all
                              : std::min(all, 1 + int64_t{window - 1 + shape.page_tokens - 1} /
                                                      shape.page_tokens);
    }
    shape.pages = fewest + (draw(random, 0, 2) ? draw(random, 0, draw(random, 0, 1) ? 8 : 60) : 0);
    EngineOptions options;
    options.enlarge = static_cast<int32_t>(draw(random, 0, 2));
    options.levels = static_cast<int32_t>(draw(random, 1, 2));
    options.min_prefix_tokens = static_cast<int32_t>(draw(random, 1, 8));
    options.max_requests = draw(random, 0, 3) ? 0 : draw(random, 1, 5);
    JobShape job;
    job.all_at_once = draw(random, 0, 1) == 0;
    job.cancels = draw(random, 0, 3) == 0;

    LateOptions late;
    late.batches_in_flight = 1;
    batchllm_stats alone{}, stats{};
    std::string wrong = run_job(random, shape, options, late, job, &rows, &alone, &totals->drafts);
    if (draw(random, 0, 1)) options.drafts = Drafts::always;
    if (!wrong.empty()) return wrong + ", one batch at a time";
    late.batches_in_flight = static_cast<int32_t>(draw(random, 1, 2));
    late.feeds_but_one_in = static_cast<int32_t>(draw(random, 0, 3));
    late.ready_after = static_cast<int32_t>(draw(random, 0, 2));
    late.fed_tokens = &totals->fed_tokens;
    options.devices.resize(static_cast<size_t>(draw(random, 1, 3)));
    std::iota(options.devices.begin(), options.devices.end(), 0);
    // All but one may fail, if they have enough batches.
    for (size_t i = 1; i < options.devices.size() && draw(random, 0, 1); ++i)
        job.failing.emplace_back(draw(random, 0, draw(random, 0, 40)),
                                 static_cast<LateOptions::Call>(draw(random, 0, 2)));
    options.log = {count_warning, &totals->lost_devices, BATCHLLM_LOG_WARNING};
    wrong = run_job(random, shape, options, late, job, &rows, &stats, &totals->drafts);
    totals->preemptions += stats.preemptions;
    totals->steps += stats.steps;
    if (!wrong.empty() || !job.all_at_once || job.cancels) return wrong;
    if (stats.completion_tokens != alone.completion_tokens)
        return fault("completion tokens", stats.completion_tokens, alone.completion_tokens);
    if (stats.logical_prompt_tokens != alone.logical_prompt_tokens)
        return fault("logical prompt tokens");
    // Which rows end before they are admitted may differ, and therefore also what is shared; each
    // device computes its own prefixes.
    if (options.devices.size() == 1 &&
        stats.processed_prompt_tokens != alone.processed_prompt_tokens)
        return fault("prompt tokens", stats.processed_prompt_tokens, alone.processed_prompt_tokens);
    // The rows of a failed device are planned again. Planning parts of the rows is sure to save no more
    // than planning all of them only for the optimum of one level: Algorithm 1 is no optimum, and with
    // two levels the groups are those of one (docs/planning.md).
    const bool optimal = options.enlarge != BATCHLLM_ENLARGE_PAPER && options.levels == 1;
    const bool planned_better = !job.failing.empty() && !optimal;
    // In a small pool a preempted row goes on without its prefix. If no other row needs the prefix, it is
    // forgotten, and a later row computes it again, which counts.
    const bool least = alone.preemptions == 0 && !planned_better;
    totals->compared += least;
    if (least && stats.processed_prompt_tokens < alone.processed_prompt_tokens)
        return fault("fewer prompt tokens on more devices", stats.processed_prompt_tokens,
                     alone.processed_prompt_tokens);
    return "";
}

void random_jobs_are_right_with_any_number_of_devices_and_batches_in_flight(void **) {
    const uint64_t seed = seed_of_run();
    Totals totals;
    for (uint64_t job = 0; job < 1000; ++job) {
        Random random(seed + job);
        const std::string wrong = check_job(random, &totals);
        if (!wrong.empty())
            fail_msg("%s, job %d of seed %llu", wrong.c_str(), int(job),
                     static_cast<unsigned long long>(seed));
    }
    print_message("%d steps, %d tokens fed, %d preemptions, %d devices lost\n", int(totals.steps),
                  int(totals.fed_tokens), int(totals.preemptions), int(totals.lost_devices));
    assert_true(totals.fed_tokens > 0 && totals.preemptions > 0 && totals.lost_devices > 50);
    assert_true(totals.compared > 100);
    print_message("%d tokens proposed, %d accepted\n", int(totals.drafts.proposed),
                  int(totals.drafts.accepted));
    assert_true(totals.drafts.accepted > 100 && totals.drafts.proposed > totals.drafts.accepted);
}

// ---- Real models ----

struct Generation {
    const char *name;
    batchllm_params params;
    int64_t kv_memory_bytes = int64_t{64} << 20;
    int64_t step_tokens = 0;
};

// All rows of a golden model through the CPU, computed when they are collected.
std::unique_ptr<ResultBatch> run_golden(const Golden &golden, const Generation &way,
                                        const LateOptions &late, batchllm_stats *stats) {
    EngineOptions options;
    options.model_dir = golden.directory;
    options.backend = "cpu";
    options.backend_options.compute_type = "f32";
    options.backend_options.kv_memory_bytes = way.kv_memory_bytes;
    options.backend_options.step_tokens = way.step_tokens;
    options.backend_options.threads = options.threads = 2;
    auto made = Engine::create(options, [&](const EngineOptions &of) -> Result<LoadedModel> {
        ASSIGN_OR_RETURN(LoadedModel loaded, load_model_and_backend(of));
        loaded.backends[0] = std::make_unique<LateBackend>(std::move(loaded.backends[0]), late);
        return loaded;
    });
    assert_true(made.ok());
    Engine &engine = **made;
    const Prompts prompts = prompts_of(golden);
    const Column<int32_t> column{prompts.count(), prompts.tokens.data(), prompts.offsets.data()};
    const auto params = ParamsColumn::open(&way.params, 1, prompts.count());
    assert_true(params.ok() && (*engine.intake())->add_tokens(column, nullptr, *params).ok());
    const Status status = engine.run(nullptr, nullptr);
    if (!status.ok()) fail_msg("%s: %s", way.name, status.message().c_str());
    *stats = engine.stats();
    return engine.poll(0);
}

std::vector<Generation> generations(int32_t new_tokens) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = new_tokens;
    params.logprobs = 0;
    std::vector<Generation> all{{"greedy", params}, {"short steps", params}, {"few pages", params}};
    all[1].step_tokens = 24;
    all[2].kv_memory_bytes = int64_t{2} << 20;
    params.temperature = 1;
    params.top_k = 40;
    params.samples = 3;
    params.seed = 11;
    all.push_back({"drawn", params});
    params.repetition_penalty = 1.3f;
    params.frequency_penalty = 0.2f;
    all.push_back({"drawn with penalties", params});
    return all;
}

// Results by tag and sample.
std::map<std::pair<uint64_t, int32_t>, std::pair<std::vector<int32_t>, int32_t>>
tokens_of(const ResultBatch &results) {
    std::map<std::pair<uint64_t, int32_t>, std::pair<std::vector<int32_t>, int32_t>> all;
    for (int64_t i = 0; i < results.count; ++i) {
        all[{results.tags[i], results.samples[i]}] = {
            {results.tokens + results.token_offsets[i],
             results.tokens + results.token_offsets[i + 1]},
            results.finish_reasons[i]};
    }
    return all;
}

void models_generate_the_same_with_two_batches_in_flight(void **) {
    int64_t fed_tokens = 0, results = 0, stopped = 0;
    for (const char *name : {"llama3_gqa_sharded_bf16", "qwen3_bf16", "mistral_window_bf16"}) {
        const Golden golden = read_golden(std::string("golden/") + name);
        for (const Generation &way : generations(golden.new_tokens)) {
            LateOptions late;
            late.batches_in_flight = 1;
            batchllm_stats alone, overlapped;
            const auto expected = run_golden(golden, way, late, &alone);
            late.batches_in_flight = 2;
            late.fed_tokens = &fed_tokens;
            const auto found = run_golden(golden, way, late, &overlapped);
            if (tokens_of(*found) != tokens_of(*expected)) fail_msg("%s: %s", name, way.name);
            assert_int_equal(overlapped.completion_tokens, alone.completion_tokens);
            results += found->count;
            for (int64_t i = 0; i < found->count; ++i) {
                stopped += found->finish_reasons[i] == BATCHLLM_FINISH_STOP;
            }
        }
    }
    print_message("%d results, %d of them stopped by an EOS; %d tokens fed\n", int(results),
                  int(stopped), int(fed_tokens));
    assert_true(fed_tokens > 1000 && stopped > 0);
}

void when_every_device_fails_so_does_the_engine_and_not_the_results_so_far(void **) {
    CheckedShape shape{200, 4, 32, 6};
    EngineOptions options;
    options.devices = {0, 1};
    auto made = Engine::create(options, [&](const EngineOptions &) -> Result<LoadedModel> {
        LoadedModel loaded;
        for (int64_t device = 0; device < 2; ++device) {
            LateOptions late;
            late.fails_after = 12;
            loaded.backends.push_back(
                std::make_unique<LateBackend>(std::make_unique<CheckedBackend>(shape), late));
        }
        return loaded;
    });
    assert_true(made.ok());
    Random random(3);
    std::vector<TestRow> rows;
    while (rows.size() < 200) {
        for (TestRow &row : make_rows(random, shape.mean_length)) rows.push_back(std::move(row));
    }
    for (size_t i = 0; i < rows.size(); ++i) assert_true(add(made->get(), rows[i], i));
    const Status status = (*made)->run(nullptr, nullptr);
    assert_int_equal(status.code(), BATCHLLM_ERROR_DEVICE);
    assert_int_equal((*made)->step(nullptr).code(), BATCHLLM_ERROR_DEVICE);
    const auto results = (*made)->poll(0);
    assert_true(results->count > 0 && results->count < static_cast<int64_t>(rows.size()));
    for (int64_t i = 0; i < results->count; ++i) {
        const TestRow &row = rows[results->tags[i]];
        assert_int_equal(results->token_offsets[i + 1] - results->token_offsets[i],
                         row.expected.size());
    }
}

// A backend whose adapters have taken so much, with layers merged with one, and have had so many batches on these.
class MergingBackend final : public CheckedBackend {
  public:
    using CheckedBackend::CheckedBackend;
    AdapterUse adapter_use() const override { return {1000, 7}; }
};

void keep_message(void *user, int32_t, const char *message) {
    static_cast<std::string *>(user)->append(message).append("\n");
}

void merged_layers_are_in_the_statistics_and_in_the_log(void **) {
    const CheckedShape shape{200, 4, 32, 6};
    EngineOptions options;
    options.devices = {0, 1};
    std::string log;
    options.log = {keep_message, &log, BATCHLLM_LOG_INFO};
    auto made = Engine::create(options, [&](const EngineOptions &) -> Result<LoadedModel> {
        LoadedModel loaded;
        for (int i = 0; i < 2; ++i) {
            loaded.backends.push_back(std::make_unique<MergingBackend>(shape));
        }
        return loaded;
    });
    assert_true(made.ok());
    TestRow row;
    row.prompt = {1, 2, 3};
    batchllm_params_init(&row.params, sizeof row.params);
    row.params.max_tokens = 4;
    assert_true(add(made->get(), row, 0));
    assert_true((*made)->run(nullptr, nullptr).ok());
    assert_int_equal((*made)->stats().adapter_bytes_peak, 2000);
    assert_true(log.find("14 steps so far ran on layers merged") != std::string::npos);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(random_jobs_are_right_with_any_number_of_devices_and_batches_in_flight),
        cmocka_unit_test(models_generate_the_same_with_two_batches_in_flight),
        cmocka_unit_test(when_every_device_fails_so_does_the_engine_and_not_the_results_so_far),
        cmocka_unit_test(merged_layers_are_in_the_statistics_and_in_the_log),
    };
    return cmocka_run_group_tests_name("engine_overlap", tests, nullptr, nullptr);
}
