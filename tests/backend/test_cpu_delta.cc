// The rules of linear attention on the CPU, token by token and in chunks, against the recurrence in double precision; the
// convolution and the gate beside it. For every kernel table that this processor runs.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "cpu_tables.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;

namespace {

using Random = std::mt19937_64;

std::vector<const Kernels *> all_tables() {
    auto tables = all_native_tables();
    assert_true(tables.size() >= 2);
    return tables;
}

float uniform(Random *random, float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(*random);
}

// Tokens of one head, as in DeltaCall: a row is a query, a key, the values and some unrelated
// floats.
struct Job {
    int32_t tokens, key_dim, value_dim;
    int64_t stride;
    bool removes; // whether it is the delta rule
    float skip;
    std::vector<float> rows, log_decay, rate;
    std::vector<float> state; // [key_dim, padded value_dim]; empty: zeros
};

void unit(float *x, int32_t n, float length) {
    double sum = 0;
    for (int32_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
    for (int32_t i = 0; i < n; ++i) x[i] *= length / static_cast<float>(std::sqrt(sum + 1e-6));
}

// How gates are drawn: near 1, near 0, alternating, over the whole range.
enum class Gates { lasting, forgetting, mixed, even };

// With removal, keys have length 1 and rates are from 0 to 1.
Job make_job(Random *random, int32_t tokens, int32_t key_dim, int32_t value_dim, Gates gates,
             bool from_zeros, bool removes) {
    const float skip = (*random)() % 2 == 0 ? 0 : uniform(random, -2, 2);
    Job job{tokens, key_dim, value_dim, 2 * key_dim + value_dim + 3, removes, skip, {}, {}, {}, {}};
    std::normal_distribution<float> normal;
    job.rows.resize(static_cast<size_t>(job.stride * tokens));
    for (float &x : job.rows) x = normal(*random);
    for (int32_t t = 0; t < tokens; ++t) {
        float *row = job.rows.data() + t * job.stride;
        unit(row, key_dim, 1 / std::sqrt(static_cast<float>(key_dim)));
        if (removes) unit(row + key_dim, key_dim, 1);
        const bool lasts =
            gates == Gates::lasting || (gates == Gates::mixed && (*random)() % 4 > 0);
        job.log_decay.push_back(gates == Gates::even ? uniform(random, -3, 0)
                                : lasts              ? -uniform(random, 0, 1e-3f)
                                                     : -uniform(random, 5, 60));
        job.rate.push_back(gates == Gates::even ? uniform(random, 0, 1)
                           : lasts              ? uniform(random, 0.9f, 1)
                                                : uniform(random, 0, 0.01f));
        if (!removes) job.rate.back() *= 3;
    }
    if (from_zeros) return job;
    const int32_t padded = padded_head_dim(value_dim);
    job.state.assign(static_cast<size_t>(key_dim * padded), 0.0f);
    for (int32_t k = 0; k < key_dim; ++k) {
        for (int32_t v = 0; v < value_dim; ++v) job.state[k * padded + v] = normal(*random);
    }
    return job;
}

struct Expected {
    std::vector<double> results; // [tokens, value_dim]
    std::vector<double> state;   // [key_dim, value_dim]
};

// The definition in model.h.
Expected reference(const Job &job) {
    const int32_t padded = padded_head_dim(job.value_dim);
    Expected out;
    out.state.assign(static_cast<size_t>(job.key_dim * job.value_dim), 0);
    for (int32_t k = 0; k < job.key_dim && !job.state.empty(); ++k) {
        for (int32_t v = 0; v < job.value_dim; ++v) {
            out.state[k * job.value_dim + v] = job.state[k * padded + v];
        }
    }
    for (int32_t t = 0; t < job.tokens; ++t) {
        const float *query = job.rows.data() + t * job.stride;
        const float *key = query + job.key_dim;
        const float *value = key + job.key_dim;
        for (double &s : out.state) s *= std::exp(static_cast<double>(job.log_decay[t]));
        for (int32_t v = 0; v < job.value_dim; ++v) {
            double known = 0, result = static_cast<double>(job.skip) * value[v];
            for (int32_t k = 0; job.removes && k < job.key_dim; ++k) {
                known += key[k] * out.state[k * job.value_dim + v];
            }
            const double change = job.rate[t] * (value[v] - known);
            for (int32_t k = 0; k < job.key_dim; ++k) {
                double &s = out.state[k * job.value_dim + v];
                s += key[k] * change;
                result += query[k] * s;
            }
            out.results.push_back(result);
        }
    }
    return out;
}

// Runs the job in pieces that begin at `cuts`, each from the state left by the previous one.
void run(const Kernels &kernels, bool chunked, const std::vector<int32_t> &cuts, Job *job) {
    const int64_t state_floats = int64_t{job->key_dim} * padded_head_dim(job->value_dim);
    const bool from_zeros = job->state.empty();
    std::vector<float> out(static_cast<size_t>(state_floats), std::nanf(""));
    auto scratch =
        Buffer::create(delta_scratch_floats(job->key_dim, job->value_dim) * 4, "scratch");
    assert_true(scratch.ok());
    for (size_t i = 0; i < cuts.size(); ++i) {
        const int32_t begin = cuts[i];
        const int32_t end = i + 1 < cuts.size() ? cuts[i + 1] : job->tokens;
        DeltaCall call;
        call.tokens = end - begin;
        call.key_dim = job->key_dim;
        call.value_dim = job->value_dim;
        float *row = job->rows.data() + begin * job->stride;
        call.queries = row;
        call.keys = row + job->key_dim;
        call.values = row + 2 * job->key_dim;
        call.token_stride = job->stride;
        call.log_decay = job->log_decay.data() + begin;
        call.rate = job->rate.data() + begin;
        call.gate_stride = 1;
        call.removes = job->removes;
        call.skip = job->skip;
        call.from = i > 0 ? out.data() : from_zeros ? nullptr : job->state.data();
        call.state = out.data();
        call.scratch = scratch->floats();
        (chunked ? kernels.delta_chunked : kernels.delta_recurrent)(call);
    }
    job->state = std::move(out);
}

void expect_near(const char *what, const Kernels &kernels, const Job &job, double got,
                 double expected, double most) {
    if (std::fabs(got - expected) <= 2e-5 * most) return;
    fail_msg("%s, %s, %d tokens of %d by %d: %.9g and not %.9g (largest %g)", what, kernels.name,
             job.tokens, job.key_dim, job.value_dim, got, expected, most);
}

void compare(const char *what, const Kernels &kernels, const Job &job, const Expected &expected,
             const std::vector<float> &before) {
    const int32_t padded = padded_head_dim(job.value_dim);
    double most = 1;
    for (const double x : expected.results) most = std::max(most, std::fabs(x));
    for (const double x : expected.state) most = std::max(most, std::fabs(x));
    for (int32_t t = 0; t < job.tokens; ++t) {
        const float *row = job.rows.data() + t * job.stride;
        for (int32_t i = 0; i < job.stride; ++i) {
            const int32_t v = i - 2 * job.key_dim;
            if (v >= 0 && v < job.value_dim) {
                expect_near(what, kernels, job, static_cast<double>(row[i]),
                            expected.results[t * job.value_dim + v], most);
            } else if (row[i] != before[t * job.stride + i]) {
                fail_msg("%s, %s: wrote beside the values", what, kernels.name);
            }
        }
    }
    for (int32_t k = 0; k < job.key_dim; ++k) {
        for (int32_t v = 0; v < padded; ++v) {
            expect_near(what, kernels, job, static_cast<double>(job.state[k * padded + v]),
                        v < job.value_dim ? expected.state[k * job.value_dim + v] : 0, most);
        }
    }
}

void check_both_forms(bool removes) {
    Random random(seed_of_run());
    constexpr int32_t key_dims[] = {1, 16, 20, 64, 128};
    constexpr int32_t value_dims[] = {1, 16, 24, 80, 128};
    constexpr int32_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 150};
    const auto tables = all_tables();
    for (const Gates gates : {Gates::lasting, Gates::forgetting, Gates::mixed, Gates::even}) {
        for (const int32_t tokens : lengths) {
            const int32_t key_dim = key_dims[random() % std::size(key_dims)];
            const int32_t value_dim = value_dims[random() % std::size(value_dims)];
            const Job job =
                make_job(&random, tokens, key_dim, value_dim, gates, random() % 2 == 0, removes);
            const Expected expected = reference(job);
            std::vector<int32_t> cuts{0};
            while (cuts.back() < tokens && random() % 3 > 0) {
                const auto next = static_cast<int32_t>(cuts.back() + 1 + random() % 40);
                if (next >= tokens) break;
                cuts.push_back(next);
            }
            for (const Kernels *kernels : tables) {
                for (const bool chunked : {false, true}) {
                    Job ran = job;
                    run(*kernels, chunked, cuts, &ran);
                    compare(chunked ? "chunked" : "recurrent", *kernels, ran, expected, job.rows);
                }
            }
        }
    }
}

void both_forms_of_the_delta_rule_equal_the_recurrence_in_double(void **) {
    check_both_forms(true);
}

void both_forms_of_the_state_space_rule_equal_the_recurrence_in_double(void **) {
    check_both_forms(false);
}

void token_by_token_a_cut_changes_no_bit(void **) {
    Random random(seed_of_run());
    for (const bool removes : {true, false}) {
        const Job job = make_job(&random, 40, 64, 48, Gates::mixed, false, removes);
        for (const Kernels *kernels : all_tables()) {
            Job whole = job, cut = job;
            run(*kernels, false, {0}, &whole);
            run(*kernels, false, {0, 1, 17, 33}, &cut);
            assert_true(whole.rows == cut.rows && whole.state == cut.state);
        }
    }
}

void the_convolution_equals_the_reference(void **) {
    Random random(seed_of_run());
    for (const Kernels *kernels : all_tables()) {
        for (const int32_t n : {1, 15, 16, 40, 257}) {
            for (const int32_t width : {2, 3, 4}) {
                const auto draw = [&](int32_t count) {
                    std::vector<float> out(static_cast<size_t>(count));
                    for (float &x : out) x = uniform(&random, -2, 2);
                    return out;
                };
                const std::vector<float> x = draw(width * n), weight = draw(width * n);
                const std::vector<float> bias = draw(width % 2 == 0 ? n : 0); // or none
                std::vector<const float *> inputs;
                for (int32_t w = 0; w < width; ++w) inputs.push_back(x.data() + w * n);
                std::vector<float> out(static_cast<size_t>(n) + 1, 7.0f);
                kernels->convolve(inputs.data(), weight.data(),
                                  bias.empty() ? nullptr : bias.data(), width, n, out.data());
                for (int32_t i = 0; i < n; ++i) {
                    double sum = bias.empty() ? 0 : static_cast<double>(bias[i]);
                    for (int32_t w = 0; w < width; ++w) {
                        sum += static_cast<double>(x[w * n + i]) * weight[w * n + i];
                    }
                    const double expected = sum / (1 + std::exp(-sum));
                    if (std::fabs(static_cast<double>(out[i]) - expected) > 1e-5) {
                        fail_msg("%s: %g and not %g", kernels->name, double(out[i]), expected);
                    }
                }
                assert_true(out[static_cast<size_t>(n)] == 7.0f);
            }
        }
    }
}

void a_gate_scales_by_its_sigmoid_or_its_silu(void **) {
    Random random(seed_of_run());
    for (const Kernels *kernels : all_tables()) {
        for (const int32_t n : {1, 16, 40, 129}) {
            std::vector<float> gate(static_cast<size_t>(n)), x(static_cast<size_t>(n) + 1, 3.0f);
            for (float &g : gate) g = uniform(&random, -40, 40);
            std::vector<float> y = x;
            kernels->scale_sigmoid(gate.data(), n, x.data());
            kernels->scale_silu(gate.data(), n, y.data());
            for (int32_t i = 0; i < n; ++i) {
                const double expected = 3 / (1 + std::exp(-static_cast<double>(gate[i])));
                assert_true(std::fabs(static_cast<double>(x[i]) - expected) < 1e-5);
                const double silu = expected * static_cast<double>(gate[i]);
                assert_true(std::fabs(static_cast<double>(y[i]) - silu) < 1e-4);
            }
            assert_true(x[static_cast<size_t>(n)] == 3.0f && y[static_cast<size_t>(n)] == 3.0f);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_of_the_delta_rule_equal_the_recurrence_in_double),
        cmocka_unit_test(both_forms_of_the_state_space_rule_equal_the_recurrence_in_double),
        cmocka_unit_test(token_by_token_a_cut_changes_no_bit),
        cmocka_unit_test(the_convolution_equals_the_reference),
        cmocka_unit_test(a_gate_scales_by_its_sigmoid_or_its_silu),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
