// How many partials a reproducible step of the CUDA backend needs room for. Its attention cuts a
// node's keys at places that depend on the node alone (cuda/attention/worklist_by_position.h);
// cuda/step checks those against these numbers.
#pragma once

#include <cstdint>

namespace batchllm {

// The end of the segment of a node's keys that begins with key `begin`.
constexpr int32_t key_segment_end(int32_t begin) {
    return begin < 16384 ? begin + 4096 : 2 * begin;
}

// The maximum number of segments for this many keys.
constexpr int32_t count_segments(int32_t keys) {
    int32_t count = 0;
    for (int32_t begin = 0; begin < keys && begin < 1 << 29; begin = key_segment_end(begin))
        ++count;
    return count;
}

// The maximum number of partials for a token with a context of this many keys in up to four nodes:
// a common head, its group's prefix, its prompt (if it has several samples), and its own tokens.
constexpr int32_t most_partials(int32_t keys) {
    int32_t most = 0;
    for (int32_t nodes = 1; nodes <= 4; ++nodes) {
        // Segments get longer, so keys in equal parts yield the most, except for the segment begun
        // in each node.
        const int32_t count = nodes * count_segments((keys + nodes - 1) / nodes) + nodes - 1;
        most = count > most ? count : most;
    }
    return most;
}

} // namespace batchllm
