// The whole model on the CPU: against transformers' greedy tokens in float32 (tests/golden), with
// and without sharing, in steps of any size, on pools of any size; and the backend's own promises.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <simdjson.h>

#include "backend/cpu/forward.h"
#include "cpu_rows.h"
#include "golden_json.h"
#include "seed.h"

// Last: cmocka has macros with everyday names.
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;
using batchllm::testing::Row;
using batchllm::testing::RowScheduler;

namespace {

struct Golden {
    std::unique_ptr<Model> model;
    std::vector<Row> rows; // output empty
    std::vector<std::vector<int32_t>> tokens;
    std::vector<std::vector<double>> margins;
};

Golden load_golden(const std::string &name) {
    Golden golden;
    auto model = load_model("golden/" + name);
    if (!model.ok()) {
        std::printf("%s\n", model.status().message().c_str());
        return golden;
    }
    golden.model = std::move(model).value();
    choose_frequencies(golden.model->max_positions, golden.model.get());
    simdjson::dom::parser parser;
    simdjson::dom::element file = parser.load("golden/" + name + "/golden.json");
    const int32_t new_tokens = static_cast<int32_t>(int64_t(file["new_tokens"]));
    const std::vector<int32_t> end = read_ints(file["eos_tokens"]);
    for (simdjson::dom::element row : file["rows"].get_array()) {
        golden.rows.push_back({read_ints(row["prompt"]), new_tokens, {}, end, false});
        golden.tokens.push_back(read_ints(row["tokens"]));
        golden.margins.push_back(read_doubles(row["margins"]));
    }
    return golden;
}

struct Run {
    size_t way; // its number
    bool sharing = true;
    int64_t step_tokens = 512;
    int64_t kv_bytes = int64_t{64} << 20;
    int32_t page_tokens = 16;
    int32_t threads = 2;
    DType element = DType::f32;
    Isa isa = Isa::portable;
    bool poison = false;       // fill the pages with NaN first
    DType states = DType::f32; // the type of states between steps
};

// Computes the rows' outputs. Returns an error's text, or an empty string.
std::string run_rows(const Model &model, std::vector<Row> *rows, const Run &run) {
    ThreadPool pool(run.threads);
    auto forward =
        Forward::create(model, *kernels_for(run.isa, run.element), &pool, run.step_tokens);
    if (!forward.ok()) return forward.status().message();
    auto pages = KvPages::create(model, run.element, run.page_tokens, run.kv_bytes);
    if (!pages.ok()) return pages.status().message();
    const int64_t page_count = pages->pages();
    if (run.poison) {
        std::memset(pages->keys(Attention(), 0, 0, 0), 0xFF,
                    static_cast<size_t>(page_count * pages->page_bytes()));
    }
    Status status = (*forward)->take_pages(std::move(pages).value());
    if (!status.ok()) return status.message();

    RowScheduler scheduler(rows, run.sharing, run.page_tokens, page_count, run.step_tokens,
                           model.kv_groups.size());
    if (model.state_size() > 0) {
        auto states = StatePool::create(model, run.states, scheduler.state_slots());
        if (!states.ok()) return states.status().message();
        if (run.poison) {
            std::memset(states->matrix(0, 0, DeltaNet(), 0), 0xFF,
                        static_cast<size_t>(scheduler.state_slots() *
                                            StatePool::slot_bytes(model, run.states)));
        }
        (*forward)->take_states(std::move(states).value());
    }
    TokenBatch batch;
    std::vector<int32_t> logits_rows, wanted, tokens;
    std::vector<float> logits;
    while (scheduler.next(&batch, &logits_rows)) {
        wanted.clear();
        for (const OutputRow &row : batch.outputs) wanted.push_back(row.token);
        status = (*forward)->run(batch, wanted);
        if (!status.ok()) return status.message();
        const int32_t vocabulary = model.vocabulary;
        logits.resize(wanted.size() * static_cast<size_t>(vocabulary));
        status = (*forward)->logits(0, static_cast<int64_t>(wanted.size()), logits.data());
        if (!status.ok()) return status.message();
        tokens.clear();
        for (size_t i = 0; i < wanted.size(); ++i) {
            const float *row = logits.data() + i * static_cast<size_t>(vocabulary);
            for (int32_t v = 0; v < vocabulary; ++v) {
                if (!std::isfinite(row[v])) return "logits are not finite";
            }
            tokens.push_back(static_cast<int32_t>(std::max_element(row, row + vocabulary) - row));
        }
        scheduler.finish(logits_rows, tokens);
    }
    for (const Row &row : *rows) {
        if (!row.done) return "a row was not finished";
    }
    return {};
}

// Counts the tokens that equal the reference's, and those that may differ because the reference's
// own choice was closer than the margin. Returns "" or the first difference.
std::string compare(const Golden &golden, const std::vector<Row> &rows, double margin,
                    int64_t *equal, int64_t *all) {
    for (size_t r = 0; r < rows.size(); ++r) {
        const std::vector<int32_t> &expected = golden.tokens[r];
        *all += static_cast<int64_t>(expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
            if (i >= rows[r].output.size()) return "row " + std::to_string(r) + " ended early";
            if (rows[r].output[i] == expected[i]) {
                ++*equal;
                continue;
            }
            if (golden.margins[r][i] < margin) break;
            return "row " + std::to_string(r) + " token " + std::to_string(i) + ": " +
                   std::to_string(rows[r].output[i]) + ", not " + std::to_string(expected[i]) +
                   " (margin " + std::to_string(golden.margins[r][i]) + ")";
        }
    }
    return {};
}

// All golden models (under sanitizers, a third) under one way of running; at least `share` of the tokens must be compared.
std::string check_models(const Run &run, double margin, double share) {
    int64_t equal = 0;
    int64_t all = 0;
    const std::vector<std::string> names = golden_models("golden.json");
    for (size_t i = 0; i < names.size(); ++i) {
        if (left_to_other_ways(i, run.way)) continue;
        const std::string &name = names[i];
        Golden golden = load_golden(name);
        if (golden.model == nullptr) return name + " cannot be loaded";
        std::string failure = run_rows(*golden.model, &golden.rows, run);
        // Rounding may choose another expert, after which any token may follow: for such models a
        // share of the tokens must be equal, whatever their margins.
        const bool rounded = run.element != DType::f32 && golden.model->has_experts();
        int64_t of_model = 0, all_of_model = 0;
        if (failure.empty()) {
            failure =
                compare(golden, golden.rows, rounded ? HUGE_VAL : margin, &of_model, &all_of_model);
        }
        if (failure.empty() && 10 * of_model < 3 * all_of_model) failure = "too few are equal";
        if (!failure.empty()) return name + ": " + failure;
        equal += of_model;
        all += all_of_model;
    }
    std::printf("%lld of %lld tokens equal the reference's\n", static_cast<long long>(equal),
                static_cast<long long>(all));
    if (static_cast<double>(equal) < share * static_cast<double>(all)) return "too few are equal";
    return {};
}

Run best_f32(size_t way) {
    Run run{way};
    run.isa = best_isa(DType::f32);
    return run;
}

void check(const Run &run) {
    const std::string failure = check_models(run, 1e-3, 0.98);
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

void greedy_tokens_equal_transformers_without_sharing(void **) {
    Run run = best_f32(0);
    run.sharing = false;
    check(run);
}

void greedy_tokens_equal_transformers_with_sharing(void **) { check(best_f32(1)); }

void greedy_tokens_equal_transformers_in_steps_of_64(void **) {
    Run run = best_f32(2);
    run.step_tokens = 64;
    run.page_tokens = 32;
    run.poison = true;
    check(run);
}

void greedy_tokens_equal_transformers_on_a_small_pool(void **) {
    Run run = best_f32(3);
    run.kv_bytes = int64_t{2} << 20;
    run.threads = 1;
    check(run);
}

void greedy_tokens_equal_transformers_with_portable_kernels(void **) {
    Run run{4};
    run.step_tokens = 100;
    check(run);
}

void bf16_tokens_equal_transformers_but_for_close_calls(void **) {
    Run run{5};
    run.element = DType::bf16;
    run.isa = best_isa(DType::bf16);
    if (run.isa == Isa::portable) skip();
    // Rounding alone changes a logit of Gemma 4 by 0.05 on average, and by 0.3 at worst.
    const std::string failure = check_models(run, 0.5, 0.5);
    if (!failure.empty()) fail_msg("%s", failure.c_str());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_equal_transformers_without_sharing),
        cmocka_unit_test(greedy_tokens_equal_transformers_with_sharing),
        cmocka_unit_test(greedy_tokens_equal_transformers_in_steps_of_64),
        cmocka_unit_test(greedy_tokens_equal_transformers_on_a_small_pool),
        cmocka_unit_test(greedy_tokens_equal_transformers_with_portable_kernels),
        cmocka_unit_test(bf16_tokens_equal_transformers_but_for_close_calls),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
