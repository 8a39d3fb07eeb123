// A token batch's context nodes -> a worklist by which a row's attention is the same bits whatever else is in the
// batch (AttentionArguments::by_row).
//
// A node's keys are cut where their places in the node say, and nowhere else; a token has a partial of each of
// those segments of which it sees a key, and they are merged in the order of positions. All items are of the
// matrix queue and of one form. Which tokens read a segment together is chosen freely.
#pragma once

#include "attention/worklist.h"

namespace batchllm::cuda {

// The end of the segment of a node's keys that begins with key `begin`.
constexpr int32_t segment_end(int32_t begin) { return begin < 16384 ? begin + 4096 : 2 * begin; }

// tokens: of the batch. Of the options the shape, sms, share and item_rows count.
void build_worklist_by_position(std::span<const AttentionNode> nodes, int32_t tokens,
                                const WorklistOptions &options, Worklist *worklist);

} // namespace batchllm::cuda
