// Rows with adapters against PEFT, on the CPU or, with the argument cuda, those that CUDA has adapters for:
// tests/golden/adapters, made by scripts/golden_adapters.py. Whatever other
// adapters a job has, however small the room for them, a row's tokens are those of the model with its adapter merged.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <simdjson.h>

#include "batchllm.h"
#include "golden_files.h"
#include "testing.h"

namespace {

constexpr double margin_limit = 1e-3;
constexpr double logprob_tolerance = 2e-3;
const std::string folder = "golden/adapters/";
bool on_cuda = false;
std::string cuda_options = "tuning=0,quantize=none";

struct AdapterDeleter {
    void operator()(batchllm_adapter *adapter) const { batchllm_adapter_destroy(adapter); }
};
using AdapterHandle = std::unique_ptr<batchllm_adapter, AdapterDeleter>;

// What rows of one base model say with one adapter, or without any.
struct Said {
    std::string adapter; // "": none
    std::vector<GoldenRow> rows;
    GoldenScore score; // of a prompt of the base's
};

struct Base {
    Golden golden;
    std::vector<Said> said; // the first is the base's own
};

void leave_supported(Base *base);

std::vector<Base> bases() {
    simdjson::dom::parser parser;
    const simdjson::dom::element file = parser.load(folder + "adapters.json");
    std::map<std::string, Base> by_name;
    for (const auto made : file["adapters"]) {
        const auto name = std::string(std::string_view(made["base"]));
        Base &base = by_name[name];
        if (base.said.empty()) {
            base.golden = read_golden("golden/" + name);
            base.said.push_back({"",
                                 {base.golden.rows.begin(), base.golden.rows.begin() + 4},
                                 base.golden.scores[0]});
        }
        Said said;
        said.adapter = std::string(std::string_view(made["name"]));
        for (const auto row : made["rows"]) {
            const auto i = static_cast<size_t>(int64_t(row["row"]));
            said.rows.push_back({base.golden.rows[i].prompt, read_ints(row["tokens"]),
                                 read_doubles(row["margins"]), read_doubles(row["logprobs"])});
        }
        said.score.prompt = int64_t(made["score"]["prompt"]);
        for (const auto c : made["score"]["continuations"]) {
            said.score.continuations.push_back(read_ints(c));
        }
        for (const auto l : made["score"]["logprobs"]) {
            said.score.logprobs.push_back(read_doubles(l));
        }
        base.said.push_back(std::move(said));
    }
    std::vector<Base> all;
    for (auto &[name, base] : by_name) {
        if (on_cuda && refused_by_cuda(base.golden)) continue;
        if (on_cuda) leave_supported(&base);
        if (base.said.size() > 1) all.push_back(std::move(base));
    }
    return all;
}

batchllm_engine_options device_options() {
    batchllm_engine_options options = float32_options();
    if (on_cuda) {
        options.backend = "cuda";
        options.backend_options = cuda_options.c_str();
    }
    return options;
}

// Erases what the device has no adapters for, the embedding's for instance.
void leave_supported(Base *base) {
    const EngineHandle engine = make_engine(base->golden.directory, device_options());
    std::erase_if(base->said, [&](const Said &said) {
        if (said.adapter.empty()) return false;
        batchllm_adapter *adapter = nullptr;
        const int32_t status = batchllm_adapter_load(engine.get(), "an adapter",
                                                     (folder + said.adapter).c_str(), &adapter);
        batchllm_adapter_destroy(adapter);
        if (status == BATCHLLM_ERROR_UNSUPPORTED) {
            std::printf("not on CUDA: %s\n", batchllm_last_error());
            return true;
        }
        CHECK(status);
        return false;
    });
}

AdapterHandle load(const EngineHandle &engine, const std::string &path) {
    batchllm_adapter *adapter = nullptr;
    CHECK(batchllm_adapter_load(engine.get(), "an adapter", path.c_str(), &adapter));
    return AdapterHandle(adapter);
}

batchllm_adapter_info info_of(const AdapterHandle &adapter) {
    batchllm_adapter_info info{};
    info.struct_size = sizeof info;
    CHECK(batchllm_adapter_get_info(adapter.get(), &info));
    return info;
}

void add_row(batchllm_engine *engine, const std::vector<int32_t> &prompt,
             const batchllm_adapter *adapter, int32_t max_tokens, uint64_t tag) {
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = max_tokens;
    params.logprobs = 0;
    params.adapter = adapter;
    const int64_t offsets[] = {0, static_cast<int64_t>(prompt.size())};
    CHECK(batchllm_add_tokens(engine, 1, prompt.data(), offsets, &tag, &params, 1));
}

void compare(const std::string &name, const GoldenRow &row, const batchllm_results &results,
             int64_t i, int64_t *compared) {
    if (results.statuses[i] != BATCHLLM_OK) {
        fail_msg("%s: %s", name.c_str(), batchllm_status_name(results.statuses[i]));
    }
    const int64_t begin = results.token_offsets[i];
    const int64_t count = results.token_offsets[i + 1] - begin;
    for (size_t t = 0; t < row.tokens.size(); ++t) {
        const auto at = static_cast<int64_t>(t);
        const int32_t token = at < count ? results.tokens[begin + at] : -1;
        if (token != row.tokens[t] && row.margins[t] < margin_limit) return;
        if (token != row.tokens[t]) {
            fail_msg("%s: row %d: token %d is %d and not %d (margin %g)", name.c_str(),
                     int(results.tags[i]), int(t), token, row.tokens[t], row.margins[t]);
        }
        const double logprob = double(results.logprobs[results.logprob_offsets[i] + at]);
        if (!(std::fabs(logprob - row.logprobs[t]) <= logprob_tolerance)) {
            fail_msg("%s: row %d: log-probability %d is %g and not %g", name.c_str(),
                     int(results.tags[i]), int(t), logprob, row.logprobs[t]);
        }
        ++*compared;
    }
    assert_int_equal(count, row.tokens.size());
}

// All rows of a base, with all of its adapters and without any, in one job: those that differ in the
// adapter alone are neighbours.
batchllm_stats compare_base(const Base &base, const batchllm_engine_options &options,
                            bool after_short_rows = false) {
    const EngineHandle engine = make_engine(base.golden.directory, options);
    if (after_short_rows) run_short_rows(engine.get(), base.golden);
    std::vector<AdapterHandle> adapters;
    for (const Said &said : base.said) {
        adapters.push_back(said.adapter.empty() ? nullptr : load(engine, folder + said.adapter));
    }
    for (size_t row = 0; row < base.said[0].rows.size(); ++row) {
        for (size_t a = 0; a < adapters.size(); ++a) {
            add_row(engine.get(), base.said[a].rows[row].prompt, adapters[a].get(),
                    base.golden.new_tokens, row * adapters.size() + a);
        }
    }
    adapters.resize(base.said.size()); // the rows keep what they need
    const size_t count = adapters.size();
    adapters.clear();
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, count * base.said[0].rows.size());
    int64_t compared = 0;
    for (int64_t i = 0; i < results->count; ++i) {
        const Said &said = base.said[results->tags[i] % count];
        compare(base.golden.directory + " with " + said.adapter,
                said.rows[results->tags[i] / count], *results, i, &compared);
    }
    int64_t all = 0;
    for (const Said &said : base.said) {
        for (const GoldenRow &row : said.rows) all += static_cast<int64_t>(row.tokens.size());
    }
    assert_true(compared > all * 9 / 10);
    return stats_of(engine);
}

void rows_say_what_the_merged_model_says(void **) {
    for (const Base &base : bases()) {
        const batchllm_stats stats = compare_base(base, device_options());
        assert_int_equal(stats.adapters, base.said.size() - 1);
        assert_int_equal(stats.adapter_loads, base.said.size() - 1);
    }
}

// On CUDA such a job runs on layers that are merged (backend option merge_adapters).
void one_adapter_for_all_rows(void **) {
    for (const Base &base : bases()) {
        for (size_t i = 1; i < base.said.size(); ++i) {
            Base alone;
            alone.golden = base.golden;
            alone.said = {base.said[i]};
            batchllm_engine_options options = device_options();
            const std::string merging = cuda_options + ",merge_adapters=1";
            if (on_cuda) options.backend_options = merging.c_str();
            compare_base(alone, options);
        }
    }
}

void however_rows_are_shared_and_divided(void **) {
    for (const Base &base : bases()) {
        batchllm_engine_options options = device_options();
        options.enlarge = BATCHLLM_ENLARGE_NONE;
        options.step_tokens = 24;
        compare_base(base, options);
        options = device_options();
        options.min_prefix_tokens = 1;
        options.levels = 2;
        options.order = BATCHLLM_ORDER_ARRIVAL;
        compare_base(base, options);
    }
}

void parts_of_an_adapter_change_parts_of_a_model(void **) {
    int64_t compared = 0;
    for (const Base &base : bases()) {
        batchllm_engine_options options = device_options();
        const std::string two = (on_cuda ? cuda_options + "," : "") + "tensor_parallel=2";
        options.backend_options = two.c_str();
        options.model_dir = base.golden.directory.c_str();
        batchllm_engine *engine = nullptr;
        const int32_t status = batchllm_engine_create(&options, &engine);
        batchllm_engine_destroy(engine);
        if (status == BATCHLLM_ERROR_UNSUPPORTED) continue; // its heads cannot be divided
        if (on_cuda && status == BATCHLLM_ERROR_BACKEND_UNAVAILABLE) skip(); // one device
        compare_base(base, options);
        ++compared;
    }
    assert_true(compared > 4);
}

// On a busy host a row may wait for its adapter until nobody needs the pages it takes.
void rows_are_preempted(void **) {
    int64_t preemptions = 0;
    const std::vector<Base> all = bases();
    for (size_t at = 0; at < 10 * all.size() && (at < all.size() || preemptions == 0); ++at) {
        const Base &base = all[at % all.size()];
        if (has_states(base.golden)) continue;
        const EngineHandle engine = make_engine(base.golden.directory, device_options());
        batchllm_engine_options options = device_options();
        const int64_t groups = has_windowed_layers(base.golden) ? 4 : 1;
        options.kv_memory_bytes = groups * 22 * stats_of(engine).kv_page_bytes;
        options.enlarge = BATCHLLM_ENLARGE_NONE;
        preemptions += compare_base(base, options, true).preemptions;
    }
    assert_true(preemptions > 0);
}

// With room for the largest alone, adapters come and go.
void adapters_wait_for_room(void **) {
    for (const Base &base : bases()) {
        const EngineHandle engine = make_engine(base.golden.directory, device_options());
        batchllm_engine_options options = device_options();
        for (const Said &said : base.said) {
            if (said.adapter.empty()) continue;
            options.adapter_memory_bytes =
                std::max(options.adapter_memory_bytes,
                         info_of(load(engine, folder + said.adapter)).memory_bytes);
        }
        const batchllm_stats stats = compare_base(base, options);
        assert_true(stats.adapter_bytes_peak <= options.adapter_memory_bytes);
        options.order = BATCHLLM_ORDER_ARRIVAL; // each row in turn
        options.enlarge = BATCHLLM_ENLARGE_NONE;
        const batchllm_stats turns = compare_base(base, options);
        assert_true(turns.adapter_bytes_peak <= options.adapter_memory_bytes);
        if (base.said.size() > 3) assert_true(turns.adapter_loads > stats.adapter_loads);
    }
}

void scores_have_adapters(void **) {
    for (const Base &base : bases()) {
        const EngineHandle engine = make_engine(base.golden.directory, device_options());
        std::vector<AdapterHandle> adapters;
        for (size_t a = 0; a < base.said.size(); ++a) {
            const Said &said = base.said[a];
            adapters.push_back(said.adapter.empty() ? nullptr
                                                    : load(engine, folder + said.adapter));
            const auto &prompt = base.golden.rows[static_cast<size_t>(said.score.prompt)].prompt;
            std::vector<int32_t> continuations;
            std::vector<int64_t> ends{0};
            for (const auto &c : said.score.continuations) {
                continuations.insert(continuations.end(), c.begin(), c.end());
                ends.push_back(static_cast<int64_t>(continuations.size()));
            }
            const int64_t offsets[] = {0, static_cast<int64_t>(prompt.size())};
            const int64_t rows[] = {0, static_cast<int64_t>(ends.size()) - 1};
            batchllm_params params;
            batchllm_params_init(&params, sizeof params);
            params.adapter = adapters.back().get();
            const uint64_t tag = a;
            CHECK(batchllm_add_score_tokens(engine.get(), 1, prompt.data(), offsets,
                                            continuations.data(), ends.data(), rows, &tag,
                                            &params));
        }
        const ResultsHandle results = run(engine.get());
        for (int64_t i = 0; i < results->count; ++i) {
            const Said &said = base.said[results->tags[i]];
            for (size_t c = 0; c < said.score.logprobs.size(); ++c) {
                const int64_t begin =
                    results->score_token_offsets[results->score_offsets[i] + int64_t(c)];
                for (size_t t = 0; t < said.score.logprobs[c].size(); ++t) {
                    const double got = double(results->score_logprobs[begin + int64_t(t)]);
                    if (std::fabs(got - said.score.logprobs[c][t]) <= logprob_tolerance) continue;
                    fail_msg("%s: score %d.%d is %g and not %g", said.adapter.c_str(), int(c),
                             int(t), got, said.score.logprobs[c][t]);
                }
            }
        }
    }
}

// The log-probabilities of a row with an adapter.
std::vector<float> logprobs_of(const Base &base, size_t company, const char *type) {
    batchllm_engine_options options = device_options();
    options.compute_type = type;
    options.reproducible = 1;
    const EngineHandle engine = make_engine(base.golden.directory, options);
    std::vector<AdapterHandle> adapters;
    for (size_t a = 1; a < base.said.size(); ++a) {
        adapters.push_back(load(engine, folder + base.said[a].adapter));
    }
    add_row(engine.get(), base.said[1].rows[0].prompt, adapters[0].get(), 12, 7);
    for (size_t i = 0; i < company; ++i) {
        const auto *adapter = i % 3 == 0 ? nullptr : adapters[i % adapters.size()].get();
        add_row(engine.get(), base.said[1].rows[i % 4].prompt, adapter, 12, 100);
    }
    const ResultsHandle results = run(engine.get());
    for (int64_t i = 0; i < results->count; ++i) {
        if (results->tags[i] != 7) continue;
        return {results->logprobs + results->logprob_offsets[i],
                results->logprobs + results->logprob_offsets[i + 1]};
    }
    return {};
}

void reproducible_rows_do_not_depend_on_others_adapters(void **) {
    for (const Base &base : bases()) {
        if (base.said.size() < 3) continue;
        const std::vector<float> alone = logprobs_of(base, 0, "f32");
        assert_int_equal(alone.size(), 12);
        for (const size_t company : {3, 11}) {
            const std::vector<float> beside = logprobs_of(base, company, "f32");
            assert_int_equal(beside.size(), alone.size());
            assert_memory_equal(beside.data(), alone.data(), alone.size() * sizeof(float));
        }
    }
}

void equal_rows_are_computed_once_with_the_same_content_alone(void **) {
    const TemporaryDirectory copies;
    std::filesystem::copy(folder + "llama_qv_r4", copies.file("copy"));
    const EngineHandle engine = make_engine("golden/llama_bias_f32", device_options());
    const AdapterHandle one = load(engine, folder + "llama_qv_r4");
    const AdapterHandle same = load(engine, copies.file("copy"));
    const AdapterHandle other = load(engine, folder + "llama_one_layer");
    assert_string_equal(info_of(one).identity, info_of(same).identity);
    assert_true(info_of(one).salt != info_of(other).salt);
    const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
    for (const batchllm_adapter *adapter :
         {one.get(), same.get(), other.get(), static_cast<batchllm_adapter *>(nullptr)}) {
        add_row(engine.get(), prompt, adapter, 4, 0);
    }
    run(engine.get());
    assert_int_equal(stats_of(engine).rows_deduplicated, 1);
}

void what_an_adapter_is_can_be_asked(void **) {
    const EngineHandle engine = make_engine("golden/llama_bias_f32", device_options());
    const batchllm_adapter_info info = info_of(load(engine, folder + "llama_patterns"));
    assert_int_equal(info.matrices, 8); // four in each of two layers
    assert_int_equal(info.largest_rank, 16);
    assert_true(info.memory_bytes > 0 && info.file_bytes > 0);
    batchllm_adapter_info without{};
    without.struct_size = sizeof without;
    CHECK(batchllm_adapter_identify((folder + "llama_patterns").c_str(), &without));
    assert_string_equal(without.identity, info.identity);
    assert_int_equal(without.salt, info.salt);
    assert_int_equal(without.matrices, 0);
}

void an_adapter_is_of_its_engine(void **) {
    const EngineHandle one = make_engine("golden/llama_bias_f32", device_options());
    const EngineHandle two = make_engine("golden/llama_bias_f32", device_options());
    const AdapterHandle adapter = load(one, folder + "llama_qv_r4");
    add_row(two.get(), {5, 6, 7}, adapter.get(), 4, 0);
    const ResultsHandle results = run(two.get());
    assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
}

// A later engine may have the address of one that is gone.
void an_adapter_outlives_its_engine_and_is_of_no_later_one(void **) {
    EngineHandle engine = make_engine("golden/llama_bias_f32", device_options());
    const AdapterHandle adapter = load(engine, folder + "llama_qv_r4");
    for (int i = 0; i < 4; ++i) {
        engine.reset();
        engine = make_engine("golden/llama_bias_f32", device_options());
        add_row(engine.get(), {5, 6, 7}, adapter.get(), 4, 0);
        const ResultsHandle results = run(engine.get());
        assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_INVALID_PARAMETER);
    }
}

// The engine has room for one large adapter and keeps small ones in memory.
void check_change(const std::function<void(const std::string &directory)> &change) {
    const TemporaryDirectory changing;
    for (const char *name : {"llama_one_layer", "llama_qv_r4"}) {
        std::filesystem::copy(folder + name, changing.file(name));
    }
    batchllm_engine_options options = device_options();
    const EngineHandle any = make_engine("golden/llama_bias_f32", options);
    const batchllm_adapter_info large = info_of(load(any, folder + "llama_one_layer"));
    options.adapter_memory_bytes = large.memory_bytes;
    assert_true(large.file_bytes > large.memory_bytes);
    const EngineHandle engine = make_engine("golden/llama_bias_f32", options);
    std::vector<AdapterHandle> adapters;
    for (const char *name : {"llama_one_layer", "llama_qv_r4"}) {
        adapters.push_back(load(engine, changing.file(name)));
        add_row(engine.get(), {5, 6, 7}, adapters.back().get(), 4, adapters.size());
        add_row(engine.get(), {5, 6, 8}, adapters.back().get(), 4, adapters.size());
    }
    add_row(engine.get(), {5, 6, 7}, nullptr, 4, 3);
    for (const char *name : {"llama_one_layer", "llama_qv_r4"}) change(changing.file(name));
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, 5);
    for (int64_t i = 0; i < results->count; ++i) {
        const bool good = results->tags[i] > 1;
        assert_int_equal(results->statuses[i], good ? BATCHLLM_OK : BATCHLLM_ERROR_ROW_ADAPTER);
    }
    assert_int_equal(stats_of(engine).rows_failed, 2);
    add_row(engine.get(), {5, 6, 7}, adapters[1].get(), 4, 4); // the engine goes on
    assert_int_equal(run(engine.get())->statuses[0], BATCHLLM_OK);
}

void rows_of_an_adapter_that_changes_fail_alone(void **) {
    const std::string weights = "/adapter_model.safetensors", config = "/adapter_config.json";
    check_change([&](const std::string &at) { std::filesystem::resize_file(at + weights, 100); });
    check_change(
        [&](const std::string &at) { std::filesystem::resize_file(at + weights, 1ULL << 42); });
    check_change([&](const std::string &at) { std::filesystem::remove_all(at); });
    check_change([&](const std::string &at) { std::filesystem::remove(at + config); });
    check_change([&](const std::string &at) { std::filesystem::remove(at + weights); });
    check_change([&](const std::string &at) {
        std::filesystem::remove(at + weights);
        std::filesystem::create_directory(at + weights);
    });
    check_change([&](const std::string &at) {
        std::filesystem::remove(at + config);
        assert_int_equal(::mkfifo((at + config).c_str(), 0600), 0);
    });
    check_change([&](const std::string &at) { // a number of another adapter
        std::fstream(at + weights, std::ios::in | std::ios::out | std::ios::ate)
            .seekp(-1, std::ios::end)
            .put(1);
    });
    check_change([&](const std::string &at) { std::ofstream(at + config, std::ios::app) << "\n"; });
}

// ---- Files that are refused ----

std::string bytes_of(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string replaced(std::string text, const std::string &from, const std::string &to) {
    const size_t at = text.find(from);
    if (at == std::string::npos) fail_msg("no %s in the file", from.c_str());
    return text.replace(at, from.size(), to);
}

struct Refused {
    const char *adapter;
    std::function<std::string(std::string)> config, weights; // null: as they are
    int32_t status;
    const char *text; // in the error
};

void adapters_that_cannot_be_are_refused(void **) {
    const auto key = [](const char *from, const char *to) {
        return [from, to](std::string text) { return replaced(std::move(text), from, to); };
    };
    constexpr int32_t format = BATCHLLM_ERROR_ADAPTER_FORMAT;
    constexpr int32_t unsupported = BATCHLLM_ERROR_UNSUPPORTED;
    const std::vector<Refused> all = {
        {"llama_qv_r4",
         key("\"use_dora\": false", "\"use_dora\": true"),
         {},
         unsupported,
         "use_dora"},
        {"llama_qv_r4",
         key("\"modules_to_save\": null", "\"modules_to_save\": [\"score\"]"),
         {},
         unsupported,
         "modules_to_save"},
        {"llama_qv_r4",
         key("\"peft_type\": \"LORA\"", "\"peft_type\": \"LOHA\""),
         {},
         unsupported,
         "peft_type"},
        {"llama_qv_r4", key("\"bias\": \"none\"", "\"bias\": \"all\""), {}, unsupported, "bias"},
        {"llama_qv_r4", key("\"r\": 4", "\"r\": 8"), {}, format, "their rank is 8"},
        {"llama_qv_r4", key("\"r\": 4", "\"r\": 0"), {}, format, "r"},
        {"llama_qv_r4",
         key("\"lora_alpha\": 8", "\"lora_alpha\": \"8\""),
         {},
         format,
         "lora_alpha"},
        {"llama_qv_r4",
         key("\"v_proj\"", "\"o_proj\""),
         {},
         format,
         "target_modules does not name"},
        {"llama_patterns", key("\"o_proj\": 3", "\"(o_proj\": 3"), {}, unsupported, "rank_pattern"},
        {"llama_qv_r4",
         [](const std::string &) { return std::string("[]"); },
         {},
         format,
         "must be an object"},
        {"llama_qv_r4", [](const std::string &) { return std::string("{"); }, {}, format, ""},
        {"llama_qv_r4",
         {},
         [](const std::string &bytes) { return bytes.substr(0, bytes.size() - 1); },
         format,
         "cut short"},
        {"llama_qv_r4", {}, [](const std::string &) { return std::string(); }, format, ""},
        {"llama_qv_r4",
         {},
         [](const std::string &) {
             return std::string("version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
         },
         format,
         "a pointer of Git LFS"},
        {"llama_qv_r4",
         {},
         [](const std::string &) { return std::string("<!DOCTYPE html><html></html>\n"); },
         format,
         "not a safetensors file"},
        {"llama_qv_r4", {}, key("lora_B.weight", "lora_C.weight"), unsupported, "lora_C"},
        {"llama_qv_r4",
         {},
         key("layers.0.self_attn.q_proj.lora_A", "layers.9.self_attn.q_proj.lora_A"),
         format,
         "only one of the two"},
        {"llama_qv_r4",
         {},
         [](std::string bytes) { // not a number
             const uint32_t bits = 0x7FC00000;
             std::memcpy(bytes.data() + bytes.size() - 4, &bits, 4);
             return bytes;
         },
         format,
         "not finite"},
        {"phi3_fused", {}, {}, format, "the model has no such module"},
        {"qwen2_tied_embedding", {}, {}, format, ""},
    };
    const EngineHandle engine = make_engine("golden/llama_bias_f32", device_options());
    batchllm_engine_options options = device_options();
    options.adapter_memory_bytes = 1000; // adapters are not kept: their bytes are only passed over
    const EngineHandle small = make_engine("golden/llama_bias_f32", options);
    for (size_t i = 0; i < 2 * all.size(); ++i) {
        const Refused &refused = all[i / 2];
        const TemporaryDirectory directory;
        const std::string from = folder + refused.adapter;
        std::string config = bytes_of(from + "/adapter_config.json");
        std::string weights = bytes_of(from + "/adapter_model.safetensors");
        if (refused.config) config = refused.config(config);
        if (refused.weights) weights = refused.weights(weights);
        directory.write("adapter_config.json", config);
        directory.write("adapter_model.safetensors", weights);
        batchllm_adapter *adapter = nullptr;
        const int32_t status = batchllm_adapter_load((i % 2 == 0 ? engine : small).get(), "bad",
                                                     directory.path().c_str(), &adapter);
        const std::string text = batchllm_last_error();
        if (status != refused.status || text.find(refused.text) == std::string::npos) {
            fail_msg("%s (%s): %s: %s", refused.adapter, refused.text, batchllm_status_name(status),
                     text.c_str());
        }
        assert_null(adapter);
    }
    batchllm_adapter *adapter = nullptr;
    assert_int_equal(batchllm_adapter_load(engine.get(), "none", "golden/adapters/none", &adapter),
                     BATCHLLM_ERROR_IO);
    {
        const TemporaryDirectory directory;
        directory.write("adapter_config.json",
                        bytes_of(folder + "llama_qv_r4/adapter_config.json"));
        directory.write("adapter_model.safetensors", "");
        std::filesystem::resize_file(directory.file("adapter_model.safetensors"), 1ULL << 42);
        assert_int_equal(
            batchllm_adapter_load(engine.get(), "vast", directory.path().c_str(), &adapter),
            BATCHLLM_ERROR_OUT_OF_MEMORY);
        assert_non_null(std::strstr(batchllm_last_error(), "adapter_model.safetensors"));
    }
    assert_int_equal(
        batchllm_adapter_load(engine.get(), "", (folder + "llama_qv_r4").c_str(), &adapter),
        BATCHLLM_ERROR_INVALID_ARGUMENT);
}

// Which way it changes square experts depends on the version of PEFT.
void square_experts_need_a_version_that_is_known(void **) {
    const EngineHandle engine = make_engine("golden/qwen2_moe_bf16", device_options());
    const std::string config = bytes_of(folder + "qwen2_moe_square/adapter_config.json");
    for (const char *version : {"null", "\"\"", "\"0.19.1.dev0@abc\"", "\"0.21\"", "1"}) {
        const TemporaryDirectory directory;
        std::filesystem::copy(folder + "qwen2_moe_square/adapter_model.safetensors",
                              directory.file("adapter_model.safetensors"));
        directory.write("adapter_config.json", replaced(config, "\"0.21.2\"", version));
        batchllm_adapter *adapter = nullptr;
        assert_int_equal(
            batchllm_adapter_load(engine.get(), "a", directory.path().c_str(), &adapter),
            BATCHLLM_ERROR_UNSUPPORTED);
        assert_non_null(std::strstr(batchllm_last_error(), "peft_version"));
    }
}

// Of a file that lacks a module, and of keys that match nothing, the log has one warning each; the adapter is used.
void what_an_adapter_lacks_is_logged_once(void **) {
    std::string log;
    batchllm_engine_options options = device_options();
    options.log = [](void *user, int32_t, const char *text) {
        *static_cast<std::string *>(user) += std::string(text) + "\n";
    };
    options.log_user = &log;
    const EngineHandle engine = make_engine("golden/llama_bias_f32", options);
    for (const char *whole : {"llama_qv_r4", "llama_all_r64_rs", "llama_patterns",
                              "llama_one_layer", "llama_embedding_head"}) {
        load(engine, folder + whole);
    }
    assert_string_equal(log.c_str(), "");
    const TemporaryDirectory directory;
    const std::string weights = bytes_of(folder + "llama_patterns/adapter_model.safetensors");
    const std::string config = bytes_of(folder + "llama_patterns/adapter_config.json");
    directory.write("adapter_model.safetensors", weights);
    directory.write("adapter_config.json", replaced(config, "\"q_proj\": 32", "\"v_proj\": 32"));
    for (int i = 0; i < 2; ++i) load(engine, directory.path());
    assert_non_null(std::strstr(log.c_str(), "matches 1 of the keys"));
    assert_non_null(std::strstr(log.c_str(), "v_proj"));
    assert_int_equal(std::count(log.begin(), log.end(), '\n'), 1);
    log.clear();
    // The tensors of layer 1 become others of layer 0.
    const TemporaryDirectory half;
    half.write("adapter_config.json", replaced(bytes_of(folder + "llama_qv_r4/adapter_config.json"),
                                               "\"q_proj\"", "\"q_proj\", \"k_proj\""));
    std::string moved = bytes_of(folder + "llama_qv_r4/adapter_model.safetensors");
    for (const char *matrix : {"lora_A", "lora_B"}) {
        moved = replaced(moved, std::string("layers.1.self_attn.v_proj.") + matrix,
                         std::string("layers.0.self_attn.k_proj.") + matrix);
    }
    half.write("adapter_model.safetensors", moved);
    for (int i = 0; i < 2; ++i) load(engine, half.path());
    assert_non_null(std::strstr(log.c_str(), "adapter \"an adapter\": "));
    assert_non_null(std::strstr(log.c_str(), "lacks 2 modules"));
    assert_non_null(std::strstr(log.c_str(), "the first is model.layers.1.self_attn.k_proj"));
    assert_int_equal(std::count(log.begin(), log.end(), '\n'), 1);
}

void an_adapter_without_room_is_refused(void **) {
    batchllm_engine_options options = device_options();
    options.adapter_memory_bytes = 1000;
    const EngineHandle engine = make_engine("golden/llama_bias_f32", options);
    batchllm_adapter *adapter = nullptr;
    assert_int_equal(
        batchllm_adapter_load(engine.get(), "a", (folder + "llama_qv_r4").c_str(), &adapter),
        BATCHLLM_ERROR_OUT_OF_MEMORY);
}

// The simulation has adapters too: the scheduling of jobs with many.
void the_simulation_schedules_adapters(void **) {
    batchllm_engine_options options = device_options();
    options.backend = "sim";
    options.backend_options = nullptr;
    options.compute_type = nullptr;
    const EngineHandle engine = make_engine("golden/llama_bias_f32", options);
    const AdapterHandle one = load(engine, folder + "llama_qv_r4");
    const AdapterHandle two = load(engine, folder + "llama_one_layer");
    for (uint64_t i = 0; i < 60; ++i) {
        const batchllm_adapter *adapter = i % 3 == 0 ? nullptr : i % 3 == 1 ? one.get() : two.get();
        add_row(engine.get(), {int32_t(i), 6, 7}, adapter, 4, i);
    }
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, 60);
    for (int64_t i = 0; i < 60; ++i) assert_int_equal(results->statuses[i], BATCHLLM_OK);
    assert_int_equal(stats_of(engine).adapter_loads, 2);
}

// Adapters of the same matrices and other contents.
std::vector<std::string> different_adapters(const TemporaryDirectory &into, int count) {
    std::vector<std::string> paths;
    for (int i = 0; i < count; ++i) {
        paths.push_back(into.file(std::to_string(i)));
        std::filesystem::copy(folder + "llama_qv_r4", paths.back());
        std::fstream weights(paths.back() + "/adapter_model.safetensors",
                             std::ios::in | std::ios::out | std::ios::ate);
        weights.seekp(-4, std::ios::end).put(static_cast<char>(i % 128));
        weights.seekp(-8, std::ios::end).put(static_cast<char>(i / 128));
    }
    return paths;
}

// Many adapters, room for three: each is loaded once, and no more than the room is ever taken.
void many_adapters_need_the_room_of_a_few(void **) {
    const TemporaryDirectory directory;
    const std::vector<std::string> paths = different_adapters(directory, 200);
    batchllm_engine_options options = device_options();
    const EngineHandle any = make_engine("golden/llama_bias_f32", options);
    options.adapter_memory_bytes = 3 * info_of(load(any, paths.front())).memory_bytes;
    const EngineHandle engine = make_engine("golden/llama_bias_f32", options);
    std::vector<AdapterHandle> adapters;
    for (const std::string &path : paths) adapters.push_back(load(engine, path));
    for (size_t i = 0; i < 3 * adapters.size(); ++i) {
        add_row(engine.get(), {5, 6, static_cast<int32_t>(i % 100)},
                adapters[i % adapters.size()].get(), 4, i);
    }
    const ResultsHandle results = run(engine.get());
    assert_int_equal(results->count, 600);
    for (int64_t i = 0; i < 600; ++i) assert_int_equal(results->statuses[i], BATCHLLM_OK);
    const batchllm_stats stats = stats_of(engine);
    assert_int_equal(stats.adapters, 200);
    assert_int_equal(stats.adapter_loads, 200);
    assert_true(stats.adapter_bytes_peak <= options.adapter_memory_bytes);
}

// Threads load adapters at once, of which some are damaged: each is what one thread finds.
void threads_load_adapters_at_once(void **) {
    const TemporaryDirectory directory;
    const std::vector<std::string> paths = different_adapters(directory, 64);
    for (size_t i = 0; i < paths.size(); i += 5) {
        std::filesystem::resize_file(paths[i] + "/adapter_model.safetensors", 1000 + i);
    }
    struct Loaded {
        AdapterHandle adapter;
        int32_t status = BATCHLLM_OK;
        std::string error;
    };
    const EngineHandle engine = make_engine("golden/llama_bias_f32", device_options());
    std::vector<Loaded> all(paths.size());
    const auto load_one = [&](size_t i, Loaded *loaded) {
        batchllm_adapter *adapter = nullptr;
        loaded->status = batchllm_adapter_load(engine.get(), "one", paths[i].c_str(), &adapter);
        loaded->adapter.reset(adapter);
        if (adapter == nullptr) loaded->error = batchllm_last_error();
    };
    std::atomic<size_t> next = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (size_t i; (i = next++) < paths.size();) load_one(i, &all[i]);
        });
    }
    for (std::thread &thread : threads) thread.join();
    for (size_t i = 0; i < paths.size(); ++i) {
        Loaded alone;
        load_one(i, &alone);
        assert_int_equal(all[i].status, i % 5 == 0 ? BATCHLLM_ERROR_ADAPTER_FORMAT : BATCHLLM_OK);
        assert_int_equal(all[i].status, alone.status);
        assert_string_equal(all[i].error.c_str(), alone.error.c_str());
        if (all[i].adapter == nullptr) continue;
        assert_string_equal(info_of(all[i].adapter).identity, info_of(alone.adapter).identity);
        add_row(engine.get(), {5, 6, static_cast<int32_t>(i)}, all[i].adapter.get(), 4, i);
    }
    const ResultsHandle results = run(engine.get());
    for (int64_t i = 0; i < results->count; ++i) {
        assert_int_equal(results->statuses[i], BATCHLLM_OK);
    }
}

// A file is read and hashed in pieces, which are not all kept where only its hash is asked.
void large_files_have_the_same_identity_loaded_or_not(void **) {
    const TemporaryDirectory directory;
    directory.write("adapter_config.json", bytes_of(folder + "llama_qv_r4/adapter_config.json"));
    const std::string weights = bytes_of(folder + "llama_qv_r4/adapter_model.safetensors");
    uint64_t header = 0;
    std::memcpy(&header, weights.data(), sizeof header);
    const size_t end = sizeof header + static_cast<size_t>(header);
    const std::string spaces((size_t{5} << 20) + 8, ' ');
    header += spaces.size();
    std::string larger(reinterpret_cast<const char *>(&header), sizeof header);
    larger += weights.substr(sizeof header, end - sizeof header) + spaces + weights.substr(end);
    directory.write("adapter_model.safetensors", larger);
    const EngineHandle engine = make_engine("golden/llama_bias_f32", device_options());
    const batchllm_adapter_info loaded = info_of(load(engine, directory.path()));
    batchllm_adapter_info info{};
    info.struct_size = sizeof info;
    CHECK(batchllm_adapter_identify(directory.path().c_str(), &info));
    assert_string_equal(info.identity, loaded.identity);
    assert_int_equal(info.file_bytes, loaded.file_bytes);
    larger.back() ^= 1;
    directory.write("adapter_model.safetensors", larger);
    CHECK(batchllm_adapter_identify(directory.path().c_str(), &info));
    assert_string_not_equal(info.identity, loaded.identity);
}

// The log and batchllm_info say what weights take in memory.
void an_engine_says_what_its_weights_take(void **) {
    const EngineHandle engine = make_engine("golden/llama_awq", device_options());
    batchllm_info info;
    info.struct_size = sizeof info;
    CHECK(batchllm_engine_info(engine.get(), 0, &info));
    assert_non_null(std::strstr(info.compute_type, "expanded from four bits"));
    const auto file =
        static_cast<int64_t>(std::filesystem::file_size("golden/llama_awq/model.safetensors"));
    assert_true(info.weight_bytes > file); // in f32, eight times four bits
}

// Each adapter is loaded by one device, and the devices have as much to do as without adapters.
void rows_of_an_adapter_stay_on_one_device(void **) {
    const TemporaryDirectory directory;
    const std::vector<std::string> paths = different_adapters(directory, 48);
    const auto run_on_two = [&](bool with_adapters) {
        batchllm_engine_options options = device_options();
        options.backend = "sim";
        options.devices = "0,1";
        options.compute_type = nullptr;
        options.backend_options = nullptr;
        options.step_tokens = 512;
        const EngineHandle engine = make_engine("golden/llama_bias_f32", options);
        std::vector<AdapterHandle> adapters;
        for (const std::string &path : paths) adapters.push_back(load(engine, path));
        for (int32_t i = 0; i < 2400; ++i) {
            const auto &adapter = adapters[static_cast<size_t>(i) % adapters.size()];
            std::vector<int32_t> prompt{i % 250, i / 250}; // nothing is shared
            prompt.resize(17, 5);
            add_row(engine.get(), prompt, with_adapters ? adapter.get() : nullptr, 6,
                    static_cast<uint64_t>(i));
        }
        assert_int_equal(run(engine.get())->count, 2400);
        return stats_of(engine);
    };
    const batchllm_stats stats = run_on_two(true);
    const double without = run_on_two(false).backend_seconds;
    print_message("%lld loads, %.4f s on the busier device; without adapters %.4f s\n",
                  static_cast<long long>(stats.adapter_loads), stats.backend_seconds, without);
    assert_int_equal(stats.adapters, 48);
    assert_true(stats.adapter_loads <= 60);
    // Which device takes a group is a matter of its thread's turn, on a busy machine 6 % were seen.
    assert_true(stats.backend_seconds < 1.15 * without);
}

} // namespace

// In f32, as on the CPU.
int run_on_cuda() {
    on_cuda = true;
    batchllm_engine_options options = device_options();
    options.model_dir = "golden/llama_bias_f32";
    batchllm_engine *engine = nullptr;
    if (batchllm_engine_create(&options, &engine) != BATCHLLM_OK) {
        std::printf("skipped: %s\n", batchllm_last_error());
        return 77;
    }
    batchllm_engine_destroy(engine);
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_say_what_the_merged_model_says),
        cmocka_unit_test(one_adapter_for_all_rows),
        cmocka_unit_test(however_rows_are_shared_and_divided),
        cmocka_unit_test(parts_of_an_adapter_change_parts_of_a_model),
        cmocka_unit_test(adapters_wait_for_room),
        cmocka_unit_test(scores_have_adapters),
        cmocka_unit_test(reproducible_rows_do_not_depend_on_others_adapters),
        cmocka_unit_test(an_adapter_is_of_its_engine),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

int main(int count, char **values) {
    if (count > 2) cuda_options += std::string(",attention=") + values[2];
    if (count > 1 && std::string(values[1]) == "cuda") return run_on_cuda();
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_say_what_the_merged_model_says),
        cmocka_unit_test(one_adapter_for_all_rows),
        cmocka_unit_test(however_rows_are_shared_and_divided),
        cmocka_unit_test(parts_of_an_adapter_change_parts_of_a_model),
        cmocka_unit_test(rows_are_preempted),
        cmocka_unit_test(adapters_wait_for_room),
        cmocka_unit_test(scores_have_adapters),
        cmocka_unit_test(reproducible_rows_do_not_depend_on_others_adapters),
        cmocka_unit_test(equal_rows_are_computed_once_with_the_same_content_alone),
        cmocka_unit_test(what_an_adapter_is_can_be_asked),
        cmocka_unit_test(an_adapter_is_of_its_engine),
        cmocka_unit_test(an_adapter_outlives_its_engine_and_is_of_no_later_one),
        cmocka_unit_test(rows_of_an_adapter_that_changes_fail_alone),
        cmocka_unit_test(adapters_that_cannot_be_are_refused),
        cmocka_unit_test(square_experts_need_a_version_that_is_known),
        cmocka_unit_test(what_an_adapter_lacks_is_logged_once),
        cmocka_unit_test(an_adapter_without_room_is_refused),
        cmocka_unit_test(the_simulation_schedules_adapters),
        cmocka_unit_test(rows_of_an_adapter_stay_on_one_device),
        cmocka_unit_test(an_engine_says_what_its_weights_take),
        cmocka_unit_test(threads_load_adapters_at_once),
        cmocka_unit_test(large_files_have_the_same_identity_loaded_or_not),
        cmocka_unit_test(many_adapters_need_the_room_of_a_few),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
