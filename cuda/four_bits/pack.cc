#include "four_bits/pack.h"

#include <cstring>

namespace batchllm::cuda {

void pack_on_host(const PackTarget &target, const PackSource &source) {
    const PackedShape &shape = target.shape;
    const int32_t shared = shared_scales(shape.form), half_size = half_bytes(shape.form);
    for (int32_t c = 0; c < shape.cell_columns(); ++c) {
        for (int32_t block = 0; block < shape.row_blocks(); ++block) {
            for (int32_t half = 0; half < shape.halves_of(c); ++half) {
                std::byte *codes = target.data + shape.cell(c, block) + shared + half * half_size;
                for (int32_t i = 0; i < kHalfCodes / 4; ++i) {
                    uint32_t word;
                    std::memcpy(&word, codes + 4 * i, 4);
                    word = packed_word(shape.form, source, block * kCellRows,
                                       c * kCellColumns + half * kHalfColumns, i / 4, i % 4, word);
                    std::memcpy(codes + 4 * i, &word, 4);
                }
            }
            for (int32_t entry = 0; entry < kCellRows; ++entry) {
                for (int32_t i = 0; i < scales_of_cell(shape.form); ++i) {
                    pack_scale(target, source, c, block, entry, i);
                }
            }
        }
    }
}

} // namespace batchllm::cuda
