// A made-up language model that checks every token batch it is given. Each KV slot holds the token,
// its position and a hash of all tokens up to it, so that a page written or read wrongly, now or
// many steps ago, changes the hash and is seen. The next token is a function of the hash, as a real
// model's greedy token is one of the context; so outputs can be compared with reference_output.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
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
    CheckedModel(int64_t pages, int32_t page_tokens, int64_t step_tokens, int32_t mean_length)
        : page_tokens_(page_tokens), step_tokens_(step_tokens), mean_length_(mean_length),
          slots_(static_cast<size_t>(pages * page_tokens)),
          page_user_(static_cast<size_t>(pages), 0) {}

    // "" or what is wrong with the batch.
    std::string run(const TokenBatch &batch, BatchOutput *output);

  private:
    struct Slot {
        int32_t token = -1;
        int32_t position = -1;
        uint64_t hash = 0;
    };
    std::string check_node(const TokenBatch &batch, size_t i, int32_t tokens_before);

    Slot &slot(const TokenBatch &batch, const ContextNode &node, int32_t i) {
        const int32_t page = batch.pages[static_cast<size_t>(node.page_begin + i / page_tokens_)];
        return slots_[static_cast<size_t>(page) * static_cast<size_t>(page_tokens_) +
                      static_cast<size_t>(i % page_tokens_)];
    }

    int32_t page_tokens_;
    int64_t step_tokens_;
    int32_t mean_length_;
    uint64_t step_ = 0;
    std::vector<Slot> slots_;
    std::vector<uint64_t> page_user_;  // [pages] last step in which a node named the page
    std::vector<uint64_t> last_hash_;  // [nodes] of the batch
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
    uint64_t hash = 1;
    if (node.parent >= 0) {
        if (node.parent >= static_cast<int32_t>(i)) return fault("a parent behind its child");
        const ContextNode &parent = batch.nodes[static_cast<size_t>(node.parent)];
        if (!parent.shared) return fault("a parent that is not shared");
        start = parent.start + parent.length;
        hash = last_hash_[static_cast<size_t>(node.parent)];
    }
    if (node.start != start) return fault("a node does not start where its parent ends");
    if (node.length < 1 || node.token_count < 0 || node.token_count > node.length)
        return fault("impossible length", node.length, node.token_count);
    if (node.token_begin != tokens_before) return fault("tokens not node by node");
    if (node.page_count != (node.length + page_tokens_ - 1) / page_tokens_)
        return fault("wrong number of pages", node.page_count, node.length);
    if (node.page_begin < 0 ||
        node.page_begin + node.page_count > static_cast<int64_t>(batch.pages.size()))
        return fault("pages outside the batch");
    for (int32_t j = 0; j < node.page_count; ++j) {
        const int32_t page = batch.pages[static_cast<size_t>(node.page_begin + j)];
        if (page < 0 || page >= static_cast<int64_t>(page_user_.size()))
            return fault("no such page", page);
        if (page_user_[static_cast<size_t>(page)] == step_) return fault("a page of two nodes");
        page_user_[static_cast<size_t>(page)] = step_;
    }
    for (int32_t j = 0; j < node.length; ++j) {
        Slot &stored = slot(batch, node, j);
        const int32_t computed = node.length - node.token_count;
        if (j >= computed) {
            const size_t token = static_cast<size_t>(node.token_begin + j - computed);
            if (batch.positions[token] != start + j)
                return fault("wrong position", batch.positions[token], start + j);
            stored = {batch.tokens[token], start + j, context_hash(hash, batch.tokens[token])};
            token_hash_[token] = stored.hash;
        }
        if (stored.position != start + j || stored.hash != context_hash(hash, stored.token))
            return fault("keys and values are not this context's", start + j);
        hash = stored.hash;
    }
    last_hash_[i] = hash;
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
    int64_t pages = 0;
    for (size_t i = 0; i < batch.nodes.size(); ++i) {
        if (std::string wrong = check_node(batch, i, before); !wrong.empty()) return wrong;
        before += batch.nodes[i].token_count;
        pages += batch.nodes[i].page_count;
    }
    if (before != tokens) return fault("tokens outside the nodes", before, tokens);
    if (pages != static_cast<int64_t>(batch.pages.size())) return fault("pages outside the nodes");
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
