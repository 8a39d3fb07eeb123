#include <cstdio>
#include <cstring>
#include <vector>

#include "attention_check.h"
#include "attention_setup.h"

namespace batchllm::cuda {
namespace {

struct TokenResult {
    std::vector<uint16_t> out;     // [heads, head_dim]
    std::vector<float> lse, parts; // [partials, heads], [partials, heads, head_dim]
};

template <typename T> std::vector<T> download(const void *from, int64_t begin, int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    CHECK(cudaMemcpy(values.data(), static_cast<const T *>(from) + begin, values.size() * sizeof(T),
                     cudaMemcpyDeviceToHost));
    return values;
}

TokenResult result_of(const AttentionSetup &setup, const AttentionArguments &a, int token) {
    const PartialRange range = setup.worklist().partials[static_cast<size_t>(token)];
    const int64_t row = int64_t{a.heads} * a.head_dim;
    return {download<uint16_t>(a.out, token * row, row),
            download<float>(a.partial_lse, int64_t{range.begin} * a.heads,
                            int64_t{range.count} * a.heads),
            download<float>(a.partial_out, range.begin * row, range.count * row)};
}

// The token and what it sees; the first of the step's tokens.
std::vector<AttentionNode> context_of(const AttentionCase &c, int token) {
    std::vector<AttentionNode> path;
    int at = 0;
    while (token < c.nodes[at].token_begin ||
           token >= c.nodes[at].token_begin + c.nodes[at].token_count) {
        ++at;
    }
    for (int n = at; n >= 0; n = c.nodes[n].parent) {
        AttentionNode node = c.nodes[n];
        node.token_begin = node.token_count = 0;
        path.insert(path.begin(), node);
    }
    for (size_t i = 0; i < path.size(); ++i) path[i].parent = static_cast<int32_t>(i) - 1;
    path.back().keys = c.positions[token] + 1 - path.back().start;
    path.back().token_count = 1;
    return path;
}

template <typename T> int64_t count_other(const std::vector<T> &a, const std::vector<T> &b) {
    if (a.size() != b.size()) return -1;
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
    return count;
}

// Of some tokens of the case, how many are other bits alone than among the others.
int count_differing(const AttentionFamily &family, const AttentionCase &c, uint64_t seed) {
    AttentionSetup setup(family, c, 1, seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    setup.use(Sharing::by_position);
    const AttentionArguments all = setup.arguments();
    setup.launch(all, setup.sms(), nullptr);
    CHECK(cudaDeviceSynchronize());
    std::vector<int> tokens;
    std::vector<TokenResult> among;
    for (int i = 0; i < 12; ++i) {
        tokens.push_back(static_cast<int>(random() % static_cast<unsigned>(c.tokens())));
        among.push_back(result_of(setup, all, tokens.back()));
    }
    int differing = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
        setup.use_by_position(context_of(c, tokens[i]), 1);
        AttentionArguments a = setup.arguments();
        a.q = static_cast<const uint16_t *>(a.q) + tokens[i] * a.q_stride;
        setup.launch(a, setup.sms(), nullptr);
        CHECK(cudaDeviceSynchronize());
        const TokenResult alone = result_of(setup, a, 0);
        if (count_other(alone.out, among[i].out) == 0) continue;
        if (differing++ > 0) continue;
        std::printf("  token %d, position %d, %zu partial scores: other elements: %lld of %zu, of "
                    "partials %lld of %zu, of their sums %lld of %zu\n",
                    tokens[i], c.positions[tokens[i]], alone.lse.size(),
                    static_cast<long long>(count_other(alone.out, among[i].out)), alone.out.size(),
                    static_cast<long long>(count_other(alone.parts, among[i].parts)),
                    alone.parts.size(),
                    static_cast<long long>(count_other(alone.lse, among[i].lse)), alone.lse.size());
    }
    return differing;
}

} // namespace

bool check_by_row(const AttentionFamily &family, unsigned seed, int rounds, bool e4m3) {
    std::mt19937 random(seed);
    int failed = 0;
    for (int round = 0; round < rounds; ++round) {
        AttentionCase c = random_case(random, kCheckedShapes[round % std::size(kCheckedShapes)]);
        c.shape.e4m3 = e4m3;
        if (round % 2 == 1) c.shape.sharpness = 12; // later keys' scores exceed all before
        if (round % 3 == 0) {                       // a context of several segments
            const int parent = c.add(-1, 4200, 0);
            for (int i = 0; i < 5; ++i) c.add(parent, 4000 + 100 * i, 1 + 40 * (i % 2));
            c.shuffle(static_cast<unsigned>(random()));
        }
        const int differing = count_differing(family, c, random());
        failed += differing > 0;
        if (differing == 0) continue;
        std::printf(
            "FAIL by row, round %d %d/%d d%d %s %s %d softcap %g%s sharpness %g, %d tokens: "
            "%d of 12 have other bits alone\n",
            round, c.shape.heads, c.shape.kv_heads, c.shape.head_dim, c.shape.f16 ? "f16" : "bf16",
            c.shape.chunked ? "chunks of" : "window", c.shape.window, double{c.shape.softcap},
            c.sinks.empty() ? "" : ", sinks", double{c.shape.sharpness}, c.tokens(), differing);
    }
    std::printf("by row: %d passed, %d failed\n", rounds - failed, failed);
    return failed == 0;
}

} // namespace batchllm::cuda
