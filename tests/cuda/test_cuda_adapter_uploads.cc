// Adapters' matrices arrive on the device as they are in the file, whatever pieces they are sent in: matrices over several chunks of
// pinned memory, adapters over several turns of the block, and a block that is replaced while uploads wait for their turn.
#include <random>
#include <vector>

#include "seed.h"
#include "step/adapter_uploads.h"

#include "cuda_arrays.h"

using namespace batchllm;
using namespace batchllm::cuda;

namespace {

// Matrices that are A in bf16, without padding: what arrives is what was sent.
struct Sent {
    std::shared_ptr<const LaidOutAdapter> adapter;
    std::vector<std::vector<std::byte>> matrices; // as they are to arrive
    DeviceMemory to;
    Event done;

    Sent(std::mt19937_64 &random, const std::vector<int64_t> &columns) {
        auto made = std::make_shared<Adapter>();
        AdapterLayout layout;
        layout.entries.resize(columns.size());
        layout.bytes = static_cast<int64_t>(columns.size() * sizeof(AdapterEntry));
        // Columns of a wider matrix, at an odd address.
        tensors.resize(columns.size());
        for (size_t i = 0; i < columns.size(); ++i) {
            constexpr int64_t rows = 8, beside = 24;
            const int64_t width = columns[i] + (i % 2 == 0 ? 0 : beside);
            made->bytes.push_back(
                std::make_unique<std::byte[]>(static_cast<size_t>(rows * width * 2 + 1)));
            std::byte *data = made->bytes.back().get() + 1;
            for (int64_t n = 0; n < rows * width; ++n) {
                const auto finite = static_cast<uint16_t>(random() & 0xbfff);
                std::memcpy(data + 2 * n, &finite, 2);
            }
            Tensor &tensor = tensors[i];
            tensor.dtype = DType::bf16;
            tensor.data = data;
            tensor.rows = rows;
            tensor.columns = columns[i];
            tensor.stored_columns = width;
            std::vector<std::byte> &wanted = matrices.emplace_back();
            for (int64_t r = 0; r < rows; ++r) {
                wanted.insert(wanted.end(), data + r * width * 2,
                              data + (r * width + columns[i]) * 2);
            }
            layout.bytes = (layout.bytes + 255) / 256 * 256;
            layout.places.emplace_back(layout.bytes, 0);
            AdapterPiece piece{};
            piece.type = DType::bf16;
            piece.ranks = piece.rank = rows;
            piece.places = piece.from_places = columns[i];
            piece.size = piece.padded = piece.stride = static_cast<int32_t>(columns[i]);
            layout.pieces.push_back({&tensor, rows * columns[i] * 2, 1, piece, layout.bytes});
            layout.bytes += rows * columns[i] * 2;
        }
        auto memory = DeviceMemory::create(layout.bytes, "test");
        check(memory.status());
        to = std::move(memory).value();
        auto event = Event::create(false);
        check(event.status());
        done = std::move(event).value();
        adapter = std::make_shared<const LaidOutAdapter>(std::move(made), std::move(layout));
    }
    bool arrived() const {
        std::vector<AdapterEntry> entries(adapter->layout.entries.size());
        check(cudaMemcpy(entries.data(), to.data(), entries.size() * sizeof(AdapterEntry),
                         cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < matrices.size(); ++i) {
            const int64_t place = adapter->layout.places[i].first;
            std::vector<std::byte> got(matrices[i].size());
            check(cudaMemcpy(got.data(), to.data() + place, got.size(), cudaMemcpyDeviceToHost));
            if (entries[i].a != to.data() + place || got != matrices[i]) return false;
        }
        return true;
    }

    std::vector<Tensor> tensors;
};

// By the thread, or, where there is none, by those who add it.
void check_uploads(bool by_thread) {
    std::mt19937_64 random(seed_of_run());
    const auto adapters = [&] {
        std::vector<Sent> all;
        // 16 bytes a column: one of some KiB; over turns of the block; a matrix that is larger than it; small ones again.
        for (const std::vector<int64_t> &columns : {std::vector<int64_t>{8, 1000, 24},
                                                    {2000000, 1600000, 8, 1900000, 700000},
                                                    {300, 5000000, 300},
                                                    {64}}) {
            all.emplace_back(random, columns);
        }
        return all;
    }();
    AdapterUploads uploads(DType::bf16, 64);
    check(uploads.start());
    check(uploads.start()); // once
    if (!by_thread) uploads.stop();
    std::byte *raw = nullptr;
    int64_t bytes = 0;
    std::vector<int64_t> numbers;
    for (const Sent &sent : adapters) {
        AdapterUploads::Upload upload{sent.adapter, sent.to.data(), raw, sent.done};
        if (const int64_t wanted = AdapterUploads::raw_bytes(sent.adapter->layout);
            wanted > bytes) {
            void *more = nullptr;
            check(cudaMallocAsync(&more, static_cast<size_t>(wanted), uploads.stream()));
            upload.freed = raw;
            upload.raw = raw = static_cast<std::byte *>(more);
            bytes = wanted;
        }
        numbers.push_back(uploads.add(std::move(upload)));
    }
    for (size_t i = 0; i < adapters.size(); ++i) {
        check(uploads.wait(numbers[i]));
        check(cudaEventSynchronize(adapters[i].done));
        if (!adapters[i].arrived()) fail_msg("adapter %zu is not what was sent", i);
    }
    uploads.stop();
    check(cudaFreeAsync(raw, uploads.stream()));
}

void what_is_sent_arrives(void **) { check_uploads(true); }
void what_is_sent_without_a_thread_arrives(void **) { check_uploads(false); }

} // namespace

int main() {
    if (const int skip = skipped(); skip != 0) return skip;
    const CMUnitTest tests[] = {cmocka_unit_test(what_is_sent_arrives),
                                cmocka_unit_test(what_is_sent_without_a_thread_arrives)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
