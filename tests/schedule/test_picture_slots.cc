// Which pictures are on a device: random batches on random room, against what must always hold.
#include <map>
#include <random>
#include <set>
#include <vector>

#include "schedule/picture_slots.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

struct Device {
    std::map<int32_t, int32_t> loaded; // slot -> number
    std::map<int32_t, uint64_t> used;  // number -> the last batch that uses it
    std::set<int32_t> ready;

    // As a device would; returns the numbers that were unloaded.
    std::vector<int32_t> carry_out(PictureSlots *slots, uint64_t running) {
        std::vector<int32_t> unloaded;
        for (const PictureSlots::Change &change : slots->take_changes()) {
            if (change.load) {
                assert_false(loaded.contains(change.slot));
                assert_true(ready.contains(change.number));
                loaded[change.slot] = change.number;
            } else {
                assert_int_equal(loaded.at(change.slot), change.number);
                assert_true(used[change.number] < running);
                loaded.erase(change.slot);
                ready.erase(change.number);
                unloaded.push_back(change.number);
            }
        }
        return unloaded;
    }
};

void pictures_in_slots_fit_and_stay_while_batches_use_them(void **) {
    std::mt19937 random(static_cast<uint32_t>(seed_of_run()));
    for (int round = 0; round < 200; ++round) {
        const auto count = static_cast<int32_t>(1 + random() % 4);
        const int64_t room = 10 + static_cast<int64_t>(random() % 30);
        PictureSlots slots(count, room);
        std::vector<int32_t> tokens;
        for (int32_t number = 0; number < 8; ++number) {
            tokens.push_back(static_cast<int32_t>(1 + random() % 10));
            slots.add(number, tokens.back());
        }
        Device device;
        for (uint64_t batch = 2; batch < 60; ++batch) {
            const uint64_t running = batch - random() % 2;
            slots.begin_batch(batch, running);
            std::set<int32_t> taken;
            for (int t = 0; t < 4; ++t) {
                const auto number = static_cast<int32_t>(random() % 8);
                const bool got = slots.take(number);
                if (!device.ready.contains(number) && !taken.contains(number)) {
                    assert_false(got);
                    assert_int_equal(slots.blocked(), number);
                    device.ready.insert(number);
                    slots.set_ready(number);
                    continue;
                }
                // Alone, any picture fits.
                if (taken.empty() && running == batch) assert_true(got);
                if (!got) continue;
                taken.insert(number);
                device.used[number] = batch;
            }
            device.carry_out(&slots, running);
            int64_t sum = 0;
            for (const auto &[slot, number] : device.loaded) {
                assert_true(slot >= 0 && slot < count);
                assert_int_equal(slots.slot(number), slot);
                sum += tokens[static_cast<size_t>(number)];
            }
            assert_true(sum <= room);
            for (const int32_t number : taken) assert_true(slots.slot(number) >= 0);
        }
    }
}

void a_picture_without_requests_leaves_once_no_batch_uses_it(void **) {
    PictureSlots slots(2, 10);
    slots.add(0, 4);
    slots.set_ready(0);
    slots.begin_batch(2, 2);
    assert_true(slots.take(0));
    assert_int_equal(slots.take_changes().size(), 1);
    assert_true(slots.remove(0));
    slots.begin_batch(3, 2); // batch 2 is in flight
    assert_true(slots.take_changes().empty());
    slots.begin_batch(4, 3);
    const std::vector<PictureSlots::Change> changes = slots.take_changes();
    assert_int_equal(changes.size(), 1);
    assert_false(changes[0].load);
    slots.add(1, 4);
    assert_false(slots.remove(1)); // it never had a slot
}

// For want of pages, say: the next attempt may need other pictures in its place.
void a_picture_taken_for_a_batch_that_stays_empty_holds_no_room(void **) {
    PictureSlots slots(1, 10);
    for (const int32_t number : {0, 1}) {
        slots.add(number, 8);
        slots.set_ready(number);
    }
    slots.begin_batch(2, 2);
    assert_true(slots.take(0));
    assert_int_equal(slots.take_changes().size(), 1);
    slots.begin_batch(2, 2);
    assert_true(slots.take(1));
    assert_int_equal(slots.take_changes().size(), 2);
    // But one that a batch in flight uses stays, though an empty batch has taken it too.
    slots.set_ready(0);
    slots.begin_batch(3, 2);
    assert_true(slots.take(1));
    slots.begin_batch(3, 2);
    assert_false(slots.take(0));
    slots.begin_batch(3, 3);
    assert_true(slots.take(0));
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(pictures_in_slots_fit_and_stay_while_batches_use_them),
        cmocka_unit_test(a_picture_taken_for_a_batch_that_stays_empty_holds_no_room),
        cmocka_unit_test(a_picture_without_requests_leaves_once_no_batch_uses_it),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
