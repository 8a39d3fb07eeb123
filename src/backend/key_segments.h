// Partials that a reproducible step of the CUDA backend has room for. Its attention cuts a node's keys at places that the
// node alone decides (cuda/attention/worklist_by_position.h); cuda/step holds those against these.
#pragma once

#include <cstdint>

namespace batchllm {

// The end of the segment of a node's keys that begins with key `begin`.
constexpr int32_t key_segment_end(int32_t begin) {
    return begin < 16384 ? begin + 4096 : 2 * begin;
}

// Most segments of so many keys.
constexpr int32_t count_segments(int32_t keys) {
    int32_t count = 0;
    for (int32_t begin = 0; begin < keys && begin < 1 << 29; begin = key_segment_end(begin))
        ++count;
    return count;
}

// Most partials of a token whose context, of so many keys, lies in up to four nodes: a common head, its group's
// prefix, its prompt where it has several samples, and its own tokens.
constexpr int32_t most_partials(int32_t keys) {
    int32_t most = 0;
    for (int32_t nodes = 1; nodes <= 4; ++nodes) {
        // Segments grow: keys in equal parts make most of them, but for what is begun in each.
        const int32_t count = nodes * count_segments((keys + nodes - 1) / nodes) + nodes - 1;
        most = count > most ? count : most;
    }
    return most;
}

} // namespace batchllm
