// The adapters and pictures of a device, made by threads that the test holds up where it wants.
#include <chrono>
#include <memory>
#include <semaphore>
#include <vector>

#include "runtime/lane_adapters.h"
#include "runtime/lane_pictures.h"

#include "testing.h"

using namespace batchllm;

namespace {

// Packs when the test says so, and fails as often as it says.
class HeldUp : public Backend {
  public:
    const BackendInfo &info() const override { return info_; }
    double last_run_seconds() const override { return 0; }
    Status forward(const TokenBatch &) override { return {}; }
    Status sample(std::span<const TokenMask>) override { return {}; }
    Status collect(BatchOutput *) override { return {}; }
    Result<std::shared_ptr<const PackedAdapter>>
    pack_adapter(std::shared_ptr<const Adapter>) const override {
        begun.release();
        go_on.acquire();
        if (failures-- > 0) return error(BATCHLLM_ERROR_ROW_ADAPTER, "its adapter is gone");
        return std::shared_ptr<const PackedAdapter>(std::make_shared<PackedAdapter>());
    }
    mutable std::counting_semaphore<> begun{0}, go_on{0};
    mutable int failures = 0; // to come

  private:
    BackendInfo info_;
};

std::shared_ptr<const AdapterSource> any_adapter() {
    auto source = std::make_shared<AdapterSource>();
    source->library = std::make_shared<AdapterLibrary>();
    source->kept = std::make_shared<Adapter>();
    source->hash = {5, 6};
    source->memory_bytes = 100;
    return source;
}

void an_adapter_that_fails_without_rows_is_read_again_for_later_ones(void **) {
    HeldUp backend;
    backend.failures = 2;
    AdapterSlots slots(1, 100);
    LaneAdapters adapters(&backend, &slots, 1);
    const auto source = any_adapter();

    int32_t number = adapters.use(source);
    backend.begun.acquire();
    adapters.end_use(number); // its rows are cancelled while it is read
    backend.go_on.release();
    adapters.wait();
    Result<bool> failed = adapters.take_made();
    assert_true(failed.ok() && !*failed);

    for (const bool fails : {true, false}) {
        number = adapters.use(source);
        assert_true(adapters.failure(number).ok());
        backend.begun.acquire();
        backend.go_on.release();
        adapters.wait();
        failed = adapters.take_made();
        assert_true(failed.ok());
        assert_int_equal(*failed, fails);
        assert_int_equal(adapters.failure(number).ok(), !fails);
        assert_int_equal(slots.allows(number), !fails);
        adapters.end_use(number);
    }
}

void memory_that_files_were_read_into_is_used_again(void **) {
    constexpr size_t mib = size_t{1} << 20;
    WeightMemory memory;
    WeightMemory::Block block = memory.take(100 * mib);
    const std::byte *first = block.bytes.get();
    memory.give_back(std::move(block));
    // So that what is counted by the files' sizes is what they take.
    WeightMemory::Block small = memory.take(87 * mib);
    assert_int_equal(small.size, 87 * mib);
    block = memory.take(88 * mib);
    assert_ptr_equal(block.bytes.get(), first);
    assert_int_equal(block.size, 100 * mib);
    memory.give_back(std::move(block));
    memory.give_back(std::move(small));
    memory.give_back(memory.take(400 * mib)); // the oldest goes: half a gibibyte is kept
    assert_int_equal(memory.take(90 * mib).size, 90 * mib);
    assert_int_equal(memory.take(80 * mib).size, 87 * mib);
    assert_int_equal(memory.take(360 * mib).size, 400 * mib);
}

// Models pictures when the test says so: they ask it what it is.
class HeldUpModel : public HeldUp {
  public:
    const BackendInfo &info() const override {
        begun.release();
        go_on.acquire();
        return modelled_;
    }

  private:
    BackendInfo modelled_; // computes on nothing
};

void what_decoding_takes_is_bounded_until_it_has_ended(void **) {
    HeldUpModel backend;
    PictureSlots slots(4, 100);
    LanePictures pictures(&backend, &slots, 4);
    std::vector<int32_t> numbers;
    for (uint64_t i = 0; i < 4; ++i) {
        auto source = std::make_shared<PictureSource>();
        source->hash = {i, 0};
        source->grid = {.rows = 2, .columns = 2, .merge = 1, .tokens = 4};
        source->pixels = 60'000'000; // two take more than may be made ahead
        numbers.push_back(pictures.use(source));
    }
    const auto another_begins = [&] {
        return backend.begun.try_acquire_for(std::chrono::milliseconds(100));
    };
    backend.begun.acquire();
    assert_false(another_begins());
    pictures.hurry(numbers[3]);
    backend.begun.acquire();
    assert_false(another_begins());
    for (int ended = 0; ended < 2; ++ended) {
        backend.go_on.release();
        pictures.wait();
        assert_true(pictures.take_made().ok());
    }
    // What has been made takes little.
    assert_true(backend.begun.try_acquire_for(std::chrono::seconds(20)));
    assert_false(another_begins());
    backend.go_on.release();
    backend.begun.acquire();
    backend.go_on.release();
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(memory_that_files_were_read_into_is_used_again),
        cmocka_unit_test(an_adapter_that_fails_without_rows_is_read_again_for_later_ones),
        cmocka_unit_test(what_decoding_takes_is_bounded_until_it_has_ended),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
