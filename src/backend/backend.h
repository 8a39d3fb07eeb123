// What a backend does: it stores the weights and the KV pages, and runs one token batch at a time.
//
// KV pages belong to context nodes. A node is a range of positions whose keys and values are stored
// together: a shared prefix, or one request's own tokens. A node may continue another (its parent):
// a request's own tokens continue its group's prefix, which may continue a common head. A node's
// tokens start on a page of their own, so a prefix may end anywhere and nothing is copied. A node
// has separate pages in each of the model's KV groups; pages that have fallen out of the group's
// window are released.
//
// If the model's layers have states, each node also has a state slot; all slots have the same size.
// Once a batch has run, the slot contains the state after the node's last token. A node whose first
// token is in the batch starts from the state of its complete parent, or from zeros if it has no
// parent; any other node continues in its own slot. So a prefix's slot is a snapshot: it is written
// only while the prefix is computed, and every node that continues the prefix reads it once.
//
// A batch token attends to all positions of its node's ancestors, and to those of its own node up
// to itself, within the layer's sliding window. The keys and values of all tokens of a batch are
// written before any token attends, so a node's last tokens and its children's first tokens may be
// in one batch.
//
// A node's tokens all go through the same adapter, or through none, as those of its ancestors did. A
// row's results are the same whatever adapters the batch's other nodes have.
//
// Some tokens stand for a part of a picture. Their ids are all the model's placeholder; what they are
// is the output of the model's tower for a picture that has been loaded (load_pictures), in place of
// the embedding.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "image/picture.h"
#include "model/adapter.h"
#include "model/model.h"
#include "sample/sampling.h"

namespace batchllm {

struct ContextNode {
    int32_t parent;       // index into TokenBatch::nodes, smaller than this node's own; or -1
    int32_t start;        // position of the node's first token: parent's start + length, or 0
    int32_t length;       // tokens whose keys and values are stored once this batch has run
    int32_t token_begin;  // the last token_count of them are computed in this batch, and are in
    int32_t token_count;  // TokenBatch::tokens[token_begin, token_begin + token_count); may be 0
    bool shared;          // a prefix, not one request's own tokens
    int32_t state = -1;   // state slot; -1: the model has no state
    int32_t adapter = -1; // of its tokens in this batch: the slot of a loaded adapter
                          // (Backend::load_adapter); -1: none
};

// A node's pages in the list of a KV group. Column i has the node's tokens [i, i + 1) * page_tokens
// and is list[begin + i]. Columns before `first` are not in the list, because no query of the batch
// sees them.
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

// A result that the caller wants from a token of the batch.
struct OutputRow {
    int32_t token; // index into TokenBatch::tokens
    Task task = Task::generate;
    int32_t count = 1;                // embed: sum over this many tokens, starting at `token`
    SampleInput sample{};             // generate; score uses only the number of most likely tokens
    std::span<const int32_t> targets; // score: these token ids

    int32_t likeliest() const { return sample.params ? sample.params->prompt_logprobs : 0; }
};

// A token that is not known yet, because the previous batch samples it (Backend::forward). In
// TokenBatch::tokens it stands for the sample of that batch's output row `row`.
constexpr int32_t fed_token(int32_t row) { return -1 - row; }

// Tokens of the batch that stand for consecutive tokens of one picture.
struct PictureTokens {
    int32_t token_begin; // index into TokenBatch::tokens
    int32_t token_count;
    int32_t slot;  // of the loaded picture
    int32_t first; // which of the picture's tokens is at token_begin
};

struct TokenBatch {
    std::vector<int32_t> tokens;    // [tokens] ids, or fed_token()s
    std::vector<int32_t> positions; // [tokens]
    std::vector<ContextNode> nodes; // each token is in exactly one; parents before children
    std::vector<GroupPages> pages;  // [KV groups]
    std::vector<OutputRow> outputs;
    std::vector<PictureTokens> pictures; // in the order of their tokens
    // [tokens] what ropes turn by; empty: all axes of a token are its position.
    std::vector<RopePosition> rope_positions;

    void clear() {
        tokens.clear();
        positions.clear();
        pictures.clear();
        rope_positions.clear();
        nodes.clear();
        for (GroupPages &group : pages) {
            group.list.clear();
            group.nodes.clear();
        }
        outputs.clear();
    }
};

struct BatchOutput {
    std::vector<SampleOutput> samples;  // [TokenBatch::outputs]; token is -1 unless generate; score
                                        // sets only `finite` and `top`
    std::vector<float> target_logprobs; // of scored rows' targets, row after row
    std::vector<float> hidden;          // [embedded rows, BackendInfo::hidden]
};

struct BackendOptions {
    std::string devices;
    std::string compute_type = "auto";
    std::vector<std::pair<std::string, std::string>>
        extra; // batchllm_engine_options.backend_options
    int32_t threads = 0;
    int64_t kv_memory_bytes = 0; // 0: use the fraction
    double kv_memory_fraction = 0;
    int64_t step_tokens = 0;          // 0: the backend's choice
    int64_t adapter_memory_bytes = 0; // for loaded adapters; 0: the backend's choice
    uint64_t seed = 0;
    bool reproducible = false;
};

enum class DeviceKind : uint8_t {
    none, // nothing is computed
    processor,
    gpu,
};

// What is computed on, as far as predictions and prices go by it.
struct ComputeDevice {
    DeviceKind kind = DeviceKind::none;
    std::string name;            // as its maker calls it, alone: "NVIDIA H200"
    double product_flops = 0;    // per second at most, in 16 bits; 0: unknown
    double memory_bandwidth = 0; // bytes per second at most; 0: unknown
};

struct BackendInfo {
    // For display and errors; nothing is decided by these texts.
    std::string name;         // "cpu", "cuda", "sim"
    std::string compute_type; // "bf16", "f32", ...
    std::string device;       // the processor or GPU, and which of its features are used

    ComputeDevice computes_on;
    bool products_in_fp8 = false; // all or some of the layers'
    int32_t vocabulary = 0;
    int32_t hidden = 0; // size of a hidden state
    int32_t page_tokens = 0;
    int64_t page_bytes = 0; // keys and values in the layers of one KV group
    int64_t pages = 0;
    std::vector<int32_t> kv_windows = {0}; // one per KV group; 0: a token sees all positions
    int64_t state_slots = 0;               // 0: the model has no state
    int64_t state_bytes = 0;               // per slot
    int64_t step_tokens = 0;               // maximum tokens per batch
    int64_t weight_bytes = 0; // memory that the model's weights take; sim: that they would take
    // How many adapters can be loaded at the same time, and how many bytes all of them may take
    // (Backend::adapter_bytes); 0: this backend has no adapters.
    int32_t adapter_slots = 0;
    int64_t adapter_bytes = 0;
    // How many pictures can be loaded at the same time, and how many tokens all of them may have; 0:
    // this backend computes no pictures.
    int32_t picture_slots = 0;
    int64_t picture_tokens = 0;
    int64_t picture_patches = 0; // of the largest picture; 0: any
    std::string no_pictures;   // why it computes none, where another option would; for rows' errors
    int32_t eos_token = -1;    // sim without a model: the id that ends a row; -1: none
    bool reproducible = false; // a row's results are the same bits whatever batches compute it
    int32_t batches_in_flight = 1; // maximum number of batches that have gone forward but are not
                                   // collected
    // Steps of at least this many tokens compute a feed-forward's activation inside the product of
    // gate and up, where a layer allows it; 0: no steps do.
    int64_t gated_tokens = 0;
    std::string warning; // to be logged once; "": none
};

// A picture that is to be loaded into a free slot, from 0 to BackendInfo::picture_slots - 1.
struct PictureLoad {
    int32_t slot;
    std::shared_ptr<const PreparedPicture> picture;
};

// An adapter in the form that a backend loads.
struct PackedAdapter {
    virtual ~PackedAdapter() = default;
};

// What loaded adapters have taken at most, with layers that are merged with one (0: it is not counted), and how many batches
// ran on such layers.
struct AdapterUse {
    int64_t bytes_peak = 0, merged_batches = 0;
};

// A batch takes three calls: forward, sample, collect. Between forward and sample the caller may
// make masks while the device computes. Batches are computed one after another, in the order of
// forward; each is sampled before the next goes forward. An error is final: afterwards the backend
// may only be destroyed.
class Backend {
  public:
    virtual ~Backend() = default;
    virtual const BackendInfo &info() const = 0;

    // Starts to compute the batch, after those in flight, which must be fewer than
    // info().batches_in_flight. The batch is read before this returns, except for what its rows'
    // spans and pointers refer to, which must stay unchanged until sample() returns. The batch may
    // use pages that a batch in flight reads or writes.
    virtual Status forward(const TokenBatch &batch) = 0;

    // Starts to compute the rows' results from the batch that went forward last. masks: [rows] or
    // empty; read before this returns, and used only for rows that generate.
    virtual Status sample(std::span<const TokenMask> masks) = 0;

    // The output of the oldest batch in flight; waits for it.
    virtual Status collect(BatchOutput *output) = 0;

    // Whether collect() would return without waiting.
    virtual bool ready() const { return true; }

    // Whether the sample of such a row can be a fed_token() of the next batch. Never true if only
    // one batch can be in flight.
    virtual bool feeds(const SampleInput &) const { return false; }

    // How many of info().adapter_bytes the adapter takes while it is loaded. UNSUPPORTED if it
    // changes a matrix for which this backend has no adapters. Any thread, at any time.
    virtual Result<int64_t> adapter_bytes(const Adapter &) const {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "the %s backend has no adapters",
                     info().name.c_str());
    }
    // What is to be done before an adapter can be loaded. Any thread, several at a time, while the
    // backend computes. The backend may keep the adapter and read it until it has been loaded.
    virtual Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter> adapter) const {
        return adapter_bytes(*adapter).status();
    }
    // Puts an adapter that this backend has packed into a free slot, from 0 to info().adapter_slots
    // - 1, for the batches that go forward afterwards. May return before the adapter is on the
    // device, and does not wait for batches in flight; forward() may wait for copies on the host. The
    // backend keeps `packed` as long as it needs it. The caller sees to it that all loaded adapters take no more than info().adapter_bytes.
    virtual Status load_adapter(int32_t, std::shared_ptr<const PackedAdapter>) { return {}; }
    // Frees a slot. No batch in flight uses it.
    virtual void unload_adapter(int32_t) {}
    virtual AdapterUse adapter_use() const { return {}; }

    // Starts to compute the tower's outputs of these pictures, in one go, for the batches that go
    // forward afterwards. The caller sees to it that all loaded pictures have no more than
    // info().picture_tokens tokens.
    virtual Status load_pictures(std::span<const PictureLoad>) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "the %s backend computes no pictures",
                     info().name.c_str());
    }
    // Frees a slot. No batch in flight uses it.
    virtual void unload_picture(int32_t) {}

    // Seconds of the batch collected last, by the backend's own clock: simulated time for sim.
    virtual double last_run_seconds() const = 0;
    // How many of those seconds the device waited for masks after the end of forward.
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
// Uses only the model's description; null: the shape of Llama-3-8B. Options:
// src/backend/sim/sim_options.h.
Result<std::unique_ptr<Backend>> make_sim_backend(const Model *model,
                                                  const BackendOptions &options);

} // namespace batchllm
