// A token batch -> the work of its layers with a state: the nodes that have tokens, level by level
// (backend/state_levels.h), divided into pieces for tasks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace batchllm::cpu {

struct StateWork {
    struct Node {
        int32_t state; // slot
        int32_t from;  // slot of the state before its first token of the batch; -1: zeros
        int32_t token_begin, token_count;
    };
    struct Piece { // tokens [begin, end) of a node
        int32_t node;
        int32_t begin, end;
    };
    struct Level {
        size_t node_begin, node_end;
        size_t piece_begin, piece_end;
    };
    std::vector<Node> nodes;
    std::vector<Piece> pieces;
    std::vector<Level> levels;

    void prepare(const TokenBatch &batch);
};

} // namespace batchllm::cpu
