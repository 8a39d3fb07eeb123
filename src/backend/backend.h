// What a backend does: holds the weights and the KV pages, and runs one token batch at a time.
//
// KV pages belong to context nodes. A node is a stretch of positions whose keys and values are
// stored together: a shared prefix, or one request's own tokens. A node may continue another (its
// parent): a request's own tokens continue its group's prefix, which may continue a common head. A
// node's tokens start on a page of their own, so a prefix may end anywhere and nothing is copied.
// A node has pages of its own in each of the model's KV groups; pages that have fallen out of the
// group's window are not kept.
//
// A model whose layers have states has, beside pages, state slots of one fixed size: one for every node. What the slot
// holds once a batch has run is the state behind the node's last token. A node whose first token is in the
// batch starts from its parent's state as that is when the parent is complete, or from zeros where there is no
// parent; every other node goes on in its own slot. So a prefix's slot is its snapshot: it is written only
// while the prefix is computed, and every node that continues it reads it once.
//
// A batch token attends to all positions of its node's ancestors, and to those of its own node up
// to itself; both limited to the layer's sliding window. The keys and values of all of a batch's
// tokens are written before any of them attends, so a node's last tokens and its children's first
// ones may share a batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "model/model.h"
#include "sample/sampling.h"

namespace batchllm {

struct ContextNode {
    int32_t parent;      // index into TokenBatch::nodes, less than this node's own; or -1
    int32_t start;       // position of the node's first token: parent's start + length, or 0
    int32_t length;      // its tokens whose keys and values are stored once this batch has run
    int32_t token_begin; // the last token_count of them are computed in this batch, and are in
    int32_t token_count; // TokenBatch::tokens[token_begin, token_begin + token_count); may be 0
    bool shared;         // a prefix, as opposed to one request's own tokens
    int32_t state = -1;  // its state slot; -1: the model has none
};

// A node's pages in a KV group's list. Column i holds tokens [i, i + 1) * page_tokens of the node and is
// list[begin + i]. Columns before `first` are not in the list: no query of the batch sees them.
struct NodePages {
    int32_t begin; // index of column `first`, minus `first`: may be negative
    int32_t first;
};

// The pages of one KV group.
struct GroupPages {
    std::vector<int32_t> list;    // page numbers, node by node
    std::vector<NodePages> nodes; // [TokenBatch::nodes]; equal for groups with the same window

    int32_t page(int32_t node, int32_t column) const {
        return list[static_cast<size_t>(nodes[static_cast<size_t>(node)].begin + column)];
    }
};

// What a row of the data set asks for, and so what a request needs from the tokens that it computes.
enum class Task : uint8_t {
    generate, // a token, sampled from the logits
    score,    // log-probabilities of given tokens
    embed,    // the hidden state, after the last norm
    classify, // the same: the classification head is small, and the runtime computes it
};
constexpr bool embedded(Task task) { return task == Task::embed || task == Task::classify; }

// A result that is wanted of a batch's token.
struct OutputRow {
    int32_t token; // index into TokenBatch::tokens
    Task task = Task::generate;
    int32_t count = 1;                // embed: the sum over this many tokens, from `token` on
    SampleInput sample{};             // generate; with score only the number of likeliest tokens
    std::span<const int32_t> targets; // score: these token ids

    int32_t likeliest() const { return sample.params ? sample.params->prompt_logprobs : 0; }
};

// A token that is not known yet, because the previous batch samples it (Backend::forward). In
// TokenBatch::tokens it stands for the sample of that batch's output row `row`.
constexpr int32_t fed_token(int32_t row) { return -1 - row; }

struct TokenBatch {
    std::vector<int32_t> tokens;    // [tokens] ids, or fed_token()s
    std::vector<int32_t> positions; // [tokens]
    std::vector<ContextNode> nodes; // each token is in exactly one; parents before children
    std::vector<GroupPages> pages;  // [KV groups]
    std::vector<OutputRow> outputs;

    void clear() {
        tokens.clear();
        positions.clear();
        nodes.clear();
        for (GroupPages &group : pages) {
            group.list.clear();
            group.nodes.clear();
        }
        outputs.clear();
    }
};

struct BatchOutput {
    std::vector<SampleOutput> samples;  // [TokenBatch::outputs]; token is -1 unless generate;
                                        // with score only `finite` and `top` are set
    std::vector<float> target_logprobs; // scored rows' targets, one row after the other
    std::vector<float> hidden;          // [embedded rows, BackendInfo::hidden]
};

struct BackendOptions {
    std::string devices;
    std::string compute_type = "auto";
    std::vector<std::pair<std::string, std::string>>
        extra; // batchllm_engine_options.backend_options
    int32_t threads = 0;
    int64_t kv_memory_bytes = 0; // 0: by fraction
    double kv_memory_fraction = 0;
    int64_t step_tokens = 0; // 0: the backend's choice
    uint64_t seed = 0;
    bool reproducible = false;
};

struct BackendInfo {
    std::string name;         // "cpu", "cuda", "sim"
    std::string compute_type; // "bf16", "f32", ...
    std::string device;       // for display: processor or GPU, and what is used of it
    int32_t vocabulary = 0;
    int32_t hidden = 0; // size of a hidden state
    int32_t page_tokens = 0;
    int64_t page_bytes = 0; // keys and values of the layers of one KV group
    int64_t pages = 0;
    std::vector<int32_t> kv_windows = {0}; // of each KV group; 0: a token sees all positions
    int64_t state_slots = 0;               // 0: the model has no state
    int64_t state_bytes = 0;               // of a slot
    int64_t step_tokens = 0;               // maximum tokens of a batch
    int32_t eos_token = -1;                // sim without a model: the id that ends a row, if any
    bool reproducible =
        false; // a row's results are the same bits in whatever batches it is computed
    int32_t batches_in_flight = 1; // most batches gone forward and not collected
    // Steps of so many tokens have a feed-forward's activation within the product of gate and up, in the layers that
    // takes_gated() allows (backend/gated_product.h); 0: none have.
    int64_t gated_tokens = 0;
    std::string warning; // to be logged once; or ""
};

// A batch takes three calls: forward, sample, collect. Between forward and sample the caller may make
// masks while the device computes. Batches are computed one after another, in the order of forward; each
// is sampled before the next goes forward. An error is final: the backend is not used again, only
// destroyed.
class Backend {
  public:
    virtual ~Backend() = default;
    virtual const BackendInfo &info() const = 0;

    // Starts to compute the batch, after those in flight, which must be fewer than
    // info().batches_in_flight. The batch is read before this returns, except for what the spans and
    // pointers of its rows refer to: that must stay unchanged until sample() returns. It may use pages
    // that a batch in flight reads or writes.
    virtual Status forward(const TokenBatch &batch) = 0;

    // Starts to compute the rows' results from the batch that went forward last. masks: [rows], read
    // before this returns, and used only for rows that generate; or empty.
    virtual Status sample(std::span<const TokenMask> masks) = 0;

    // The output of the oldest batch in flight; waits for it.
    virtual Status collect(BatchOutput *output) = 0;

    // Whether collect() would return without waiting.
    virtual bool ready() const { return true; }

    // Whether the sample of such a row can be a fed_token() of the next batch. Never if only one batch is
    // in flight at a time.
    virtual bool feeds(const SampleInput &) const { return false; }

    // Seconds of the batch collected last, on the backend's own clock: modelled time for sim.
    virtual double last_run_seconds() const = 0;
    // How many of them the device waited for masks after the end of forward.
    virtual double last_wait_seconds() const { return 0; }

    Status run(const TokenBatch &batch, BatchOutput *output) {
        RETURN_IF_ERROR(forward(batch));
        RETURN_IF_ERROR(sample({}));
        return collect(output);
    }
};

// Each allocates its KV memory at once. model is borrowed and must outlive the backend.
Result<std::unique_ptr<Backend>> make_cpu_backend(const Model &model,
                                                  const BackendOptions &options);
// Uses only the model's description; null: the shape of Llama-3-8B. Options: src/backend/sim/sim_options.h.
Result<std::unique_ptr<Backend>> make_sim_backend(const Model *model,
                                                  const BackendOptions &options);

} // namespace batchllm
