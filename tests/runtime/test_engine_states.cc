// Engines on the CPU with models whose layers have states (tests/golden): the reported slots,
// states in bf16, and a job with far more rows than slots.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

namespace {

batchllm_engine_options cpu_options(const char *backend_options) {
    batchllm_engine_options options = float32_options();
    options.backend_options = backend_options;
    return options;
}

std::vector<Golden> golden_with_delta_nets() {
    std::vector<Golden> all = all_golden();
    std::erase_if(
        all, [](const Golden &golden) { return !has_delta_nets(golden) && !has_mamba(golden); });
    assert_true(all.size() >= 6);
    return all;
}

batchllm_info info_of(const EngineHandle &engine) {
    batchllm_info info;
    info.struct_size = sizeof info;
    CHECK(batchllm_engine_info(engine.get(), 0, &info));
    return info;
}

// ---- Reported slots ----

void check_slots(const char *model) {
    const EngineHandle engine = make_engine(model, cpu_options("state_slots=9"));
    const batchllm_info info = info_of(engine);
    assert_int_equal(info.state_slots, 9);
    assert_true(info.state_slot_bytes > 0);
    // All of the memory except less than a page.
    const int64_t taken =
        info.state_slots * info.state_slot_bytes + info.kv_pages * info.kv_page_bytes;
    assert_in_range((int64_t{64} << 20) - taken, 0, info.kv_page_bytes - 1);
    batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.state_slots_total, 9);
    assert_int_equal(stats.state_slots_peak, 0);
    assert_int_equal(stats.state_slot_bytes, info.state_slot_bytes);
    // Two rows that share a prefix: one slot for each row, and one for the prefix.
    const std::vector<int32_t> tokens = [] {
        std::vector<int32_t> made;
        for (int32_t row = 0; row < 2; ++row) {
            for (int32_t t = 0; t < 40; ++t) made.push_back(t < 32 ? 5 + t : 60 + 10 * row + t);
        }
        return made;
    }();
    const int64_t offsets[] = {0, 40, 80};
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 4;
    CHECK(batchllm_add_tokens(engine.get(), 2, tokens.data(), offsets, nullptr, &params, 1));
    run(engine.get());
    stats = stats_of(engine);
    assert_int_equal(stats.shared_prompt_tokens, 32);
    assert_int_equal(stats.state_slots_peak, 3);
}

void slots_are_in_info_and_statistics(void **) {
    for (const char *model : {"golden/qwen3_5_bf16", "golden/lfm2_bf16", "golden/lfm2_moe_bf16",
                              "golden/nemotron_h_bf16"}) {
        check_slots(model);
    }
    // Three layers with two rows of 60 floats, in whole lines of 64 bytes.
    const EngineHandle small = make_engine("golden/lfm2_bf16", cpu_options("state_type=f32"));
    assert_int_equal(info_of(small).state_slot_bytes, 3 * 512);
    const EngineHandle without = make_engine("golden/llama_bias_f32", cpu_options(nullptr));
    assert_int_equal(info_of(without).state_slots, 0);
    assert_int_equal(stats_of(without).state_slots_total, 0);
    assert_int_equal(stats_of(without).state_slot_bytes, 0);
}

void options_for_states_are_checked(void **) {
    const struct {
        const char *model, *option;
    } cases[] = {{"golden/qwen3_5_bf16", "state_type=f16"},
                 {"golden/qwen3_5_bf16", "state_slots=0"},
                 {"golden/lfm2_bf16", "state_type=bf16"}, // it has no S
                 {"golden/llama_bias_f32", "state_type=bf16"}};
    for (const auto &c : cases) {
        batchllm_engine_options options = cpu_options(c.option);
        options.model_dir = c.model;
        batchllm_engine *engine = nullptr;
        assert_int_equal(batchllm_engine_create(&options, &engine),
                         BATCHLLM_ERROR_INVALID_ARGUMENT);
        assert_non_null(std::strstr(batchllm_last_error(), c.option));
    }
}

void the_simulation_counts_the_same_slots(void **) {
    for (const char *model :
         {"golden/lfm2_moe_bf16", "golden/lfm2_vl_bf16", "golden/nemotron_h_moe_bf16"}) {
        batchllm_engine_options options = cpu_options("state_slots=9");
        const batchllm_info cpu = info_of(make_engine(model, options));
        options.backend = "sim";
        options.compute_type = nullptr;
        const batchllm_info sim = info_of(make_engine(model, options));
        assert_int_equal(sim.state_slots, 9);
        assert_int_equal(sim.state_slot_bytes, cpu.state_slot_bytes);
    }
}

// ---- States in bf16 ----

struct Compared {
    int64_t rows = 0, equal_rows = 0;
    int64_t tokens = 0;              // up to the first difference
    double squares = 0, largest = 0; // of the differences of log-probabilities
};

void add_row(const GoldenRow &row, const batchllm_results &results, int64_t i, Compared *compared) {
    const int64_t begin = results.token_offsets[i];
    const int64_t count = results.token_offsets[i + 1] - begin;
    int64_t t = 0;
    for (; t < std::min<int64_t>(count, static_cast<int64_t>(row.tokens.size())); ++t) {
        const auto at = static_cast<size_t>(t);
        if (results.tokens[begin + t] != row.tokens[at]) break;
        const double wrong =
            double(results.logprobs[results.logprob_offsets[i] + t]) - row.logprobs[at];
        compared->squares += wrong * wrong;
        compared->largest = std::max(compared->largest, std::fabs(wrong));
        ++compared->tokens;
    }
    ++compared->rows;
    compared->equal_rows += t == static_cast<int64_t>(row.tokens.size());
}

Compared compare_states(const Golden &golden, const char *backend_options, int64_t step_tokens) {
    batchllm_engine_options options = cpu_options(backend_options);
    options.step_tokens = step_tokens;
    const EngineHandle engine = make_engine(golden.directory, options);
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = golden.new_tokens;
    params.logprobs = 0;
    add_prompts(engine.get(), golden, params);
    const ResultsHandle results = run(engine.get());
    Compared compared;
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        add_row(golden.rows[results->tags[i]], *results, i, &compared);
    }
    return compared;
}

// In steps of 17 tokens a prompt's state is rounded many times.
void states_in_bf16_are_close_to_the_references(void **) {
    for (const Golden &golden : golden_with_delta_nets()) {
        const EngineHandle plain = make_engine(golden.directory, cpu_options(nullptr));
        const EngineHandle narrow = make_engine(golden.directory, cpu_options("state_type=bf16"));
        const int64_t wide = info_of(plain).state_slot_bytes;
        const batchllm_info info = info_of(narrow);
        // The convolutions' inputs stay in float.
        assert_true(info.state_slot_bytes < wide && 2 * info.state_slot_bytes > wide);
        assert_non_null(std::strstr(info.compute_type, "states in bf16"));
        for (const int64_t step_tokens : {512, 17}) {
            const Compared of = compare_states(golden, "state_type=bf16", step_tokens);
            const double deviation = std::sqrt(of.squares / static_cast<double>(of.tokens));
            print_message("%s, states in bf16, steps of %d: %d of %d rows equal, log-probabilities "
                          "off by %.2g, at most %.2g\n",
                          golden.directory.c_str(), int(step_tokens), int(of.equal_rows),
                          int(of.rows), deviation, of.largest);
            assert_true(of.largest > 1e-4); // in f32 they are off by less
            assert_true(deviation < 0.05);
            assert_true(4 * of.equal_rows > of.rows);
        }
    }
}

// ---- More rows than slots ----

struct ManyRows {
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
};

// Groups of 20 rows that share 20 tokens and have 1 to 5 of their own.
ManyRows make_rows(int32_t count) {
    ManyRows rows;
    uint32_t random = 12345;
    const auto token = [&random] {
        random = random * 1664525U + 1013904223U;
        return static_cast<int32_t>(1 + random / 65536 % 240);
    };
    std::vector<int32_t> prefix;
    for (int32_t row = 0; row < count; ++row) {
        if (row % 20 == 0) {
            prefix.clear();
            for (int32_t t = 0; t < 20; ++t) prefix.push_back(token());
        }
        rows.tokens.insert(rows.tokens.end(), prefix.begin(), prefix.end());
        for (int32_t t = 0; t <= row % 5; ++t) rows.tokens.push_back(token());
        rows.offsets.push_back(static_cast<int64_t>(rows.tokens.size()));
    }
    return rows;
}

// The rows' output, in their order.
std::vector<std::vector<int32_t>> outputs_of(const EngineHandle &engine, const ManyRows &rows) {
    const auto count = static_cast<int64_t>(rows.offsets.size()) - 1;
    std::vector<uint64_t> tags(static_cast<size_t>(count));
    for (size_t i = 0; i < tags.size(); ++i) tags[i] = i;
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 2;
    CHECK(batchllm_add_tokens(engine.get(), count, rows.tokens.data(), rows.offsets.data(),
                              tags.data(), &params, 1));
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, count);
    std::vector<std::vector<int32_t>> outputs(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        outputs[results->tags[i]].assign(results->tokens + results->token_offsets[i],
                                         results->tokens + results->token_offsets[i + 1]);
    }
    return outputs;
}

// reproducible: tokens do not depend on what is computed together, so they are compared exactly.
void check_many_rows(const char *model) {
    const ManyRows rows = make_rows(20000);
    batchllm_engine_options options = cpu_options("state_slots=105");
    options.reproducible = 1;
    const EngineHandle few = make_engine(model, options);
    const auto outputs = outputs_of(few, rows);
    assert_int_equal(stats_of(few).state_slots_peak, 105);
    assert_int_equal(stats_of(few).rows_done, 20000);
    options.backend_options = "state_slots=1500";
    options.kv_memory_bytes = int64_t{512} << 20;
    options.step_tokens = 4096;
    const EngineHandle many = make_engine(model, options);
    assert_true(outputs == outputs_of(many, rows));
    assert_true(stats_of(many).state_slots_peak > 300);
}

void twenty_thousand_rows_on_slots_for_a_hundred_have_the_same_tokens(void **) {
    for (const char *model : {"golden/qwen3_next_dense_f16", "golden/lfm2_bf16"}) {
        check_many_rows(model);
    }
}

// ---- Small slots ----

// A slot of lfm2_bf16 takes as much memory as the keys and values of three tokens, so slots must
// not get the memory of hundreds of tokens each.
void small_slots_are_as_many_as_a_sixteenth_of_the_memory_holds(void **) {
    batchllm_engine_options options = cpu_options(nullptr);
    options.step_tokens = 4096;
    options.kv_memory_bytes = 3 << 20;
    const batchllm_info info = info_of(make_engine("golden/lfm2_bf16", options));
    assert_int_equal(info.state_slots, (3 << 20) / 16 / info.state_slot_bytes);
    // Never more than twice a step's tokens.
    options.step_tokens = 16;
    assert_int_equal(info_of(make_engine("golden/lfm2_bf16", options)).state_slots, 32);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_in_info_and_statistics),
        cmocka_unit_test(options_for_states_are_checked),
        cmocka_unit_test(the_simulation_counts_the_same_slots),
        cmocka_unit_test(states_in_bf16_are_close_to_the_references),
        cmocka_unit_test(twenty_thousand_rows_on_slots_for_a_hundred_have_the_same_tokens),
        cmocka_unit_test(small_slots_are_as_many_as_a_sixteenth_of_the_memory_holds),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
