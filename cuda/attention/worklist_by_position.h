// A token batch's context nodes -> a worklist with which a row's attention is the same bits
// whatever else is in the batch (AttentionArguments::by_row).
//
// Where a node's keys are cut depends only on their positions in the node. A token has a partial
// for each of these segments in which it sees a key, and they are merged in the order of positions.
// All items are in the matrix queue and have the same form. Which tokens read a segment together
// does not matter.
#pragma once

#include "attention/worklist.h"

namespace batchllm::cuda {

// The end of the segment of a node's keys that begins with key `begin`.
constexpr int32_t segment_end(int32_t begin) { return begin < 16384 ? begin + 4096 : 2 * begin; }

// tokens: the number in the batch. Of the options, only the shape, sms, share and item_rows are
// used.
void build_worklist_by_position(std::span<const AttentionNode> nodes, int32_t tokens,
                                const WorklistOptions &options, Worklist *worklist);

} // namespace batchllm::cuda
