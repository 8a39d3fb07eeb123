// Devices that fail or hang, on `sim`: what is lost, what is reported, and which device computes it
// instead.
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>

#include "runtime/engine.h" // before cmocka, whose fail() is a macro

#include "golden_files.h"

#include "testing.h"

using namespace batchllm;

namespace {

constexpr int64_t row_count = 300;

struct Logged {
    std::mutex mutex;
    std::vector<std::string> lines;

    static void line(void *user, int32_t level, const char *message) {
        auto *log = static_cast<Logged *>(user);
        const std::lock_guard lock(log->mutex);
        if (level <= BATCHLLM_LOG_WARNING) log->lines.emplace_back(message);
    }
    std::string text() {
        const std::lock_guard lock(mutex);
        std::string all;
        for (const std::string &line : lines) all += line + "\n";
        return all;
    }
};

// Rows in groups of five; every tenth row repeats the previous one.
void add_rows(batchllm_engine *engine) {
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
    std::vector<batchllm_params> params(row_count);
    for (int32_t row = 0; row < row_count; ++row) {
        const int32_t as = row % 10 == 9 ? row - 1 : row;
        for (int32_t i = 0; i < 30; ++i) tokens.push_back(as / 5 * 7 + i);
        for (int32_t i = 0; i < 5; ++i) tokens.push_back(as + i);
        offsets.push_back(static_cast<int64_t>(tokens.size()));
        batchllm_params &own = params[static_cast<size_t>(row)];
        batchllm_params_init(&own, sizeof own);
        own.max_tokens = 20;
        own.samples = row % 7 == 3 ? 3 : 1;
        own.temperature = row % 7 == 3 ? 1 : 0;
    }
    CHECK(batchllm_add_tokens(engine, row_count, tokens.data(), offsets.data(), nullptr,
                              params.data(), row_count));
}

EngineHandle make_engine(const char *devices, const char *failing, Logged *log) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    const std::string own =
        std::string("vocabulary=5000,eos_token=4999,mean_length=9,overlap=1") + failing;
    options.backend = "sim";
    options.devices = devices;
    options.backend_options = own.c_str();
    options.step_tokens = 128;
    options.threads = 1;
    options.log = Logged::line;
    options.log_user = log;
    batchllm_engine *made = nullptr;
    CHECK(batchllm_engine_create(&options, &made));
    return EngineHandle(made);
}

using Tokens = std::map<std::pair<uint64_t, int32_t>, std::vector<int32_t>>; // by tag and sample

Tokens poll(batchllm_engine *engine) {
    batchllm_results *polled = nullptr;
    CHECK(batchllm_poll(engine, 0, &polled));
    const ResultsHandle results(polled);
    Tokens all;
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        const bool first =
            all.emplace(std::pair(results->tags[i], results->samples[i]),
                        std::vector<int32_t>(results->tokens + results->token_offsets[i],
                                             results->tokens + results->token_offsets[i + 1]))
                .second;
        assert_true(first);
    }
    return all;
}

Tokens undisturbed(batchllm_stats *stats = nullptr) {
    Logged log;
    const EngineHandle engine = make_engine("0", "", &log);
    add_rows(engine.get());
    CHECK(batchllm_run(engine.get(), nullptr, nullptr));
    if (stats != nullptr) *stats = stats_of(engine);
    return poll(engine.get());
}

batchllm_info info_of(batchllm_engine *engine, int32_t device) {
    batchllm_info info;
    info.struct_size = sizeof info;
    CHECK(batchllm_engine_info(engine, device, &info));
    return info;
}

// Progress does not go back.
int32_t note_progress(void *user, const batchllm_progress *progress) {
    auto *last = static_cast<batchllm_progress *>(user);
    assert_true(progress->tokens_done >= last->tokens_done);
    assert_true(progress->rows_done >= last->rows_done);
    *last = *progress;
    return 0;
}

void the_others_compute_the_rows_of_a_device_that_fails(void **) {
    batchllm_stats alone;
    const Tokens expected = undisturbed(&alone);
    for (const int fails_after : {0, 1, 5, 12}) {
        Logged log;
        const std::string failing = ",failing_device=1,fails_after=" + std::to_string(fails_after);
        const EngineHandle engine = make_engine("0,1,2", failing.c_str(), &log);
        const batchllm_info lost = info_of(engine.get(), 1);
        add_rows(engine.get());
        batchllm_progress progress{};
        CHECK(batchllm_run(engine.get(), note_progress, &progress));
        assert_int_equal(progress.tokens_left, 0);
        assert_true(poll(engine.get()) == expected);
        assert_int_equal(log.lines.size(), 1);
        const std::string said = log.text();
        assert_non_null(std::strstr(said.c_str(), "device 1: sim: the device fails after"));
        assert_non_null(std::strstr(said.c_str(), "rows that it had are computed again"));
        // The engine's info does not change.
        const batchllm_info info = info_of(engine.get(), 1);
        assert_int_equal(info.device_count, 3);
        assert_int_equal(info.device_number, 1);
        assert_ptr_equal(info.device, lost.device);
        assert_int_equal(info_of(engine.get(), 2).device_number, 2);
        const batchllm_stats stats = stats_of(engine);
        assert_int_equal(stats.rows_deduplicated, alone.rows_deduplicated);
        assert_int_equal(stats.logical_prompt_tokens, alone.logical_prompt_tokens);
        assert_int_equal(stats.completion_tokens, alone.completion_tokens);
        int64_t generated = 0;
        for (const auto &[row, tokens] : expected) generated += static_cast<int64_t>(tokens.size());
        assert_int_equal(stats.rows_done, row_count);
        assert_int_equal(stats.rows_failed, 0);
        assert_true(stats.completion_tokens <= generated);
        // Includes the lost device.
        assert_true(stats.kv_pages_total >= 3 * stats.kv_pages_peak / 2);
        // More rows, on the devices that are left.
        add_rows(engine.get());
        CHECK(batchllm_run(engine.get(), nullptr, nullptr));
        assert_int_equal(poll(engine.get()).size(), expected.size());
        assert_int_equal(log.lines.size(), 1);
    }
}

void rows_cancelled_before_their_device_fails_have_one_result(void **) {
    Logged log;
    const EngineHandle engine = make_engine("0,1", ",failing_device=1,fails_after=4", &log);
    add_rows(engine.get());
    batchllm_progress progress;
    progress.struct_size = sizeof progress;
    for (int i = 0; i < 5; ++i) {
        CHECK(batchllm_step(engine.get(), &progress));
        for (uint64_t tag = static_cast<uint64_t>(i); tag < row_count; tag += 13)
            batchllm_cancel(engine.get(), tag);
        // Of two equal rows that are computed once, either one.
        for (uint64_t tag = 8; i == 1 && tag < row_count; tag += 10)
            batchllm_cancel(engine.get(), tag + tag / 10 % 2);
    }
    while (progress.rows_done < row_count) {
        CHECK(batchllm_step(engine.get(), &progress));
        assert_int_equal(progress.rows_waiting + progress.rows_running + progress.rows_done,
                         row_count);
    }
    // The batch in flight keeps the pages of rows that were cancelled meanwhile.
    CHECK(batchllm_step(engine.get(), &progress));
    assert_int_equal(progress.tokens_left, 0);
    assert_int_equal(progress.pages_used, 0);
    assert_int_equal(log.lines.size(), 1);
    const Tokens expected = undisturbed();
    const Tokens found = poll(engine.get());
    assert_int_equal(found.size(), expected.size());
    for (const auto &[row, tokens] : found) assert_true(expected.count(row) == 1);
}

void where_no_device_is_left_what_has_finished_can_be_polled(void **) {
    const Tokens expected = undisturbed();
    for (const char *devices : {"0", "0,1"}) {
        Logged log;
        const EngineHandle engine = make_engine(devices, ",fails_after=20", &log);
        add_rows(engine.get());
        assert_int_equal(batchllm_run(engine.get(), nullptr, nullptr), BATCHLLM_ERROR_DEVICE);
        assert_non_null(std::strstr(batchllm_last_error(), "the device fails after 20 batches"));
        const Tokens found = poll(engine.get());
        assert_true(!found.empty() && found.size() < expected.size());
        for (const auto &[row, tokens] : found) assert_true(expected.at(row) == tokens);
        // It stays failed, with the same error.
        assert_int_equal(batchllm_run(engine.get(), nullptr, nullptr), BATCHLLM_ERROR_DEVICE);
        assert_true(poll(engine.get()).empty());
        assert_int_equal(log.lines.size(), std::strlen(devices) / 2);
    }
}

// ---- Devices that hang ----

class HangingBackend : public Backend {
  public:
    HangingBackend(std::unique_ptr<Backend> inner, int64_t batch, std::chrono::milliseconds time)
        : inner_(std::move(inner)), batch_(batch), time_(time) {}
    const BackendInfo &info() const override { return inner_->info(); }
    double last_run_seconds() const override { return inner_->last_run_seconds(); }
    bool feeds(const SampleInput &input) const override { return inner_->feeds(input); }
    Status forward(const TokenBatch &batch) override { return inner_->forward(batch); }
    Status sample(std::span<const TokenMask> masks) override { return inner_->sample(masks); }
    Status collect(BatchOutput *output) override {
        if (collected_++ == batch_) std::this_thread::sleep_for(time_);
        return inner_->collect(output);
    }

  private:
    std::unique_ptr<Backend> inner_;
    int64_t batch_, collected_ = 0;
    std::chrono::milliseconds time_;
};

void a_step_that_takes_absurdly_long_says_what_it_does(void **) {
    Logged log;
    EngineOptions options;
    options.backend = "sim";
    options.backend_options.extra = {{"vocabulary", "1000"}};
    options.backend_options.step_tokens = 64;
    options.long_step_seconds = 0.2;
    options.log = {Logged::line, &log, BATCHLLM_LOG_WARNING};
    auto made = Engine::create(options, [](const EngineOptions &of) -> Result<LoadedModel> {
        ASSIGN_OR_RETURN(LoadedModel loaded, load_model_and_backend(of));
        loaded.backends[0] = std::make_unique<HangingBackend>(std::move(loaded.backends[0]), 1,
                                                              std::chrono::milliseconds(1000));
        return loaded;
    });
    assert_true(made.ok());
    const int32_t tokens[] = {1, 2, 3, 4};
    const int64_t offsets[] = {0, 4};
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 8;
    assert_true((*(*made)->intake())
                    ->add_tokens({1, tokens, offsets}, nullptr, *ParamsColumn::open(&params, 1, 1))
                    .ok());
    assert_true((*made)->run(nullptr, nullptr).ok());
    const std::string said = log.text();
    print_message("%s", said.c_str());
    // Reported while it hangs, and once more when it has hung for twice as long.
    assert_in_range(log.lines.size(), 1, 3);
    assert_non_null(std::strstr(said.c_str(), "a step has been waiting for device 0 for "));
    assert_non_null(
        std::strstr(said.c_str(), "1 tokens (1 decode, 0 own, 0 prefix) of 1 requests"));
}

// ---- Memory that others take in the meantime ----

#ifndef BATCHLLM_SANITIZED
void less_memory_than_was_counted_makes_a_smaller_pool(void **) {
    constexpr int64_t wanted = int64_t{4} << 30;
    Logged log;
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "cpu";
    options.model_dir = "golden/llama_bias_f32";
    options.threads = 1;
    options.kv_memory_bytes = wanted;
    options.log = Logged::line;
    options.log_user = &log;
    struct rlimit before;
    assert_int_equal(::getrlimit(RLIMIT_AS, &before), 0);
    int64_t pages = 0;
    for (const int64_t eighths : {0, 6, 2}) { // eighths of the pool that are left; 0: no limit
        struct rlimit limit = before;
        int64_t mapped = 0;
        std::ifstream("/proc/self/statm") >> mapped;
        if (eighths > 0) limit.rlim_cur = static_cast<rlim_t>(mapped * 4096 + wanted / 8 * eighths);
        assert_int_equal(::setrlimit(RLIMIT_AS, &limit), 0);
        batchllm_engine *made = nullptr;
        const int32_t status = batchllm_engine_create(&options, &made);
        const EngineHandle engine(made);
        ::setrlimit(RLIMIT_AS, &before);
        if (eighths == 2) { // too much smaller
            assert_int_equal(status, BATCHLLM_ERROR_OUT_OF_MEMORY);
            continue;
        }
        assert_int_equal(status, BATCHLLM_OK);
        const int64_t had = stats_of(engine).kv_pages_total;
        if (eighths == 0) pages = had;
        assert_true(eighths == 0 ? log.lines.empty() : had < pages * 6 / 8 && had >= pages / 2);
    }
    assert_int_equal(log.lines.size(), 1);
    assert_non_null(std::strstr(log.text().c_str(), "a smaller pool of KV pages"));
}
#endif

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_others_compute_the_rows_of_a_device_that_fails),
        cmocka_unit_test(rows_cancelled_before_their_device_fails_have_one_result),
        cmocka_unit_test(where_no_device_is_left_what_has_finished_can_be_polled),
#ifndef BATCHLLM_SANITIZED
        cmocka_unit_test(less_memory_than_was_counted_makes_a_smaller_pool),
#endif
        cmocka_unit_test(a_step_that_takes_absurdly_long_says_what_it_does),
    };
    return cmocka_run_group_tests_name("engine_failures", tests, nullptr, nullptr);
}
