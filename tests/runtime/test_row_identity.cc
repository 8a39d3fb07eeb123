// src/runtime: which rows are computed once for both, and how a plan identifies a row.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "changed_parameters.h"
#include "runtime/row_store.h"
extern "C" { // which cmocka 1.1.5 lacks; its fail() is not the library's
#include <cmocka.h>
}

using namespace batchllm;

namespace {

using Change = std::function<void(PreparedParams *)>;

int64_t add(RowStore *rows, std::vector<int32_t> tokens, const Change &change) {
    auto params = std::make_shared<PreparedParams>();
    change(params.get());
    return rows->add(0, tokens, std::move(params), nullptr);
}

bool equal(const std::vector<int32_t> &a, const Change &change_a, const std::vector<int32_t> &b,
           const Change &change_b) {
    RowStore rows;
    const int64_t x = add(&rows, a, change_a), y = add(&rows, b, change_b);
    const bool forth = equal_rows(*rows.find(x), *rows.find(y));
    assert_true(forth == equal_rows(*rows.find(y), *rows.find(x)));
    return forth;
}

void nothing(PreparedParams *) {}

void rows_of_equal_tokens_and_parameters_are_one(void **) {
    assert_true(equal({1, 2, 3}, nothing, {1, 2, 3}, nothing));
    assert_false(equal({1, 2, 3}, nothing, {1, 2, 4}, nothing));
    assert_false(equal({1, 2, 3}, nothing, {1, 2}, nothing));
    const auto longer = [](PreparedParams *params) { params->max_tokens = 7; };
    assert_true(equal({1, 2, 3}, longer, {1, 2, 3}, longer));
    assert_false(equal({1, 2, 3}, longer, {1, 2, 3}, nothing));
    const auto first = [](PreparedParams *params) {
        params->task = Task::embed;
        params->form.pooling = Pooling::first;
    };
    assert_true(equal({1, 2, 3}, first, {1, 5}, first)); // only their first token is computed
}

// Greedy rows that differ in one parameter are one if and only if the table says that it does not
// affect the answer, and then the sampler gives both the same.
void each_parameter_that_affects_the_answer_separates_rows(void **) {
    std::mt19937 random(20261126);
    std::normal_distribution<float> normal;
    std::vector<float> logits(100);
    for (float &logit : logits) logit = normal(random);
    const std::vector<int32_t> prompt = {1, 2, 3}, output = {4, 5};
    const auto sampled = [&](const SamplingParams &params) {
        std::vector<float> scratch = logits;
        SampleOutput result;
        sample(scratch, {&params, prompt, output, random_key(0, params.seed, 0, 0), 5}, &result);
        return result;
    };
    each_parameter([&](const auto &parameter) {
        if (parameter.name == std::string_view("temperature")) return true; // both are greedy
        const auto set = [](const RowParameters &row) {
            return [row](PreparedParams *params) { static_cast<RowParameters &>(*params) = row; };
        };
        const RowParameters usual = row_with(parameter), other = with_another_value(parameter);
        const bool one = equal(prompt, set(usual), prompt, set(other));
        if (one != (parameter.affects != Affects::answer)) {
            fail_msg("%s: rows are %s", parameter.name, one ? "one" : "separate");
        }
        SamplingParams a, b;
        static_cast<RowParameters &>(a) = usual;
        static_cast<RowParameters &>(b) = other;
        const SampleOutput x = sampled(a), y = sampled(b);
        if (one && (x.token != y.token || x.logprob != y.logprob || x.top.size() != y.top.size())) {
            fail_msg("%s: rows are one, but sample different tokens", parameter.name);
        }
        return true;
    });
}

void rows_of_different_salts_are_never_one(void **) {
    for (const uint64_t salt : {uint64_t{1}, uint64_t{1} << 32, UINT64_MAX}) {
        const auto salted = [&](PreparedParams *params) { params->salt = salt; };
        assert_true(equal({1, 2, 3}, salted, {1, 2, 3}, salted));
        assert_false(equal({1, 2, 3}, salted, {1, 2, 3}, nothing));
        const auto other = [&](PreparedParams *params) { params->salt = salt - 1; };
        assert_false(equal({1, 2, 3}, salted, {1, 2, 3}, other));
    }
}

void a_row_goes_into_the_plan_with_its_salt(void **) {
    RowStore rows;
    const int64_t id =
        add(&rows, {1, 2, 3}, [](PreparedParams *params) { params->salt = 0x123456789abcdef0; });
    const TokenRow row = rows.find(id)->token_row();
    assert_int_equal(row.length, 3);
    assert_int_equal(row.shareable, 2);
    assert_true(row.salt == 0x123456789abcdef0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_equal_tokens_and_parameters_are_one),
        cmocka_unit_test(each_parameter_that_affects_the_answer_separates_rows),
        cmocka_unit_test(rows_of_different_salts_are_never_one),
        cmocka_unit_test(a_row_goes_into_the_plan_with_its_salt),
    };
    return cmocka_run_group_tests_name("row_identity", tests, nullptr, nullptr);
}
