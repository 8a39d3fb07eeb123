// A synthetic step for bench_attention: a forest of context nodes with their pages, as in a step of
// the engine; what it must move and compute; and where its keys and values are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "attention/worklist.h"

namespace batchllm::cuda {

struct AttentionShape {
    int heads, kv_heads, head_dim;
    int window = 0; // positions; 0: all
    bool f16 = false;
    float sharpness = 1; // scale of the scores, relative to the usual one
    float softcap = 0;
    bool e4m3 = false;    // keys and values
    bool chunked = false; // positions are in chunks of `window`

    int kv_bytes() const { return e4m3 ? 1 : 2; } // bytes per element
    int first_seen(int position) const {
        if (window <= 0) return 0;
        return chunked ? position / window * window : std::max(0, position + 1 - window);
    }
};

struct AttentionCase {
    std::string name;
    AttentionShape shape;
    std::vector<AttentionNode> nodes;
    std::vector<int32_t> pages;
    std::vector<int32_t> positions;
    std::vector<float> sinks; // [heads], or none
    int32_t page_total = 0;

    // Adds a node with this many keys, the last of which are the batch's tokens. Returns its index.
    int add(int parent, int keys, int tokens) {
        AttentionNode node{};
        node.parent = parent;
        node.start = parent < 0 ? 0 : nodes[parent].start + nodes[parent].keys;
        node.keys = keys;
        node.token_count = tokens;
        node.token_begin = static_cast<int32_t>(positions.size());
        node.page_begin = static_cast<int32_t>(pages.size());
        for (int p = 0; p < (keys + kPageKeys - 1) / kPageKeys; ++p) pages.push_back(page_total++);
        for (int t = 0; t < tokens; ++t) positions.push_back(node.start + keys - tokens + t);
        nodes.push_back(node);
        return static_cast<int>(nodes.size()) - 1;
    }
    int tokens() const { return static_cast<int>(positions.size()); }
    int64_t pool_bytes() const { return pool_elements() * shape.kv_bytes(); }
    int64_t pool_elements() const {
        return int64_t{page_total} * shape.kv_heads * 2 * kPageKeys * shape.head_dim;
    }
    // Gives the nodes pages at random places.
    void shuffle(unsigned seed) {
        std::vector<int32_t> order(page_total);
        for (int i = 0; i < page_total; ++i) order[i] = i;
        std::mt19937 random(seed);
        std::shuffle(order.begin(), order.end(), random);
        for (int32_t &page : pages) page = order[page];
    }
};

// Element d of key k of (page, kv head, K or V) in the pool: attention/attention.h's layout.
inline int64_t pool_index(const AttentionShape &s, int page, int kv_head, int which, int key,
                          int d) {
    const int64_t block = (int64_t(page) * s.kv_heads + kv_head) * 2 + which;
    return block * kPageKeys * s.head_dim + place_in_block(key, d, s.kv_bytes());
}

// Bytes that must move: the keys and values that some token sees once, the queries and the outputs.
inline double bytes_moved(const AttentionCase &c) {
    const AttentionShape &s = c.shape;
    std::vector<int32_t> first(c.nodes.size(), INT32_MAX); // position that a token sees
    for (size_t n = 0; n < c.nodes.size(); ++n) {
        if (c.nodes[n].token_count == 0) continue;
        const int32_t position = c.positions[static_cast<size_t>(c.nodes[n].token_begin)];
        const int32_t seen = s.first_seen(position);
        for (auto up = static_cast<int32_t>(n); up >= 0;
             up = c.nodes[static_cast<size_t>(up)].parent) {
            first[static_cast<size_t>(up)] = std::min(first[static_cast<size_t>(up)], seen);
        }
    }
    double bytes = 2.0 * c.tokens() * s.heads * s.head_dim * 2;
    for (size_t n = 0; n < c.nodes.size(); ++n) {
        const int64_t end = c.nodes[n].start + c.nodes[n].keys;
        const int64_t keys = std::max<int64_t>(0, end - std::max(c.nodes[n].start, first[n]));
        bytes += double(keys) * s.kv_heads * 2 * s.head_dim * s.kv_bytes();
    }
    return bytes;
}
inline double flops(const AttentionCase &c) {
    double keys = 0;
    for (const int32_t position : c.positions) keys += position + 1 - c.shape.first_seen(position);
    return 4.0 * c.shape.heads * c.shape.head_dim * keys;
}

} // namespace batchllm::cuda
