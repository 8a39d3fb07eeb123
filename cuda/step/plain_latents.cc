#include "step/plain_latents.h"

#include <algorithm>

#include "backend/gpu/step_buffers.h"
#include "linear/linear.h"

namespace batchllm::cuda {
namespace {

constexpr int32_t kFewTokens = 16; // of a node, that decodes
constexpr int32_t kLeastTokens =
    128; // of all, so that queries fit between those of the absorbed form
// Queries and results stand behind the padded rows of the absorbed form, which have 576 and 512 columns a head.
static_assert(kLeastTokens * (576 - latent_head_dim) >= most_row_step * 576 &&
              kLeastTokens * (512 - latent_head_dim) >= most_row_step * 512);

int32_t pages_of(const AttentionNode &node) { return (node.keys + kPageKeys - 1) / kPageKeys; }

} // namespace

void PlainLatents::choose(const Latent &latent, int32_t tokens, int64_t room,
                          std::vector<AttentionNode> *all) {
    first = tokens;
    nodes.clear();
    expanded.clear();
    // Nodes with tokens, the last first.
    std::vector<size_t> order;
    for (size_t n = 0; n < all->size(); ++n) {
        if ((*all)[n].token_count > 0) order.push_back(n);
    }
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return (*all)[a].token_begin > (*all)[b].token_begin; });
    std::vector<bool> read(all->size()), chosen;
    int64_t pages = 0;
    double pairs = 0, chosen_pairs = 0; // of queries and keys
    for (const size_t n : order) {
        const AttentionNode &node = (*all)[n];
        for (auto up = static_cast<int32_t>(n); up >= 0;
             up = (*all)[static_cast<size_t>(up)].parent) {
            if (read[static_cast<size_t>(up)]) break;
            read[static_cast<size_t>(up)] = true;
            pages += pages_of((*all)[static_cast<size_t>(up)]);
        }
        if (pages > room) break;
        pairs += static_cast<double>(node.token_count) *
                 (node.start + node.keys - node.token_count * 0.5);
        if (node.token_count <= kFewTokens) continue;
        first = node.token_begin;
        chosen = read;
        chosen_pairs = pairs;
    }
    if (tokens - first < kLeastTokens) {
        first = tokens;
        return;
    }
    double keys = 0;
    for (size_t n = 0; n < all->size(); ++n) keys += chosen[n] ? (*all)[n].keys : 0;
    // In multiplications of a head; expanding and attention in the plain form are a little slower for as many.
    const double each = 512.0 * (latent.plain + latent.value_dim);
    const double absorbed = chosen_pairs * (576 + 512) + each * (tokens - first);
    const double plain = 1.2 * (chosen_pairs * 512 + each * keys);
    constexpr double kLaunches = 5e7;
    if (plain + kLaunches > absorbed) {
        first = tokens;
        return;
    }
    nodes = *all;
    for (size_t n = 0; n < all->size(); ++n) {
        AttentionNode &node = nodes[n], &rest = (*all)[n];
        const bool plain_form = node.token_count > 0 && node.token_begin >= first;
        (plain_form ? rest : node).token_count = 0;
        node.token_begin = plain_form ? node.token_begin - first : 0;
        if (!chosen[n]) continue;
        const int32_t from = node.page_begin;
        node.page_begin = static_cast<int32_t>(expanded.size());
        for (int32_t p = 0; p < pages_of(node); ++p) expanded.push_back(from + p);
    }
}

} // namespace batchllm::cuda
