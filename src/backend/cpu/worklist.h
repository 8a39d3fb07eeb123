// A token batch -> the work of attention: which query tokens attend to which range of which node.
//
// Phase one takes each context node once: the batch's tokens that see it, its own and those of all
// its descendants, are stacked against its keys and values, which are thus read once for all of
// them (RelayAttention, ChunkAttention). Each range gives a token one part: a softmax over that
// range of positions. Phase two merges a token's parts by log-sum-exp.
//
// Built once per step, and used by every layer with the same window and head shape. Always: the
// parts of a token cover the positions that it sees, each once; an item belongs to one node;
// positions and tokens are divided into items that keep the threads busy; the same batch gives the
// same list.
//
// In order (CpuWorklistOptions::stretch): a token has one part for each stretch of that many positions
// that it sees in its row, wherever the nodes begin. If a stretch spans several nodes, each node's
// item continues the part that the previous one left, in a later wave.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace batchllm::cpu {

// Some query tokens against the positions [key_begin, key_end) of a node.
struct CpuAttentionItem {
    int32_t node;
    int32_t key_begin; // node-local, a multiple of kGroupTokens
    int32_t key_end;
    int32_t query_begin; // CpuWorklist::queries[query_begin, query_begin + query_count)
    int32_t query_count;
    int32_t wave; // runs after the items of earlier waves
};

struct AttentionQuery {
    int32_t token;         // of the batch
    int32_t visible_begin; // node-local positions that the token sees
    int32_t visible_end;
    int32_t part; // index of its result: CpuWorklist::part_begin of its row, or after it
    bool goes_on; // continues the part stored there
};

// Items [item_begin, item_end), one KV head after another: one task of the thread pool.
struct AttentionTask {
    int32_t item_begin;
    int32_t item_end;
    int32_t kv_head;
};

struct CpuWorklist {
    std::vector<CpuAttentionItem> items;
    std::vector<AttentionQuery> queries;
    std::vector<AttentionTask> tasks; // wave by wave, longest first
    std::vector<int32_t> wave_end;    // [waves] index into tasks
    std::vector<int32_t> part_begin;  // [rows + 1] parts of a row: [part_begin[r], part_begin[r+1])
    bool in_order = false;
    int32_t rows = 0;         // tokens that attend
    int32_t most_queries = 0; // of any item
    int32_t most_groups = 0;  // key groups up to the end of any item
};

// For a model's layers. Long, because a row must merge a part for each stretch, but short enough
// for one long row to keep several threads busy.
constexpr int32_t kStretchKeys = 1024;

struct CpuWorklistOptions {
    int32_t window = 0;   // positions that a token sees, including its own; 0: all
    bool chunked = false; // as Attention's
    int32_t gqa_ratio = 1;
    int32_t kv_heads = 1;
    int32_t threads = 1;
    int32_t stretch = 0; // positions, a multiple of kGroupTokens; 0: not in order
    // A token of a picture also sees the picture's later tokens, which are in its node and in the batch.
    bool pictures = false;

    bool operator==(const CpuWorklistOptions &) const = default;
};

// rows[token]: the row that the token's result goes to, or -1 if its result is not wanted. Rows
// count from 0 without gaps. If rows is empty, every token is its own row.
void build_worklist(const TokenBatch &batch, const std::vector<int32_t> &rows,
                    const CpuWorklistOptions &options, CpuWorklist *list);

} // namespace batchllm::cpu
