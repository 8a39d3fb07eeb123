// What each thread of the short convolution does. Also for the host, where a test runs all threads of all blocks.
//
// A thread has kConvolvedChannels neighbouring channels and piece after piece: a short item whole, or some tokens of a
// long one. It finds p of the tokens before its first in the item's own rows, or, before the item, in the ring. The
// thread that has an item's first token is the only one that reads the item's ring, and so it writes it too, once it
// has read it: one launch does both, and it does not matter whether `from` is the same slot.
#pragma once

#include <cmath>

#include "recurrent/short_convolution.h"

namespace batchllm::cuda {

constexpr int32_t kPieceTokens = 8; // of a long item
constexpr int32_t kPieces = kStateChunk / kPieceTokens;
constexpr int32_t kConvolutionThreads = 256; // of a block, at most
constexpr int32_t kConvolutionBlocks = 2;    // of so many threads, that an SM's registers hold

// Blocks of a launch: across the channels, and along the pieces, of which a block takes every along-th. The numbers
// depend only on what all replays of a graph share.
struct ConvolutionGrid {
    int32_t across, along, threads;

    explicit ConvolutionGrid(const ShortConvolutionArguments &a) {
        const int32_t vectors = a.channels / kConvolvedChannels;
        across = (vectors + kConvolutionThreads - 1) / kConvolutionThreads;
        threads = ((vectors + across - 1) / across + 31) / 32 * 32;
        const int64_t held =
            int64_t{a.sms} * kConvolutionBlocks * kConvolutionThreads / (int64_t{across} * threads);
        const int64_t most = held > 1 ? held : 1;
        along = static_cast<int32_t>(a.tokens < most ? a.tokens : most);
    }
};

struct ConvolutionPiece {
    StateItem item;
    int32_t begin, end; // of the item's tokens; none if begin >= end

    __host__ __device__ bool keeps_ring() const { return begin == 0; }
};

__host__ __device__ inline int32_t piece_count(const StateLevel &level) {
    return level.chunked - level.begin + (level.chunk_end - level.chunk_begin) * kPieces;
}

__host__ __device__ inline ConvolutionPiece piece_of(const ShortConvolutionArguments &a,
                                                     const StateLevel &level, int32_t index) {
    const int32_t whole = level.chunked - level.begin;
    if (index < whole) {
        const StateItem item = a.items[level.begin + index];
        return {item, 0, item.token_count};
    }
    const int32_t piece = index - whole;
    const StateChunk chunk = a.chunks[level.chunk_begin + piece / kPieces];
    const StateItem item = a.items[chunk.item];
    const int32_t begin = chunk.first + piece % kPieces * kPieceTokens;
    const int32_t end = begin + kPieceTokens;
    return {item, begin, end < item.token_count ? end : item.token_count};
}

// kBiased: whether there are biases, which take registers. Memory: how kConvolvedChannels neighbouring elements are
// read and written; Memory::Raw: what a read returns, before it is widened to f32.
template <typename T, int kWidth, bool kBiased, typename Memory> class ConvolutionThread {
  public:
    __host__ __device__ ConvolutionThread(const ShortConvolutionArguments &a, int32_t vector)
        : a_(a), channel_(vector * kConvolvedChannels) {
        for (int w = 0; w < kWidth; ++w) {
            Memory::load(a.filter + int64_t{w} * a.channels + channel_, filter_[w]);
        }
    }

    __host__ __device__ void run(const ConvolutionPiece &piece) {
        if (piece.begin >= piece.end) return;
        for (int w = 0; w < kBefore; ++w) see(piece.item, piece.begin - kBefore + w, seen_[w]);
        for (int32_t t = piece.begin; t < piece.end; t += kAhead) {
            // All that is read before anything waits for it.
            Inputs inputs[kAhead];
            for (int i = 0; i < kAhead; ++i) {
                if (t + i < piece.end) load(piece.item, t + i, &inputs[i]);
            }
            for (int i = 0; i < kAhead; ++i) {
                if (t + i < piece.end) convolve(inputs[i], int64_t{piece.item.token_begin} + t + i);
            }
        }
        if (piece.keeps_ring()) keep(piece);
    }

  private:
    static constexpr int kBefore = kWidth - 1;
    // Tokens that are loaded together: as many as there are registers for.
    static constexpr int kAhead = sizeof(T) == 2 && !kBiased ? 2 : 1;

    struct Inputs {
        typename Memory::Raw b, c, x;
    };

    __host__ __device__ const T *row(const StateItem &item, int32_t t) const {
        return static_cast<const T *>(a_.projected) + (int64_t{item.token_begin} + t) * a_.stride +
               channel_;
    }
    __host__ __device__ void load(const StateItem &item, int32_t t, Inputs *out) const {
        const T *from = row(item, t);
        out->b = Memory::load(from);
        out->c = Memory::load(from + a_.channels);
        out->x = Memory::load(from + 2 * int64_t{a_.channels});
    }

    // part: 0 of B, 1 of C, 2 of x.
    __host__ __device__ void widen(const typename Memory::Raw &from, int part,
                                   float (&out)[kConvolvedChannels]) const {
        Memory::widen(from, out);
        if (!kBiased || a_.input_bias == nullptr) return;
        float bias[kConvolvedChannels];
        Memory::load(a_.input_bias + int64_t{part} * a_.channels + channel_, bias);
        for (int e = 0; e < kConvolvedChannels; ++e) out[e] += bias[e];
    }
    __host__ __device__ void multiply(const typename Memory::Raw &b, const typename Memory::Raw &x,
                                      float (&out)[kConvolvedChannels]) const {
        float other[kConvolvedChannels];
        widen(b, 0, out);
        widen(x, 2, other);
        for (int e = 0; e < kConvolvedChannels; ++e) out[e] *= other[e];
    }

    // p of the item's token t, which may be one of the last before it.
    __host__ __device__ void see(const StateItem &item, int32_t t,
                                 float (&out)[kConvolvedChannels]) const {
        if (t >= 0) {
            const T *from = row(item, t);
            multiply(Memory::load(from), Memory::load(from + 2 * int64_t{a_.channels}), out);
            return;
        }
        const int32_t position = item.position + t;
        if (position >= 0 && item.from >= 0) {
            Memory::load(ring_row(item.from, position), out);
            return;
        }
        for (int e = 0; e < kConvolvedChannels; ++e) out[e] = 0;
    }

    __host__ __device__ float *ring_row(int32_t slot, int32_t position) const {
        return a_.ring(slot) + int64_t{position % kBefore} * a_.channels + channel_;
    }

    // token: of the step.
    __host__ __device__ void convolve(const Inputs &inputs, int64_t token) {
        multiply(inputs.b, inputs.x, seen_[kBefore]);
        float sum[kConvolvedChannels] = {}, gate[kConvolvedChannels];
        if (kBiased && a_.filter_bias != nullptr) Memory::load(a_.filter_bias + channel_, sum);
        widen(inputs.c, 1, gate);
        for (int e = 0; e < kConvolvedChannels; ++e) {
            for (int w = 0; w < kWidth; ++w) sum[e] = fmaf(filter_[w][e], seen_[w][e], sum[e]);
            sum[e] *= gate[e];
            for (int w = 0; w < kBefore; ++w) seen_[w][e] = seen_[w + 1][e];
        }
        Memory::store(static_cast<T *>(a_.out) + token * a_.channels + channel_, sum);
    }

    // The last width - 1 tokens' p. Those of before the item are in place already if the slot is the same.
    __host__ __device__ void keep(const ConvolutionPiece &piece) {
        const StateItem &item = piece.item;
        const int32_t first = item.token_count - kBefore;
        for (int w = 0; w < kBefore; ++w) {
            const int32_t t = first + w, position = item.position + t;
            if (position < 0 || (t < 0 && item.from == item.state)) continue;
            if (piece.end < item.token_count) see(item, t, seen_[w]); // a long item: t >= 0
            Memory::store(ring_row(item.state, position), seen_[w]);
        }
    }

    const ShortConvolutionArguments &a_;
    int32_t channel_;
    float filter_[kWidth][kConvolvedChannels];
    float seen_[kWidth][kConvolvedChannels]; // p of the last tokens, the newest one's last
};

// A thread of a block that has the pieces first, first + step, ..
template <typename T, int kWidth, bool kBiased, typename Memory> __host__ __device__ void
convolve_pieces(const ShortConvolutionArguments &a, int32_t vector, int32_t first, int32_t step) {
    if (vector * kConvolvedChannels >= a.channels) return;
    ConvolutionThread<T, kWidth, kBiased, Memory> thread(a, vector);
    const StateLevel level = *a.level;
    for (int32_t i = first; i < piece_count(level); i += step) thread.run(piece_of(a, level, i));
}

} // namespace batchllm::cuda
