// A token batch's context nodes -> the attention worklist that every layer of the step reuses.
//
// Decides for each node, by modelled time, whether the queries that share a prefix read it together
// (one item over the stacked rows, merged with each row's own part) or separately; splits items
// along their keys until no job is longer than a certain share of the total; orders each queue
// so that long jobs come first and the keys of one prompt stay in L2; and divides the SMs between the
// queues so that both end together.
//
// In chunks of `window` positions, a token sees the keys of its own chunk. Kernels know windows alone, which show a token no
// key before its chunk except where the chunk begins within a page. So an item's tokens are of one chunk, its keys begin with a
// page, and where a chunk begins within one, that page has items of its own, whose tokens are told that their position is the
// chunk's last: then the window begins where the chunk does. Tokens within that page have an item each, whose keys end with
// their own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"

namespace batchllm::cuda {

// Tokens of one node that also see each other's later positions, up to the last one's.
struct SeenTogether {
    int32_t token_begin, token_count;
};

struct WorklistOptions {
    int32_t heads = 0, kv_heads = 0, head_dim = 0;
    int32_t window = 0;
    bool chunked = false; // as Attention's; not with `together`
    int32_t sms = 132;
    // Modelled costs on one of the sms SMs, measured by bench/attention; a key that several items
    // read comes from L2.
    double wide_us = 1.85;     // 128 keys of a matrix item of more than kNarrowRows query rows
    double narrow_us = 0.6;    // 64 keys of one with fewer
    double stream_us = 0.55;   // 64 keys
    double item_us = 1.5;      // start and end of a job
    double decode_share = 0.7; // of a stream job's time if a step computes no prompt
    double merge_us = 0.04;    // to write and merge one partial row of one head
    double share_us = 0.6;     // least saving for sharing, whose partials delay a launch's end
    double bytes_us = 4.4e6;   // bytes per us from memory
    double matrix_split = 0.9; // no job is longer than its queue's share of an SM's time over this
    double stream_split = 4;
    // Whether queries are stacked on a shared prefix: if it is faster, or for comparison never
    // (share false) or always if several queries read it.
    bool share = true;
    bool always_share = false;
    int32_t matrix_rows = kMatrixRows; // query rows of a matrix item
    int32_t item_rows = kNarrowRows;   // of an item if items are cut by position
    // In e4m3 (kv_bytes 1), matrix items of up to kNarrowRows rows widen keys as they read them.
    // With wide_from_scratch, which the family's set_costs sets, items of more rows read 2-byte
    // pages made by launch_widen; they are cut to kNarrowRows if that does not pay off or there is
    // no room. Items cut by position never do.
    int32_t kv_bytes = 2; // bytes of a key's element; set before set_costs, like the shape
    bool wide_from_scratch = false;
    int32_t widened_room = 0;   // pages that AttentionArguments::wide has room for
    double widen_us = 1;        // SM time to widen 64 keys and values of a head (predicted)
    double widen_launch_us = 3; // least saving for widened pages in a launch (predicted)
    // Where not 0 (latents on sm90): items are tiles of this many query rows, 64 keys of which take tile_us. The tiles of up
    // to so many tokens stand beside each other, of matrix items and of stream ones.
    int32_t tile_rows = 0, matrix_tokens = 0, stream_tokens = 0;
    double tile_us = 0;
    std::span<const SeenTogether> together = {};
};

struct Worklist {
    std::vector<AttentionItem> items; // matrix items, then stream items
    int32_t matrix_items = 0;
    int32_t stream_items = 0;
    int32_t matrix_ctas = 0;    // CTAs of options.sms that take matrix jobs first
    int32_t matrix_by_head = 0; // matrix jobs go head by head instead of item by item
    std::vector<AttentionRow> rows;
    std::vector<PartialRange> partials; // [tokens]
    std::vector<int32_t> merged;        // tokens with partials, in the order of their items
    int32_t slots = 0;                  // partial rows that the workspace must hold
    // Pages to widen, as indices into the page list that page_begin refers to, each once: the i-th
    // becomes page i of AttentionArguments::wide. page_begin of matrix items of more than
    // kNarrowRows rows refers to those pages.
    std::vector<int32_t> widened;
};

// Gives each token that several items cover its slots, in the order of the items' rows. counts:
// [tokens] items that cover each.
void give_slots(std::span<const int32_t> counts, Worklist *worklist);

// tokens: the number in the batch. Every batch token must belong to exactly one node.
void build_worklist(std::span<const AttentionNode> nodes, int32_t tokens,
                    const WorklistOptions &options, Worklist *worklist);

} // namespace batchllm::cuda
