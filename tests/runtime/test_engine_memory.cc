// The engine's memory: what a waiting row costs, that polled rows release theirs, and that running
// out of memory is an ordinary error. Allocations are counted, and made to fail, by replacing
// operator new.
#include <atomic>
#include <new>

#include "batchllm.h"
#include "runtime/row_store.h"
#include "testing.h"

namespace {

std::atomic<int64_t> bytes_held{0};
std::atomic<int64_t> blocks_held{0};
std::atomic<int64_t> most_bytes{0};
std::atomic<int64_t> until_failure{-1}; // allocations that still succeed; negative: all do

// A block is preceded by its size.
constexpr size_t header = alignof(std::max_align_t);

void *take(size_t size) {
    if (until_failure.load() >= 0 && until_failure.fetch_sub(1) == 0) {
        until_failure.store(0); // and all later ones, until the test ends this
        return nullptr;
    }
    char *block = static_cast<char *>(std::malloc(size + header));
    if (block == nullptr) return nullptr;
    std::memcpy(block, &size, sizeof size);
    blocks_held.fetch_add(1);
    const int64_t held =
        bytes_held.fetch_add(static_cast<int64_t>(size)) + static_cast<int64_t>(size);
    int64_t most = most_bytes.load();
    while (held > most && !most_bytes.compare_exchange_weak(most, held)) {}
    return block + header;
}

void give(void *pointer) {
    if (pointer == nullptr) return;
    char *block = static_cast<char *>(pointer) - header;
    size_t size;
    std::memcpy(&size, block, sizeof size);
    blocks_held.fetch_sub(1);
    bytes_held.fetch_sub(static_cast<int64_t>(size));
    std::free(block);
}

} // namespace

void *operator new(size_t size) {
    void *block = take(size);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}
void *operator new[](size_t size) { return operator new(size); }
void *operator new(size_t size, const std::nothrow_t &) noexcept { return take(size); }
void *operator new[](size_t size, const std::nothrow_t &) noexcept { return take(size); }
void operator delete(void *pointer) noexcept { give(pointer); }
void operator delete[](void *pointer) noexcept { give(pointer); }
void operator delete(void *pointer, size_t) noexcept { give(pointer); }
void operator delete[](void *pointer, size_t) noexcept { give(pointer); }

namespace {

struct Rows {
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};

    int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

// Rows of 24 tokens; groups of sixteen rows share 16 tokens.
Rows make_rows(int64_t first, int64_t count) {
    Rows rows;
    for (int64_t i = first; i < first + count; ++i) {
        const int64_t document = i / 16;
        for (int64_t j = 0; j < 16; ++j) {
            rows.tokens.push_back(static_cast<int32_t>((document >> (j % 3 * 9)) % 512));
        }
        for (int64_t j = 0; j < 8; ++j) {
            rows.tokens.push_back(static_cast<int32_t>((i >> (j % 3 * 9)) % 512));
        }
        rows.offsets.push_back(static_cast<int64_t>(rows.tokens.size()));
    }
    return rows;
}

batchllm_engine_options sim_options() {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.backend_options = "vocabulary=1000";
    options.threads = 1;
    return options;
}

int32_t add(batchllm_engine *engine, const Rows &rows, int32_t max_tokens) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = max_tokens;
    return batchllm_add_tokens(engine, rows.count(), rows.tokens.data(), rows.offsets.data(),
                               nullptr, &params, 1);
}

void a_waiting_row_costs_less_than_200_bytes_beyond_its_tokens(void **) {
    constexpr int64_t count = 200000;
    const Rows rows = make_rows(0, count);
    const batchllm_engine_options options = sim_options();
    batchllm_engine *engine = nullptr;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_OK);
    const int64_t before = bytes_held.load();
    assert_int_equal(add(engine, rows, 4), BATCHLLM_OK);
    const int64_t tokens = static_cast<int64_t>(rows.tokens.size() * sizeof(int32_t));
    const int64_t added = (bytes_held.load() - before - tokens) / count;
    assert_int_equal(batchllm_build_groups(engine), BATCHLLM_OK);
    assert_int_equal(batchllm_step(engine, nullptr), BATCHLLM_OK);
    const int64_t planned = (bytes_held.load() - before - tokens) / count;
    print_message("bytes a waiting row beyond its tokens: %d added, %d planned and begun\n",
                  int(added), int(planned));
    assert_true(added < 120);
    assert_true(planned < 200);
    batchllm_engine_destroy(engine);
}

struct Feed {
    batchllm_engine *engine = nullptr;
    int64_t added = 0;
    int64_t total = 0;
    int64_t window = 0;
    int64_t results = 0;
    int32_t status = BATCHLLM_OK;
};

int32_t feed(void *user, const batchllm_progress *progress) {
    Feed *self = static_cast<Feed *>(user);
    batchllm_results *results = nullptr;
    self->status = batchllm_poll(self->engine, 0, &results);
    if (self->status != BATCHLLM_OK) return 1;
    self->results += results->count;
    batchllm_results_free(results);
    if (progress->rows_waiting < self->window / 4 && self->added < self->total) {
        self->status = add(self->engine, make_rows(self->added, self->window), 2);
        self->added += self->window;
    }
    return self->status != BATCHLLM_OK;
}

void a_job_fed_in_windows_holds_a_window_and_not_the_job(void **) {
    const batchllm_engine_options options = sim_options();
    int64_t most[2];
    for (int round = 0; round < 2; ++round) {
        Feed self;
        self.window = 8192;
        self.total = self.window * (round == 0 ? 4 : 24);
        assert_int_equal(batchllm_engine_create(&options, &self.engine), BATCHLLM_OK);
        const int64_t before = bytes_held.load();
        most_bytes.store(before);
        assert_int_equal(add(self.engine, make_rows(0, self.window), 2), BATCHLLM_OK);
        self.added = self.window;
        assert_int_equal(batchllm_run(self.engine, feed, &self), BATCHLLM_OK);
        batchllm_results *rest = nullptr;
        assert_int_equal(batchllm_poll(self.engine, 0, &rest), BATCHLLM_OK);
        assert_int_equal(self.results + rest->count, self.total);
        batchllm_results_free(rest);
        most[round] = most_bytes.load() - before;
        batchllm_engine_destroy(self.engine);
    }
    print_message("most bytes held: %d for 4 windows, %d for 24\n", int(most[0]), int(most[1]));
    assert_true(most[1] < most[0] + most[0] / 4);
}

void rows_give_their_segments_back_when_they_are_released(void **) {
    batchllm::RowStore store;
    const std::vector<int32_t> tokens(100, 7);
    std::vector<int64_t> ids;
    for (int i = 0; i < 20000; ++i) ids.push_back(store.add(uint64_t(i), tokens, nullptr, nullptr));
    const int64_t full = store.segments();
    assert_true(full >= 5);
    for (size_t i = 0; i < ids.size(); i += 2) store.release(ids[i]);
    assert_int_equal(store.segments(), full);
    assert_null(store.find(ids[0]));
    assert_int_equal(store.find(ids[1])->tag, 1);
    for (size_t i = 1; i < ids.size(); i += 2) store.release(ids[i]);
    assert_int_equal(store.rows(), 0);
    assert_true(store.segments() <= 1);

    // Rows that are taken back leave the store unchanged.
    const int64_t mark = store.next_id();
    for (int i = 0; i < 9000; ++i) (void)store.add(1, tokens, nullptr, nullptr);
    store.take_back(mark);
    assert_int_equal(store.rows(), 0);
    assert_int_equal(store.next_id(), mark);
    const int64_t id = store.add(5, tokens, nullptr, nullptr);
    assert_true(id >= mark);
    assert_int_equal(store.find(id)->tag, 5);
}

// Everything that an engine does, on the sim backend. Returns the first status that is not OK.
int32_t whole_job(const Rows &rows) {
    batchllm_engine_options options = sim_options();
    batchllm_engine *engine = nullptr;
    batchllm_plan *plan = nullptr;
    batchllm_results *results = nullptr;
    int32_t status = batchllm_engine_create(&options, &engine);
    if (status == BATCHLLM_OK) status = add(engine, rows, 3);
    if (status == BATCHLLM_OK) status = batchllm_build_groups(engine);
    if (status == BATCHLLM_OK) status = batchllm_engine_get_plan(engine, &plan);
    if (status == BATCHLLM_OK) status = batchllm_engine_use_plan(engine, plan);
    if (status == BATCHLLM_OK) status = batchllm_cancel(engine, 5);
    if (status == BATCHLLM_OK) status = batchllm_run(engine, nullptr, nullptr);
    if (status == BATCHLLM_OK) status = batchllm_poll(engine, 0, &results);
    if (status == BATCHLLM_OK && results->count != rows.count()) status = -1;
    batchllm_results_free(results);
    batchllm_plan_destroy(plan);
    batchllm_engine_destroy(engine);
    return status;
}

void every_allocation_may_fail_and_nothing_leaks(void **) {
    const Rows rows = make_rows(0, 40);
    assert_int_equal(whole_job(rows), BATCHLLM_OK);
    const int64_t before = blocks_held.load();
    int64_t failed = 0;
    for (int64_t n = 0;; ++n) {
        until_failure.store(n);
        const int32_t status = whole_job(rows);
        until_failure.store(-1);
        if (blocks_held.load() != before) {
            fail_msg("allocation %d failed: %d blocks leaked", int(n),
                     int(blocks_held.load() - before));
        }
        if (status == BATCHLLM_OK) break;
        if (status != BATCHLLM_ERROR_OUT_OF_MEMORY) {
            fail_msg("allocation %d failed: %s: %s", int(n), batchllm_status_name(status),
                     batchllm_last_error());
        }
        ++failed;
    }
    print_message("%d allocations failed one after the other\n", int(failed));
    assert_true(failed > 100);
}

void rows_that_memory_ran_out_for_are_not_added(void **) {
    const Rows rows = make_rows(0, 40);
    const batchllm_engine_options options = sim_options();
    batchllm_engine *engine = nullptr;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_OK);
    int64_t failed = 0;
    for (int64_t n = 0;; ++n) {
        until_failure.store(n);
        const int32_t status = add(engine, rows, 3);
        until_failure.store(-1);
        if (status == BATCHLLM_OK) break;
        assert_int_equal(status, BATCHLLM_ERROR_OUT_OF_MEMORY);
        ++failed;
    }
    assert_true(failed > 3);
    // The engine works as before: only the call that succeeded counts.
    assert_int_equal(batchllm_run(engine, nullptr, nullptr), BATCHLLM_OK);
    batchllm_results *results = nullptr;
    assert_int_equal(batchllm_poll(engine, 0, &results), BATCHLLM_OK);
    assert_int_equal(results->count, 40);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

void a_failed_engine_stays_failed_and_its_results_can_be_polled(void **) {
    const Rows rows = make_rows(0, 40);
    const batchllm_engine_options options = sim_options();
    batchllm_engine *engine = nullptr;
    assert_int_equal(batchllm_engine_create(&options, &engine), BATCHLLM_OK);
    assert_int_equal(add(engine, rows, 1), BATCHLLM_OK);
    assert_int_equal(batchllm_step(engine, nullptr), BATCHLLM_OK);
    batchllm_stats stats;
    stats.struct_size = sizeof stats;
    assert_int_equal(add(engine, make_rows(40, 40), 5), BATCHLLM_OK);
    assert_int_equal(batchllm_build_groups(engine), BATCHLLM_OK);
    until_failure.store(0);
    const int32_t failed = batchllm_step(engine, nullptr);
    until_failure.store(-1);
    assert_int_equal(failed, BATCHLLM_ERROR_OUT_OF_MEMORY);
    // Memory is available again, but the step was interrupted in the middle.
    assert_int_equal(batchllm_step(engine, nullptr), BATCHLLM_ERROR_OUT_OF_MEMORY);
    assert_int_equal(batchllm_run(engine, nullptr, nullptr), BATCHLLM_ERROR_OUT_OF_MEMORY);
    assert_int_equal(add(engine, rows, 1), BATCHLLM_ERROR_OUT_OF_MEMORY);
    assert_int_equal(batchllm_engine_stats(engine, &stats), BATCHLLM_OK);
    assert_true(stats.rows_done > 0);
    batchllm_results *results = nullptr;
    assert_int_equal(batchllm_poll(engine, 0, &results), BATCHLLM_OK);
    assert_int_equal(results->count, stats.rows_done);
    batchllm_results_free(results);
    batchllm_engine_destroy(engine);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_row_costs_less_than_200_bytes_beyond_its_tokens),
        cmocka_unit_test(a_job_fed_in_windows_holds_a_window_and_not_the_job),
        cmocka_unit_test(rows_give_their_segments_back_when_they_are_released),
        cmocka_unit_test(every_allocation_may_fail_and_nothing_leaks),
        cmocka_unit_test(rows_that_memory_ran_out_for_are_not_added),
        cmocka_unit_test(a_failed_engine_stays_failed_and_its_results_can_be_polled),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
