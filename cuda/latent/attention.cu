// softmax(scale Q K^T) V, where V is the first elements of K: a page is read once for both.
//
// A block takes 64 query rows (heads of tokens) of an item against its keys, a page of 64 at a time. Its eight warps are four
// groups of 16 rows by two halves: for scores each half takes 32 of the keys, for results half of the values' columns, so
// that a row's results fit a warp's registers (16 by 256 f32). Scores' maxima and weights pass through shared memory.
// Keys are not fetched ahead: a page and the queries fill shared memory.
#include "attention/common.cuh"
#include "attention/e4m3.cuh"
#include "attention/merge.cuh"
#include "latent/latent.h"

namespace batchllm::cuda {
namespace {

constexpr int kRows = 64, kThreads = 256;
constexpr int kChunks = kMatrixRows / kRows; // blocks of rows that an item may have

// Blocks: of 64 elements of a value; a key has one more.
template <int Blocks> struct Layout {
    static constexpr int kKeyDim = (Blocks + 1) * 64, kValueDim = Blocks * 64;
    static constexpr int kKeys = kRows * kKeyDim * 2;         // after the queries
    static constexpr int kWeights = 2 * kKeys;                // [64 rows][64 keys]
    static constexpr int kMaxima = kWeights + kRows * 64 * 2; // [2][64] f32
    static constexpr int kSums = kMaxima + 2 * kRows * 4;
    static constexpr int kBytes = kSums + 2 * kRows * 4;
};

// Chunk c (16 bytes) of a row of 64 elements in a block of 64 such rows.
__device__ __forceinline__ uint32_t chunk_at(uint32_t block, int row, int c) {
    return block + static_cast<uint32_t>(row * 128 + ((c ^ (row % 8)) * 16));
}

// Stored: T, or E4m3, which products widen to f16 (attention/e4m3.cuh).
template <typename T, typename Stored, int Blocks> class Tile {
    using L = Layout<Blocks>;
    using F = Factor<T, Stored>;
    static constexpr int kColumns = Blocks * 4; // n-tiles of 8 in a warp's half of the values

  public:
    __device__ Tile(const AttentionArguments &a, const AttentionItem &item, int first, char *shared)
        : a_(a), item_(item), first_(first), count_(item.row_count * a.heads - first),
          shared_(shared_address(shared)), maxima_(reinterpret_cast<float *>(shared + L::kMaxima)),
          sums_(reinterpret_cast<float *>(shared + L::kSums)) {}

    __device__ void run() {
        load_queries();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = group() * 16 + lane() / 4 + i * 8;
            position_[i] = row < count_ ? row_of(row).position : -1;
        }
        for (const KeyStretch &stretch : item_.stretch) {
            // The pages that some row sees.
            const int keys = min(stretch.keys, item_.max_position - stretch.start + 1);
            for (int key = 0; key < keys; key += kPageKeys) read_page(stretch, key);
        }
        finish();
    }

  private:
    __device__ static int lane() { return threadIdx.x % 32; }
    __device__ static int group() { return threadIdx.x / 64; }
    __device__ static int half() { return threadIdx.x / 32 % 2; }
    __device__ const AttentionRow &row_of(int row) const {
        return a_.rows[item_.row_begin + (first_ + row) / a_.heads];
    }
    // From a score to a logit.
    __device__ float base_2() const { return a_.scale * kLog2e * key_factor<Stored>(a_, 0); }
    __device__ int head_of(int row) const { return (first_ + row) % a_.heads; }

    __device__ void load_queries() {
        __syncthreads(); // the tile before has read them
        constexpr int chunks = L::kKeyDim / 8;
        for (int i = threadIdx.x; i < kRows * chunks; i += kThreads) {
            const int row = i / chunks, c = i % chunks;
            const bool valid = row < count_;
            const T *from = static_cast<const T *>(a_.q);
            if (valid) {
                from += row_of(row).token * a_.q_stride + head_of(row) * L::kKeyDim + c * 8;
            }
            const uint32_t to = chunk_at(shared_ + c / 8 * (kRows * 128), row, c % 8);
            if constexpr (std::is_same_v<T, F>) {
                copy_async(to, from, valid);
            } else {
                store_shared(to, valid ? to_half(*reinterpret_cast<const uint4 *>(from), T())
                                       : make_uint4(0, 0, 0, 0));
            }
        }
        copy_async_commit();
    }

    __device__ void read_page(const KeyStretch &stretch, int first) {
        const int left = stretch.keys - first; // that are stored
        const int64_t page = a_.pages[stretch.page_begin + first / kPageKeys];
        const Stored *from = static_cast<const Stored *>(a_.kv) + page * kPageKeys * L::kKeyDim;
        const uint32_t keys = shared_ + L::kKeys;
        __syncthreads();                               // the page before has been read
        constexpr int kElements = 16 / sizeof(Stored); // of 16 bytes
        for (int i = threadIdx.x; i < kPageKeys * L::kKeyDim / kElements; i += kThreads) {
            // Others are zeros: a page's last owner may have left a NaN there.
            const bool valid = i / (64 / kElements) % kPageKeys < left;
            if constexpr (kInBytes<Stored>) {
                uint4 bytes{}, chunks[2];
                if (valid) bytes = *reinterpret_cast<const uint4 *>(from + i * kElements);
                widen(bytes, chunks);
                uint32_t places[2];
                widened_places(i, places);
                store_shared(keys + places[0], chunks[0]);
                store_shared(keys + places[1], chunks[1]);
            } else {
                copy_async(keys + i * 16, from + i * kElements, valid);
            }
        }
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        float s[16] = {}; // rows by 32 keys: 4 n-tiles
#pragma unroll 4
        for (int k = 0; k < L::kKeyDim / 16; ++k) {
            const uint32_t block = static_cast<uint32_t>(k / 4 * (kRows * 128));
            uint32_t q[4];
            load_matrix(
                q, chunk_at(shared_ + block, group() * 16 + lane() % 16, k % 4 * 2 + lane() / 16));
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                uint32_t b[4];
                load_matrix(b, chunk_at(keys + block,
                                        half() * 32 + n * 16 + lane() / 16 * 8 + lane() % 8,
                                        k % 4 * 2 + lane() / 8 % 2));
                mma_sync(s + 8 * n, q, b[0], b[1], F());
                mma_sync(s + 8 * n + 4, q, b[2], b[3], F());
            }
        }
        KeyStretch rest = stretch;
        rest.keys = left;
        rest.start += first;
        mask(s, position_, rest, half() * 32 + lane() % 4 * 2, 0);
        weigh(s);
        add_values(keys);
    }

    // Scores -> weights in shared memory, relative to the rows' maxima over both halves.
    __device__ void weigh(float (&s)[16]) {
        const float c = base_2();
        float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                top[i] = fmaxf(top[i], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = group() * 16 + lane() / 4 + i * 8;
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
            if (lane() % 4 == 0) maxima_[half() * kRows + row] = top[i];
        }
        __syncthreads();
        const uint32_t weights = shared_ + L::kWeights;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = group() * 16 + lane() / 4 + i * 8;
            const float next = fmaxf(maximum_[i], fmaxf(maxima_[row], maxima_[kRows + row]));
            const float base = next == -INFINITY ? 0.0f : next * c;
            const float factor = exp2_approximate(maximum_[i] * c - base);
            maximum_[i] = next;
            sum_[i] *= factor;
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
                out_[4 * n + 2 * i] *= factor;
                out_[4 * n + 2 * i + 1] *= factor;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float x = exp2_approximate(s[4 * j + 2 * i] * c - base);
                const float y = exp2_approximate(s[4 * j + 2 * i + 1] * c - base);
                sum_[i] += x + y;
                const uint32_t at =
                    chunk_at(weights, row, half() * 4 + j) + static_cast<uint32_t>(lane() % 4 * 4);
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pack(x, y, F())) : "memory");
            }
        }
        __syncthreads();
    }

    __device__ void add_values(uint32_t keys) {
        const uint32_t weights = shared_ + L::kWeights;
#pragma unroll
        for (int k = 0; k < kPageKeys / 16; ++k) {
            uint32_t p[4];
            load_matrix(p, chunk_at(weights, group() * 16 + lane() % 16, k * 2 + lane() / 16));
#pragma unroll
            for (int n = 0; n < kColumns / 2; ++n) {
                const int chunk = half() * kColumns + n * 2 + lane() / 16;
                uint32_t v[4];
                load_matrix_transposed(
                    v, chunk_at(keys + static_cast<uint32_t>(chunk / 8 * (kRows * 128)),
                                k * 16 + lane() / 8 % 2 * 8 + lane() % 8, chunk % 8));
                mma_sync(out_ + 8 * n, p, v[0], v[1], F());
                mma_sync(out_ + 8 * n + 4, p, v[2], v[3], F());
            }
        }
    }

    __device__ void finish() {
        copy_async_wait<0>(); // of an item without keys
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sum_[i] += __shfl_xor_sync(~0u, sum_[i], 1);
            sum_[i] += __shfl_xor_sync(~0u, sum_[i], 2);
            const int row = group() * 16 + lane() / 4 + i * 8;
            if (lane() % 4 == 0) sums_[half() * kRows + row] = sum_[i];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = group() * 16 + lane() / 4 + i * 8;
            if (row >= count_) continue;
            const float sum = sums_[row] + sums_[kRows + row];
            const float scale = sum > 0 ? value_factor<Stored>(a_, 0) / sum : 0.0f;
            const AttentionRow &of = row_of(row);
            const int column = half() * kColumns * 8 + lane() % 4 * 2;
            if (of.slot < 0) {
                T *out = static_cast<T *>(a_.out) + of.token * a_.out_stride +
                         head_of(row) * L::kValueDim + column;
#pragma unroll
                for (int n = 0; n < kColumns; ++n) {
                    *reinterpret_cast<uint32_t *>(out + n * 8) =
                        pack(out_[4 * n + 2 * i] * scale, out_[4 * n + 2 * i + 1] * scale, T());
                }
                continue;
            }
            const int64_t index = int64_t{of.slot} * a_.heads + head_of(row);
            float *out = a_.partial_out + index * L::kValueDim + column;
#pragma unroll
            for (int n = 0; n < kColumns; ++n) {
                *reinterpret_cast<float2 *>(out + n * 8) =
                    make_float2(out_[4 * n + 2 * i] * scale, out_[4 * n + 2 * i + 1] * scale);
            }
            if (half() == 0 && lane() % 4 == 0) {
                a_.partial_lse[index] = sum > 0 ? maximum_[i] * base_2() + log2f(sum) : -INFINITY;
            }
        }
    }

    const AttentionArguments &a_;
    const AttentionItem &item_;
    const int first_, count_; // rows of the item: the first one here, and how many are left
    const uint32_t shared_;
    float *const maxima_, *const sums_;
    int position_[2];
    float maximum_[2] = {-INFINITY, -INFINITY}, sum_[2] = {};
    float out_[kColumns * 4] = {};
};

template <typename T, typename Stored, int Blocks> __global__ void __launch_bounds__(kThreads, 1)
    latent_attention(const __grid_constant__ AttentionArguments a) {
    extern __shared__ __align__(1024) char shared[];
    const int items = a.matrix_items + a.stream_items;
    for (int job = blockIdx.x; job < items * kChunks; job += gridDim.x) {
        const AttentionItem item = a.items[job / kChunks];
        const int first = job % kChunks * kRows;
        if (first < item.row_count * a.heads) Tile<T, Stored, Blocks>(a, item, first, shared).run();
    }
}

// A warp a row: a head of a token.
template <typename T, int Blocks> __global__ void __launch_bounds__(kThreads)
    latent_merge(const __grid_constant__ AttentionArguments a) {
    constexpr int kDim = Blocks * 64;
    if (blockIdx.x == 0 && threadIdx.x == 0) a.queues[0] = 0; // of launch_latent_attention_sm90
    const int lane = threadIdx.x % 32;
    const int warps = static_cast<int>(gridDim.x) * (kThreads / 32);
    const int first = static_cast<int>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
    for (int i = first; i < a.merged_count * a.heads; i += warps) {
        const int token = a.merged[i / a.heads], head = i % a.heads;
        const PartialRange range = a.partials[token];
        HeadResult<kDim> result;
        for (int p = 0; p < range.count; ++p) {
            const int64_t index = int64_t{range.begin + p} * a.heads + head;
            float lse[1] = {a.partial_lse[index]}, part[1][kDim / 32];
            load_partial<kDim>(a, index, lane, part[0]);
            result.template add<true>(lse, part);
        }
        result.template write<false, T>(a, token, head, lane);
    }
}

// Calls launch with the element's type and the blocks of a value.
template <typename Launch>
cudaError_t with_shape(const AttentionArguments &a, const Launch &launch) {
    const auto of_type = [&](auto blocks) {
        return a.type == AttentionType::bf16 ? launch(__nv_bfloat16(), blocks)
                                             : launch(__half(), blocks);
    };
    switch (a.head_dim / 64 - 1) {
    case 1:
        return of_type(std::integral_constant<int, 1>());
    case 4:
        return of_type(std::integral_constant<int, 4>());
    case 8:
        return of_type(std::integral_constant<int, 8>());
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

int64_t latent_attention_bytes(int32_t key_dim) {
    return key_dim <= 128   ? Layout<1>::kBytes
           : key_dim <= 320 ? Layout<4>::kBytes
                            : Layout<8>::kBytes;
}

cudaError_t launch_latent_attention(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.kv_heads != 1 || a.window != 0 || special(a)) return cudaErrorInvalidValue;
    return with_shape(a, [&](auto t, auto blocks) {
        constexpr int kBlocks = decltype(blocks)::value;
        using T = decltype(t);
        const auto kernel =
            a.kv_e4m3 ? latent_attention<T, E4m3, kBlocks> : latent_attention<T, T, kBlocks>;
        constexpr int bytes = Layout<kBlocks>::kBytes;
        const cudaError_t set =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (set != cudaSuccess) return set;
        kernel<<<static_cast<unsigned>(sms), kThreads, bytes, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_latent_merge(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return with_shape(a, [&](auto t, auto blocks) {
        latent_merge<decltype(t), decltype(blocks)::value>
            <<<static_cast<unsigned>(4 * sms), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
