// Which adapters are on a device: random requests on random room, against what must always hold.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "schedule/adapter_slots.h"
#include "seed.h"
#include "testing.h"

using namespace batchllm;

namespace {

struct Job {
    Job(int32_t slot_count, int64_t bytes, std::vector<int64_t> sizes_of)
        : slots(slot_count, bytes), count(slot_count), room(bytes), sizes(std::move(sizes_of)) {
        for (size_t i = 0; i < sizes.size(); ++i) slots.add(static_cast<int32_t>(i), sizes[i]);
    }

    // Carries out the changes as a device would.
    void carry_out() {
        for (const AdapterSlots::Change &change : slots.take_changes()) {
            if (change.load) {
                assert_false(loaded.contains(change.slot));
                loaded[change.slot] = change.number;
            } else {
                assert_int_equal(loaded.at(change.slot), change.number);
                assert_int_equal(held[change.number], 0);
                assert_true(used[change.number] < running);
                loaded.erase(change.slot);
                ready.erase(change.number);
            }
        }
        int64_t bytes = 0;
        for (const auto &[slot, number] : loaded) {
            assert_true(slot >= 0 && slot < count);
            assert_int_equal(slots.slot(number), slot);
            bytes += sizes[static_cast<size_t>(number)];
        }
        assert_true(bytes <= room);
        for (const auto &[number, requests] : held) {
            if (requests > 0) assert_true(slots.slot(number) >= 0);
        }
    }

    bool admit(int32_t number) {
        if (!slots.allows(number)) return false;
        slots.hold(number);
        ++held[number];
        carry_out();
        return true;
    }

    AdapterSlots slots;
    int32_t count;
    int64_t room;
    std::vector<int64_t> sizes;
    std::map<int32_t, int32_t> loaded; // slot -> number
    std::map<int32_t, int64_t> held;
    std::map<int32_t, uint64_t> used; // by which batch last
    std::set<int32_t> ready;
    uint64_t batch = 1, running = 1;
};

void what_is_held_or_in_flight_stays(void **) {
    std::mt19937_64 random(seed_of_run());
    const auto draw = [&](int64_t least, int64_t most) {
        return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    for (int64_t i = 0; i < 300; ++i) {
        const int64_t room = draw(10, 60);
        std::vector<int64_t> sizes(static_cast<size_t>(draw(1, 12)));
        for (int64_t &size : sizes) size = draw(1, room);
        Job job(static_cast<int32_t>(draw(1, 5)), room, sizes);
        std::vector<int32_t> requests; // admitted
        int64_t admitted = 0;
        for (int64_t step = 0; step < 200; ++step) {
            job.batch += 1;
            job.running = job.batch - static_cast<uint64_t>(draw(0, 2));
            job.slots.begin_batch(job.batch, job.running);
            for (int64_t more = draw(0, 3); more > 0; --more) {
                const auto number = static_cast<int32_t>(draw(0, int64_t(sizes.size()) - 1));
                if (job.slots.slot(number) < 0 && draw(0, 1) == 0) {
                    job.slots.set_ready(number);
                    job.ready.insert(number);
                }
                job.slots.add_pending(number);
                if (job.admit(number)) {
                    assert_true(job.slots.slot(number) >= 0);
                    requests.push_back(number);
                    ++admitted;
                } else {
                    if (job.slots.blocked() >= 0) assert_int_equal(job.slots.blocked(), number);
                    job.slots.remove_pending(number);
                }
            }
            for (const int32_t number : requests) {
                if (draw(0, 2) > 0) continue;
                job.slots.use(number);
                job.used[number] = job.batch;
            }
            std::erase_if(requests, [&](int32_t number) {
                if (draw(0, 2) > 0) return false;
                job.slots.release(number);
                job.slots.remove_pending(number);
                --job.held[number];
                return true;
            });
        }
        assert_true(admitted > 0);
        assert_true(job.slots.bytes_peak() <= room);
        // Once nothing runs, any adapter fits.
        for (const int32_t number : requests) job.slots.release(number), --job.held[number];
        job.batch += 3;
        job.running = job.batch;
        job.slots.begin_batch(job.batch, job.running);
        for (int32_t number = 0; number < static_cast<int32_t>(sizes.size()); ++number) {
            job.slots.set_ready(number);
            assert_true(job.admit(number));
            job.slots.release(number);
            --job.held[number];
        }
    }
}

void the_scheduler_waits_for_what_is_not_ready(void **) {
    AdapterSlots slots(1, 10);
    slots.add(0, 10);
    slots.add(1, 5);
    slots.begin_batch(2, 2);
    assert_true(slots.allows(-1));
    assert_false(slots.allows(0));
    assert_int_equal(slots.blocked(), 0);
    slots.set_ready(0);
    assert_true(slots.allows(0));
    slots.hold(0);
    slots.set_ready(1);
    assert_false(slots.allows(1)); // there is one slot
    assert_int_equal(slots.blocked(), -1);
    slots.use(0);
    slots.release(0);
    slots.begin_batch(3, 2); // the batch that uses it is in flight
    assert_false(slots.allows(1));
    slots.begin_batch(3, 3);
    assert_true(slots.allows(1));
    slots.hold(1);
    assert_int_equal(slots.take_changes().size(), 3); // 0 in, 0 out, 1 in
    slots.release(1);
    assert_false(slots.allows(0)); // it must be read again
    assert_int_equal(slots.blocked(), 0);
}

// Of adapters that nothing needs, the one that was used longest ago goes.
void what_is_not_needed_goes_first(void **) {
    AdapterSlots slots(2, 10);
    for (int32_t number = 0; number < 3; ++number) {
        slots.add(number, 1);
        slots.set_ready(number);
    }
    slots.begin_batch(2, 2);
    for (const int32_t number : {0, 1}) {
        slots.add_pending(number);
        slots.hold(number);
        slots.use(number);
        slots.release(number);
    }
    slots.remove_pending(1); // 0 is still waited for
    slots.begin_batch(3, 3);
    assert_true(slots.allows(2));
    slots.hold(2);
    assert_true(slots.slot(0) >= 0);
    assert_int_equal(slots.slot(1), -1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(what_is_held_or_in_flight_stays),
        cmocka_unit_test(the_scheduler_waits_for_what_is_not_ready),
        cmocka_unit_test(what_is_not_needed_goes_first),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
