// A token batch's context nodes -> the attention worklist that every layer of the step reuses.
//
// Decides, node by node, whether the queries that share a prefix read it together (one item over the
// stacked rows, merged with each row's own part) or each for itself, by the modelled time of both;
// splits items along their keys until no job is longer than a share of the whole; orders each queue
// longest first; and divides the SMs between the queues so that both end together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"

namespace batchllm::cuda {

struct WorklistOptions {
    int32_t heads = 0, kv_heads = 0, head_dim = 0;
    int32_t window = 0;
    int32_t sms = 132;
    // Modelled costs on one of the sms SMs, measured by bench/attention; a key read by several items
    // comes from L2.
    double wide_us = 1.85;     // 128 keys of a matrix item of more than kNarrowRows query rows
    double narrow_us = 0.6;    // 64 keys of one of fewer
    double stream_us = 0.55;   // 64 keys
    double item_us = 1.5;      // start and end of a job
    double decode_share = 0.7; // of a stream job's, where a step computes no prompt
    double merge_us = 0.04;    // writing and merging one partial row of one head
    double share_us = 0.6;     // what sharing must save of a launch, for its partials end it later
    double bytes_us = 4.4e6;   // from memory
    double matrix_split = 0.9; // no job longer than its queue's share of an SM's time over this
    double stream_split = 4;
    // Whether queries are stacked on a shared prefix: where it is faster, or for comparison never
    // (share false) or wherever several queries read one.
    bool share = true;
    bool always_share = false;
    int32_t item_rows = kNarrowRows; // query rows of an item, where items are cut by position
    // Of e4m3 (kv_bytes 1) matrix items of up to kNarrowRows rows widen keys on the way. Where
    // wide_from_scratch, which the family's set_costs sets, those of more rows read 2-byte pages that
    // launch_widen has made, and are cut to kNarrowRows where that does not pay or there is no room.
    // By position there are none.
    int32_t kv_bytes = 2; // of an element of a key; set before set_costs, as the shape is
    bool wide_from_scratch = false;
    int32_t widened_room = 0;   // pages that AttentionArguments::wide has room for
    double widen_us = 1;        // SM time of widening 64 keys and values of a head (predicted)
    double widen_launch_us = 3; // what widened pages must save of a launch (predicted)
};

struct Worklist {
    std::vector<AttentionItem> items; // matrix items, then stream items
    int32_t matrix_items = 0;
    int32_t stream_items = 0;
    int32_t matrix_ctas = 0;    // of options.sms, that take matrix jobs first
    int32_t matrix_by_head = 0; // matrix jobs go head by head instead of item by item
    std::vector<AttentionRow> rows;
    std::vector<PartialRange> partials; // [tokens]
    std::vector<int32_t> merged;        // tokens with partials, those first whose items come first
    int32_t slots = 0;                  // partial rows the workspace must hold
    // Pages to be widened, as indices into the list that page_begin counts in, each once: the i-th is page i of
    // AttentionArguments::wide. Matrix items of more than kNarrowRows rows have such numbers as page_begin.
    std::vector<int32_t> widened;
};

// Tokens that several items cover: each gets its slots, in the order of the items' rows. counts: [tokens] items
// that cover each.
void give_slots(std::span<const int32_t> counts, Worklist *worklist);

// tokens: of the batch. Every batch token must belong to exactly one node.
void build_worklist(std::span<const AttentionNode> nodes, int32_t tokens,
                    const WorklistOptions &options, Worklist *worklist);

} // namespace batchllm::cuda
