// What a backend does: holds the weights and the KV pages, and runs one token batch at a time.
//
// KV pages belong to context nodes. A node is a stretch of positions whose keys and values are
// stored together: a shared prefix, or one request's own tokens. A node may continue another (its
// parent): a request's own tokens continue its group's prefix, which may continue a common head. A
// node's tokens start on a page of their own, so a prefix may end anywhere and nothing is copied.
// Each of the model's KV groups has pages of its own for a node; those that have fallen out of the
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
    int32_t token_begin; // the last token_count of them are computed in this batch and stand at
    int32_t token_count; // TokenBatch::tokens[token_begin, token_begin + token_count); may be 0
    bool shared;         // a prefix, as opposed to one request's own tokens
    int32_t state = -1;  // its state slot; -1: the model has none
};

// A node's pages in a KV group's list: column i, which has tokens [i, i + 1) * page_tokens of the node, is
// list[begin + i]. Columns before `first` are not in the list: no query of the batch sees them.
struct NodePages {
    int32_t begin; // may be negative: that of column `first`, less `first`
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

// What a row of the data set wants, and so what a request wants of the tokens that it computes.
enum class Task : uint8_t {
    generate, // a token, sampled from the logits
    score,    // log-probabilities of given tokens
    embed,    // the hidden state, after the last norm
    classify, // the same: the head that it goes through is small and is the runtime's
};
constexpr bool embedded(Task task) { return task == Task::embed || task == Task::classify; }

// A token of the batch whose result is wanted.
struct OutputRow {
    int32_t token; // index into TokenBatch::tokens
    Task task = Task::generate;
    int32_t count = 1;                // embed: the sum over so many tokens, from `token` on
    SampleInput sample{};             // generate; of score, how many of the likeliest to list
    std::span<const int32_t> targets; // score: these token ids

    int32_t likeliest() const { return sample.params ? sample.params->prompt_logprobs : 0; }
};

// A token that the batch before this one samples and that is not known yet (Backend::forward): stands in
// TokenBatch::tokens for the sample of that batch's output row `row`.
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
    std::vector<SampleOutput> samples;  // [TokenBatch::outputs]; token -1 but for generate, and
                                        // of score only `finite` and `top`
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
    std::string device;       // for people: processor or GPU, and what is used of it
    int32_t vocabulary = 0;
    int32_t hidden = 0; // size of a hidden state
    int32_t page_tokens = 0;
    int64_t page_bytes = 0; // keys and values of the layers of one KV group
    int64_t pages = 0;
    std::vector<int32_t> kv_windows = {0}; // of each KV group; 0: a token sees all positions
    int64_t state_slots = 0;               // 0: the model has no state
    int64_t state_bytes = 0;               // of a slot
    int64_t step_tokens = 0;               // most tokens that one batch may hold
    int32_t eos_token = -1;                // sim without a model: the id that ends a row, if any
    bool reproducible =
        false; // a row's results are the same bits in whatever batches it is computed
    int32_t batches_in_flight = 1; // most batches gone forward and not collected
    std::string warning;           // to be logged once; or ""
};

// A batch takes three calls: forward, sample, collect. Between forward and sample the caller may make
// masks while the device computes. Batches are computed one after another, in the order of forward; each
// is sampled before the next goes forward. An error is final: the backend is not used again, but to be
// destroyed.
class Backend {
  public:
    virtual ~Backend() = default;
    virtual const BackendInfo &info() const = 0;

    // Starts to compute the batch, behind those in flight, of which there are fewer than
    // info().batches_in_flight. The batch is read before this returns, but for what the spans and pointers of
    // its rows lead to: that stays as it is until sample() returns. Its pages may be those that a
    // batch in flight reads or writes.
    virtual Status forward(const TokenBatch &batch) = 0;

    // Starts to take what its rows want from the batch that went forward last. masks: [rows], of which
    // those of rows that generate count, read before this returns; or none at all.
    virtual Status sample(std::span<const TokenMask> masks) = 0;

    // The output of the oldest batch in flight; waits for it.
    virtual Status collect(BatchOutput *output) = 0;

    // collect() would not wait.
    virtual bool ready() const { return true; }

    // The sample of such a row can be a fed_token() of the next batch. Never where one batch is in
    // flight at a time.
    virtual bool feeds(const SampleInput &) const { return false; }

    // Seconds of the batch collected last, on the backend's own clock: modelled time for sim.
    virtual double last_run_seconds() const = 0;
    // Of those, how long the device stood still between a forward's end and the masks.
    virtual double last_wait_seconds() const { return 0; }

    Status run(const TokenBatch &batch, BatchOutput *output) {
        RETURN_IF_ERROR(forward(batch));
        RETURN_IF_ERROR(sample({}));
        return collect(output);
    }
};

// Each takes its KV memory at once. model is borrowed and must outlive the backend.
Result<std::unique_ptr<Backend>> make_cpu_backend(const Model &model,
                                                  const BackendOptions &options);
// model, of which only the description counts, may be null: the shape of Llama-3-8B then. Options: src/backend/sim/sim_backend.h.
Result<std::unique_ptr<Backend>> make_sim_backend(const Model *model,
                                                  const BackendOptions &options);

} // namespace batchllm
