// Experts of the CPU backend: which are chosen, with what weights, and the sum of their results, against
// the same in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cpu/experts.h"
#include "seed.h"

// Last: it defines macros with the names of members of the standard library.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

using namespace batchllm;
using namespace batchllm::cpu;

namespace {

struct Choice {
    std::vector<int32_t> experts;
    std::vector<float> weights;
};

Choice choose(const Router &router, const std::vector<float> &logits, const Vector &correction = {},
              const Vector &expert_scale = {}) {
    const auto chosen = static_cast<size_t>(router.chosen);
    Choice choice{std::vector<int32_t>(chosen), std::vector<float>(chosen)};
    choose_experts(router, correction, expert_scale, logits.data(),
                   static_cast<int32_t>(logits.size()), choice.experts.data(),
                   choice.weights.data());
    return choice;
}

void assert_close(const std::vector<float> &got, const std::vector<double> &wanted) {
    assert_int_equal(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) assert_true(std::abs(got[i] - wanted[i]) < 1e-5);
}

Router of_kind(RouterKind kind, int32_t chosen, bool normalised) {
    Router router;
    router.kind = kind;
    router.chosen = chosen;
    router.normalised = normalised;
    return router;
}

void weights_are_softmax_or_sigmoid_normalised_or_not(void **) {
    const std::vector<float> logits = {0, 2, 1, -1};
    const double sum = 1 + std::exp(2.0) + std::exp(1.0) + std::exp(-1.0);
    const double two = std::exp(2.0), one = std::exp(1.0);
    Choice got = choose(of_kind(RouterKind::softmax, 2, false), logits);
    assert_true(got.experts == std::vector<int32_t>({1, 2}));
    assert_close(got.weights, {two / sum, one / sum});
    got = choose(of_kind(RouterKind::softmax, 2, true), logits);
    assert_close(got.weights, {two / (two + one), one / (two + one)});
    Router router = of_kind(RouterKind::sigmoid, 2, false);
    router.scale = 3;
    got = choose(router, logits);
    assert_close(got.weights, {3 / (1 + std::exp(-2.0)), 3 / (1 + std::exp(-1.0))});
}

void a_router_may_add_to_the_sum_that_it_divides_by(void **) {
    Router router = of_kind(RouterKind::sigmoid, 2, true);
    router.epsilon = 0.5F;
    assert_close(choose(router, {0, -20, 0}).weights, {0.5 / 1.5, 0.5 / 1.5});
    router.epsilon = 1e-6F; // which dominates if scores are this small
    const double score = 1 / (1 + std::exp(14.0));
    assert_close(choose(router, {-14, -30, -14}).weights,
                 {score / (2 * score + 1e-6), score / (2 * score + 1e-6)});
}

void equal_scores_choose_the_first_and_a_nan_is_the_last(void **) {
    const Router router = of_kind(RouterKind::sigmoid, 2, true);
    assert_true(choose(router, {1, 1, 1, 1}).experts == std::vector<int32_t>({0, 1}));
    assert_true(choose(router, {0, 1, 2, 1}).experts == std::vector<int32_t>({1, 2}));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    assert_true(choose(router, {nan, -9, nan, -8}).experts == std::vector<int32_t>({1, 3}));
    assert_int_equal(choose(router, {nan, nan, nan}).experts.size(), 2);
}

void a_correction_chooses_and_does_not_weigh(void **) {
    const Router router = of_kind(RouterKind::sigmoid, 1, false);
    const Choice got = choose(router, {3, 0, 0}, {0, 0, 5});
    assert_int_equal(got.experts[0], 2);
    assert_close(got.weights, {0.5});
}

void an_experts_scale_weighs_and_does_not_choose(void **) {
    Router router = of_kind(RouterKind::sigmoid, 2, true);
    router.scale = 2;
    const Choice got = choose(router, {0, 0, -9, 0}, {}, {0.5F, 3, 100, 7});
    assert_true(got.experts == std::vector<int32_t>({0, 1}));
    assert_close(got.weights, {0.5, 3});
}

// Groups {0, 1}, {2, 3}, {4, 5}: the best expert is in a group whose two best do not have the
// highest sum.
void groups_are_chosen_by_their_two_best(void **) {
    Router router = of_kind(RouterKind::sigmoid, 2, false);
    router.groups = 3;
    router.chosen_groups = 1;
    assert_true(choose(router, {4, -9, 2, 2, 1, 1}).experts == std::vector<int32_t>({2, 3}));
    router.chosen_groups = 2;
    assert_true(choose(router, {4, -9, 2, 2, 1, 1}).experts == std::vector<int32_t>({2, 3}));
    router.chosen_groups = 3;
    assert_true(choose(router, {4, -9, 2, 2, 1, 1}).experts == std::vector<int32_t>({0, 2}));
}

// A layer of random experts, and its results in double precision.
struct Case {
    int64_t hidden, width, tokens;
    Experts experts;
    std::vector<std::vector<float>> values; // of the tensors
    std::vector<float> x;

    Tensor tensor(int64_t rows, int64_t columns, double scale, std::mt19937_64 *random) {
        std::normal_distribution<float> normal(0, static_cast<float>(scale));
        auto &data = values.emplace_back(static_cast<size_t>(rows * columns));
        for (float &v : data) v = normal(*random);
        Tensor out;
        out.rows = rows;
        out.columns = columns;
        out.data = reinterpret_cast<const std::byte *>(data.data());
        return out;
    }
};

Case make_case(int32_t count, int32_t chosen, int64_t tokens, double skew,
               std::mt19937_64 *random) {
    Case c{72, 40, tokens, {}, {}, {}};
    c.values.reserve(static_cast<size_t>(6 * count + 2));
    c.experts.router = of_kind(RouterKind::softmax, chosen, true);
    c.experts.router.logits_scale = 0.8F;
    c.experts.router.weight.values = c.tensor(count, c.hidden, 0.2, random);
    // A large bias decides: most tokens go to the first experts, none to the last.
    c.experts.router.weight.bias = c.tensor(count, 1, 0.1, random);
    auto &bias = c.values.back();
    for (int32_t e = 0; e < count; ++e)
        bias[static_cast<size_t>(e)] -= static_cast<float>(skew * e);
    for (int32_t e = 0; e < count; ++e) {
        FeedForward f;
        f.width = static_cast<int32_t>(c.width);
        for (Weight *w : {&f.gate, &f.up}) w->values = c.tensor(c.width, c.hidden, 0.1, random);
        f.down.values = c.tensor(c.hidden, c.width, 0.1, random);
        f.gate.bias = c.tensor(c.width, 1, 0.1, random);
        f.down.bias = c.tensor(c.hidden, 1, 0.1, random);
        c.experts.each.push_back(f);
    }
    std::normal_distribution<float> normal;
    c.x.resize(static_cast<size_t>(Linear::rounded_rows(tokens) * c.hidden));
    for (int64_t i = 0; i < tokens * c.hidden; ++i) c.x[static_cast<size_t>(i)] = normal(*random);
    return c;
}

double at(const Tensor &tensor, int64_t row, int64_t column) {
    float value;
    std::memcpy(&value, tensor.data + (row * tensor.columns + column) * 4, sizeof value);
    return value;
}

std::vector<double> product(const Weight &w, const std::vector<double> &x) {
    std::vector<double> y;
    for (int64_t r = 0; r < w.rows(); ++r) {
        double sum = w.bias ? at(w.bias, r, 0) : 0;
        for (int64_t k = 0; k < w.columns(); ++k) sum += at(w.values, r, k) * x[k];
        y.push_back(sum);
    }
    return y;
}

std::vector<double> expected(const Case &c, int64_t token) {
    const auto begin = c.x.begin() + token * c.hidden;
    const std::vector<double> x(begin, begin + c.hidden);
    const Router &router = c.experts.router;
    std::vector<double> logits = product({router.weight.values, {}}, x);
    for (size_t e = 0; e < logits.size(); ++e) {
        logits[e] = double(router.logits_scale) * logits[e] +
                    at(router.weight.bias, static_cast<int64_t>(e), 0);
    }
    std::vector<size_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return logits[a] > logits[b]; });
    order.resize(static_cast<size_t>(router.chosen));
    double sum = 0;
    for (const size_t e : order) sum += std::exp(logits[e]);
    std::vector<double> out(static_cast<size_t>(c.hidden));
    for (const size_t e : order) {
        const FeedForward &f = c.experts.each[e];
        std::vector<double> gate = product(f.gate, x);
        const std::vector<double> up = product(f.up, x);
        for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        const std::vector<double> y = product(f.down, gate);
        for (size_t i = 0; i < out.size(); ++i) out[i] += std::exp(logits[e]) / sum * y[i];
    }
    return out;
}

// What the backend adds to zeros: [tokens, hidden]
std::vector<float> computed(const Case &c, int32_t threads) {
    const Kernels &kernels = *kernels_for(best_isa(DType::f32), DType::f32);
    ThreadPool pool(threads);
    auto linear = Linear::create(DType::f32, &pool);
    assert_true(linear.ok());
    Model model;
    model.hidden = static_cast<int32_t>(c.hidden);
    model.layers.resize(1);
    model.layers[0].feed = c.experts;
    ExpertLayers layers(kernels, linear.value().get(), &pool);
    assert_true(layers.allocate(model, c.tokens).ok());
    PackedExperts packed;
    assert_true(pack_experts(c.experts, c.hidden, linear.value().get(), &packed).ok());
    std::vector<float> out(static_cast<size_t>(c.tokens * c.hidden));
    const auto *x = reinterpret_cast<const std::byte *>(c.x.data());
    assert_true(layers.route(c.experts, packed, x, c.tokens).ok());
    assert_true(layers.run(c.experts, packed, x, c.tokens, c.hidden, out.data()).ok());
    return out;
}

void results_are_the_weighted_sums(void **) {
    std::mt19937_64 random(seed_of_run());
    // Even; one token per step; only the first experts, so that the others have no tokens.
    for (const auto &[tokens, skew] :
         std::initializer_list<std::pair<int64_t, double>>{{150, 0}, {1, 0}, {150, 40}, {7, 0.5}}) {
        const Case c = make_case(6, 2, tokens, skew, &random);
        const std::vector<float> got = computed(c, 3);
        for (int64_t t = 0; t < tokens; ++t) {
            const std::vector<double> wanted = expected(c, t);
            for (int64_t i = 0; i < c.hidden; ++i) {
                assert_true(std::abs(got[static_cast<size_t>(t * c.hidden + i)] - wanted[i]) <
                            1e-4);
            }
        }
    }
}

void the_same_bits_with_other_threads(void **) {
    std::mt19937_64 random(seed_of_run());
    const Case c = make_case(8, 3, 90, 0.2, &random);
    assert_true(computed(c, 1) == computed(c, 4));
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_softmax_or_sigmoid_normalised_or_not),
        cmocka_unit_test(a_router_may_add_to_the_sum_that_it_divides_by),
        cmocka_unit_test(equal_scores_choose_the_first_and_a_nan_is_the_last),
        cmocka_unit_test(a_correction_chooses_and_does_not_weigh),
        cmocka_unit_test(an_experts_scale_weighs_and_does_not_choose),
        cmocka_unit_test(groups_are_chosen_by_their_two_best),
        cmocka_unit_test(results_are_the_weighted_sums),
        cmocka_unit_test(the_same_bits_with_other_threads),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
