// src/runtime: which rows are computed once for both, and how a plan identifies a row.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

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
        cmocka_unit_test(rows_of_different_salts_are_never_one),
        cmocka_unit_test(a_row_goes_into_the_plan_with_its_salt),
    };
    return cmocka_run_group_tests_name("row_identity", tests, nullptr, nullptr);
}
