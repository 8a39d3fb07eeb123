// The adapters of a device, read by a thread that the test holds up where it wants.
#include <memory>
#include <semaphore>

#include "runtime/lane_adapters.h"

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
    LaneAdapters adapters(&backend, &slots);
    const auto source = any_adapter();

    int32_t number = adapters.use(source);
    backend.begun.acquire();
    adapters.end_use(number); // its rows are cancelled while it is read
    backend.go_on.release();
    adapters.wait();
    Result<bool> failed = adapters.take_read();
    assert_true(failed.ok() && !*failed);

    for (const bool fails : {true, false}) {
        number = adapters.use(source);
        assert_true(adapters.failure(number).ok());
        backend.begun.acquire();
        backend.go_on.release();
        adapters.wait();
        failed = adapters.take_read();
        assert_true(failed.ok());
        assert_int_equal(*failed, fails);
        assert_int_equal(adapters.failure(number).ok(), !fails);
        assert_int_equal(slots.allows(number), !fails);
        adapters.end_use(number);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_that_fails_without_rows_is_read_again_for_later_ones),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
