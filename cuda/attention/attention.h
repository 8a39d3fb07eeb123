// One attention launch per layer: shared prefixes, prefill chunks and decode together.
//
// The host builds a worklist once per step (attention/worklist.h); every layer reuses it. An item
// is a set of query tokens against up to two stretches of keys. One item and one KV head form a
// job; CTAs take jobs from two queues until both are empty:
//   matrix queue  up to 128 query rows (tokens x query heads of the KV head)
//   stream queue  up to 16 query rows; bound by reading the keys and values
// A token that several items cover gets a partial (O, log-sum-exp) from each; they are merged
// within the launch once all are complete, in slot order, so that the result does not depend on
// timing.
//
// By row (AttentionArguments::by_row), with items that are cut by position
// (attention/worklist_by_position.h) and all in the matrix queue, a row's result is the same bits
// whatever other rows there are: the maximum that is subtracted from its scores depends only on its
// own scores, and partials are merged pairwise.
//
// KV pool of a layer: [page][kv_head][K, V][head_dim / 64][64 keys][64 elements], 2-byte elements,
// the 16-byte chunk c of key k's 128-byte row stored at chunk c ^ (k % 8): the swizzle that wgmma
// reads, so that a block is fetched by plain bulk copies. head_dim is padded to a multiple of 64.
// In e4m3: the same with elements of one byte, chunk c of key k's 64-byte row stored at chunk
// c ^ (k / 2 % 4). A number is its byte's value times a scale of its KV head; the kernels multiply
// by scales in float32, once, so that scaling does not round the factors. Where 2-byte pages pay
// off, launch_widen makes them before the launch.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace batchllm::cuda {

inline constexpr int kPageKeys = 64;
inline constexpr int kMatrixRows = 128; // query rows of a matrix item
inline constexpr int kNarrowRows = 64;  // an item of up to this many does half the work
inline constexpr int kStreamRows = 16;  // query rows of a stream item

// The parts of backend/backend.h's ContextNode that attention needs; both prefixes and requests
// have this form here. The worklist's stretches are pieces of nodes' keys; the plain attention
// reads the nodes.
struct AttentionNode {
    int32_t parent;      // less than its own index, or -1
    int32_t start;       // position of its first key
    int32_t keys;        // how many are stored once the batch has run
    int32_t token_begin; // its last token_count keys are the batch's tokens [token_begin, ...)
    int32_t token_count;
    int32_t page_begin;     // its page i is pages[page_begin + i],
    int32_t first_page = 0; // from this one on: earlier ones have left the window
};

// A stretch of keys: `keys` of them in pages[page_begin...], the first at the start of its page and
// at position `start` of the request.
struct KeyStretch {
    int32_t page_begin;
    int32_t keys;
    int32_t start;
};

struct AttentionItem {
    int32_t row_begin;    // query tokens: rows[row_begin, row_begin + row_count)
    int32_t row_count;    // times the GQA ratio at most kMatrixRows or kStreamRows
    int32_t min_position; // of the query tokens
    int32_t max_position;
    int32_t partial; // nonzero: some of its rows have slots
    int32_t once;    // bit s: no other item reads the keys of stretch s; bit 2: the first page has
                     // an odd index in its node. Of a tile: its first query row among those
                     // of the row_count tokens
    KeyStretch stretch[2]; // keys 0: none
};

// A query token of an item.
struct AttentionRow {
    int32_t token;    // in the batch
    int32_t slot;     // its partial's index in the workspace; -1: this item alone writes the output
    int32_t position; // in its request
    int32_t reserved;
};

// Partials of a token: slots [begin, begin + count). count 0: written directly.
struct PartialRange {
    int32_t begin;
    int32_t count;
};

enum class AttentionType : int32_t { bf16, f16 };

// Bytes of a layer's page in the pool (element_bytes 1 for e4m3) or, with element_bytes 2, in
// AttentionArguments::wide.
constexpr int64_t kv_page_bytes(int32_t kv_heads, int32_t head_dim, int32_t element_bytes) {
    return int64_t{2} * kPageKeys * kv_heads * head_dim * element_bytes;
}

// The offset of element d of key `key` in a block (a page's keys or values of one KV head), in
// elements.
constexpr int32_t place_in_block(int32_t key, int32_t d, int32_t element_bytes) {
    const int32_t chunk = element_bytes == 1 ? (d % 64 / 16 ^ key / 2 % 4) * 16 + d % 16
                                             : (d % 64 / 8 ^ key % 8) * 8 + d % 8;
    return d / 64 * (kPageKeys * 64) + key * 64 + chunk;
}

struct AttentionArguments {
    AttentionType type;
    int32_t heads, kv_heads, head_dim; // head_dim 64, 128, 256 or 512, padding included
    float scale;                       // of the scores, commonly head_dim^-0.5
    int32_t window;                    // positions that a query sees, including its own; 0: all
    const void *q;                     // [tokens, q_stride] 2-byte; head h at h * head_dim
    int64_t q_stride;                  // elements; rows of q and out are at multiples of 16 bytes
    void *out;                         // [tokens, out_stride]
    int64_t out_stride;
    const void *kv;             // the layer's pages
    const int32_t *pages;       // page numbers, indexed by the stretches
    const AttentionItem *items; // [matrix_items + stream_items], each queue in its order
    int32_t matrix_items, stream_items;
    int32_t matrix_ctas;    // CTAs that start with the matrix queue (sm90); 0: none
    int32_t matrix_by_head; // nonzero: all items of one KV head, then of the next (sm90)
    const AttentionRow *rows;
    const PartialRange *partials; // [tokens]
    const int32_t *merged; // [merged_count] tokens whose partials are merged; none in a launch of
                           // some of the items that another launch completes
    int32_t merged_count;
    float *partial_out; // [slots, heads, head_dim] f32, each normalised
    float *partial_lse; // [slots, heads] base 2
    int32_t *arrivals;  // [tokens, kv_heads] zero before and after the launch
    int32_t *queues;    // [4] zero before and after the launch
    float softcap;      // scaled scores s become softcap tanh(s / softcap) before masking; 0: off
    const float
        *sinks; // [heads] f32, or null: one more logit in the sum of the head's rows, unscaled and
                // without a value
    int32_t by_row =
        0; // nonzero: a row's result does not depend on the rows beside it in its items

    // Keys and values in e4m3, where WorklistOptions::kv_bytes was 1. wide: room for the widened
    // pages, in the 2-byte layout and elements of `type`, at least kv_page_bytes(kv_heads,
    // head_dim, 2) * widened_count bytes; owned by the caller, aligned to 128 bytes. Layers may use
    // it one after another.
    int32_t kv_e4m3 = 0;
    int32_t widened_count = 0;                          // size of Worklist::widened
    const int32_t *widened = nullptr;                   // [widened_count] indices into `pages`
    void *wide = nullptr;                               // [widened_count] pages
    const float *k_scale = nullptr, *v_scale = nullptr; // [kv_heads] f32, above 0; null: 1
};

// Whether a launch needs the kernels that support softcaps and sinks.
inline bool special(const AttentionArguments &arguments) {
    return arguments.softcap > 0 || arguments.sinks != nullptr;
}

// Enqueues the launch on `sms` SMs of the current device. Pointers are to device memory.
// attention/family.h says which of these a device runs.
cudaError_t launch_attention_sm80(const AttentionArguments &arguments, int sms,
                                  cudaStream_t stream); // mma.sync, any device from sm_80 on
// The same in the form for devices with little shared memory, so that it can be checked on any
// device.
cudaError_t launch_attention_sm80_small(const AttentionArguments &arguments, int sms,
                                        cudaStream_t stream);
// Enqueues the kernel that fills `wide`, before a launch whose widened_count is not 0; nothing
// else. It is one kernel, with the arguments of the launch as its only parameter and a grid that
// depends only on `sms`, so that a graph that contains it can take another step's arguments. sm_90a
// only: the other families' launches have widened_count 0.
cudaError_t launch_widen(const AttentionArguments &arguments, int sms, cudaStream_t stream);
// Kernels of sm90 count on each item's first stretch having keys that one of its rows sees, and build_worklist() makes no others
// (tests/cuda/test_cuda_worklist.cc asserts it). In launch_attention_512_sm90() and launch_latent_attention_sm90()
// (latent/latent.h) a job without a page would wait for ever: the signal to draw the next job comes with a page.
//
// wgmma, sm_90a only, head_dim up to 256. Uses sms CTAs, one per SM; none waits for one that has
// not started.
cudaError_t launch_attention_sm90(const AttentionArguments &arguments, int sms,
                                  cudaStream_t stream);
// The same for heads of 512, items of up to kNarrowRows query rows, and neither caps, sinks nor by_row.
cudaError_t launch_attention_512_sm90(const AttentionArguments &arguments, int sms,
                                      cudaStream_t stream);

} // namespace batchllm::cuda
