// The CPU's step against float64, for layers of every kind: log-probabilities of all tokens of one
// row that begins with a prefix from an earlier batch.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/backend.h"
#include "layer_kinds.h"
#include "reference_layer.h"
#include "testing.h"

using namespace batchllm;

namespace {

constexpr int32_t kPrefix = 37, kTokens = 61, kPageTokens = 16;

// The batch of tokens [first, last) of the row: in the prefix, or in the rest.
TokenBatch batch_of(const std::vector<int32_t> &row, int32_t first, int32_t last,
                    const std::vector<int32_t> &vocabulary, size_t kv_groups) {
    const auto pages_of = [](int32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; };
    TokenBatch batch;
    for (int32_t i = first; i < last; ++i) {
        batch.tokens.push_back(row[static_cast<size_t>(i)]);
        batch.positions.push_back(i);
        OutputRow output;
        output.token = i - first;
        output.task = Task::score;
        output.targets = vocabulary;
        batch.outputs.push_back(output);
    }
    const bool own = first >= kPrefix;
    batch.nodes.push_back({-1, 0, kPrefix, 0, own ? 0 : last - first, true, 0});
    if (own) batch.nodes.push_back({0, kPrefix, last - kPrefix, 0, last - first, false, 1});
    for (size_t g = 0; g < kv_groups; ++g) {
        GroupPages pages;
        const int32_t prefix_pages = pages_of(kPrefix),
                      own_pages = own ? pages_of(kTokens - kPrefix) : 0;
        for (int32_t i = 0; i < prefix_pages + own_pages; ++i) {
            pages.list.push_back(static_cast<int32_t>(g) * 8 + i);
        }
        pages.nodes.push_back({0, 0});
        if (own) pages.nodes.push_back({prefix_pages, 0});
        batch.pages.push_back(std::move(pages));
    }
    return batch;
}

void run_kind(const LayerKind &kind) {
    Model model = kind.make();
    place_keys_and_values(&model);
    const auto memory = reference::fill(&model, 7, [](float x) { return x; });
    BackendOptions options;
    options.compute_type = "f32";
    options.kv_memory_bytes = 64 << 20;
    options.threads = 2;
    options.step_tokens = 64;
    auto made = make_cpu_backend(model, options);
    if (!made.ok()) fail_msg("%s: %s", kind.name.c_str(), made.status().message().c_str());
    Backend &backend = **made;
    assert_int_equal(backend.info().page_tokens, kPageTokens);

    std::vector<int32_t> row, vocabulary;
    for (int32_t i = 0; i < kTokens; ++i) row.push_back((i * 31 + i * i * 7) % model.vocabulary);
    for (int32_t i = 0; i < model.vocabulary; ++i) vocabulary.push_back(i);
    const reference::Rows logits = reference::logits(model, row);
    const std::pair<int32_t, int32_t> steps[] = {{0, kPrefix}, {kPrefix, 50}, {50, kTokens}};
    for (const auto &[first, last] : steps) {
        const TokenBatch batch = batch_of(row, first, last, vocabulary, model.kv_groups.size());
        BatchOutput output;
        const Status ran = backend.run(batch, &output);
        if (!ran.ok()) fail_msg("%s: %s", kind.name.c_str(), ran.message().c_str());
        assert_int_equal(output.target_logprobs.size(), (last - first) * model.vocabulary);
        const double off = reference::largest_difference(output.target_logprobs, logits,
                                                         static_cast<size_t>(first));
        if (off > 2e-4)
            fail_msg("%s: tokens %d to %d: off by %g", kind.name.c_str(), first, last, off);
    }
}

void f32_is_the_reference(void **) {
    for (const LayerKind &kind : layer_kinds()) run_kind(kind);
    for (const LayerKind &kind : cpu_layer_kinds()) run_kind(kind);
    for (const LayerKind &kind : latent_layer_kinds()) run_kind(kind);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(f32_is_the_reference)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
