// cuda/step/graphs.h: which shapes are to be captured. Nothing is, so that no device is needed.
#include "step/graphs.h"

#include "testing.h"

using batchllm::cuda::Graphs;

namespace {

// What find() says of a shape that has no graph.
bool is_due(Graphs *graphs, int64_t tokens) {
    bool due = false;
    assert_null(graphs->find({tokens, tokens, false, {}, {}, 0}, &due));
    return due;
}

void a_shape_is_due_when_it_comes_again(void **) {
    Graphs graphs;
    assert_false(is_due(&graphs, 16));
    assert_false(is_due(&graphs, 16)); // off
    graphs.on = true;
    assert_false(is_due(&graphs, 16));
    assert_false(is_due(&graphs, 32));
    assert_true(is_due(&graphs, 16));
}

// Products of such a shape may be timed in its next step, which no capture survives.
void a_cleared_shape_is_launched_first(void **) {
    Graphs graphs;
    graphs.on = true;
    for (const int64_t tokens : {16, 32, 48, 16, 32, 48}) is_due(&graphs, tokens);
    graphs.clear([](const Graphs::Shape &shape) { return shape.tokens <= 32; });
    assert_false(is_due(&graphs, 16));
    assert_false(is_due(&graphs, 32));
    assert_true(is_due(&graphs, 48));
    assert_true(is_due(&graphs, 16));
    graphs.clear();
    assert_false(is_due(&graphs, 48));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_due_when_it_comes_again),
        cmocka_unit_test(a_cleared_shape_is_launched_first),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
