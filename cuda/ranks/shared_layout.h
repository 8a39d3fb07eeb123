// Where things are in the memory that a rank shares with the others: in all ranks' at the same offsets, since each
// writes to the others' by its own (peers.h). Without CUDA, so that it is tested anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace batchllm::cuda {

// What a rank asks for. Ranks' parts of a model have different widths, so matrices that one has in e4m3 another may have in
// the compute type, and then they ask for different things.
struct SharedAsk {
    int64_t bytes = 0; // of each of two buffers
    int64_t more = 0;
    int64_t logits = 0;
    // Where and how this rank reads the rows that their owners write to it. Empty: it cannot own rows.
    std::vector<int64_t> form_of_rows;
};

// Offsets of what follows the first buffer: the second, what else was asked for, and the signals.
struct SharedLayout {
    int64_t second = 0, more = 0, logits = 0, signals = 0, total = 0;
    bool owns_rows = false; // each rank can, and all read them alike
};

// asked: of all ranks, one at least. There is room for the most that any asks for.
inline SharedLayout shared_layout(std::span<const SharedAsk> asked) {
    constexpr int64_t align = 256; // and so many bytes of signals
    const auto aligned = [](int64_t bytes) { return (bytes + align - 1) / align * align; };
    int64_t each = 0, more = 0, logits = 0;
    bool alike = true;
    for (const SharedAsk &ask : asked) {
        each = std::max(each, aligned(ask.bytes));
        more = std::max(more, aligned(ask.more));
        logits = std::max(logits, aligned(ask.logits));
        alike = alike && ask.form_of_rows == asked.front().form_of_rows;
    }
    const int64_t signals = 2 * each + more + logits;
    return {each,    2 * each,        2 * each + more,
            signals, signals + align, alike && !asked.front().form_of_rows.empty()};
}

} // namespace batchllm::cuda
