// The sampling kernel against the reference, sample/sampling.h, over random logits and parameters.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "sample/sampling.h"
#include "step/samples.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

struct Sampled {
    int64_t tokens = 0, equal = 0, masked = 0;
};

enum class Logits { normal, ties, all_equal, few_finite };

std::vector<float> some_logits(Random &random, int64_t count, Logits kind) {
    std::vector<float> logits = normal(random, count, DType::f32, kind == Logits::ties ? 4 : 2);
    for (float &x : logits) {
        if (kind == Logits::ties) x = std::round(x);
        if (kind == Logits::all_equal) x = -1.5f;
        if (kind == Logits::few_finite && draw(random, 0, 9) > 0) x = -INFINITY;
    }
    // Zeros of both signs are equal.
    if (kind == Logits::ties) {
        for (int i = 0; i < 20; ++i) {
            logits[static_cast<size_t>(draw(random, 0, count - 1))] = -0.0f;
        }
    }
    return logits;
}

SamplingParams some_params(Random &random, int32_t vocabulary) {
    SamplingParams p;
    const auto maybe = [&] { return draw(random, 0, 1) == 1; };
    const auto between = [&](double low, double high) {
        return static_cast<float>(low +
                                  (high - low) * static_cast<double>(draw(random, 0, 1000)) / 1000);
    };
    if (draw(random, 0, 3) > 0) p.temperature = between(0.2, 2);
    if (maybe()) p.top_p = maybe() ? between(0.05, 1) : 1e-6f;
    if (maybe()) p.min_p = between(0, 0.3);
    if (maybe()) {
        const int64_t some[] = {1, 2, draw(random, 3, 60), 600, vocabulary - 1, vocabulary + 5};
        p.top_k = std::max(1, static_cast<int32_t>(some[draw(random, 0, 5)]));
    }
    if (maybe()) p.repetition_penalty = between(0.5, 2);
    if (maybe()) p.presence_penalty = between(-2, 2);
    if (maybe()) p.frequency_penalty = between(-2, 2);
    if (maybe()) {
        std::vector<char> seen(static_cast<size_t>(vocabulary));
        for (int64_t i = draw(random, 1, 300); i > 0; --i) {
            const auto token = static_cast<int32_t>(draw(random, 0, vocabulary - 1));
            if (seen[static_cast<size_t>(token)]++ != 0) continue;
            // One token is always left.
            const bool ban = token > 0 && draw(random, 0, 4) == 0;
            p.bias.emplace_back(token, ban ? -INFINITY : between(-5, 5));
        }
    }
    p.logprobs = static_cast<int32_t>(draw(random, -1, 20));
    return p;
}

// Adds a row's edits, one for each token that has any.
void add_edits(const SampleInput &input, std::vector<LogitEdit> *edits) {
    const SamplingParams &p = *input.params;
    std::map<int32_t, LogitEdit> by_token;
    const auto edit = [&](int32_t token) -> LogitEdit & {
        return by_token.try_emplace(token, LogitEdit{token, 0, 0, 0, NAN}).first->second;
    };
    for (const auto &[token, bias] : p.bias) edit(token).bias = bias;
    for (const auto &tokens : {input.prompt, input.output}) {
        for (const int32_t token : tokens) edit(token).repeated = 1;
    }
    for (const int32_t token : input.output) ++edit(token).times;
    for (const auto &[token, e] : by_token) edits->push_back(e);
}

// Allows few or most tokens, now and then all.
std::vector<uint32_t> some_mask(Random &random, int32_t vocabulary) {
    std::vector<uint32_t> mask(static_cast<size_t>(vocabulary + 31) / 32);
    const int64_t one_in = draw(random, 0, 2) == 0 ? vocabulary / 3 + 1 : draw(random, 1, 3);
    const auto allow = [&](int64_t token) {
        mask[static_cast<size_t>(token / 32)] |= uint32_t{1} << (token % 32);
    };
    for (int32_t token = 0; token < vocabulary; ++token)
        if (draw(random, 1, one_in) == 1) allow(token);
    // No bias bans token 0; a second token is allowed so that there is a choice.
    allow(0);
    allow(draw(random, 0, vocabulary - 1));
    return mask;
}

void sample_both(Random &random, int32_t vocabulary, Logits kind, Sampled *result) {
    const int32_t rows = 16;
    const int64_t stride = (vocabulary + 15) / 16 * 16;
    const std::vector<float> logits = some_logits(random, rows * stride, kind);
    const Array device(logits, DType::f32);
    std::vector<int32_t> row_of; // row of each task; every fourth row has three tasks
    for (int32_t r = 0; r < rows; ++r) row_of.insert(row_of.end(), r % 4 == 0 ? 3 : 1, r);
    const size_t count = row_of.size();
    std::vector<SamplingParams> params(count);
    std::vector<std::vector<int32_t>> prompts(count), outputs(count);
    std::vector<SampleInput> inputs;
    std::vector<SampleTask> tasks;
    std::vector<LogitEdit> edits;
    std::vector<std::vector<uint32_t>> masks(count); // empty: none
    std::vector<int32_t> mask_of(count, -1);
    std::vector<uint32_t> mask_words;
    const auto words = static_cast<size_t>(vocabulary + 31) / 32;
    int32_t likely = 0, spares = 0;
    const bool masked = draw(random, 0, 2) > 0;
    for (size_t i = 0; i < count; ++i) {
        SamplingParams &p = params[i] = some_params(random, vocabulary);
        for (auto *tokens : {&prompts[i], &outputs[i]}) {
            for (int64_t t = draw(random, 0, 40); t > 0; --t) {
                tokens->push_back(
                    static_cast<int32_t>(draw(random, 0, std::min(vocabulary, 60) - 1)));
            }
        }
        inputs.push_back({&p, prompts[i], outputs[i], random(), static_cast<int32_t>(i)});
        if (masked && draw(random, 0, 1) == 0) {
            masks[i] = some_mask(random, vocabulary);
            inputs.back().mask = masks[i].data();
            mask_of[i] = static_cast<int32_t>(mask_words.size() / words);
            mask_words.insert(mask_words.end(), masks[i].begin(), masks[i].end());
            ++result->masked;
        }
        SampleTask task = sampling_task(p, row_of[i], static_cast<int32_t>(i), &likely);
        task.uniform = random_uniform(inputs[i].random_key, inputs[i].position);
        task.edit_begin = static_cast<int32_t>(edits.size());
        add_edits(inputs[i], &edits);
        task.edit_count = static_cast<int32_t>(edits.size()) - task.edit_begin;
        const bool first = i == 0 || row_of[i - 1] != row_of[i];
        task.together = !first ? 0 : row_of[i] % 4 == 0 ? 3 : 1;
        if (row_of[i] % 4 == 0) task.spare = spares++;
        tasks.push_back(task);
    }
    const DeviceMemory t = upload(tasks), e = upload(edits);
    const DeviceMemory results = upload(std::vector<SampleResult>(count));
    const DeviceMemory lists = upload(std::vector<Likely>(static_cast<size_t>(likely), {-7, 0}));
    const DeviceMemory of = upload(mask_of), bits = upload(mask_words);
    const DeviceMemory spare =
        upload(std::vector<float>(static_cast<size_t>(spares * stride), NAN));
    SampleArguments arguments{device.floats(),
                              stride,
                              vocabulary,
                              t.as<SampleTask>(),
                              static_cast<int32_t>(count),
                              e.as<LogitEdit>(),
                              nullptr,
                              results.as<SampleResult>(),
                              nullptr,
                              nullptr,
                              lists.as<Likely>()};
    if (masked) {
        arguments.mask_of = of.as<int32_t>();
        arguments.masks = bits.as<uint32_t>();
        arguments.spare = spare.as<float>();
    }
    check(launch_sample(arguments, nullptr));
    const auto got = download<SampleResult>(results, count);
    const auto listed = download<Likely>(lists, static_cast<size_t>(likely));
    for (size_t i = 0; i < count; ++i) {
        const float *row = logits.data() + row_of[i] * stride;
        std::vector<float> scratch(row, row + vocabulary);
        SampleOutput wanted;
        sample(scratch, inputs[i], &wanted);
        assert_int_equal(got[i].finite, wanted.finite);
        if (!masks[i].empty() && got[i].finite) {
            const auto token = static_cast<size_t>(got[i].token);
            assert_true((masks[i][token / 32] >> (token % 32) & 1) != 0);
        }
        ++result->tokens;
        result->equal += got[i].token == wanted.token;
        if (params[i].greedy()) assert_int_equal(got[i].token, wanted.token);
        if (got[i].token == wanted.token && params[i].logprobs >= 0) {
            assert_true(std::fabs(got[i].logprob - wanted.logprob) < 1e-4f ||
                        got[i].logprob == wanted.logprob); // both -inf
        }
        for (int32_t l = 0; l < tasks[i].likely_count; ++l) {
            const Likely &one = listed[static_cast<size_t>(tasks[i].likely_begin + l)];
            if (l >= static_cast<int32_t>(wanted.top.size())) {
                assert_int_equal(one.token, -1);
                continue;
            }
            const TopLogprob &other = wanted.top[static_cast<size_t>(l)];
            assert_int_equal(one.token, other.token);
            assert_true(std::fabs(one.logprob - other.logprob) < 1e-4f);
        }
    }
    // Rows with several tasks are unchanged.
    const std::vector<float> after = device.read();
    for (int32_t r = 0; r < rows; r += 4) {
        assert_memory_equal(after.data() + r * stride, logits.data() + r * stride,
                            static_cast<size_t>(vocabulary) * sizeof(float));
    }
}

int32_t largest_vocabulary = 151936;

void sampled_tokens_are_the_references(void **) {
    Random random(kSeed + 6);
    Sampled result;
    for (int round = 0; round < 12; ++round) {
        for (const int32_t vocabulary : {3, 50, 997, 32000, 151936}) {
            if (vocabulary > 997 && round % 3 != 0) continue;
            if (vocabulary > largest_vocabulary) continue;
            sample_both(random, vocabulary, static_cast<Logits>(round / 3), &result);
        }
    }
    print_message("%d of %d tokens equal, %d under a mask\n", int(result.equal), int(result.tokens),
                  int(result.masked));
    assert_true(result.masked > 0);
    // The rest are draws near a boundary, which rounding decides.
    assert_true(result.equal * 200 >= result.tokens * 199);
}

void logits_that_are_not_finite_are_told(void **) {
    const float bad[] = {NAN, -NAN, INFINITY};
    std::vector<float> logits(5 * 64, 0.5f);
    for (size_t i = 0; i < 3; ++i) logits[i * 64 + 7 * i + 3] = bad[i];
    std::fill_n(logits.begin() + 3 * 64, 64, -INFINITY);
    logits[4 * 64 + 40] = -INFINITY; // a banned token: still finite
    std::vector<SampleTask> tasks(5);
    for (int32_t i = 0; i < 5; ++i) {
        SampleTask &task = tasks[static_cast<size_t>(i)];
        task.row = task.output = i;
        task.spare = -1;
        task.together = 1;
        task.likely_begin = 3 * i;
        task.likely_count = 3;
    }
    const Array device(logits, DType::f32);
    const DeviceMemory t = upload(tasks);
    const DeviceMemory results = upload(std::vector<SampleResult>(5));
    const DeviceMemory lists = upload(std::vector<Likely>(15, {-7, 0}));
    check(launch_sample({device.floats(), 64, 60, t.as<SampleTask>(), 5, nullptr, nullptr,
                         results.as<SampleResult>(), nullptr, nullptr, lists.as<Likely>()},
                        nullptr));
    const auto got = download<SampleResult>(results, 5);
    const auto listed = download<Likely>(lists, 15);
    for (size_t i = 0; i < 15; ++i) {
        assert_int_equal(listed[i].token, i < 12 ? -1 : static_cast<int32_t>(i) - 12);
    }
    for (size_t i = 0; i < 4; ++i) {
        assert_int_equal(got[i].finite, 0);
        assert_int_equal(got[i].token, -1);
    }
    assert_int_equal(got[4].finite, 1);
    assert_int_equal(got[4].token, 0);
}

} // namespace

// test_cuda_sampling [largest vocabulary]: 997 for compute-sanitizer, which is slow.
int main(int count, char **values) {
    if (const int code = skipped()) return code;
    if (count > 1) largest_vocabulary = std::atoi(values[1]);
    const CMUnitTest tests[] = {
        cmocka_unit_test(sampled_tokens_are_the_references),
        cmocka_unit_test(logits_that_are_not_finite_are_told),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
