// Penalties, the sampler compared with a slow one that sorts, its distribution,
// log-probabilities.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "sample/sampling.h"
#include "testing.h"

using namespace batchllm;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t seed = 20261120;

// ---- Random numbers ------------------------------------------------------------------------------

void random_numbers_are_philox(void **) {
    // Published known answers of Philox 4x32-10 (Random123, kat_vectors): counter 0, key 0.
    const uint64_t word = (uint64_t{0x6627e8d5} << 32U) | 0xe169c58d;
    assert_true(random_uniform(0, 0) == static_cast<double>(word >> 11U) * 0x1p-53);
}

void random_keys_differ_in_every_argument(void **) {
    std::vector<uint64_t> keys;
    for (uint64_t engine = 0; engine < 4; ++engine) {
        for (uint64_t row = 0; row < 4; ++row) {
            for (uint64_t tag = 0; tag < 64; ++tag) {
                for (int32_t sample_number = 0; sample_number < 8; ++sample_number) {
                    keys.push_back(random_key(engine, row, tag, sample_number));
                }
            }
        }
    }
    keys.push_back(random_key(uint64_t{1} << 63U, 0, 0, 0));
    keys.push_back(random_key(0, uint64_t{1} << 63U, 0, 0));
    keys.push_back(random_key(0, 0, uint64_t{1} << 63U, 0));
    std::sort(keys.begin(), keys.end());
    assert_true(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
}

void uniform_numbers_are_uniform(void **) {
    std::vector<int64_t> buckets(100);
    constexpr int64_t draws = 200000;
    for (int64_t i = 0; i < draws; ++i) {
        const double u = random_uniform(random_key(1, 2, static_cast<uint64_t>(i / 100), 0),
                                        static_cast<int32_t>(i % 100));
        assert_true(u >= 0 && u < 1);
        ++buckets[static_cast<size_t>(u * 100)];
    }
    double chi_square = 0;
    for (const int64_t got : buckets) {
        const double off = static_cast<double>(got) - draws / 100.0;
        chi_square += off * off / (draws / 100.0);
    }
    print_message("chi square of 99 degrees: %.1f\n", chi_square);
    assert_true(chi_square < 160); // 99.99 % of the distribution
}

// ---- The sampler ---------------------------------------------------------------------------------

struct Row {
    std::vector<int32_t> prompt, output;
    uint64_t key = 1;
    int32_t position = 0;
};

SampleOutput run(std::vector<float> logits, const SamplingParams &params, const Row &row = {}) {
    SampleOutput output;
    sample(logits, {&params, row.prompt, row.output, row.key, row.position}, &output);
    return output;
}

// The header's definition, in double and by sorting everything.
struct Reference {
    int32_t token = -1;
    double nearest = 1; // how close the decision was, as a share of the total weight
};

Reference reference(std::vector<float> logits, const SamplingParams &params, const Row &row) {
    for (const auto &[token, bias] : params.bias) logits[static_cast<size_t>(token)] += bias;
    for (size_t token = 0; token < logits.size(); ++token) {
        const auto id = static_cast<int32_t>(token);
        const auto in_output = std::count(row.output.begin(), row.output.end(), id);
        const auto in_prompt = std::count(row.prompt.begin(), row.prompt.end(), id);
        float &logit = logits[token];
        if (in_output + in_prompt > 0) {
            logit =
                logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
        }
        if (in_output > 0) {
            logit -= params.presence_penalty;
            logit -= params.frequency_penalty * static_cast<float>(in_output);
        }
    }
    Reference result;
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto logit_of = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
    if (params.temperature == 0) {
        result.token = order[0];
        return result;
    }
    std::vector<double> weights;
    double total = 0;
    for (const int32_t token : order) {
        weights.push_back(std::exp(
            (static_cast<double>(logit_of(token)) - static_cast<double>(logit_of(order[0]))) /
            static_cast<double>(params.temperature)));
    }
    size_t kept = order.size();
    while (kept > 0 && logit_of(order[kept - 1]) == -infinity) --kept;
    if (params.top_k > 0) {
        size_t k = std::min(kept, static_cast<size_t>(params.top_k));
        while (k < kept && logit_of(order[k]) == logit_of(order[k - 1])) ++k;
        kept = k;
    }
    if (params.top_p < 1) {
        total = std::accumulate(weights.begin(), weights.begin() + static_cast<int64_t>(kept), 0.0);
        double before = weights[0];
        size_t p = 1;
        for (; p < kept; ++p) {
            result.nearest = std::min(result.nearest,
                                      std::abs(before / total - static_cast<double>(params.top_p)));
            if (before >= static_cast<double>(params.top_p) * total) break;
            before += weights[p];
        }
        kept = p;
    }
    for (size_t i = 1; i < kept; ++i) {
        result.nearest =
            std::min(result.nearest, std::abs(weights[i] - static_cast<double>(params.min_p)));
        if (weights[i] < static_cast<double>(params.min_p)) kept = i;
    }
    std::vector<double> by_id(logits.size());
    total = 0;
    for (size_t i = 0; i < kept; ++i) {
        by_id[static_cast<size_t>(order[i])] = weights[i];
        total += weights[i];
    }
    const double target = random_uniform(row.key, row.position) * total;
    double reached = 0;
    for (size_t token = 0; token < by_id.size(); ++token) {
        if (by_id[token] == 0) continue;
        reached += by_id[token];
        result.nearest = std::min(result.nearest, std::abs(reached - target) / total);
        if (reached > target && result.token < 0) result.token = static_cast<int32_t>(token);
    }
    return result;
}

void the_sampler_equals_one_that_sorts_everything(void **) {
    print_message("seed %llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... choices) {
        const float values[] = {static_cast<float>(choices)...};
        return values[random() % std::size(values)];
    };
    int64_t compared = 0;
    int64_t too_near = 0;
    int64_t not_likeliest = 0;
    for (int64_t round = 0; round < 6000; ++round) {
        const size_t vocabulary = 2 + random() % (round % 50 == 0 ? 5000 : 200);
        std::normal_distribution<float> normal(0, pick(0.5, 2, 8));
        std::vector<float> logits(vocabulary);
        const bool coarse = random() % 3 == 0; // many ties
        for (float &logit : logits) {
            logit = normal(random);
            if (coarse) logit = std::round(logit);
            if (random() % 20 == 0) logit = -infinity;
        }
        logits[random() % vocabulary] = 1; // not all of them
        SamplingParams params;
        params.temperature = pick(0, 0.1, 0.7, 1, 1.5, 10);
        params.top_k = static_cast<int32_t>(pick(0, 0, 1, 2, 10, 100, 1000));
        params.top_p = pick(1, 1, 0.999, 0.9, 0.5, 0.01);
        params.min_p = pick(0, 0, 0.01, 0.2, 0.99);
        params.repetition_penalty = pick(1, 1, 1.3, 0.8);
        params.presence_penalty = pick(0, 0, 1.5, -0.5);
        params.frequency_penalty = pick(0, 0, 0.3, -1);
        Row row;
        const auto token = [&] { return static_cast<int32_t>(random() % vocabulary); };
        for (size_t i = random() % 20; i > 0; --i) row.prompt.push_back(token());
        for (size_t i = random() % 20; i > 0; --i) row.output.push_back(token());
        for (size_t i = random() % 3; i > 0; --i) params.bias.emplace_back(token(), pick(-3, 5));
        row.key = random();
        row.position = static_cast<int32_t>(random() % 100000);
        const Reference expected = reference(logits, params, row);
        const SampleOutput got = run(logits, params, row);
        assert_true(got.finite);
        if (expected.nearest < 1e-6) { // float and double may decide differently
            ++too_near;
            continue;
        }
        if (got.token != expected.token) {
            fail_msg("round %lld: %d, not %d (temperature %g, top_k %d, top_p %g, min_p %g)",
                     static_cast<long long>(round), got.token, expected.token,
                     static_cast<double>(params.temperature), params.top_k,
                     static_cast<double>(params.top_p), static_cast<double>(params.min_p));
        }
        ++compared;
        const auto largest = std::max_element(logits.begin(), logits.end()) - logits.begin();
        not_likeliest += static_cast<int64_t>(got.token != largest);
    }
    print_message("%lld compared, %lld too near to call, %lld not the likeliest\n",
                  static_cast<long long>(compared), static_cast<long long>(too_near),
                  static_cast<long long>(not_likeliest));
    assert_true(compared > 5500);
    assert_true(not_likeliest > 1000);
}

// Chi-square of draws against exp(l / T) over what is kept.
void check_distribution(const SamplingParams &params, const std::vector<float> &logits,
                        const std::vector<int32_t> &kept) {
    std::vector<double> weights;
    for (const int32_t token : kept) {
        weights.push_back(std::exp(static_cast<double>(logits[static_cast<size_t>(token)]) /
                                   static_cast<double>(params.temperature)));
    }
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    constexpr int32_t draws = 40000;
    std::vector<int64_t> counts(logits.size());
    for (int32_t i = 0; i < draws; ++i) {
        Row row;
        row.key = random_key(seed, 0, static_cast<uint64_t>(i / 50), 0);
        row.position = i % 50;
        ++counts[static_cast<size_t>(run(logits, params, row).token)];
    }
    double chi_square = 0;
    int64_t seen = 0;
    for (size_t i = 0; i < kept.size(); ++i) {
        const double expected = draws * weights[i] / total;
        const auto got = counts[static_cast<size_t>(kept[i])];
        chi_square += (static_cast<double>(got) - expected) *
                      (static_cast<double>(got) - expected) / expected;
        seen += got;
    }
    assert_int_equal(seen, draws); // only tokens that are kept
    // Mean and spread of chi-square with n - 1 degrees are n - 1 and sqrt(2 (n - 1)).
    const auto degrees = static_cast<double>(kept.size() - 1);
    print_message("chi square of %.0f degrees: %.1f\n", degrees, chi_square);
    assert_true(chi_square < degrees + 5 * std::sqrt(2 * degrees) + 5);
}

void draws_follow_the_distribution(void **) {
    std::vector<float> logits;
    for (int32_t i = 0; i < 30; ++i) logits.push_back(std::sin(static_cast<float>(i) * 1.7F) * 2);
    std::vector<int32_t> all(logits.size());
    std::iota(all.begin(), all.end(), 0);
    SamplingParams params;
    params.temperature = 1;
    check_distribution(params, logits, all);
    params.temperature = 0.6F;
    check_distribution(params, logits, all);
    std::vector<int32_t> order = all;
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    params.top_k = 7;
    check_distribution(params, logits, {order.begin(), order.begin() + 7});
}

void draws_do_not_depend_on_company_or_call(void **) {
    std::vector<float> logits(1000);
    for (size_t i = 0; i < logits.size(); ++i) {
        logits[i] = std::sin(static_cast<float>(i));
    }
    SamplingParams params;
    params.temperature = 1;
    std::vector<int32_t> forward, backward;
    for (int32_t i = 0; i < 50; ++i) {
        Row row;
        row.key = random_key(7, 8, 9, i);
        row.position = 100 + i;
        forward.push_back(run(logits, params, row).token);
    }
    for (int32_t i = 49; i >= 0; --i) {
        Row row;
        row.key = random_key(7, 8, 9, i);
        row.position = 100 + i;
        backward.push_back(run(logits, params, row).token);
    }
    std::reverse(backward.begin(), backward.end());
    assert_true(forward == backward);
    std::sort(forward.begin(), forward.end());
    assert_true(std::unique(forward.begin(), forward.end()) - forward.begin() > 40);
}

void ties_go_to_the_lowest_id_and_survive_top_k(void **) {
    SamplingParams greedy;
    assert_int_equal(run({1, 3, 3, 2, 3}, greedy).token, 1);
    assert_int_equal(run({-infinity, -5, -5}, greedy).token, 1);
    SamplingParams params;
    params.temperature = 1;
    params.top_k = 2; // three tie for the second place
    std::vector<int32_t> seen(6);
    for (int32_t i = 0; i < 400; ++i) {
        Row row;
        row.position = i;
        ++seen[static_cast<size_t>(run({4, 3, 5, 4, 4, -infinity}, params, row).token)];
    }
    assert_true(seen[0] > 0 && seen[2] > 0 && seen[3] > 0 && seen[4] > 0);
    assert_true(seen[1] == 0 && seen[5] == 0);
    params.top_k = 0;
    params.top_p = 0.5F; // exactly two of four equal ones
    std::fill(seen.begin(), seen.end(), 0);
    for (int32_t i = 0; i < 400; ++i) {
        Row row;
        row.position = i;
        ++seen[static_cast<size_t>(run({1, 1, 1, 1}, params, row).token)];
    }
    assert_true(seen[0] > 100 && seen[1] > 100 && seen[2] == 0 && seen[3] == 0);
}

void penalties_are_those_of_the_header(void **) {
    SamplingParams params;
    params.repetition_penalty = 2;
    Row row;
    row.prompt = {0};
    row.output = {2};
    assert_int_equal(run({4, 3, 5}, params, row).token, 1);       // 2, 3, 2.5
    assert_int_equal(run({-1, -1.5F, -2}, params, row).token, 1); // -2, -1.5, -4
    params = SamplingParams{};
    params.presence_penalty = 1;
    assert_int_equal(run({4, 3, 4.5F}, params, row).token, 0); // the prompt does not count
    params = SamplingParams{};
    params.frequency_penalty = 0.5F;
    row.output = {2, 2, 2};
    assert_int_equal(run({4, 3, 5}, params, row).token, 0); // 5 - 1.5
    params = SamplingParams{};
    params.bias = {{1, 2.5F}, {0, -infinity}};
    assert_int_equal(run({4, 1, 3}, params).token, 1);
}

void logits_that_are_not_finite_are_reported(void **) {
    for (const float temperature : {0.0F, 1.0F}) {
        SamplingParams params;
        params.temperature = temperature;
        params.logprobs = 2;
        for (const auto &logits : std::vector<std::vector<float>>{{1, not_a_number, 2},
                                                                  {not_a_number},
                                                                  {1, infinity},
                                                                  {-infinity, -infinity},
                                                                  {not_a_number, -infinity},
                                                                  {}}) {
            const SampleOutput output = run(logits, params);
            assert_false(output.finite);
            assert_int_equal(output.token, -1);
            assert_true(output.top.empty());
        }
        // Also when the parameters made them so.
        params.bias = {{0, -infinity}, {1, -infinity}};
        assert_false(run({1, 2}, params).finite);
        params.bias = {{0, 3e38F}, {0, 3e38F}};
        assert_false(run({1, 2}, params).finite);
        params.bias.clear();
        const SampleOutput one = run({-infinity, 5, -infinity}, params);
        assert_true(one.finite);
        assert_int_equal(one.token, 1);
        assert_true(one.logprob == 0);
        assert_int_equal(one.top.size(), 1); // tokens of probability 0 are not listed
    }
    std::vector<float> out(1);
    const std::vector<int32_t> target{0};
    assert_false(score(std::vector<float>{1, not_a_number}, target, out));
    assert_false(score(std::vector<float>{1, infinity}, target, out));
    assert_false(score(std::vector<float>{-infinity}, target, out));
}

void extreme_temperatures_are_safe(void **) {
    SamplingParams params;
    for (const float temperature : {1e-45F, 1e-30F, 1e30F, 3e38F}) {
        for (const float top_p : {1.0F, 0.5F}) {
            params.temperature = temperature;
            params.top_p = top_p;
            const SampleOutput output = run({-3e38F, 1, 2, 3e38F}, params);
            assert_true(output.finite && output.token >= 0 && output.token < 4);
            if (temperature < 1) assert_int_equal(output.token, 3);
        }
    }
}

void logprobs_are_the_models_own_whatever_the_parameters(void **) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0, 4);
    std::vector<float> logits(5000);
    for (float &logit : logits) logit = normal(random) + 50;
    logits[17] = logits[4000] = 80; // a tie at the top
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit) - 80);
    const auto expected = [&](int32_t token) {
        return static_cast<double>(logits[static_cast<size_t>(token)]) - 80 - std::log(total);
    };
    SamplingParams params;
    params.logprobs = 20;
    params.temperature = 3;
    params.top_k = 50;
    params.repetition_penalty = 1.5F;
    params.presence_penalty = 1;
    params.bias = {{17, -5.0F}, {3, 30.0F}, {3, 1.0F}};
    Row row;
    row.prompt = {3, 17, 5, 6};
    row.output = {3, 4000, 4000};
    for (int32_t i = 0; i < 50; ++i) {
        row.position = i;
        const SampleOutput output = run(logits, params, row);
        assert_true(std::abs(static_cast<double>(output.logprob) - expected(output.token)) < 1e-5);
        assert_int_equal(output.top.size(), 20);
        assert_int_equal(output.top[0].token, 17);
        assert_int_equal(output.top[1].token, 4000);
        for (size_t j = 0; j < 20; ++j) {
            assert_true(std::abs(static_cast<double>(output.top[j].logprob) -
                                 expected(output.top[j].token)) < 1e-5);
            if (j > 0) assert_true(output.top[j - 1].logprob >= output.top[j].logprob);
        }
    }
    params.logprobs = 0;
    assert_true(run(logits, params, row).top.empty());
    const std::vector<int32_t> targets{0, 17, 4999, 17};
    std::vector<float> got(4);
    assert_true(score(logits, targets, got));
    for (size_t i = 0; i < targets.size(); ++i) {
        assert_true(std::abs(static_cast<double>(got[i]) - expected(targets[i])) < 1e-5);
    }
}

void small_logprobs_keep_their_digits(void **) {
    // One token has nearly all the probability: its log-probability is nearly 0 and the others are
    // far below.
    std::vector<float> logits(100, -20);
    logits[3] = 0;
    std::vector<float> got(2);
    assert_true(score(logits, std::vector<int32_t>{3, 4}, got));
    const double expected = -std::log1p(99 * std::exp(-20.0));
    assert_true(std::abs(static_cast<double>(got[0]) - expected) < 1e-12);
    assert_true(std::abs(static_cast<double>(got[1]) - (expected - 20)) < 1e-6);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(random_numbers_are_philox),
        cmocka_unit_test(random_keys_differ_in_every_argument),
        cmocka_unit_test(uniform_numbers_are_uniform),
        cmocka_unit_test(the_sampler_equals_one_that_sorts_everything),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(draws_do_not_depend_on_company_or_call),
        cmocka_unit_test(ties_go_to_the_lowest_id_and_survive_top_k),
        cmocka_unit_test(penalties_are_those_of_the_header),
        cmocka_unit_test(logits_that_are_not_finite_are_reported),
        cmocka_unit_test(extreme_temperatures_are_safe),
        cmocka_unit_test(logprobs_are_the_models_own_whatever_the_parameters),
        cmocka_unit_test(small_logprobs_keep_their_digits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
