// A fake language model that checks every token batch. Each KV slot holds the token, its position
// and a hash of all tokens up to it, so that a page written or read wrongly, now or many steps ago,
// changes the hash and is detected. The next token is a function of the hash, just as a real
// model's greedy token is a function of the context, so outputs can be compared with
// reference_output.
//
// With state slots, a node's slot holds a hash of all tokens up to its last one. The node's first
// token continues the hash in the parent's slot, further tokens that in its own slot.
//
// Each KV group stores all of this on separate pages. A window is at least 2: the position before a
// token is always kept, and its hash covers the whole context, so every group's chain of hashes
// continues.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

inline uint64_t context_hash(uint64_t before, int32_t token) {
    uint64_t x = (before ^ static_cast<uint32_t>(token)) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

constexpr int32_t model_eos = 0;
constexpr int32_t model_vocabulary = 997;

// One in `mean_length` next tokens is the EOS.
inline int32_t next_token(uint64_t hash, int32_t mean_length) {
    if (hash % static_cast<uint64_t>(mean_length) == 0) return model_eos;
    return 1 + static_cast<int32_t>((hash >> 20) % (model_vocabulary - 1));
}

inline float target_logprob(uint64_t hash, int32_t target) {
    return -static_cast<float>(context_hash(hash, target) % 1000) / 100.0f;
}

class CheckedModel {
  public:
    CheckedModel(int64_t pages, int32_t page_tokens, int64_t step_tokens, int32_t mean_length,
                 std::vector<int32_t> windows = {0}, int64_t state_slots = 0)
        : page_tokens_(page_tokens), step_tokens_(step_tokens), mean_length_(mean_length),
          windows_(std::move(windows)), states_(static_cast<size_t>(state_slots)),
          slots_(static_cast<size_t>(pages * page_tokens)),
          page_user_(static_cast<size_t>(pages), 0) {}

    // Returns "" or an error in the batch.
    std::string run(const TokenBatch &batch, BatchOutput *output);

  private:
    struct Slot {
        int32_t token = -1;
        int32_t position = -1;
        int32_t group = -1;
        uint64_t hash = 0;
    };
    std::string check_node(const TokenBatch &batch, size_t i, int32_t tokens_before);
    std::string check_table(const TokenBatch &batch, size_t g, size_t i, int64_t first_query,
                            int64_t *listed);
    std::string check_slots(const TokenBatch &batch, size_t g, size_t i);
    std::string check_state(const TokenBatch &batch, size_t i);

    Slot &slot(const TokenBatch &batch, size_t group, size_t node, int32_t i) {
        const int32_t page = batch.pages[group].page(static_cast<int32_t>(node), i / page_tokens_);
        return slots_[static_cast<size_t>(page) * static_cast<size_t>(page_tokens_) +
                      static_cast<size_t>(i % page_tokens_)];
    }

    int32_t page_tokens_;
    int64_t step_tokens_;
    int32_t mean_length_;
    std::vector<int32_t> windows_; // [KV groups]
    struct State {
        int32_t end = -1; // position after its last token
        uint64_t hash = 0;
        uint64_t step = 0; // last step in which a node used the slot
    };
    uint64_t step_ = 0;
    std::vector<State> states_;
    std::vector<Slot> slots_;
    std::vector<uint64_t> page_user_;  // [pages] last step in which a node used the page
    std::vector<uint64_t> last_hash_;  // [nodes] of the batch, for the group being checked
    std::vector<uint64_t> token_hash_; // [tokens] of the batch
};

inline std::string fault(const char *what, int64_t a = 0, int64_t b = 0) {
    char text[160];
    std::snprintf(text, sizeof text, "%s (%lld, %lld)", what, static_cast<long long>(a),
                  static_cast<long long>(b));
    return text;
}

inline std::string CheckedModel::check_node(const TokenBatch &batch, size_t i,
                                            int32_t tokens_before) {
    const ContextNode &node = batch.nodes[i];
    int32_t start = 0;
    if (node.parent >= 0) {
        if (node.parent >= static_cast<int32_t>(i)) return fault("a parent behind its child");
        const ContextNode &parent = batch.nodes[static_cast<size_t>(node.parent)];
        if (!parent.shared) return fault("a parent that is not shared");
        start = parent.start + parent.length;
    }
    if (node.start != start) return fault("a node does not start where its parent ends");
    if (node.length < 1 || node.token_count < 0 || node.token_count > node.length)
        return fault("impossible length", node.length, node.token_count);
    if (node.token_begin != tokens_before) return fault("tokens not node by node");
    return "";
}

// Checks the node's pages in a group: they include all that a query sees, come after those of
// earlier nodes, and occur nowhere else in the batch.
inline std::string CheckedModel::check_table(const TokenBatch &batch, size_t g, size_t i,
                                             int64_t first_query, int64_t *listed) {
    const ContextNode &node = batch.nodes[i];
    const NodePages &pages = batch.pages[g].nodes[i];
    const int32_t columns = (node.length + page_tokens_ - 1) / page_tokens_;
    if (pages.first < 0 || pages.first > columns) return fault("no such first page", pages.first);
    if (pages.begin + pages.first != *listed) return fault("pages not node by node", pages.begin);
    *listed += columns - pages.first;
    if (*listed > static_cast<int64_t>(batch.pages[g].list.size()))
        return fault("pages outside the batch");
    const int64_t seen = windows_[g] == 0
                             ? node.start
                             : std::max<int64_t>(node.start, first_query - windows_[g] + 1);
    if (seen < node.start + node.length && seen - node.start < int64_t{pages.first} * page_tokens_)
        return fault("a page that a token sees was given back", seen, pages.first);
    for (int32_t j = pages.first; j < columns; ++j) {
        const int32_t page = batch.pages[g].page(static_cast<int32_t>(i), j);
        if (page < 0 || page >= static_cast<int64_t>(page_user_.size()))
            return fault("no such page", page);
        if (page_user_[static_cast<size_t>(page)] == step_) return fault("a page of two nodes");
        page_user_[static_cast<size_t>(page)] = step_;
    }
    return "";
}

// Stores the node's tokens, and checks those stored earlier.
inline std::string CheckedModel::check_slots(const TokenBatch &batch, size_t g, size_t i) {
    const ContextNode &node = batch.nodes[i];
    const int32_t start = node.start;
    uint64_t hash = node.parent < 0 ? 1 : last_hash_[static_cast<size_t>(node.parent)];
    const int32_t first = batch.pages[g].nodes[i].first * page_tokens_;
    for (int32_t j = std::min(first, node.length); j < node.length; ++j) {
        Slot &stored = slot(batch, g, i, j);
        const int32_t computed = node.length - node.token_count;
        if (j >= computed) {
            const size_t token = static_cast<size_t>(node.token_begin + j - computed);
            if (batch.positions[token] != start + j)
                return fault("wrong position", batch.positions[token], start + j);
            stored = {batch.tokens[token], start + j, static_cast<int32_t>(g),
                      context_hash(hash, batch.tokens[token])};
            if (g > 0 && token_hash_[token] != stored.hash)
                return fault("KV groups differ", start + j);
            token_hash_[token] = stored.hash;
        }
        // The position before the first kept one was released: the chain begins here.
        const bool begins = j == first && first > 0 && j < computed;
        if (stored.position != start + j || stored.group != static_cast<int32_t>(g) ||
            (!begins && stored.hash != context_hash(hash, stored.token)))
            return fault("keys and values are not this context's", start + j);
        hash = stored.hash;
    }
    last_hash_[i] = hash;
    return "";
}

// Called after the slots of a group, which compute the hashes of the batch's tokens.
inline std::string CheckedModel::check_state(const TokenBatch &batch, size_t i) {
    const ContextNode &node = batch.nodes[i];
    if (states_.empty()) return node.state == -1 ? "" : fault("a state slot in a model without");
    if (node.state < 0 || node.state >= static_cast<int64_t>(states_.size()))
        return fault("no such state slot", node.state);
    State &state = states_[static_cast<size_t>(node.state)];
    if (state.step == step_) return fault("a state slot of two nodes", node.state);
    state.step = step_;
    const int32_t begin = node.start + node.length - node.token_count;
    if (begin == node.start && node.parent < 0) {
        state.end = 0;
        state.hash = 1;
    } else if (begin == node.start) {
        const ContextNode &parent = batch.nodes[static_cast<size_t>(node.parent)];
        const State &from = states_[static_cast<size_t>(parent.state)];
        state.end = from.end;
        state.hash = from.hash;
    }
    if (state.end != begin) return fault("a state of another length", state.end, begin);
    for (int32_t t = node.token_begin; t < node.token_begin + node.token_count; ++t) {
        state.hash = context_hash(state.hash, batch.tokens[static_cast<size_t>(t)]);
        state.end += 1;
        if (state.hash != token_hash_[static_cast<size_t>(t)])
            return fault("the state is not this context's",
                         batch.positions[static_cast<size_t>(t)]);
    }
    return "";
}

inline std::string CheckedModel::run(const TokenBatch &batch, BatchOutput *output) {
    ++step_;
    const auto tokens = static_cast<int64_t>(batch.tokens.size());
    if (tokens > step_tokens_) return fault("more tokens than the budget", tokens, step_tokens_);
    if (batch.positions.size() != batch.tokens.size()) return fault("positions without tokens");
    last_hash_.assign(batch.nodes.size(), 0);
    token_hash_.assign(batch.tokens.size(), 0);
    int32_t before = 0;
    for (size_t i = 0; i < batch.nodes.size(); ++i) {
        if (std::string wrong = check_node(batch, i, before); !wrong.empty()) return wrong;
        before += batch.nodes[i].token_count;
    }
    if (before != tokens) return fault("tokens outside the nodes", before, tokens);
    if (batch.pages.size() != windows_.size()) return fault("wrong number of KV groups");
    // [nodes] the first position in the batch that sees the node; INT64_MAX: none does.
    std::vector<int64_t> first_query(batch.nodes.size(), INT64_MAX);
    for (size_t i = 0; i < batch.nodes.size(); ++i) {
        const ContextNode &node = batch.nodes[i];
        if (node.token_count == 0) continue;
        for (int32_t n = static_cast<int32_t>(i); n >= 0;
             n = batch.nodes[static_cast<size_t>(n)].parent) {
            int64_t &first = first_query[static_cast<size_t>(n)];
            first = std::min(first, int64_t{node.start} + node.length - node.token_count);
        }
    }
    for (size_t g = 0; g < windows_.size(); ++g) {
        if (batch.pages[g].nodes.size() != batch.nodes.size()) return fault("nodes without pages");
        int64_t listed = 0;
        for (size_t i = 0; i < batch.nodes.size(); ++i) {
            std::string wrong = check_table(batch, g, i, first_query[i], &listed);
            if (wrong.empty()) wrong = check_slots(batch, g, i);
            if (!wrong.empty()) return wrong;
        }
        if (listed != static_cast<int64_t>(batch.pages[g].list.size()))
            return fault("pages outside the nodes");
    }
    for (size_t i = 0; i < batch.nodes.size(); ++i) {
        if (std::string wrong = check_state(batch, i); !wrong.empty()) return wrong;
    }
    output->samples.assign(batch.outputs.size(), {});
    output->target_logprobs.clear();
    for (size_t i = 0; i < batch.outputs.size(); ++i) {
        const OutputRow &row = batch.outputs[i];
        if (row.token < 0 || row.token >= tokens) return fault("logits of no token", row.token);
        const uint64_t hash = token_hash_[static_cast<size_t>(row.token)];
        if (row.sample.position != batch.positions[static_cast<size_t>(row.token)] + 1)
            return fault("wrong position of the sampled token", row.sample.position);
        for (const int32_t target : row.targets)
            output->target_logprobs.push_back(target_logprob(hash, target));
        if (row.task == Task::generate) output->samples[i].token = next_token(hash, mean_length_);
    }
    return "";
}

} // namespace batchllm
