// Short convolutions on the CPU: their kernels, for every table that this processor runs, and whole layers of random
// shapes, over rows that share a prefix and are cut anywhere, against float64.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/narrow_floats.h"
#include "cpu_tables.h"
#include "layer_kinds.h"
#include "reference_layer.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;
using namespace batchllm::cpu;

namespace {

using Random = std::mt19937_64;

int32_t between(Random &random, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
}

std::vector<float> draw(Random &random, int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    std::uniform_real_distribution<float> uniform(-2, 2);
    for (float &x : out) x = uniform(random);
    return out;
}

// ---- Kernels ----

std::vector<const Kernels *> all_tables() {
    auto tables = all_native_tables();
    assert_true(tables.size() >= 2);
    return tables;
}

const float *or_null(const std::vector<float> &bias) {
    return bias.empty() ? nullptr : bias.data();
}

void products_equal_the_reference(void **) {
    Random random(seed_of_run());
    for (const Kernels *kernels : all_tables()) {
        for (const int32_t n : {1, 15, 16, 40, 257}) {
            const auto a = draw(random, n), b = draw(random, n);
            const auto a_bias = draw(random, random() % 2 == 0 ? n : 0);
            const auto b_bias = draw(random, random() % 2 == 0 ? n : 0);
            std::vector<float> out(static_cast<size_t>(n) + 1, 7.0F);
            kernels->multiply_biased(a.data(), or_null(a_bias), b.data(), or_null(b_bias), n,
                                     out.data());
            for (size_t i = 0; i < a.size(); ++i) {
                const double x = double(a[i]) + (a_bias.empty() ? 0 : double(a_bias[i]));
                const double y = double(b[i]) + (b_bias.empty() ? 0 : double(b_bias[i]));
                if (std::fabs(double(out[i]) - x * y) > 4e-6) {
                    fail_msg("%s: %g and not %g", kernels->name, double(out[i]), x * y);
                }
            }
            assert_true(out.back() == 7.0F);
        }
    }
}

void the_gated_convolution_equals_the_reference(void **) {
    Random random(seed_of_run());
    for (const Kernels *kernels : all_tables()) {
        const bool wide = kernels->element == DType::f32;
        for (const int32_t n : {1, 15, 16, 40, 257}) {
            for (const int32_t width : {2, 3, 4, 7}) {
                const auto x = draw(random, width * n), weight = draw(random, width * n);
                const auto gate = draw(random, n);
                const auto bias = draw(random, random() % 2 == 0 ? n : 0);
                std::vector<const float *> inputs;
                for (int32_t w = 0; w < width; ++w) inputs.push_back(x.data() + w * n);
                std::vector<float> floats(static_cast<size_t>(n) + 1, 7.0F);
                std::vector<uint16_t> narrow(floats.size(), 7);
                void *out = wide ? static_cast<void *>(floats.data()) : narrow.data();
                kernels->convolve_gated(inputs.data(), weight.data(), or_null(bias), gate.data(),
                                        width, n, out);
                for (int32_t i = 0; i < n; ++i) {
                    const auto at = static_cast<size_t>(i);
                    double sum = bias.empty() ? 0 : double(bias[at]);
                    for (int32_t w = 0; w < width; ++w) {
                        sum += double(x[static_cast<size_t>(w * n + i)]) *
                               double(weight[static_cast<size_t>(w * n + i)]);
                    }
                    const double expected = sum * double(gate[at]);
                    const double got = double(wide ? floats[at] : bfloat16_to_float(narrow[at]));
                    if (std::fabs(got - expected) > 2e-5 + (wide ? 0 : std::fabs(expected) / 256)) {
                        fail_msg("%s: %g and not %g", kernels->name, got, expected);
                    }
                }
                assert_true(wide ? floats.back() == 7.0F : narrow.back() == 7);
            }
        }
    }
}

// ---- Layers ----

constexpr int32_t kPageTokens = 16, kColumns = 8; // maximum pages of a node

// Rows that share a prefix. Node 0 is the prefix, node 1 + r is the rest of row r; each has its own
// slot and pages.
struct Job {
    std::vector<int32_t> prefix;
    std::vector<std::vector<int32_t>> rows;
    std::vector<int32_t> done; // [1 + rows] tokens of each node in earlier batches

    const std::vector<int32_t> &tokens_of(size_t node) const {
        return node == 0 ? prefix : rows[node - 1];
    }
};

Job make_job(Random &random, int32_t vocabulary) {
    Job job;
    const auto fill = [&](int32_t length) {
        std::vector<int32_t> tokens;
        for (int32_t i = 0; i < length; ++i) tokens.push_back(between(random, 0, vocabulary - 1));
        return tokens;
    };
    job.prefix = fill(between(random, 1, 40));
    for (int32_t r = between(random, 1, 4); r > 0; --r) {
        job.rows.push_back(fill(between(random, 1, 30)));
    }
    job.done.assign(1 + job.rows.size(), 0);
    return job;
}

// Adds a node's next `count` tokens to the batch; a row's node comes after that of the prefix.
void add_tokens(const Job &job, size_t node, int32_t count, const std::vector<int32_t> &vocabulary,
                TokenBatch *batch) {
    const std::vector<int32_t> &tokens = job.tokens_of(node);
    const int32_t start = node == 0 ? 0 : static_cast<int32_t>(job.prefix.size());
    const auto begin = static_cast<int32_t>(batch->tokens.size());
    for (int32_t i = job.done[node]; i < job.done[node] + count; ++i) {
        OutputRow output;
        output.token = static_cast<int32_t>(batch->tokens.size());
        output.task = Task::score;
        output.targets = vocabulary;
        batch->outputs.push_back(output);
        batch->tokens.push_back(tokens[static_cast<size_t>(i)]);
        batch->positions.push_back(start + i);
    }
    batch->nodes.push_back({node == 0 ? -1 : 0, start, job.done[node] + count, begin, count,
                            node == 0, static_cast<int32_t>(node)});
    for (size_t g = 0; g < batch->pages.size(); ++g) {
        GroupPages &pages = batch->pages[g];
        pages.nodes.push_back({static_cast<int32_t>(pages.list.size()), 0});
        for (int32_t c = 0; c < kColumns; ++c) {
            pages.list.push_back(static_cast<int32_t>((g * job.done.size() + node) * kColumns) + c);
        }
    }
}

// Runs the job in batches of random sizes: [node][token][vocabulary] log-probabilities.
std::vector<std::vector<float>> run(const Model &model, const Job &given, Random &random,
                                    int32_t most_tokens, bool reproducible) {
    BackendOptions options;
    options.compute_type = "f32";
    options.kv_memory_bytes = 64 << 20;
    options.threads = between(random, 1, 2);
    options.step_tokens = 256;
    options.reproducible = reproducible;
    auto made = make_cpu_backend(model, options);
    if (!made.ok()) fail_msg("%s", made.status().message().c_str());
    assert_int_equal((*made)->info().page_tokens, kPageTokens);
    std::vector<int32_t> vocabulary;
    for (int32_t i = 0; i < model.vocabulary; ++i) vocabulary.push_back(i);
    Job job = given;
    std::vector<std::vector<float>> out(job.done.size());
    const auto left = [&](size_t node) {
        return static_cast<int32_t>(job.tokens_of(node).size()) - job.done[node];
    };
    for (size_t todo = 1; todo > 0;) {
        TokenBatch batch;
        batch.pages.resize(model.kv_groups.size());
        std::vector<std::pair<size_t, int32_t>> parts; // node, tokens
        const auto add = [&](size_t node, int32_t count) {
            add_tokens(job, node, count, vocabulary, &batch);
            parts.emplace_back(node, count);
        };
        add(0, std::min(left(0), between(random, 1, most_tokens)));
        // Rows may begin in the batch that ends the prefix.
        for (size_t r = 1; r < job.done.size() && left(0) == parts[0].second; ++r) {
            const int32_t count = std::min(left(r), between(random, 0, most_tokens));
            if (count > 0) add(r, count);
        }
        BatchOutput output;
        const Status ran = (*made)->run(batch, &output);
        if (!ran.ok()) fail_msg("%s", ran.message().c_str());
        auto at = output.target_logprobs.begin();
        for (const auto &[node, count] : parts) {
            out[node].insert(out[node].end(), at, at + count * model.vocabulary);
            at += count * model.vocabulary;
            job.done[node] += count;
        }
        todo = 0;
        for (size_t node = 0; node < job.done.size(); ++node) todo += left(node) > 0;
    }
    return out;
}

struct Made {
    Model model;
    std::deque<std::vector<float>> weights;
    std::string shape;
};

void make(Random &random, Made *made) {
    const int32_t width = random() % 4 == 0 ? most_convolution_width : between(random, 2, 9);
    const int32_t channels = between(random, 1, 150);
    const bool first = random() % 2 == 0, biases = random() % 2 == 0;
    made->model = kinds::convolution(first, width, channels, biases);
    place_keys_and_values(&made->model);
    made->weights = reference::fill(&made->model, random(), [](float x) { return x; });
    made->shape = "width " + std::to_string(width) + ", " + std::to_string(channels) + " channels" +
                  (first ? ", first" : ", last") + (biases ? ", biases" : "");
}

void layers_of_any_shape_and_cut_equal_the_reference(void **) {
    Random random(seed_of_run());
    for (int32_t n = 0; n < cases(40, 8); ++n) {
        Made made;
        make(random, &made);
        const Job job = make_job(random, made.model.vocabulary);
        const auto got = run(made.model, job, random, between(random, 1, 20), false);
        for (size_t r = 0; r < job.rows.size(); ++r) {
            std::vector<int32_t> tokens = job.prefix;
            tokens.insert(tokens.end(), job.rows[r].begin(), job.rows[r].end());
            const reference::Rows logits = reference::logits(made.model, tokens);
            const double off =
                std::max(reference::largest_difference(got[0], logits, 0),
                         reference::largest_difference(got[1 + r], logits, job.prefix.size()));
            if (off > 2e-4) {
                fail_msg("%s, prefix of %zu, row of %zu: off by %g", made.shape.c_str(),
                         job.prefix.size(), job.rows[r].size(), off);
            }
        }
    }
}

void in_reproducible_mode_a_cut_changes_no_bit(void **) {
    Random random(seed_of_run());
    for (int32_t n = 0; n < cases(10, 3); ++n) {
        Made made;
        make(random, &made);
        const Job job = make_job(random, made.model.vocabulary);
        const auto whole = run(made.model, job, random, 60, true);
        if (whole != run(made.model, job, random, between(random, 1, 9), true)) {
            fail_msg("%s: other bits", made.shape.c_str());
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_the_reference),
        cmocka_unit_test(the_gated_convolution_equals_the_reference),
        cmocka_unit_test(layers_of_any_shape_and_cut_equal_the_reference),
        cmocka_unit_test(in_reproducible_mode_a_cut_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
