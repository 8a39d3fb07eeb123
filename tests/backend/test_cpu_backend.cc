// The CPU backend behind backend.h: options, sampling and scoring, rows that go wrong, threads.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/narrow_floats.h"

// Last: it defines macros with the names of members of the standard library.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

extern "C" {
#include <cmocka.h>
}

using namespace batchllm;

namespace {

// A small random Llama with weights in memory. The embedding of token kNanToken is not finite.
constexpr int32_t kVocabulary = 300;
constexpr int32_t kNanToken = 299;

struct SmallModel {
    Model model;
    std::vector<std::vector<float>> weights;
    std::mt19937_64 random{7};

    Tensor tensor(int64_t rows, int64_t columns, float mean, float spread) {
        std::vector<float> &data = weights.emplace_back(static_cast<size_t>(rows * columns));
        std::normal_distribution<float> normal(mean, spread);
        for (float &x : data) x = normal(random);
        return {DType::f32, reinterpret_cast<const std::byte *>(data.data()), rows, columns, "", 0,
                0};
    }
    SmallModel() {
        constexpr int32_t hidden = 64, intermediate = 100;
        model.vocabulary = kVocabulary;
        model.hidden = hidden;
        model.max_positions = 1024;
        model.embedding = tensor(kVocabulary, hidden, 0, 1);
        for (float &x : std::span(weights[0]).last(64)) x = std::numeric_limits<float>::quiet_NaN();
        const auto norm = [&] {
            return Norm{NormKind::rms, tensor(hidden, 1, 1, 0.1f), {}, 0, 1e-6f};
        };
        for (int32_t l = 0; l < 3; ++l) {
            Layer layer;
            Attention &attention = layer.mixer.emplace<Attention>();
            attention.heads = 4;
            attention.kv_heads = 2;
            attention.head_dim = 20; // not a multiple of the vector length
            attention.scale = 1 / std::sqrt(20.0);
            attention.rope = 0;
            layer.before_attention = norm();
            attention.q.values = tensor(attention.q_size(), hidden, 0, 0.2f);
            attention.k.values = tensor(attention.kv_size(), hidden, 0, 0.2f);
            attention.v.values = tensor(attention.kv_size(), hidden, 0, 0.2f);
            attention.o.values = tensor(hidden, attention.q_size(), 0, 0.2f);
            layer.before_feed_forward = norm();
            FeedForward &feed_forward = layer.feed.emplace<FeedForward>();
            feed_forward.width = intermediate;
            feed_forward.gate.values = tensor(intermediate, hidden, 0, 0.2f);
            feed_forward.up.values = tensor(intermediate, hidden, 0, 0.2f);
            feed_forward.down.values = tensor(hidden, intermediate, 0, 0.2f);
            model.layers.push_back(layer);
        }
        model.ropes = {{rope_frequencies({}, 20), 1, false}};
        model.final_norm = norm();
        model.head.values = tensor(kVocabulary, hidden, 0, 0.3f);
        place_keys_and_values(&model);
    }
};

BackendOptions small_options() {
    BackendOptions options;
    options.threads = 2;
    options.kv_memory_bytes = int64_t{1} << 20;
    return options;
}

std::unique_ptr<Backend> make(const SmallModel &small, const BackendOptions &options) {
    auto backend = make_cpu_backend(small.model, options);
    if (!backend.ok()) {
        std::printf("%s\n", backend.status().message().c_str());
        return nullptr;
    }
    return std::move(backend).value();
}

// One row in one node, all of it computed, on pages from `page` on.
void add_row(TokenBatch *batch, const std::vector<int32_t> &tokens, int32_t page) {
    ContextNode node{};
    node.parent = -1;
    node.length = node.token_count = static_cast<int32_t>(tokens.size());
    node.token_begin = static_cast<int32_t>(batch->tokens.size());
    batch->pages.resize(1);
    GroupPages &group = batch->pages[0];
    group.nodes.push_back({static_cast<int32_t>(group.list.size()), 0});
    for (int32_t i = 0; i < (node.length + 15) / 16; ++i) group.list.push_back(page + i);
    for (int32_t i = 0; i < node.length; ++i) {
        batch->tokens.push_back(tokens[i]);
        batch->positions.push_back(i);
    }
    batch->nodes.push_back(node);
}

void want(TokenBatch *batch, const SamplingParams *params, std::span<const int32_t> targets = {}) {
    OutputRow row{};
    row.token = static_cast<int32_t>(batch->tokens.size()) - 1;
    row.sample.params = params;
    row.sample.position = batch->positions.back() + 1;
    row.task = targets.empty() ? Task::generate : Task::score;
    row.targets = targets;
    batch->outputs.push_back(row);
}

std::vector<int32_t> random_tokens(size_t count, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> tokens(count);
    for (int32_t &t : tokens) t = std::uniform_int_distribution<int32_t>(0, kNanToken - 1)(random);
    return tokens;
}

void samples_and_scores_of_one_position_agree(void **) {
    const SmallModel small;
    auto backend = make(small, small_options());
    assert_non_null(backend.get());
    SamplingParams greedy;
    greedy.logprobs = 2;
    SamplingParams hot = greedy;
    hot.temperature = 1;
    TokenBatch batch;
    add_row(&batch, random_tokens(40, 1), 0);
    add_row(&batch, random_tokens(5, 2), 3);
    // Four rows sample at the same position: none may see another's changes to the logits.
    want(&batch, &greedy);
    want(&batch, &hot);
    std::vector<int32_t> every(kVocabulary);
    for (int32_t v = 0; v < kVocabulary; ++v) every[v] = v;
    want(&batch, nullptr, every);
    want(&batch, &greedy);
    BatchOutput output;
    assert_true(backend->run(batch, &output).ok());
    assert_int_equal(output.samples.size(), 4);
    assert_int_equal(output.target_logprobs.size(), kVocabulary);
    const SampleOutput &first = output.samples[0];
    assert_int_equal(first.token, output.samples[3].token);
    assert_true(first.logprob == output.samples[3].logprob);
    assert_true(std::abs(first.logprob - output.target_logprobs[first.token]) < 1e-5);
    double sum = 0;
    int32_t best = 0;
    for (int32_t v = 0; v < kVocabulary; ++v) {
        sum += std::exp(static_cast<double>(output.target_logprobs[v]));
        if (output.target_logprobs[v] > output.target_logprobs[best]) best = v;
    }
    assert_true(std::abs(sum - 1) < 1e-4);
    assert_int_equal(best, first.token);
    assert_int_equal(output.samples[2].token, -1);
    assert_true(backend->last_run_seconds() > 0);
}

void a_row_that_is_not_a_number_harms_no_other(void **) {
    const SmallModel small;
    for (const char *type : {"f32", "bf16"}) {
        BackendOptions options = small_options();
        options.compute_type = type;
        auto backend = make_cpu_backend(small.model, options);
        if (!backend.ok() && std::strcmp(type, "bf16") == 0) continue; // not on this processor
        assert_true(backend.ok());
        SamplingParams greedy;
        greedy.logprobs = 0;
        const std::vector<int32_t> good = random_tokens(37, 3);
        TokenBatch alone;
        add_row(&alone, good, 8);
        want(&alone, &greedy);
        BatchOutput expected;
        assert_true((*backend)->run(alone, &expected).ok());

        // Beside a bad row; then on the pages that the bad row had.
        std::vector<int32_t> bad = random_tokens(48, 4);
        bad[20] = kNanToken;
        const int32_t targets[] = {5};
        TokenBatch both;
        add_row(&both, bad, 0);
        want(&both, &greedy);
        want(&both, nullptr, targets);
        add_row(&both, good, 8);
        want(&both, &greedy);
        TokenBatch after;
        add_row(&after, good, 0);
        want(&after, &greedy);
        BatchOutput together, later;
        assert_true((*backend)->run(both, &together).ok());
        assert_true((*backend)->run(after, &later).ok());
        assert_false(together.samples[0].finite);
        assert_false(together.samples[1].finite);
        assert_true(together.samples[2].finite);
        assert_int_equal(together.samples[2].token, expected.samples[0].token);
        assert_true(later.samples[0].finite);
        assert_int_equal(later.samples[0].token, expected.samples[0].token);
        assert_true(std::abs(later.samples[0].logprob - expected.samples[0].logprob) < 1e-3);
    }
}

void options_out_of_range_are_refused_by_name(void **) {
    const SmallModel small;
    struct {
        const char *key, *value, *named;
        int64_t kv_bytes;
        const char *type;
        int32_t code;
    } const cases[] = {
        {"page_tokens", "17", "page_tokens=17", 1 << 20, "f32", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"page_tokens", "0", "page_tokens=0", 1 << 20, "f32", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"page_tokens", "16x", "page_tokens=16x", 1 << 20, "f32", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"colour", "red", "colour", 1 << 20, "f32", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"kernels", "mmx", "kernels=mmx", 1 << 20, "f32", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"kernels", "avx512_bf16", "kernels=avx512_bf16", 1 << 20, "f32",
         BATCHLLM_ERROR_BACKEND_UNAVAILABLE},
        {"page_tokens", "16", "kv_memory", 100, "f32", BATCHLLM_ERROR_OUT_OF_MEMORY},
        {"page_tokens", "16", "kv_memory", int64_t{1} << 60, "f32", BATCHLLM_ERROR_OUT_OF_MEMORY},
        {"page_tokens", "16", "kv_memory", -1, "f32", BATCHLLM_ERROR_INVALID_ARGUMENT},
        {"page_tokens", "16", "compute_type f16", 1 << 20, "f16", BATCHLLM_ERROR_UNSUPPORTED},
    };
    for (const auto &x : cases) {
        BackendOptions options = small_options();
        options.extra = {{x.key, x.value}};
        options.kv_memory_bytes = x.kv_bytes;
        options.compute_type = x.type;
        auto backend = make_cpu_backend(small.model, options);
        const int32_t code = backend.ok() ? BATCHLLM_OK : backend.status().code();
        const std::string text = backend.ok() ? "" : backend.status().message();
        if (code != x.code || text.find(x.named) == std::string::npos) {
            fail_msg("%s=%s: %d \"%s\"", x.key, x.value, code, text.c_str());
        }
    }
}

void options_are_reported_as_they_took_effect(void **) {
    const SmallModel small;
    BackendOptions options = small_options();
    options.extra = {{"page_tokens", "64"}, {"kernels", "portable"}};
    options.step_tokens = 77;
    auto backend = make(small, options);
    assert_non_null(backend.get());
    const BackendInfo &info = backend->info();
    assert_string_equal(info.name.c_str(), "cpu");
    assert_string_equal(info.compute_type.c_str(), "f32"); // the model's, for auto
    assert_int_equal(info.page_tokens, 64);
    assert_int_equal(info.step_tokens, 77);
    assert_int_equal(info.vocabulary, kVocabulary);
    // 3 layers, 2 heads, keys and values, 20 dimensions padded to 32.
    assert_int_equal(info.page_bytes, 3 * 2 * 2 * 64 * 32 * 4);
    assert_int_equal(info.pages, (1 << 20) / info.page_bytes);
    assert_true(info.device.find("2 threads") != std::string::npos);
    assert_true(info.device.find("portable") != std::string::npos);
}

void malformed_batches_are_refused(void **) {
    const SmallModel small;
    BackendOptions options = small_options();
    options.step_tokens = 64;
    auto backend = make(small, options);
    assert_non_null(backend.get());
    SamplingParams greedy;
    for (int fault = 0; fault < 10; ++fault) {
        TokenBatch batch;
        add_row(&batch, random_tokens(fault == 6 ? 65 : 20, 5), 0);
        want(&batch, &greedy);
        if (fault == 0) batch.tokens[3] = kVocabulary;
        if (fault == 1) batch.pages[0].list[1] = static_cast<int32_t>(backend->info().pages);
        if (fault == 2) batch.pages[0].list.pop_back();
        if (fault == 3) batch.outputs[0].token = 20;
        if (fault == 4) batch.positions[5] = 6;
        if (fault == 5) batch.nodes[0].parent = 0;
        if (fault == 7) batch.pages[0].nodes[0] = {0, 1}; // a page that a query sees is missing
        if (fault == 8) batch.pages.emplace_back();
        if (fault == 9) batch.pages[0].nodes[0].begin = -1;
        BatchOutput output;
        const Status status = backend->run(batch, &output);
        if (status.ok()) fail_msg("fault %d was not seen", fault);
    }
}

int64_t threads_of_process() {
    int64_t count = 0;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/task")) {
        (void)entry;
        ++count;
    }
    return count;
}

void as_many_threads_are_used_as_asked_for(void **) {
    const SmallModel small;
    for (int32_t threads : {1, 3}) {
        const int64_t before = threads_of_process();
        BackendOptions options = small_options();
        options.threads = threads;
        auto backend = make(small, options);
        assert_non_null(backend.get());
        SamplingParams greedy;
        TokenBatch batch;
        add_row(&batch, random_tokens(200, 6), 0);
        want(&batch, &greedy);
        BatchOutput output;
        assert_true(backend->run(batch, &output).ok());
        // The caller is one of them. oneDNN's OpenMP has not started its own threads.
        assert_int_equal(threads_of_process() - before, threads - 1);
    }
}

void engines_in_several_threads_do_not_disturb_each_other(void **) {
    const SmallModel small;
    SamplingParams greedy;
    greedy.logprobs = 0;
    constexpr int kEngines = 3;
    std::vector<float> logprobs[kEngines];
    bool ok[kEngines] = {};
    const auto work = [&](int engine) {
        auto backend = make_cpu_backend(small.model, small_options());
        if (!backend.ok()) return;
        for (int round = 0; round < 5; ++round) {
            TokenBatch batch;
            add_row(&batch, random_tokens(100, static_cast<uint64_t>(round)), 0);
            want(&batch, &greedy);
            add_row(&batch, random_tokens(13, 50), 10);
            want(&batch, &greedy);
            BatchOutput output;
            if (!(*backend)->run(batch, &output).ok()) return;
            for (const SampleOutput &sample : output.samples) {
                logprobs[engine].push_back(sample.logprob);
            }
        }
        ok[engine] = true;
    };
    {
        std::vector<std::thread> threads;
        for (int engine = 0; engine < kEngines; ++engine) threads.emplace_back(work, engine);
        for (std::thread &thread : threads) thread.join();
    }
    for (int engine = 0; engine < kEngines; ++engine) {
        assert_true(ok[engine]);
        // The same job on the same number of threads gives identical bits.
        assert_true(logprobs[engine] == logprobs[0]);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(samples_and_scores_of_one_position_agree),
        cmocka_unit_test(a_row_that_is_not_a_number_harms_no_other),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
        cmocka_unit_test(options_are_reported_as_they_took_effect),
        cmocka_unit_test(malformed_batches_are_refused),
        cmocka_unit_test(as_many_threads_are_used_as_asked_for),
        cmocka_unit_test(engines_in_several_threads_do_not_disturb_each_other),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
