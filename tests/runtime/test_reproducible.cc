// Reproducible engines: one row among many different companies, whatever is shared, however large the steps and the
// pool and however many threads, has the same bits in everything that is returned for it. On the CPU; or on the GPU
// with a family of attention kernels ("cuda sm90"), where in types other than f32 what the row itself shares counts.
// "cpu:2", "cuda:2": on two ranks.
//     test_reproducible [BACKEND FAMILY [TEST]]    TEST may end in *
//     BATCHLLM_TEST_COMPANIES=N                    so many companies for the row that is tried among the most
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/kernels.h"
#include "batchllm.h"
#include "constraint_job.h"
#include "golden_files.h"
#include "seed.h"
#include "testing.h"
#include "throughput_models.h"

namespace {

using Tokens = std::vector<int32_t>;
using Random = std::mt19937_64;

constexpr uint64_t row_tag = 1000; // those of its company are below
constexpr int32_t page_rows = 60;  // tokens that a row's pages hold beside its prompt, at the least

// What the engines run on: said once, by main.
struct Machine {
    std::string backend = "cpu";
    std::string attention{};
    bool ranks = false; // two that work as one
    bool gpu() const { return backend == "cuda"; }
};
Machine &machine() {
    static Machine instance;
    return instance;
}

int32_t between(Random &random, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
}

// What a run of the row has met, besides the row's own results.
struct Run {
    std::string how;  // it was run
    std::string bits; // all that was returned for the row
    bool shared = false;
    int64_t preemptions = 0;
};

// What is wanted of the row.
enum class Wish { greedy, sampled, penalised, structured, scored, mean, last };

// What it shares with others: anything with anybody; a prefix of one length with the same two rows; nothing.
enum class Sharing { any, planned, none };

struct Subject {
    std::string model;
    const char *compute_type;
    Wish wish;
    int32_t reproducible = 1;
    Sharing sharing = Sharing::any;
    int32_t prompt_tokens = 150;
    std::string options{}; // of the backend
    bool small_pools = true;
};

// Ids that every model of these tests has, and none of which ends a row early in all of them.
Tokens prompt_of(Random &random, int32_t length) {
    Tokens tokens;
    for (int32_t i = 0; i < length; ++i) tokens.push_back(between(random, 3, 250));
    return tokens;
}

batchllm_engine_options options_of(const Subject &subject, Random &random) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = machine().backend.c_str();
    if (machine().ranks && machine().gpu()) options.devices = "0,1";
    options.model_dir = subject.model.c_str();
    options.compute_type = subject.compute_type;
    options.reproducible = subject.reproducible;
    options.threads = between(random, 1, 2);
    // On the GPU 1 and 3 are the same products as 5, in thousands of steps.
    constexpr int64_t steps[] = {1, 3, 5, 16, 33, 100, 1000};
    const int64_t drawn = steps[between(random, machine().gpu() ? 2 : 0, 6)];
    options.step_tokens = std::min<int64_t>(drawn * (subject.prompt_tokens / 150), 6000);
    options.kv_memory_bytes = int64_t{16 * (1 + subject.prompt_tokens / 1000)} << 20;
    options.enlarge = between(random, 0, 2) == 0 ? BATCHLLM_ENLARGE_NONE : BATCHLLM_ENLARGE_OPTIMAL;
    options.levels = between(random, 1, 2);
    options.min_prefix_tokens = 1;
    if (subject.sharing != Sharing::any) {
        options.enlarge =
            subject.sharing == Sharing::none ? BATCHLLM_ENLARGE_NONE : BATCHLLM_ENLARGE_OPTIMAL;
        options.min_prefix_tokens = 16; // strangers may begin alike
    }
    options.seed = 5;
    return options;
}

std::string backend_options_of(const Subject &subject, Random &random) {
    const auto drawn = [&](const char *name) {
        return std::string(name) + (between(random, 0, 1) == 0 ? "=0" : "=1");
    };
    std::string drafts = between(random, 0, 1) == 0 ? "drafts=off," : "drafts=always,";
    if (machine().ranks) drafts += "tensor_parallel=2,";
    if (!machine().gpu()) {
        return subject.options + drafts +
               "page_tokens=" + std::to_string(16 * between(random, 1, 3));
    }
    return subject.options + drafts + "tuning_cache=none,attention=" + machine().attention + "," +
           drawn("tuning") + "," + drawn("graphs") + "," + drawn("overlap") + "," +
           drawn("share_attention");
}

EngineHandle create(const batchllm_engine_options &options) {
    batchllm_engine *engine = nullptr;
    CHECK(batchllm_engine_create(&options, &engine));
    return EngineHandle(engine);
}

batchllm_params params_of(Wish wish) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 24;
    params.logprobs = 5;
    params.ignore_eos = 1;
    if (wish == Wish::sampled) {
        params.temperature = 0.9f;
        params.top_k = 30;
        params.top_p = 0.95f;
        params.min_p = 0.02f;
        params.samples = 2;
    } else if (wish == Wish::penalised) {
        params.temperature = 0.7f;
        params.repetition_penalty = 1.2f;
        params.presence_penalty = 0.3f;
        params.frequency_penalty = 0.2f;
    } else if (wish == Wish::mean || wish == Wish::last) {
        params.task = BATCHLLM_TASK_EMBED;
        params.pooling = wish == Wish::mean ? BATCHLLM_POOLING_MEAN : BATCHLLM_POOLING_LAST;
    }
    return params;
}

void add(batchllm_engine *engine, const Tokens &prompt, uint64_t tag,
         const batchllm_params &params) {
    const int64_t offsets[] = {0, static_cast<int64_t>(prompt.size())};
    CHECK(batchllm_add_tokens(engine, 1, prompt.data(), offsets, &tag, &params, 1));
}

using ConstraintHandle =
    std::unique_ptr<batchllm_constraint, decltype(&batchllm_constraint_destroy)>;

// The row itself; its constraint lives as long as what is returned.
ConstraintHandle add_row(batchllm_engine *engine, const Tokens &prompt, Wish wish) {
    batchllm_params params = params_of(wish);
    batchllm_constraint *constraint = nullptr;
    if (wish == Wish::scored) {
        const int64_t offsets[] = {0, static_cast<int64_t>(prompt.size())};
        const int32_t continuations[] = {7, 8, 9, 100, 101, 30, 31, 32, 33, 34, 35};
        const int64_t ends[] = {0, 3, 11}, rows[] = {0, 2};
        CHECK(batchllm_add_scores(engine, 1, prompt.data(), offsets, continuations, ends, rows,
                                  &row_tag));
        return {nullptr, batchllm_constraint_destroy};
    }
    if (wish == Wish::structured) {
        batchllm_constraint_options options;
        batchllm_constraint_options_init(&options, sizeof options);
        options.kind = BATCHLLM_CONSTRAINT_REGEX;
        options.text = "\\{\"name\":\"[a-z]{3,9}\",\"age\":[0-9]{2,9}\\}";
        CHECK(batchllm_constraint_create(engine, &options, &constraint));
        params.constraint = constraint;
        params.max_tokens = 40;
    }
    add(engine, prompt, row_tag, params);
    return {constraint, batchllm_constraint_destroy};
}

// Everything of a row's results, as bytes.
std::string bits_of(const batchllm_results &results, uint64_t tag = row_tag) {
    std::string bits;
    const auto take = [&](const auto *values, int64_t begin, int64_t end) {
        bits.append(reinterpret_cast<const char *>(values + begin),
                    static_cast<size_t>(end - begin) * sizeof *values);
        bits += '|';
    };
    for (int64_t i = 0; i < results.count; ++i) {
        if (results.tags[i] != tag) continue;
        if (results.statuses[i] != BATCHLLM_OK) {
            fail_msg("%.*s", int(results.error_offsets[i + 1] - results.error_offsets[i]),
                     results.errors + results.error_offsets[i]);
        }
        take(results.finish_reasons, i, i + 1);
        take(results.tokens, results.token_offsets[i], results.token_offsets[i + 1]);
        const int64_t logprob = results.logprob_offsets[i];
        const int64_t logprob_end = results.logprob_offsets[i + 1];
        take(results.logprobs, logprob, logprob_end);
        const int64_t top = results.top_offsets[logprob];
        take(results.top_tokens, top, results.top_offsets[logprob_end]);
        take(results.top_logprobs, top, results.top_offsets[logprob_end]);
        const int64_t score = results.score_offsets[i], score_end = results.score_offsets[i + 1];
        take(results.scores, score, score_end);
        take(results.score_logprobs, results.score_token_offsets[score],
             results.score_token_offsets[score_end]);
        take(results.embeddings, results.embedding_offsets[i], results.embedding_offsets[i + 1]);
    }
    return bits;
}

const Tokens &every_token() {
    static const Tokens tokens = [] {
        Tokens all(288);
        std::iota(all.begin(), all.end(), 0);
        return all;
    }();
    return tokens;
}

// So that the forecast of lengths is short, and more rows are admitted than fit.
void run_rows_that_end_at_once(batchllm_engine *engine, Random &random) {
    batchllm_params params = params_of(Wish::greedy);
    params.max_tokens = 200;
    params.stop_tokens = every_token().data();
    params.stop_token_count = static_cast<int64_t>(every_token().size());
    for (uint64_t r = 0; r < 40; ++r) add(engine, prompt_of(random, 8), r, params);
    CHECK(batchllm_run(engine, nullptr, nullptr));
    batchllm_results *results = nullptr;
    CHECK(batchllm_poll(engine, 0, &results));
    batchllm_results_free(results);
}

// Rows that begin as `prompt` does, for anything from none to all of it, and others.
void add_company(batchllm_engine *engine, const Tokens &prompt, int32_t rows, Random &random) {
    const auto most = static_cast<int32_t>(prompt.size());
    for (int32_t r = 0; r < rows; ++r) {
        const int32_t common = between(random, 0, 3) == 0 ? 0 : between(random, 1, most);
        Tokens other(prompt.begin(), prompt.begin() + common);
        const Tokens own = prompt_of(random, between(random, 1, 60));
        other.insert(other.end(), own.begin(), own.end());
        batchllm_params params = params_of(Wish::greedy);
        params.logprobs = -1;
        params.max_tokens = between(random, 1, 100);
        add(engine, other, static_cast<uint64_t>(r), params);
    }
}

// Two rows that share two thirds of the row's prompt with it, and no more.
void add_siblings(batchllm_engine *engine, const Tokens &prompt) {
    const auto common = static_cast<ptrdiff_t>(prompt.size() / 3 * 2);
    batchllm_params params = params_of(Wish::greedy);
    params.max_tokens = 8;
    for (const int32_t other : {1, 2}) {
        Tokens tokens(prompt.begin(), prompt.begin() + common);
        tokens.push_back((prompt[static_cast<size_t>(common)] + other) % 250);
        tokens.push_back(other);
        add(engine, tokens, 500, params);
    }
}

// Bytes of so many tokens' keys and values. On the GPU a page is the same whatever the options are, and an engine
// takes a while to make.
int64_t kv_bytes_of(const Subject &subject, const batchllm_engine_options &options,
                    int32_t tokens) {
    static std::map<std::string, batchllm_info> known;
    std::string key = subject.model + " " + subject.compute_type;
    if (!machine().gpu()) key += std::string(" ") + options.backend_options;
    const auto [found, fresh] = known.try_emplace(key);
    batchllm_info &info = found->second;
    if (fresh) {
        info.struct_size = sizeof info;
        CHECK(batchllm_engine_info(create(options).get(), 0, &info));
    }
    return int64_t{tokens / info.page_tokens} * info.kv_groups * info.kv_page_bytes;
}

Run run(const Subject &subject, const Tokens &prompt, uint64_t seed, uint64_t company) {
    Random random(seed * 1000 + company);
    const std::string extra = backend_options_of(subject, random);
    batchllm_engine_options options = options_of(subject, random);
    options.backend_options = extra.c_str();
    const bool planned = subject.sharing == Sharing::planned;
    // Strangers share with one another.
    const Tokens theirs = planned ? prompt_of(random, subject.prompt_tokens) : prompt;
    const int32_t before = company == 0 ? 0 : between(random, 0, 8);
    const int32_t after = company == 0 ? 0 : between(random, 0, 8);
    if (company % 3 == 1 && subject.small_pools) { // a few rows fit
        const int32_t tokens = between(random, 2, 3) * (subject.prompt_tokens + page_rows);
        options.kv_memory_bytes = kv_bytes_of(subject, options, tokens);
    }
    const EngineHandle engine = create(options);
    if (company % 3 == 1) run_rows_that_end_at_once(engine.get(), random);
    add_company(engine.get(), theirs, before, random);
    if (planned) add_siblings(engine.get(), prompt);
    const ConstraintHandle constraint = add_row(engine.get(), prompt, subject.wish);
    for (int32_t steps = between(random, 0, 3); company % 4 == 2 && steps > 0; --steps) {
        CHECK(batchllm_step(engine.get(), nullptr)); // the rest come later
    }
    add_company(engine.get(), theirs, after, random);
    CHECK(batchllm_run(engine.get(), nullptr, nullptr));
    batchllm_results *polled = nullptr;
    CHECK(batchllm_poll(engine.get(), 0, &polled));
    const ResultsHandle results(polled);
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(batchllm_engine_stats(engine.get(), &stats));
    assert_int_equal(stats.rows_failed, 0);
    const std::string how = extra + " step_tokens " + std::to_string(options.step_tokens) + ", " +
                            std::to_string(before) + " before and " + std::to_string(after) +
                            " after";
    return {how, bits_of(*results), stats.shared_prompt_tokens > 0, stats.preemptions};
}

struct Count {
    int32_t differ = 0, shared = 0, preempted = 0;
};

Count compare(const Subject &subject, int32_t companies, uint64_t seed) {
    Random random(seed);
    const Tokens prompt = prompt_of(random, subject.prompt_tokens);
    const Run alone = run(subject, prompt, seed, 0);
    assert_true(alone.bits.size() > 20);
    Count count;
    for (int32_t company = 1; company <= companies; ++company) {
        const Run among = run(subject, prompt, seed, static_cast<uint64_t>(company));
        if (among.bits != alone.bits && count.differ++ == 0 && subject.reproducible != 0) {
            print_message("  other bits: company %d: %s\n  than alone: %s\n", company,
                          among.how.c_str(), alone.how.c_str());
        }
        count.shared += among.shared;
        count.preempted += among.preemptions > 0;
    }
    return count;
}

std::vector<const char *> compute_types() {
    if (machine().gpu()) return {"f32", "f16", "bf16"};
    std::vector<const char *> types{"f32"};
    if (batchllm::cpu::isa_runs_here(batchllm::cpu::Isa::avx512_bf16)) types.push_back("bf16");
    return types;
}

// How rows may share for one to be the same bits among them.
std::vector<Sharing> sharings(const char *type) {
    if (!machine().gpu() || type == std::string("f32")) return {Sharing::any};
    return {Sharing::planned, Sharing::none};
}

// Of the number-th subject: on the GPU, where families of kernels are run one by one, subjects take turns.
std::vector<const char *> compute_types_of(size_t number) {
    if (!machine().gpu()) return compute_types();
    return {std::vector<const char *>{"bf16", "f16", "f32"}[number % 3]};
}

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Whether there are parts of the model for ranks.
bool can_be_divided(const Subject &subject) {
    Random random(1);
    batchllm_engine_options options = options_of(subject, random);
    const std::string extra = backend_options_of(subject, random);
    options.backend_options = extra.c_str();
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    batchllm_engine_destroy(engine);
    if (status == BATCHLLM_OK) return true;
    print_message("%s: %s\n", subject.model.c_str(), batchllm_last_error());
    assert_int_equal(status, BATCHLLM_ERROR_UNSUPPORTED);
    return false;
}

// Fails with all that differs, not at the first.
void compare_all(const std::vector<Subject> &subjects, int32_t companies, uint64_t seed) {
    int32_t wrong = 0, shared = 0, preempted = 0;
    for (const Subject &subject : subjects) {
        if (machine().ranks && !can_be_divided(subject)) continue;
        const double start = seconds();
        const Count count = compare(subject, companies, seed);
        print_message("%s %s %s wish %d sharing %d: %d of %d companies: other bits; %d share, %d "
                      "preempt; %.1f s\n",
                      subject.model.c_str(), subject.compute_type, subject.options.c_str(),
                      int(subject.wish), int(subject.sharing), count.differ, companies,
                      count.shared, count.preempted, seconds() - start);
        wrong += count.differ > 0;
        shared += count.shared;
        preempted += count.preempted;
    }
    const bool apart = subjects.empty() || subjects[0].sharing == Sharing::none;
    if (companies >= 10 && !apart) {
        // On a CPU without bf16 there is one subject, and under sanitizers few companies.
        assert_true(shared > companies * static_cast<int32_t>(subjects.size()) / 4);
        assert_true(preempted > companies / 32);
    }
    if (wrong > 0) fail_msg("%d of %d subjects have other bits", wrong, int(subjects.size()));
}

constexpr const char *many_model = "golden/llama3_gqa_sharded_bf16";
constexpr const char *in_fp8 = "quantize=fp8,";

// The types in which a row is tried among the most companies. On the GPU fp8 too.
std::vector<Subject> subjects_of_every_type() {
    std::vector<Subject> subjects;
    for (const char *type : compute_types()) {
        for (const Sharing sharing : sharings(type)) {
            subjects.push_back({many_model, type, Wish::greedy, 1, sharing});
        }
    }
    if (!machine().gpu()) return subjects;
    for (const Sharing sharing : sharings("bf16")) {
        subjects.push_back({many_model, "bf16", Wish::greedy, 1, sharing, 150, in_fp8});
    }
    return subjects;
}

// So many on the GPU, unless the environment says more: an engine takes a while to make there.
int32_t many_companies(int32_t on_gpu) {
    const char *given = std::getenv("BATCHLLM_TEST_COMPANIES");
    if (given != nullptr) return std::atoi(given);
    return machine().gpu() ? on_gpu : cases(50, 18);
}

void a_row_is_the_same_bits_among_many_companies(void **) {
    std::vector<Subject> subjects, apart;
    for (const Subject &subject : subjects_of_every_type()) {
        (subject.sharing == Sharing::none ? apart : subjects).push_back(subject);
    }
    compare_all(subjects, many_companies(12), seed_of_run());
    compare_all(apart, many_companies(4), seed_of_run());
}

// A job of rows that share prefixes with one another, sampled in two ways. Every row's bits, by tag.
std::map<uint64_t, std::string> bits_on(const char *devices, const Subject &subject,
                                        uint64_t seed) {
    Random random(seed);
    const std::string extra =
        subject.options +
        (machine().gpu() ? "tuning_cache=none,attention=" + machine().attention : std::string());
    batchllm_engine_options options = options_of(subject, random);
    options.backend_options = extra.c_str();
    options.devices = devices;
    options.step_tokens = 64; // both devices have something to do in several steps
    options.min_prefix_tokens = 16;
    options.enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    const EngineHandle engine = create(options);
    uint64_t tag = 0;
    for (int32_t group = 0; group < 12; ++group) {
        const Tokens prefix = prompt_of(random, between(random, 20, 120));
        for (int32_t rows = between(random, 1, 6); rows > 0; --rows) {
            Tokens prompt = prefix;
            for (const int32_t token : prompt_of(random, between(random, 2, 40)))
                prompt.push_back(token);
            add(engine.get(), prompt, tag++,
                params_of(rows % 2 == 0 ? Wish::greedy : Wish::sampled));
        }
    }
    CHECK(batchllm_run(engine.get(), nullptr, nullptr));
    batchllm_results *polled = nullptr;
    CHECK(batchllm_poll(engine.get(), 0, &polled));
    const ResultsHandle results(polled);
    std::map<uint64_t, std::string> bits;
    for (uint64_t row = 0; row < tag; ++row) bits.emplace(row, bits_of(*results, row));
    return bits;
}

bool has_two_devices() {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = machine().backend.c_str();
    options.model_dir = many_model;
    options.devices = "0,1";
    batchllm_engine *engine = nullptr;
    const int32_t status = batchllm_engine_create(&options, &engine);
    batchllm_engine_destroy(engine);
    return status == BATCHLLM_OK;
}

void rows_on_two_devices_are_the_same_bits_as_on_one(void **) {
    if (machine().ranks || !has_two_devices()) {
        print_message("no two devices beside each other: not run\n");
        skip();
    }
    const uint64_t seed = seed_of_run();
    int32_t wrong = 0;
    for (const Subject &subject : subjects_of_every_type()) {
        if (subject.sharing == Sharing::none) continue;
        for (uint64_t job = 0; job < 5; ++job) {
            const auto one = bits_on("0", subject, seed + job);
            const auto two = bits_on("0,1", subject, seed + job);
            size_t differ = 0;
            for (const auto &[tag, bits] : one) {
                assert_true(bits.size() > 20);
                differ += two.at(tag) != bits;
            }
            print_message("%s %s: job %d: %zu of %zu rows: other bits on two devices\n",
                          subject.compute_type, subject.options.c_str(), int(job), differ,
                          one.size());
            wrong += differ > 0;
        }
    }
    assert_int_equal(wrong, 0);
}

// Else the test above would be of another type than it says.
void what_is_tried_in_fp8_is_in_fp8(void **) {
    if (!machine().gpu()) skip();
    Random random(1);
    const Subject subject{many_model, "bf16", Wish::greedy, 1, Sharing::planned, 150, in_fp8};
    const std::string extra = backend_options_of(subject, random);
    batchllm_engine_options options = options_of(subject, random);
    options.backend_options = extra.c_str();
    batchllm_info info;
    info.struct_size = sizeof info;
    const EngineHandle engine = create(options); // it owns the text
    CHECK(batchllm_engine_info(engine.get(), 0, &info));
    assert_string_equal(info.compute_type, "bf16, products in fp8 (e4m3)");
}

// What the test above would find: without the option last bits do differ.
void without_the_option_some_company_changes_bits(void **) {
    const uint64_t seed = seed_of_run();
    for (const char *type : compute_types()) {
        const Subject subject{"golden/llama3_gqa_sharded_bf16", type, Wish::greedy, 0};
        int32_t companies = 1;
        while (compare(subject, companies, seed).differ == 0) {
            companies *= 2;
            assert_true(companies <= 8);
        }
    }
}

void whatever_is_wanted_of_the_row(void **) {
    std::vector<Subject> subjects;
    for (const Wish wish :
         {Wish::sampled, Wish::penalised, Wish::structured, Wish::scored, Wish::mean, Wish::last}) {
        const std::string model = wish == Wish::structured ? batchllm::model_directory()
                                                           : "golden/llama_gqa8_llama3_bf16";
        for (const char *type : compute_types_of(subjects.size())) {
            subjects.push_back({model, type, wish, 1, sharings(type)[0]});
        }
    }
    compare_all(subjects, machine().gpu() ? 3 : cases(6, 3), seed_of_run());
}

// Windows, softcaps, sinks, second embeddings, experts routed and shared, with biases and in fp8.
void whatever_the_model_is(void **) {
    std::vector<Subject> subjects;
    for (const char *model : {"golden/gemma2_bf16", "golden/gemma4_bf16", "golden/gemma4_moe_bf16",
                              "golden/mixtral_bf16", "golden/gpt_oss_bf16", "golden/olmo2_bf16",
                              "golden/qwen2_moe_bf16", "golden/qwen3_moe_channel_fp8"}) {
        for (const char *type : compute_types_of(subjects.size())) {
            subjects.push_back({model, type, Wish::greedy, 1, sharings(type)[0]});
        }
    }
    compare_all(subjects, machine().gpu() ? 3 : cases(4, 2), seed_of_run());
}

// Delta nets of both kinds and Mamba-2, whose states are made token by token, and short convolutions.
void hybrids_too(void **) {
    std::vector<Subject> subjects;
    std::vector<const char *> models = {"golden/qwen3_next_bf16",
                                        "golden/qwen3_next_wide_bf16",
                                        "golden/qwen3_5_bf16",
                                        "golden/qwen3_5_moe_bf16",
                                        "golden/granite_hybrid_moe_bf16",
                                        "golden/granite_hybrid_wide_bf16",
                                        "golden/nemotron_h_moe_bf16",
                                        "golden/lfm2_moe_bf16",
                                        "golden/kimi_linear_f16"};
    if (!machine().gpu()) models.push_back("golden/lfm2_bf16"); // CUDA refuses its sizes
    for (const char *model : models) {
        for (const char *type : compute_types_of(subjects.size())) {
            subjects.push_back(
                {model, type, Wish::greedy, 1, sharings(type)[0], 150, "state_slots=6,", false});
        }
    }
    compare_all(subjects, machine().gpu() ? 4 : cases(8, 3), seed_of_run());
}

constexpr const char *dense_config = R"({"model_type": "mistral", "hidden_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 2816, "vocab_size": 4096, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "torch_dtype": "bfloat16",
    "tie_word_embeddings": false, "sliding_window": null, "eos_token_id": null})";
constexpr const char *window_config = R"({"model_type": "mistral", "hidden_size": 512,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 1408, "vocab_size": 4096, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "torch_dtype": "bfloat16",
    "tie_word_embeddings": false, "sliding_window": 700, "eos_token_id": null})";
constexpr const char *experts_config = R"({"model_type": "qwen3_moe", "hidden_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "intermediate_size": 1024, "moe_intermediate_size": 384, "num_experts": 32,
    "num_experts_per_tok": 4, "norm_topk_prob": true, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "vocab_size": 4096, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "torch_dtype": "bfloat16",
    "tie_word_embeddings": false, "use_sliding_window": false, "eos_token_id": null})";

// Contexts of several segments, products of many sums and of every type: models of random weights.
void long_rows_of_wide_models(void **) {
    if (!machine().gpu()) skip();
    const TemporaryDirectory folder;
    std::vector<Subject> subjects;
    const std::pair<const char *, const char *> configs[] = {
        {"dense", dense_config}, {"window", window_config}, {"experts", experts_config}};
    for (const auto &[name, config] : configs) {
        const std::string directory = folder.file(name);
        auto described = batchllm::describe_config(config, name);
        if (!described.ok()) fail_msg("%s", described.status().message().c_str());
        const batchllm::Status written =
            batchllm::write_model_directory({config, std::move(described).value()}, directory);
        if (!written.ok()) fail_msg("%s", written.message().c_str());
    }
    const auto add = [&](const char *name, const char *type, Sharing sharing,
                         const char *more = "") {
        subjects.push_back({folder.file(name), type, Wish::greedy, 1, sharing, 4600,
                            std::string("random_weights=1,") + more});
    };
    add("dense", "bf16", Sharing::planned);
    add("dense", "bf16", Sharing::planned, "quantize=fp8,");
    add("dense", "bf16", Sharing::planned, "kv_type=fp8,");
    add("window", "f16", Sharing::planned);
    add("window", "bf16", Sharing::none);
    add("window", "f16", Sharing::none, "kv_type=fp8,");
    add("experts", "f16", Sharing::planned);
    add("experts", "bf16", Sharing::planned, "quantize=fp8,");
    compare_all(subjects, 3, seed_of_run());
}

void the_engine_says_whether_it_is_reproducible(void **) {
    Random random(1);
    for (const int32_t reproducible : {0, 1}) {
        batchllm_engine_options options =
            options_of({"golden/llama_bias_f32", "f32", Wish::greedy, reproducible}, random);
        options.model_dir = "golden/llama_bias_f32";
        batchllm_info info;
        info.struct_size = sizeof info;
        CHECK(batchllm_engine_info(create(options).get(), 0, &info));
        assert_int_equal(info.reproducible, reproducible);
    }
}

void what_is_no_such_mode_is_refused_by_name(void **) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "golden/llama_bias_f32";
    batchllm_engine *engine = nullptr;
    options.backend = "cpu";
    options.reproducible = 2;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(batchllm_last_error(), "reproducible is 2"));
    options.model_dir = "golden/qwen3_5_bf16";
    options.backend = machine().backend.c_str();
    options.backend_options = "state_type=bf16";
    options.reproducible = 1;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(std::strstr(batchllm_last_error(), "state_type=bf16"));
}

} // namespace

int main(int count, char **values) {
    if (count == 4) cmocka_set_test_filter(values[3]); // for example long*
    if (count >= 3) {
        const std::string backend = values[1];
        const bool ranks = backend.ends_with(":2");
        machine() = {ranks ? backend.substr(0, backend.size() - 2) : backend, values[2], ranks};
        Random random(1);
        batchllm_engine_options options =
            options_of({"golden/llama_bias_f32", "f32", Wish::greedy}, random);
        options.model_dir = "golden/llama_bias_f32";
        batchllm_engine *engine = nullptr;
        const int32_t status = batchllm_engine_create(&options, &engine);
        batchllm_engine_destroy(engine);
        if (status == BATCHLLM_ERROR_BACKEND_UNAVAILABLE) return 77;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_same_bits_among_many_companies),
        cmocka_unit_test(what_is_tried_in_fp8_is_in_fp8),
        cmocka_unit_test(rows_on_two_devices_are_the_same_bits_as_on_one),
        cmocka_unit_test(without_the_option_some_company_changes_bits),
        cmocka_unit_test(whatever_is_wanted_of_the_row),
        cmocka_unit_test(whatever_the_model_is),
        cmocka_unit_test(hybrids_too),
        cmocka_unit_test(long_rows_of_wide_models),
        cmocka_unit_test(the_engine_says_whether_it_is_reproducible),
        cmocka_unit_test(what_is_no_such_mode_is_refused_by_name),
    };
    return cmocka_run_group_tests_name("reproducible", tests, nullptr, nullptr);
}
