// An adapter's matrices as one sequence of bytes, of which any part can be copied.
#include <algorithm>
#include <random>
#include <vector>

#include "seed.h"
#include "step/adapter_layout.h"
#include "testing.h"

using namespace batchllm;
using cuda::AdapterLayout;
using cuda::PieceBytes;

namespace {

constexpr std::byte kUntouched{0xa5};

// Whole matrices and columns of larger ones, of any size and alignment; each part is what the sequence has there, and what
// lies between matrices is left alone.
void any_part_can_be_copied(void **) {
    std::mt19937_64 random(seed_of_run());
    const auto draw = [&](int64_t most) { return static_cast<int64_t>(random() % most); };
    std::vector<std::byte> memory(1 << 16);
    for (std::byte &b : memory) b = static_cast<std::byte>(random() & 0xff);
    for (int round = 0; round < 200; ++round) {
        const auto count = static_cast<size_t>(1 + draw(9));
        std::vector<Tensor> tensors(count);
        std::vector<AdapterLayout::Piece> pieces(count);
        std::vector<std::byte> all;
        std::vector<bool> is_matrix;
        for (size_t i = 0; i < count; ++i) {
            Tensor &t = tensors[i];
            const DType types[] = {DType::f32, DType::f16, DType::bf16};
            t.dtype = types[draw(3)];
            t.rows = 1 + draw(20);
            t.columns = 1 + draw(40);
            const int64_t apart = draw(2) * draw(30);
            if (apart > 0) t.stored_columns = t.columns + apart;
            t.data = memory.data() + draw(1 << 14);
            const int64_t element = dtype_bytes(t.dtype);
            for (int64_t r = 0; r < t.rows; ++r) {
                const std::byte *row = t.data + r * (t.columns + apart) * element;
                all.insert(all.end(), row, row + t.columns * element);
            }
            pieces[i].from = &t;
            pieces[i].bytes = t.rows * t.columns * element;
            is_matrix.resize(all.size(), true);
            while (all.size() % 16 != 0) all.push_back(kUntouched);
            is_matrix.resize(all.size(), false);
        }
        const PieceBytes bytes(pieces);
        assert_int_equal(bytes.bytes(), all.size());
        for (int part = 0; part < 50; ++part) {
            const int64_t from = draw(bytes.bytes()), of = 1 + draw(bytes.bytes() - from);
            std::vector<std::byte> copied(static_cast<size_t>(of) + 1, kUntouched);
            bytes.copy(from, of, copied.data());
            for (int64_t i = 0; i < of; ++i) {
                const auto at = static_cast<size_t>(from + i);
                if (copied[static_cast<size_t>(i)] == all[at]) continue;
                fail_msg("byte %lld of a part from %lld on is wrong (%s)",
                         static_cast<long long>(i), static_cast<long long>(from),
                         is_matrix[at] ? "a matrix's" : "between matrices");
            }
            assert_true(copied.back() == kUntouched);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {cmocka_unit_test(any_part_can_be_copied)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
