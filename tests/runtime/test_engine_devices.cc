// Several devices in one engine, on `sim`: modelled seconds, which rows go where, and what must not
// depend on that.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

namespace {

// Rows of several parts: `head` shared by all groups below it, `prefix` shared by a group, and
// `own`.
struct Shape {
    int64_t rows = 0;
    int32_t prefix = 0, spread = 0; // prefixes have prefix +- spread tokens
    int32_t own = 0;
    int32_t sharing = 1;
    int32_t head = 0; // tokens before the prefix that groups_a_head groups share
    int32_t groups_a_head = 1;
};

// The number of devices in a list like "0,1".
int64_t devices_in(const std::string &list) {
    return std::count(list.begin(), list.end(), ',') + 1;
}

struct Rows {
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
};

Rows make_rows(const Shape &shape) {
    std::mt19937_64 random(5);
    Rows rows;
    std::vector<int32_t> prefix;
    for (int64_t row = 0; row < shape.rows; ++row) {
        const int64_t group = row / shape.sharing;
        if (row % shape.sharing == 0) {
            prefix.clear();
            const int64_t head = group / shape.groups_a_head;
            for (int32_t i = 0; i < shape.head; ++i)
                prefix.push_back(static_cast<int32_t>((head * 131 + i * (head + 3)) % 990));
            const int32_t length =
                shape.prefix - shape.spread +
                static_cast<int32_t>(random() % static_cast<uint64_t>(2 * shape.spread + 1));
            for (int32_t i = 0; i < length; ++i)
                prefix.push_back(static_cast<int32_t>(i == 0   ? group % 997
                                                      : i == 1 ? group / 997
                                                               : (group * 7 + i) % 997));
        }
        rows.tokens.insert(rows.tokens.end(), prefix.begin(), prefix.end());
        for (int32_t i = 0; i < shape.own; ++i)
            rows.tokens.push_back(static_cast<int32_t>(i == 0   ? row % 997
                                                       : i == 1 ? row / 997
                                                                : (row * 31 + i * 7) % 997));
        rows.offsets.push_back(static_cast<int64_t>(rows.tokens.size()));
    }
    return rows;
}

struct Run {
    std::map<uint64_t, std::vector<int32_t>> tokens; // by tag
    batchllm_stats stats;
};

Run run_rows(const Rows &rows, const batchllm_params &params, const char *devices,
             const char *backend_options, int32_t levels = 1, int64_t kv_memory_bytes = 0,
             int64_t step_tokens = 4096) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.devices = devices;
    options.backend_options = backend_options;
    options.levels = levels;
    options.kv_memory_bytes = kv_memory_bytes;
    options.step_tokens = step_tokens;
    options.threads = 1;
    batchllm_engine *made = nullptr;
    CHECK(batchllm_engine_create(&options, &made));
    const EngineHandle engine(made);
    CHECK(batchllm_add_tokens(made, static_cast<int64_t>(rows.offsets.size()) - 1,
                              rows.tokens.data(), rows.offsets.data(), nullptr, &params, 1));
    const ResultsHandle results = ::run(made);
    Run run;
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
        const bool first =
            run.tokens
                .emplace(results->tags[i],
                         std::vector<int32_t>(results->tokens + results->token_offsets[i],
                                              results->tokens + results->token_offsets[i + 1]))
                .second;
        assert_true(first);
    }
    assert_int_equal(run.tokens.size() + 1, rows.offsets.size());
    run.stats.struct_size = sizeof run.stats;
    CHECK(batchllm_engine_stats(made, &run.stats));
    return run;
}

batchllm_params generating(int32_t tokens) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = tokens;
    return params;
}

// The time of one device divided by that of several, by the modelled clock.
double scaling(const char *name, const Shape &shape, const batchllm_params &params,
               const char *devices, const char *backend_options, int32_t levels = 1) {
    const Rows rows = make_rows(shape);
    const Run one = run_rows(rows, params, "0", backend_options, levels);
    const Run several = run_rows(rows, params, devices, backend_options, levels);
    assert_true(one.tokens == several.tokens);
    const double gain = one.stats.backend_seconds / several.stats.backend_seconds;
    print_message("%-44s %6.2f s, devices %s: %6.2f s, %.3f times; prompt tokens computed %.3f "
                  "times\n",
                  name, one.stats.backend_seconds, devices, several.stats.backend_seconds, gain,
                  static_cast<double>(several.stats.processed_prompt_tokens) /
                      static_cast<double>(one.stats.processed_prompt_tokens));
    return gain;
}

// The industrial job of BatchLLM's paper: like industry1 in bench/throughput, with four times the
// rows.
Shape industry() {
    Shape shape;
    shape.rows = 12000;
    shape.prefix = 1100;
    shape.spread = 275;
    shape.own = 400;
    shape.sharing = 7;
    return shape;
}

constexpr const char *with_lengths =
    "vocabulary=1000,eos_token=999,min_length=80,max_length=120,overlap=1";

void two_devices_are_nearly_twice_as_fast(void **) {
    assert_true(scaling("industry 1", industry(), generating(128), "0,1", with_lengths) >= 1.9);
    Shape quarter = industry();
    quarter.rows = 3000;
    assert_true(scaling("a quarter of its rows", quarter, generating(128), "0,1", with_lengths) >=
                1.9);
    assert_true(scaling("lengths unlike what they may be", industry(), generating(512), "0,1",
                        "vocabulary=1000,eos_token=999,mean_length=60,overlap=1") >= 1.85);
}

void three_devices_are_nearly_three_times_as_fast(void **) {
    assert_true(scaling("industry 1", industry(), generating(128), "4,2,7", with_lengths) >= 2.8);
}

void a_group_that_is_more_than_a_fair_share_is_split(void **) {
    Shape one; // one prefix for all
    one.rows = 1024;
    one.prefix = 2000;
    one.own = 200;
    one.sharing = 1024;
    // The prefix is computed twice: a hundredth of the work.
    assert_true(scaling("one prefix", one, generating(100), "0,1", "vocabulary=1000,overlap=1") >=
                1.9);
    Shape few; // three groups for two devices
    few.rows = 3 * 64;
    few.prefix = 500;
    few.own = 100;
    few.sharing = 64;
    assert_true(scaling("three groups", few, generating(100), "0,1",
                        "vocabulary=1000,overlap=1,step_floor_us=0") >= 1.85);
}

void a_group_whose_prefix_is_dear_stays_whole(void **) {
    Shape shape; // half of the rows take less work than their prefix
    shape.rows = 8;
    shape.prefix = 4000;
    shape.own = 20;
    shape.sharing = 8;
    const Rows rows = make_rows(shape);
    const Run run = run_rows(rows, generating(4), "0,1", "vocabulary=1000");
    assert_int_equal(run.stats.processed_prompt_tokens, 4000 + 8 * 20);
}

void groups_with_a_common_head_stay_together(void **) {
    Shape shape;
    shape.rows = 16 * 6 * 8;
    shape.head = 600;
    shape.groups_a_head = 6;
    shape.prefix = 200;
    shape.own = 100;
    shape.sharing = 8;
    const Rows rows = make_rows(shape);
    const char *options = "vocabulary=1000,overlap=1";
    const Run one = run_rows(rows, generating(30), "0", options, 2);
    const Run two = run_rows(rows, generating(30), "0,1", options, 2);
    assert_true(one.tokens == two.tokens);
    assert_int_equal(one.stats.processed_prompt_tokens, 16 * 600 + 96 * 200 + 768 * 100);
    // At most the last head is computed on both.
    print_message("%d and %d prompt tokens, %.2f s and %.2f s\n",
                  int(one.stats.processed_prompt_tokens), int(two.stats.processed_prompt_tokens),
                  one.stats.backend_seconds, two.stats.backend_seconds);
    assert_true(two.stats.processed_prompt_tokens - one.stats.processed_prompt_tokens <= 800);
    assert_true(two.stats.backend_seconds * 1.7 <= one.stats.backend_seconds);
    // One head for all: it is computed on both, and both have as much to do.
    shape.groups_a_head = 96;
    assert_true(scaling("one head for all", shape, generating(30), "0,1", options, 2) >= 1.8);
}

// No device waits for a head on another device, whatever share of the rows is below it.
void heads_chosen_by_cost_leave_no_device_idle(void **) {
    const char *options = "vocabulary=1000,overlap=1,common_prefix_cost=0.1875";
    for (const int32_t groups_a_head : {480, 96, 6}) {
        Shape shape;
        shape.rows = 480 * 8;
        shape.head = 600;
        shape.groups_a_head = groups_a_head;
        shape.prefix = 200;
        shape.own = 100;
        shape.sharing = 8;
        const Rows rows = make_rows(shape);
        const int64_t heads = 480 / groups_a_head, least = heads * 600 + 480 * 200 + 3840 * 100;
        const Run one = run_rows(rows, generating(30), "0", options, 0);
        assert_int_equal(one.stats.processed_prompt_tokens, least);
        for (const char *devices : {"0,1", "0,1,2,3"}) {
            const int64_t count = devices_in(devices);
            const Run several = run_rows(rows, generating(30), devices, options, 0);
            assert_true(one.tokens == several.tokens);
            const double gain = one.stats.backend_seconds / several.stats.backend_seconds;
            const int64_t again = several.stats.processed_prompt_tokens - least;
            print_message("%d groups a head, devices %s: %.2f times as fast, %lld prompt tokens "
                          "computed again, pages at most %lld and %lld\n",
                          groups_a_head, devices, gain, static_cast<long long>(again),
                          static_cast<long long>(one.stats.kv_pages_peak),
                          static_cast<long long>(several.stats.kv_pages_peak));
            assert_true(gain >= 0.9 * static_cast<double>(count));
            // A large head is computed on each device; of small ones, only the last few, when the
            // rest is divided evenly.
            assert_true(again <= (count - 1) * (heads < 8 ? heads : 2) * 800);
        }
    }
}

// A head of all rows with pools that hold only some of them: a group is placed when there is room
// for it.
void groups_below_a_head_start_as_memory_allows(void **) {
    Shape shape;
    shape.rows = 800;
    shape.head = 300;
    shape.groups_a_head = 100;
    shape.prefix = 60;
    shape.own = 30;
    shape.sharing = 8;
    const Rows rows = make_rows(shape);
    const std::string lengths =
        "vocabulary=1000,eos_token=999,mean_length=20,page_tokens=8,common_prefix_cost=0.1875";
    Run expected;
    for (const int32_t levels : {1, 2, 0}) {
        for (const char *devices : {"0", "0,1", "0,1,2,3"}) {
            for (const char *pages : {"", ",pages=80"}) { // 80: 640 tokens, of rows of up to 430
                const Run run = run_rows(rows, generating(40), devices, (lengths + pages).c_str(),
                                         levels, 0, 64);
                if (expected.tokens.empty()) expected = run;
                assert_true(run.tokens == expected.tokens);
                assert_true(run.stats.kv_pages_peak <= run.stats.kv_pages_total);
                if (levels == 1) continue;
                // On each device, not counting what small pools force it to compute again.
                assert_true(run.stats.processed_prompt_tokens - run.stats.recomputed_tokens <=
                            devices_in(devices) * (300 + 8 * 60) + 100 * 60 + 800 * 30);
            }
        }
    }
}

void neither_devices_nor_batches_in_flight_change_a_token(void **) {
    Shape shape;
    shape.rows = 400;
    shape.prefix = 60;
    shape.spread = 20;
    shape.own = 30;
    shape.sharing = 9;
    const Rows rows = make_rows(shape);
    batchllm_params params = generating(60);
    params.temperature = 1;
    params.seed = 3;
    const std::string lengths = "vocabulary=1000,eos_token=999,mean_length=30,page_tokens=8";
    Run expected;
    int64_t preemptions = 0;
    for (const char *devices : {"0", "0,1", "0,1,2"}) {
        for (const char *overlap : {",overlap=0", ",overlap=1"}) {
            for (const char *pages : {"", ",pages=40"}) { // 40: little more than the longest row
                const Run run =
                    run_rows(rows, params, devices, (lengths + overlap + pages).c_str(), 1, 0, 64);
                if (expected.tokens.empty()) expected = run;
                assert_true(run.tokens == expected.tokens);
                assert_int_equal(run.stats.completion_tokens, expected.stats.completion_tokens);
                if (*pages != 0)
                    assert_int_equal(run.stats.kv_pages_total, 40 * devices_in(devices));
                assert_true(run.stats.kv_pages_peak <= run.stats.kv_pages_total);
                preemptions += run.stats.preemptions;
            }
        }
    }
    assert_true(preemptions > 0);
}

void time_of_the_host_is_hidden_behind_the_batch_in_flight(void **) {
    Shape shape;
    shape.rows = 500;
    shape.prefix = 100;
    shape.own = 100;
    shape.sharing = 5;
    const Rows rows = make_rows(shape);
    const batchllm_params params = generating(50);
    const char *base = "vocabulary=1000,step_floor_us=4000,host_us=%d,overlap=%d";
    double seconds[2][2];
    for (int host = 0; host < 2; ++host) {
        for (int overlap = 0; overlap < 2; ++overlap) {
            char options[128];
            std::snprintf(options, sizeof options, base, host * 2000, overlap);
            const Run run = run_rows(rows, params, "0", options);
            seconds[host][overlap] = run.stats.backend_seconds;
            // Every row runs to its max_tokens, so no row-step is wasted.
            assert_int_equal(run.stats.completion_tokens, 500 * 50);
        }
    }
    print_message("without overlap %.3f s, host added %.3f s; with overlap %.3f s, %.3f s\n",
                  seconds[0][0], seconds[1][0], seconds[0][1], seconds[1][1]);
    assert_true(seconds[1][0] > seconds[0][0] * 1.05);
    assert_true(seconds[1][1] < seconds[0][1] * 1.01);
    assert_true(seconds[0][1] < seconds[0][0] * 1.02);
}

void rows_with_penalties_are_no_slower_for_the_overlap(void **) {
    Shape shape;
    shape.rows = 500;
    shape.prefix = 100;
    shape.own = 20;
    shape.sharing = 5;
    const Rows rows = make_rows(shape);
    batchllm_params params = generating(50);
    params.frequency_penalty = 0.5f; // a batch must be known before the next one can be sampled
    const Run plain = run_rows(rows, params, "0", "vocabulary=1000");
    const Run overlapped = run_rows(rows, params, "0", "vocabulary=1000,overlap=1");
    assert_true(plain.tokens == overlapped.tokens);
    assert_true(overlapped.stats.backend_seconds < plain.stats.backend_seconds * 1.02);
}

// Rows of 500 tokens, only one of which is computed: a device gets many of them at a time.
void steps_of_first_tokens_are_full(void **) {
    Shape shape;
    shape.rows = 2000;
    shape.prefix = shape.spread = 0;
    shape.own = 500;
    batchllm_params params = generating(1);
    params.task = BATCHLLM_TASK_EMBED;
    params.pooling = BATCHLLM_POOLING_FIRST;
    const Run run = run_rows(make_rows(shape), params, "0,1", "");
    assert_in_range(run.stats.processed_prompt_tokens, 1, 2000);
    assert_in_range(run.stats.steps, 2, 6);
}

// Two and two of four devices; the numbers are those of the first.
void devices_that_work_as_one_are_one_lane(void **) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.devices = "4-6,1";
    options.backend_options = "tensor_parallel=2,device=h200";
    options.model_dir = "golden/llama_bias_f32";
    batchllm_engine *made = nullptr;
    CHECK(batchllm_engine_create(&options, &made));
    const EngineHandle engine(made);
    for (int32_t i = 0; i < 2; ++i) {
        batchllm_info info;
        info.struct_size = sizeof info;
        CHECK(batchllm_engine_info(made, i, &info));
        assert_int_equal(info.device_count, 2);
        assert_int_equal(info.device_number, i == 0 ? 4 : 6);
        assert_non_null(std::strstr(info.device, "2 as one"));
    }
    // auto: a small model needs one, of those given or of all; and the log says why.
    std::string log;
    options.log = [](void *user, int32_t, const char *text) {
        *static_cast<std::string *>(user) += text;
    };
    options.log_user = &log;
    options.log_level = BATCHLLM_LOG_INFO;
    options.backend_options = "tensor_parallel=auto,device=h200";
    for (const char *devices : {"4-6,1", static_cast<const char *>(nullptr)}) {
        options.devices = devices;
        batchllm_engine *fitting = nullptr;
        CHECK(batchllm_engine_create(&options, &fitting));
        const EngineHandle own(fitting);
        batchllm_info info;
        info.struct_size = sizeof info;
        CHECK(batchllm_engine_info(fitting, 0, &info));
        assert_int_equal(info.device_count, devices == nullptr ? 1 : 4);
        assert_int_equal(info.device_number, devices == nullptr ? 0 : 4);
        assert_non_null(std::strstr(log.c_str(), "tensor_parallel auto: 1: 1 device leaves"));
        log.clear();
    }
    options.backend_options = "tensor_parallel=2,device=h200";
    options.devices = "0-2";
    assert_int_equal(batchllm_engine_create(&options, &made), BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_non_null(std::strstr(batchllm_last_error(), "a multiple"));
}

void wrong_devices_are_refused_by_name(void **) {
    struct Case {
        const char *backend, *devices, *text;
    };
    for (const Case &c :
         {Case{"sim", "0,x", "\"0,x\""}, Case{"sim", "", "\"\""}, Case{"sim", "0,", "\"0,\""},
          Case{"sim", "-1", "\"-1\""}, Case{"sim", "1,2,1", "1 is given twice"},
          Case{"sim", "0-2,2", "2 is given twice"}, Case{"sim", "2-1", "\"2-1\""},
          Case{"sim", "0-", "\"0-\""}, Case{"sim", "0-9999999", "0-9999999"},
          Case{"cpu", "0,1", "the cpu backend has one device"},
          Case{"cpu", "1", "the cpu backend has one device"}}) {
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.backend = c.backend;
        options.devices = c.devices;
        options.model_dir = std::strcmp(c.backend, "cpu") == 0 ? "golden/llama2_mha_f16" : nullptr;
        batchllm_engine *engine = nullptr;
        assert_int_equal(batchllm_engine_create(&options, &engine),
                         BATCHLLM_ERROR_INVALID_ARGUMENT);
        if (std::strstr(batchllm_last_error(), c.text) == nullptr) {
            fail_msg("\"%s\" does not contain \"%s\"", batchllm_last_error(), c.text);
        }
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(two_devices_are_nearly_twice_as_fast),
        cmocka_unit_test(three_devices_are_nearly_three_times_as_fast),
        cmocka_unit_test(a_group_that_is_more_than_a_fair_share_is_split),
        cmocka_unit_test(a_group_whose_prefix_is_dear_stays_whole),
        cmocka_unit_test(groups_with_a_common_head_stay_together),
        cmocka_unit_test(heads_chosen_by_cost_leave_no_device_idle),
        cmocka_unit_test(groups_below_a_head_start_as_memory_allows),
        cmocka_unit_test(neither_devices_nor_batches_in_flight_change_a_token),
        cmocka_unit_test(time_of_the_host_is_hidden_behind_the_batch_in_flight),
        cmocka_unit_test(rows_with_penalties_are_no_slower_for_the_overlap),
        cmocka_unit_test(steps_of_first_tokens_are_full),
        cmocka_unit_test(devices_that_work_as_one_are_one_lane),
        cmocka_unit_test(wrong_devices_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("engine_devices", tests, nullptr, nullptr);
}
