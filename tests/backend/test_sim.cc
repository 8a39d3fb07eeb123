// The simulated backend: its promises about tokens, lengths, scores and time; and large jobs.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "backend/sim/sim_backend.h"
#include "backend/sim/step_cost.h"
#include "schedule/scheduler.h"
#include "whole_plan.h"

using namespace batchllm;

namespace {

using Extra = std::vector<std::pair<std::string, std::string>>;

BackendOptions with(Extra extra) {
    BackendOptions options;
    options.extra = std::move(extra);
    return options;
}

bool error_names(Extra extra, const char *text) {
    const auto made = make_sim_backend(nullptr, with(std::move(extra)));
    return !made.ok() && made.status().code() == BATCHLLM_ERROR_INVALID_ARGUMENT &&
           std::strstr(made.status().message().c_str(), text);
}

// The backend's sample for a batch of one token and one logits row.
SampleOutput one_sample(Backend *backend, const SampleInput &input) {
    TokenBatch batch;
    batch.tokens = {1};
    batch.positions = {input.position - 1};
    batch.nodes.push_back({-1, 0, input.position, 0, 1, false});
    const auto columns =
        static_cast<size_t>(pages_for(input.position, backend->info().page_tokens));
    batch.pages = {{std::vector<int32_t>(columns, 0), {{0, 0}}}};
    batch.outputs.push_back({0, Task::generate, 1, input, {}});
    BatchOutput output;
    if (!backend->run(batch, &output).ok()) return {};
    return output.samples[0];
}

void unknown_options_and_bad_values_are_named(void **) {
    assert_true(error_names({{"pagges", "3"}}, "pagges=3"));
    assert_true(error_names({{"pages", "three"}}, "pages=three"));
    assert_true(error_names({{"pages", "0"}}, "pages=0"));
    assert_true(error_names({{"page_tokens", "1.5"}}, "page_tokens=1.5"));
    assert_true(error_names({{"kv_bandwidth", "nan"}}, "kv_bandwidth=nan"));
    assert_true(error_names({{"vocabulary", "10"}, {"eos_token", "10"}}, "eos_token=10"));
    assert_true(error_names({{"min_length", "9"}, {"max_length", "8"}}, "max_length=8"));
    assert_true(error_names({{"mean_length", "9"}, {"max_length", "8"}}, "exclude"));
    Model lone;
    lone.vocabulary = 1;
    lone.layers.resize(1);
    Attention &attention = lone.layers[0].mixer.emplace<Attention>();
    attention.kv_heads = 1;
    attention.head_dim = 64;
    place_keys_and_values(&lone);
    assert_true(make_sim_backend(&lone, {}).ok());
    lone.eos_tokens = {0};
    const auto ended = make_sim_backend(&lone, {});
    assert_false(ended.ok());
    assert_non_null(std::strstr(ended.status().message().c_str(), "no other token"));
    const auto small = make_sim_backend(nullptr, [] {
        BackendOptions options;
        options.kv_memory_bytes = 1000;
        return options;
    }());
    assert_false(small.ok());
}

void pages_follow_from_memory_and_the_shape_of_the_model(void **) {
    BackendOptions options;
    options.kv_memory_bytes = int64_t{1} << 30;
    options.step_tokens = 512;
    const auto llama = make_sim_backend(nullptr, options);
    assert_true(llama.ok());
    assert_int_equal((*llama)->info().page_bytes, 2 << 20); // 16 tokens of 128 KiB
    assert_int_equal((*llama)->info().pages, 512);
    assert_int_equal((*llama)->info().step_tokens, 512);
    Model model;
    model.layers.resize(2);
    for (Layer &layer : model.layers) {
        Attention &attention = layer.mixer.emplace<Attention>();
        attention.kv_heads = 1;
        attention.head_dim = 64;
    }
    place_keys_and_values(&model);
    model.vocabulary = 100;
    model.eos_tokens = {7};
    const auto small = make_sim_backend(&model, options);
    assert_true(small.ok());
    assert_int_equal((*small)->info().page_bytes, 2 * 2 * 64 * 2 * 16);
    assert_int_equal((*small)->info().vocabulary, 100);
    assert_int_equal((*small)->info().eos_token, 7);
}

void a_token_depends_on_key_and_position_alone(void **) {
    auto made = make_sim_backend(nullptr, with({{"vocabulary", "50"}, {"eos_token", "3"}}));
    Backend *backend = made->get();
    const int32_t prompt[2] = {1, 2};
    bool same = true, differ = false, in_range = true;
    for (int32_t position = 1; position < 300; ++position) {
        const SampleOutput a = one_sample(backend, {nullptr, {}, {}, 11, position});
        const SampleOutput b = one_sample(backend, {nullptr, prompt, prompt, 11, position});
        const SampleOutput c = one_sample(backend, {nullptr, {}, {}, 12, position});
        same &= a.token == b.token;
        differ |= a.token != c.token;
        in_range &= a.token >= 0 && a.token < 50 && a.token != 3;
    }
    assert_true(same);
    assert_true(differ);
    assert_true(in_range); // no length given: the EOS never comes
}

void lengths_follow_their_distribution(void **) {
    BackendOptions options = with({{"eos_token", "2"}, {"min_length", "10"}, {"max_length", "20"}});
    const SimBackend uniform(*read_sim_options(nullptr, options), options);
    BackendOptions mean = with({{"eos_token", "2"}, {"mean_length", "100"}});
    const SimBackend exponential(*read_sim_options(nullptr, mean), mean);
    int64_t low = 1000, high = 0;
    double sum = 0, exponential_sum = 0;
    for (uint64_t key = 0; key < 20000; ++key) {
        low = std::min(low, uniform.output_length(key));
        high = std::max(high, uniform.output_length(key));
        sum += static_cast<double>(uniform.output_length(key));
        exponential_sum += static_cast<double>(exponential.output_length(key));
    }
    assert_int_equal(low, 10);
    assert_int_equal(high, 20);
    assert_true(std::abs(sum / 20000 - 15) < 0.2);
    assert_true(std::abs(exponential_sum / 20000 - 100.5) < 4);
}

void eos_ends_a_row_unless_ignored(void **) {
    BackendOptions options = with({{"eos_token", "2"}, {"min_length", "4"}, {"max_length", "4"}});
    auto made = make_sim_backend(nullptr, options);
    const int32_t output[8] = {};
    SamplingParams params, ignore;
    ignore.ignore_eos = true;
    const auto token = [&](const SamplingParams *p, size_t generated) {
        const auto position = static_cast<int32_t>(2 + generated); // after a prompt of 2
        return one_sample(made->get(), {p, {output, 2}, {}, 5, position}).token;
    };
    assert_int_not_equal(token(&params, 2), 2);
    assert_int_equal(token(&params, 3), 2); // the fourth
    assert_int_not_equal(token(&ignore, 3), 2);
}

void log_probabilities_are_a_distribution(void **) {
    auto made = make_sim_backend(nullptr, with({{"vocabulary", "40"}}));
    SamplingParams params;
    params.logprobs = 20;
    const SampleOutput out = one_sample(made->get(), {&params, {}, {}, 5, 10});
    double sum = 0;
    bool falling = true, distinct = true;
    for (size_t i = 0; i < out.top.size(); ++i) {
        sum += std::exp(static_cast<double>(out.top[i].logprob));
        if (i > 0) falling &= out.top[i].logprob <= out.top[i - 1].logprob;
        for (size_t j = 0; j < i; ++j) distinct &= out.top[j].token != out.top[i].token;
    }
    assert_int_equal(out.top.size(), 20);
    assert_int_equal(out.top[0].token, out.token);
    assert_true(out.top[0].logprob == out.logprob);
    assert_true(sum <= 1.0 + 1e-6);
    assert_true(falling);
    assert_true(distinct);
}

void scores_depend_on_position_and_target_alone(void **) {
    auto made = make_sim_backend(nullptr, with({}));
    const int32_t targets[3] = {4, 5, 4};
    TokenBatch batch;
    batch.tokens = {1, 2};
    batch.positions = {0, 1};
    batch.nodes.push_back({-1, 0, 2, 0, 2, false});
    batch.pages = {{{0}, {{0, 0}}}};
    for (int32_t i = 0; i < 2; ++i) {
        OutputRow row{};
        row.token = i;
        row.sample.position = i + 1;
        row.task = Task::score;
        row.targets = targets;
        batch.outputs.push_back(row);
    }
    BatchOutput output;
    const bool ran = (*made)->run(batch, &output).ok();
    assert_true(ran);
    assert_int_equal(output.target_logprobs.size(), 6);
    assert_int_equal(output.samples.size(), 2);
    assert_int_equal(output.samples[0].token, -1);
    assert_true(output.target_logprobs[0] == output.target_logprobs[2]);
    assert_true(output.target_logprobs[0] != output.target_logprobs[1]);
    assert_true(output.target_logprobs[0] != output.target_logprobs[3]);
    for (const float logprob : output.target_logprobs) assert_true(logprob <= 0);
}

void time_is_weights_or_arithmetic_and_one_read_of_the_shared_prefix(void **) {
    auto made =
        make_sim_backend(nullptr, with({{"tokens_per_second", "1000"},
                                        {"step_floor_us", "10000"},
                                        {"kv_bandwidth", "131072000"}, // 1000 slots per second
                                        {"step_overhead_us", "500"}}));
    TokenBatch batch; // a prefix of 100 slots, two decoding requests of 10 below it
    batch.nodes.push_back({-1, 0, 100, 0, 0, true});
    batch.nodes.push_back({0, 100, 10, 0, 1, false});
    batch.nodes.push_back({0, 100, 10, 1, 1, false});
    batch.tokens = {1, 1};
    batch.positions = {109, 109};
    BatchOutput output;
    const bool ran = (*made)->run(batch, &output).ok();
    const double few = (*made)->last_run_seconds();
    batch.tokens.resize(50);
    batch.nodes[2].length = batch.nodes[2].token_count = 49;
    const bool ran_again = (*made)->run(batch, &output).ok();
    const double many = (*made)->last_run_seconds();
    assert_true(ran && ran_again);
    assert_true(std::abs(few - (0.0005 + 0.010 + 0.122)) < 1e-9);
    assert_true(std::abs(many - (0.0005 + 0.050 + 0.209)) < 1e-9);
}

// Rows with one random key each, and their plan: in groups of `group` with a prefix, or without
// one.
struct Job {
    std::vector<int32_t> tokens;
    std::unique_ptr<Request[]> requests;
    std::vector<Request *> held;
    Plan plan;

    Job(int64_t rows, int32_t prompt, int32_t max_tokens, int64_t group, int32_t prefix)
        : tokens(static_cast<size_t>(prompt), 9),
          requests(std::make_unique<Request[]>(static_cast<size_t>(rows))) {
        for (int64_t i = 0; i < rows; ++i) {
            Request &request = requests[static_cast<size_t>(i)];
            request.prompt = {tokens.data(), prompt, prefix};
            request.max_tokens = max_tokens;
            request.random_key = static_cast<uint64_t>(i);
            held.push_back(&request);
            plan.rows.push_back(i);
            if (i % group != 0) continue;
            if (prefix > 0) plan.prefixes.push_back({i, prefix, -1});
            const auto number = static_cast<int32_t>(plan.prefixes.size()) - 1;
            plan.groups.push_back({number, i, std::min(rows, i + group)});
        }
    }
};

// Runs until all rows have ended. ended(request): called with its newest token; after(batch):
// called for each batch that has run.
template <typename Ended, typename After> bool run_job(Backend *backend, Scheduler *scheduler,
                                                       const Job &job, const Ended &ended,
                                                       const After &after) {
    if (!add_plan(*scheduler, job.plan, job.held).ok()) return false;
    BatchOutput output;
    while (true) {
        const TokenBatch &batch = scheduler->next_step();
        if (batch.tokens.empty()) break;
        if (!backend->run(batch, &output).ok()) return false;
        for (size_t i = 0; i < batch.outputs.size(); ++i) {
            Request *request = scheduler->sampled()[i];
            request->output.push_back(output.samples[i].token);
            request->done = ended(*request);
        }
        after(batch);
        scheduler->finish_step();
    }
    return scheduler->pages_used() == 0 && scheduler->waiting() + scheduler->running() == 0;
}

// 100,000 rows in groups of 16, scheduled to their ends.
void a_job_of_100000_rows_is_scheduled_in_seconds(void **) {
    BackendOptions options =
        with({{"eos_token", "2"}, {"min_length", "8"}, {"max_length", "40"}, {"pages", "20000"}});
    auto made = make_sim_backend(nullptr, options);
    Backend *backend = made->get();
    constexpr int64_t rows = 100000, group = 16;
    constexpr int32_t prefix = 200, own = 60;
    const Job job(rows, prefix + own, 64, group, prefix);
    Scheduler scheduler({backend->info().pages, backend->info().page_tokens, 2048, 0, true});
    int64_t steps = 0, generated = 0, recomputed = 0, prefix_tokens = 0;
    const bool good = run_job(
        backend, &scheduler, job, [](const Request &request) { return request.output.back() == 2; },
        [&](const TokenBatch &batch) {
            ++steps;
            generated += static_cast<int64_t>(batch.outputs.size());
            recomputed += scheduler.counts().recomputed_tokens;
            prefix_tokens += scheduler.counts().prefix_tokens;
        });
    print_message("%lld steps, %lld tokens generated, %lld recomputed\n",
                  static_cast<long long>(steps), static_cast<long long>(generated),
                  static_cast<long long>(recomputed));
    bool lengths = true;
    const SimBackend reference(*read_sim_options(nullptr, options), options);
    for (int64_t i = 0; i < rows; ++i)
        lengths &= static_cast<int64_t>(job.held[static_cast<size_t>(i)]->output.size()) ==
                   reference.output_length(static_cast<uint64_t>(i));
    assert_true(good);
    assert_true(lengths);
    assert_true(prefix_tokens - recomputed <= rows / group * prefix);
    // The budget limits this job, and the steps are nearly full.
    assert_true(steps < (rows / group * prefix + rows * own + generated) / 2048 * 110 / 100);
}

// Like Gemma 3 12B: five layers with a window, then one without.
Model gemma_shape(int32_t window) {
    Model model;
    model.layers.resize(48);
    model.max_positions = 131072;
    model.vocabulary = 1000;
    for (size_t i = 0; i < model.layers.size(); ++i) {
        Attention &attention = model.layers[i].mixer.emplace<Attention>();
        attention.kv_heads = 8;
        attention.head_dim = 256;
        attention.window = i % 6 == 5 ? 0 : window;
    }
    place_keys_and_values(&model);
    return model;
}

struct Use {
    bool good = true;
    int64_t rows_at_once = 0;
    int64_t steps = 0;
    int64_t preemptions = 0;
    double seconds = 0;
    int64_t bytes = 0; // in the last step
};

// Rows of 7,000 prompt tokens that generate 1,000, until all have ended.
Use run_long_rows(const Model &model, int64_t count, int64_t memory) {
    Use use;
    BackendOptions options;
    options.kv_memory_bytes = memory;
    auto made = make_sim_backend(&model, options);
    Backend *backend = made->get();
    const BackendInfo &info = backend->info();
    const Job job(count, 7000, 1000, 1, 0);
    SchedulerOptions scheduling;
    scheduling.pages = info.pages;
    scheduling.page_tokens = info.page_tokens;
    scheduling.step_tokens = info.step_tokens;
    scheduling.kv_windows = info.kv_windows;
    Scheduler scheduler(scheduling);
    use.good = run_job(
        backend, &scheduler, job,
        [](const Request &request) { return request.output.size() == 1000; },
        [&](const TokenBatch &) {
            use.seconds += backend->last_run_seconds();
            use.steps += 1;
            use.preemptions += scheduler.counts().preemptions;
            use.rows_at_once = std::max(use.rows_at_once, scheduler.running());
            use.bytes = scheduler.counts().pages_used * info.page_bytes;
        });
    return use;
}

void windowed_layers_take_a_third_of_the_memory_and_more_rows_at_once(void **) {
    const Model with = gemma_shape(1024), without = gemma_shape(0);
    assert_int_equal(with.kv_groups.size(), 6);
    assert_int_equal(with.kv_planes(), 8);
    assert_int_equal(without.kv_groups.size(), 1);
    constexpr int64_t memory = int64_t{48} << 30;
    const Use row = run_long_rows(with, 1, memory), full_row = run_long_rows(without, 1, memory);
    const Use job = run_long_rows(with, 120, memory),
              full_job = run_long_rows(without, 120, memory);
    print_message("a row of 8,000 tokens: %lld MiB, %lld without windows; rows at once: %lld, %lld "
                  "without (%lld and %lld steps, %.1f and %.1f modelled s)\n",
                  static_cast<long long>(row.bytes >> 20),
                  static_cast<long long>(full_row.bytes >> 20),
                  static_cast<long long>(job.rows_at_once),
                  static_cast<long long>(full_job.rows_at_once), static_cast<long long>(job.steps),
                  static_cast<long long>(full_job.steps), job.seconds, full_job.seconds);
    assert_true(row.good && full_row.good && job.good && full_job.good);
    assert_true(row.bytes * 3 < full_row.bytes);
    assert_true(job.rows_at_once >= 3 * full_job.rows_at_once);
    assert_int_equal(job.preemptions, 0);
    assert_true(job.seconds < full_job.seconds);
}

// Like Qwen3.5-9B: three layers with a gated delta net, then one with attention.
Model hybrid_shape() {
    Model model;
    model.layers.resize(32);
    model.max_positions = 131072;
    model.vocabulary = 1000;
    for (size_t i = 0; i < model.layers.size(); ++i) {
        if (i % 4 == 3) {
            Attention &attention = model.layers[i].mixer.emplace<Attention>();
            attention.kv_heads = 4;
            attention.head_dim = 256;
        } else {
            DeltaNet &delta = model.layers[i].mixer.emplace<DeltaNet>();
            delta.key_heads = 16;
            delta.value_heads = 32;
            delta.key_dim = delta.value_dim = 128;
            delta.width = 4;
        }
    }
    place_keys_and_values(&model);
    return model;
}

struct StateUse {
    bool good = true;
    int64_t slots = 0;
    int64_t rows_at_once = 0, slots_at_once = 0;
    int64_t finished = 0, recomputed = 0, prefix_tokens = 0;
};

// Groups of 20 rows that share 300 tokens and have 20 of their own.
StateUse run_states(const Model &model, int64_t rows, int32_t generated,
                    const BackendOptions &options) {
    StateUse use;
    auto made = make_sim_backend(&model, options);
    use.good = made.ok();
    if (!use.good) return use;
    const BackendInfo &info = (*made)->info();
    use.slots = info.state_slots;
    const Job job(rows, 320, generated, 20, 300);
    SchedulerOptions scheduling;
    scheduling.pages = info.pages;
    scheduling.page_tokens = info.page_tokens;
    scheduling.step_tokens = info.step_tokens;
    scheduling.state_slots = info.state_slots;
    Scheduler scheduler(scheduling);
    use.good = run_job(
        made->get(), &scheduler, job,
        [&](const Request &request) {
            return request.output.size() == static_cast<size_t>(generated);
        },
        [&](const TokenBatch &) {
            use.rows_at_once = std::max(use.rows_at_once, scheduler.running());
            use.slots_at_once = std::max(use.slots_at_once, scheduler.states_used());
            use.recomputed += scheduler.counts().recomputed_tokens;
            use.prefix_tokens += scheduler.counts().prefix_tokens;
        });
    use.good &= scheduler.states_used() == 0;
    use.finished = std::count_if(job.held.begin(), job.held.end(),
                                 [](const Request *request) { return request->done; });
    return use;
}

void as_many_rows_run_at_once_as_their_states_fit(void **) {
    const Model model = hybrid_shape();
    BackendOptions options;
    options.kv_memory_bytes = int64_t{120} * 1000 * 1000 * 1000;
    // 24 layers of 32 matrices of 128 by 128, and 3 inputs of a convolution over 8,192 channels.
    constexpr int64_t slot = 24 * (32 * 128 * 128 + 3 * 8192) * 4;
    assert_int_equal(model.state_size() * 4, slot);
    const StateUse large = run_states(model, 4000, 200, options);
    print_message("120 GB: %lld slots of %lld bytes, %lld rows at once\n",
                  static_cast<long long>(large.slots), static_cast<long long>(slot),
                  static_cast<long long>(large.rows_at_once));
    assert_true(large.good && large.finished == 4000);
    // Each row takes a slot and 512 tokens of 32 KiB; a prefix takes one of 21 slots.
    const int64_t slots = options.kv_memory_bytes / (slot + 512 * 32768);
    assert_int_equal(large.slots, slots);
    assert_true(large.rows_at_once <= slots && 100 * large.rows_at_once >= 95 * slots * 20 / 21);
    // In bf16 a state takes half the bytes, except for the convolutions' inputs.
    options.extra = {{"state_type", "bf16"}};
    options.step_tokens = 8192; // otherwise decoding rows fill a step, and no more are admitted
    constexpr int64_t half = 24 * (32 * 128 * 128 * 2 + 3 * 8192 * 4);
    const StateUse narrow = run_states(model, 4000, 100, options);
    const int64_t more = options.kv_memory_bytes / (half + 512 * 32768);
    assert_true(more > 3 * slots / 2);
    assert_int_equal(narrow.slots, more);
    assert_true(narrow.good && narrow.finished == 4000);
    assert_true(narrow.rows_at_once <= more && 100 * narrow.rows_at_once >= 95 * more * 20 / 21);
    options.extra.clear();
    options.step_tokens = 0;
    // 20,000 rows with room for 100 at a time.
    options.kv_memory_bytes = int64_t{105} * (slot + 512 * 32768);
    const StateUse small = run_states(model, 20000, 20, options);
    assert_int_equal(small.slots, 105);
    assert_true(small.good && small.finished == 20000 && small.recomputed == 0);
    assert_int_equal(small.slots_at_once, 105);
    assert_true(small.rows_at_once >= 95);
    assert_int_equal(small.prefix_tokens, 20000 / 20 * 300);
}

void state_slots_are_checked_and_as_many_as_asked_for(void **) {
    const Model model = hybrid_shape();
    auto made = make_sim_backend(&model, with({{"state_slots", "7"}}));
    assert_true(made.ok());
    assert_int_equal((*made)->info().state_slots, 7);
    assert_true(error_names({{"state_slots", "7"}}, "state_slots=7")); // Llama has no state
    BackendOptions little;
    little.kv_memory_bytes = 1 << 20;
    const auto none = make_sim_backend(&model, little);
    assert_false(none.ok());
    assert_non_null(std::strstr(none.status().message().c_str(), "too few for 1 state slots"));
    // A batch without a slot, with one beyond the last, and with one twice.
    TokenBatch batch;
    batch.nodes = {{-1, 0, 1, 0, 1, false}, {-1, 0, 1, 1, 1, false}};
    batch.tokens = batch.positions = {0, 0};
    for (const auto &[a, b] : {std::pair{-1, 1}, std::pair{0, 7}, std::pair{3, 3}}) {
        batch.nodes[0].state = a;
        batch.nodes[1].state = b;
        const Status status = (*made)->forward(batch);
        assert_int_equal(status.code(), BATCHLLM_ERROR_INTERNAL);
        assert_non_null(std::strstr(status.message().c_str(), "state slot"));
    }
}

void attention_in_a_window_reads_the_window(void **) {
    Model model = gemma_shape(64);
    auto made = make_sim_backend(&model, with({{"tokens_per_second", "1e15"},
                                               {"step_floor_us", "0"},
                                               {"kv_bandwidth", "32768"}})); // a layer's slots
    TokenBatch batch; // a prefix of 1,000 slots, of which a request at 1,010 sees 53 in its window
    batch.nodes.push_back({-1, 0, 1000, 0, 0, true});
    batch.nodes.push_back({0, 1000, 11, 0, 1, false});
    batch.tokens = {1};
    batch.positions = {1010};
    BatchOutput output;
    const bool ran = (*made)->run(batch, &output).ok();
    const double slots = 8 * (1000 + 11 + 1) + 40 * (53 + 11 + 1);
    assert_true(ran);
    assert_true(std::abs((*made)->last_run_seconds() - slots * 8192 / 32768) < 1e-6);
}

// A token of a long prompt sees half of its chunk on average, and all of a window of that size.
void attention_in_chunks_costs_half_of_that_in_windows(void **) {
    Model model = gemma_shape(8192);
    model.hidden = 64;
    TokenBatch batch;
    batch.tokens.resize(1 << 18);
    batch.nodes.push_back({-1, 0, 1 << 18, 0, 1 << 18, true});
    const auto seconds = [&] {
        return StepCost(named_device_costs("h200").value(), model).seconds(batch).attention;
    };
    for (Layer &layer : model.layers) {
        Attention &attention = *layer.attention();
        attention.window = 8192;
        attention.heads = 16;
    }
    const double windows = seconds();
    for (Layer &layer : model.layers) layer.attention()->chunked = true;
    const double share = seconds() / windows;
    assert_true(share > 0.45 && share < 0.6);
    // One that decodes behind a prefix sees its chunk so far.
    batch = {};
    batch.tokens = {1};
    batch.nodes.push_back({-1, 0, 9000, 0, 0, true});
    batch.nodes.push_back({0, 9000, 11, 0, 1, false});
    const double chunk = seconds();
    for (Layer &layer : model.layers) layer.attention()->window = 819; // as many
    for (Layer &layer : model.layers) layer.attention()->chunked = false;
    assert_true(std::abs(seconds() - chunk) < 1e-3 * chunk);
}

// A model that reads pictures takes them, and their tokens take time; any other refuses them.
void pictures_take_slots_and_time(void **) {
    const auto model = describe_model("golden/qwen3_vl_pictures");
    assert_true(model.ok());
    auto picture = std::make_shared<PreparedPicture>();
    picture->grid = {40, 40, 2, 400};
    const PictureLoad loads[] = {{0, picture}, {3, picture}};
    SampleInput input{};
    SamplingParams params;
    input.params = &params;
    input.position = 5;
    for (const bool described : {false, true}) {
        const Extra extra = described ? Extra{{"device", "h200"}} : Extra{};
        auto made = make_sim_backend(&*model, with(extra));
        if (!made.ok()) fail_msg("%s", made.status().message().c_str());
        Backend &backend = **made;
        assert_true(backend.info().picture_slots > 3);
        one_sample(&backend, input);
        const double without = backend.last_run_seconds();
        assert_true(backend.load_pictures(loads).ok());
        one_sample(&backend, input);
        assert_true(backend.last_run_seconds() > without);
        one_sample(&backend, input);
        assert_true(backend.last_run_seconds() == without);
        const PictureLoad none{backend.info().picture_slots, picture};
        assert_false(backend.load_pictures({&none, 1}).ok());
        backend.unload_picture(3);
    }
    auto text = make_sim_backend(nullptr, {});
    assert_int_equal((*text)->info().picture_slots, 0);
    assert_false((*text)->load_pictures(loads).ok());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(unknown_options_and_bad_values_are_named),
        cmocka_unit_test(pages_follow_from_memory_and_the_shape_of_the_model),
        cmocka_unit_test(a_token_depends_on_key_and_position_alone),
        cmocka_unit_test(lengths_follow_their_distribution),
        cmocka_unit_test(eos_ends_a_row_unless_ignored),
        cmocka_unit_test(log_probabilities_are_a_distribution),
        cmocka_unit_test(scores_depend_on_position_and_target_alone),
        cmocka_unit_test(time_is_weights_or_arithmetic_and_one_read_of_the_shared_prefix),
        cmocka_unit_test(a_job_of_100000_rows_is_scheduled_in_seconds),
        cmocka_unit_test(windowed_layers_take_a_third_of_the_memory_and_more_rows_at_once),
        cmocka_unit_test(as_many_rows_run_at_once_as_their_states_fit),
        cmocka_unit_test(state_slots_are_checked_and_as_many_as_asked_for),
        cmocka_unit_test(attention_in_a_window_reads_the_window),
        cmocka_unit_test(attention_in_chunks_costs_half_of_that_in_windows),
        cmocka_unit_test(pictures_take_slots_and_time),
    };
    return cmocka_run_group_tests_name("sim", tests, nullptr, nullptr);
}
