// Reads and writes rows x ranks.
#include "elementwise/look_up.h"

#include "adapters/tile.cuh"
#include "elementwise/element.cuh"

namespace batchllm::cuda {
namespace {

template <typename T>
__global__ void look_up(const __grid_constant__ AdapterArguments a, const SampleResult *samples) {
    const int32_t tiles = count_of_all_tiles(a.work);
    for (int32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const AdapterTile tile = load_tile(a.work.tiles + number);
        const AdapterEntry &entry = tile.entries[a.product];
        for (int32_t n = threadIdx.x; n < tile.count * entry.ranks; n += blockDim.x) {
            const int32_t row = row_at(a, tile.begin + n / entry.ranks), rank = n % entry.ranks;
            int32_t token = static_cast<const int32_t *>(a.x)[row];
            if (token < 0) token = max(samples[-1 - token].token, 0); // as launch_embed() does
            static_cast<float *>(a.t)[int64_t{row} * a.t_stride + rank] =
                to_float(static_cast<const T *>(entry.a)[int64_t{token} * entry.ranks + rank]);
        }
    }
}

} // namespace

cudaError_t launch_look_up(const AdapterArguments &a, const SampleResult *samples, int sms,
                           cudaStream_t stream) {
    if (a.some_rows > 0 || a.most_ranks > a.t_stride) return cudaErrorInvalidValue;
    return with_type(a.element, [&](auto t) {
        look_up<decltype(t)><<<static_cast<unsigned>(4 * sms), 128, 0, stream>>>(a, samples);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
