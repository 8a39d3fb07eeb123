// Reproducible engines on the CPU: one row among many different companies, whatever is shared, however large the
// steps and the pool and however many threads, has the same bits in everything that is returned for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
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

namespace {

using Tokens = std::vector<int32_t>;
using Random = std::mt19937_64;

constexpr uint64_t row_tag = 1000; // those of its company are below
constexpr int32_t prompt_tokens = 150;

int32_t between(Random &random, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
}

// What a run of the row has met, besides the row's own results.
struct Run {
    std::string bits; // all that was returned for the row
    bool shared = false;
    int64_t preemptions = 0;
};

// What is wanted of the row.
enum class Wish { greedy, sampled, penalised, structured, scored, mean, last };

struct Subject {
    std::string model;
    const char *compute_type;
    Wish wish;
    int32_t reproducible = 1;
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
    options.backend = "cpu";
    options.model_dir = subject.model.c_str();
    options.compute_type = subject.compute_type;
    options.reproducible = subject.reproducible;
    options.threads = between(random, 1, 2);
    constexpr int64_t steps[] = {1, 3, 16, 33, 100, 1000};
    options.step_tokens = steps[between(random, 0, 5)];
    constexpr const char *pages[] = {"page_tokens=16", "page_tokens=32", "page_tokens=48"};
    options.backend_options = pages[between(random, 0, 2)];
    options.kv_memory_bytes = int64_t{16} << 20;
    options.enlarge = between(random, 0, 2) == 0 ? BATCHLLM_ENLARGE_NONE : BATCHLLM_ENLARGE_OPTIMAL;
    options.levels = between(random, 1, 2);
    options.min_prefix_tokens = 1;
    options.seed = 5;
    return options;
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

// Everything of the row's results, as bytes.
std::string bits_of(const batchllm_results &results) {
    std::string bits;
    const auto take = [&](const auto *values, int64_t begin, int64_t end) {
        bits.append(reinterpret_cast<const char *>(values + begin),
                    static_cast<size_t>(end - begin) * sizeof *values);
        bits += '|';
    };
    for (int64_t i = 0; i < results.count; ++i) {
        if (results.tags[i] != row_tag) continue;
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

// Rows that begin as the row does, for anything from none to all of its prompt, and others.
void add_company(batchllm_engine *engine, const Tokens &prompt, int32_t rows, Random &random) {
    for (int32_t r = 0; r < rows; ++r) {
        const int32_t common = between(random, 0, 3) == 0 ? 0 : between(random, 1, prompt_tokens);
        Tokens other(prompt.begin(), prompt.begin() + common);
        const Tokens own = prompt_of(random, between(random, 1, 60));
        other.insert(other.end(), own.begin(), own.end());
        batchllm_params params = params_of(Wish::greedy);
        params.logprobs = -1;
        params.max_tokens = between(random, 1, 100);
        add(engine, other, static_cast<uint64_t>(r), params);
    }
}

Run run(const Subject &subject, const Tokens &prompt, uint64_t seed, uint64_t company) {
    Random random(seed * 1000 + company);
    batchllm_engine_options options = options_of(subject, random);
    const int32_t before = company == 0 ? 0 : between(random, 0, 8);
    const int32_t after = company == 0 ? 0 : between(random, 0, 8);
    if (company % 3 == 1) { // a few rows fit
        batchllm_info info;
        info.struct_size = sizeof info;
        CHECK(batchllm_engine_info(create(options).get(), 0, &info));
        const int64_t pages = between(random, 2, 3) * (prompt_tokens + 60) / info.page_tokens;
        options.kv_memory_bytes = pages * info.kv_groups * info.kv_page_bytes;
    }
    const EngineHandle engine = create(options);
    if (company % 3 == 1) run_rows_that_end_at_once(engine.get(), random);
    add_company(engine.get(), prompt, before, random);
    const ConstraintHandle constraint = add_row(engine.get(), prompt, subject.wish);
    for (int32_t steps = between(random, 0, 3); company % 4 == 2 && steps > 0; --steps) {
        CHECK(batchllm_step(engine.get(), nullptr)); // the rest come later
    }
    add_company(engine.get(), prompt, after, random);
    CHECK(batchllm_run(engine.get(), nullptr, nullptr));
    batchllm_results *polled = nullptr;
    CHECK(batchllm_poll(engine.get(), 0, &polled));
    const ResultsHandle results(polled);
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(batchllm_engine_stats(engine.get(), &stats));
    assert_int_equal(stats.rows_failed, 0);
    return {bits_of(*results), stats.shared_prompt_tokens > 0, stats.preemptions};
}

struct Count {
    int32_t differ = 0, shared = 0, preempted = 0;
};

Count compare(const Subject &subject, int32_t companies, uint64_t seed) {
    Random random(seed);
    const Tokens prompt = prompt_of(random, prompt_tokens);
    const Run alone = run(subject, prompt, seed, 0);
    assert_true(alone.bits.size() > 20);
    Count count;
    for (int32_t company = 1; company <= companies; ++company) {
        const Run among = run(subject, prompt, seed, static_cast<uint64_t>(company));
        count.differ += among.bits != alone.bits;
        count.shared += among.shared;
        count.preempted += among.preemptions > 0;
    }
    return count;
}

std::vector<const char *> compute_types() {
    std::vector<const char *> types{"f32"};
    if (batchllm::cpu::isa_runs_here(batchllm::cpu::Isa::avx512_bf16)) types.push_back("bf16");
    return types;
}

void a_row_is_the_same_bits_among_fifty_companies(void **) {
    const uint64_t seed = seed_of_run();
    for (const char *type : compute_types()) {
        const Count count =
            compare({"golden/llama3_gqa_sharded_bf16", type, Wish::greedy}, 50, seed);
        if (count.differ > 0) fail_msg("%s: %d of 50 companies: other bits", type, count.differ);
        print_message("%s: %d companies share, %d preempt\n", type, count.shared, count.preempted);
        assert_true(count.shared > 10);
        assert_true(count.preempted > 3);
    }
}

// What the test above would find: without the option last bits do differ.
void without_the_option_some_company_changes_bits(void **) {
    const uint64_t seed = seed_of_run();
    for (const char *type : compute_types()) {
        const Count count =
            compare({"golden/llama3_gqa_sharded_bf16", type, Wish::greedy, 0}, 8, seed);
        assert_true(count.differ > 0);
    }
}

void whatever_is_wanted_of_the_row(void **) {
    const uint64_t seed = seed_of_run();
    for (const Wish wish :
         {Wish::sampled, Wish::penalised, Wish::structured, Wish::scored, Wish::mean, Wish::last}) {
        const std::string model = wish == Wish::structured ? batchllm::model_directory()
                                                           : "golden/llama_gqa8_llama3_bf16";
        for (const char *type : compute_types()) {
            const Count count = compare({model, type, wish}, 6, seed);
            if (count.differ > 0) {
                fail_msg("%s, wish %d: %d of 6 companies: other bits", type, int(wish),
                         count.differ);
            }
        }
    }
}

// Windows, softcaps, second embeddings, experts routed and shared, sinks of none.
void whatever_the_model_is(void **) {
    const uint64_t seed = seed_of_run();
    for (const char *model : {"golden/gemma2_bf16", "golden/gemma4_bf16", "golden/mixtral_bf16",
                              "golden/qwen2_moe_bf16", "golden/olmo2_bf16"}) {
        for (const char *type : compute_types()) {
            const Count count = compare({model, type, Wish::greedy}, 4, seed);
            if (count.differ > 0) {
                fail_msg("%s, %s: %d of 4 companies: other bits", model, type, count.differ);
            }
        }
    }
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

void what_has_no_such_mode_is_refused_by_name(void **) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.model_dir = "golden/llama_bias_f32";
    options.backend = "cuda";
    options.reproducible = 1;
    batchllm_engine *engine = nullptr;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_UNSUPPORTED);
    assert_non_null(std::strstr(batchllm_last_error(), "reproducible"));
    options.backend = "cpu";
    options.reproducible = 2;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(batchllm_last_error(), "reproducible is 2"));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_same_bits_among_fifty_companies),
        cmocka_unit_test(without_the_option_some_company_changes_bits),
        cmocka_unit_test(whatever_is_wanted_of_the_row),
        cmocka_unit_test(whatever_the_model_is),
        cmocka_unit_test(the_engine_says_whether_it_is_reproducible),
        cmocka_unit_test(what_has_no_such_mode_is_refused_by_name),
    };
    return cmocka_run_group_tests_name("reproducible", tests, nullptr, nullptr);
}
