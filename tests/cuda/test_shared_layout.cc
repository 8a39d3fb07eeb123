// What ranks share is laid out alike, whatever each of them asks for. Needs no CUDA.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "ranks/shared_layout.h"
#include "testing.h"

using namespace batchllm::cuda;

namespace {

void equal_ranks_get_what_they_ask_for(void **) {
    const std::vector<SharedAsk> asked(4, {1000, 300, 700, {2, 7}});
    const SharedLayout layout = shared_layout(asked);
    assert_int_equal(layout.second, 1024);
    assert_int_equal(layout.more, 2048);
    assert_int_equal(layout.logits, 2560);
    assert_int_equal(layout.signals, 2560 + 768);
    assert_int_equal(layout.total, 2560 + 768 + 256);
    assert_true(layout.owns_rows);
}

// Whichever rank it is that asks for most.
void there_is_room_for_the_most_that_any_asks_for(void **) {
    std::vector<SharedAsk> asked = {{1000, 300, 0, {}}, {1000, 5000, 256, {}}, {2000, 0, 0, {}}};
    std::vector<size_t> order = {0, 1, 2};
    do {
        const std::vector<SharedAsk> turned = {asked[order[0]], asked[order[1]], asked[order[2]]};
        const SharedLayout layout = shared_layout(turned);
        assert_int_equal(layout.second, 2048);
        assert_int_equal(layout.more, 4096);
        assert_int_equal(layout.logits, 4096 + 5120);
        assert_int_equal(layout.signals, 4096 + 5120 + 256);
        assert_int_equal(layout.total, 4096 + 5120 + 256 + 256);
        assert_false(layout.owns_rows);
    } while (std::next_permutation(order.begin(), order.end()));
}

void rows_are_owned_where_all_ranks_read_them_alike(void **) {
    const auto owned = [](const std::vector<std::vector<int64_t>> &forms) {
        std::vector<SharedAsk> asked;
        for (const std::vector<int64_t> &form : forms) asked.push_back({64, 64, 64, form});
        return shared_layout(asked).owns_rows;
    };
    assert_true(owned({{1, 2}, {1, 2}, {1, 2}}));
    assert_false(owned({{1, 2}, {1, 2}, {1, 3}}));
    assert_false(owned({{1, 3}, {1, 2}, {1, 2}}));
    assert_false(owned({{1, 2}, {1, 2, 0}}));
    assert_false(owned({{1, 2}, {}}));
    assert_false(owned({{}, {1, 2}}));
    assert_false(owned({{}, {}}));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(equal_ranks_get_what_they_ask_for),
        cmocka_unit_test(there_is_room_for_the_most_that_any_asks_for),
        cmocka_unit_test(rows_are_owned_where_all_ranks_read_them_alike),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
