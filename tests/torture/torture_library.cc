// Makes every allocation and every call that touches a file fail, one after the other, once and
// from then on, through the life of engines, tokenizers and plans. After each failure: a status
// with a text, nothing leaked, and every returned result equals that of an undisturbed life. After
// a single failure, the same call must work when it is made again, unless it was in a step.
//
//     torture_library [SECONDS [NAME]]     0 seconds: everything
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <batchllm.h>

#include "faults.h"

namespace {

struct Wrong {
    std::string what;
};

// One life of some objects under faults.
class Life {
  public:
    explicit Life(bool once) : once_(once) {}

    // Makes a call, and again if it failed because of the single fault. False: it failed
    // permanently.
    bool call(const char *name, const std::function<int32_t()> &function, bool again = true) {
        int32_t status = enter(function);
        if (status == BATCHLLM_OK) return true;
        check_error(name, status);
        if (!once_ || !again) return false;
        status = enter(function);
        if (status != BATCHLLM_OK) {
            throw Wrong{std::string(name) + " fails again: " + batchllm_last_error()};
        }
        return true;
    }

    void put(const std::string &key, std::string value) {
        if (!given_.emplace(key, std::move(value)).second) throw Wrong{"twice: " + key};
    }
    void whole() { whole_ = true; } // no result is missing
    bool is_whole() const { return whole_; }
    const std::map<std::string, std::string> &given() const { return given_; }

  private:
    static int32_t enter(const std::function<int32_t()> &function) {
        faults_pause(0);
        const int32_t status = function();
        faults_pause(1);
        return status;
    }
    static void check_error(const char *name, int32_t status) {
        const bool expected = status == BATCHLLM_ERROR_OUT_OF_MEMORY || status == BATCHLLM_ERROR_IO;
        if (!expected || batchllm_last_error()[0] == '\0') {
            throw Wrong{std::string(name) + ": " + batchllm_status_name(status) + ": " +
                        batchllm_last_error()};
        }
    }

    bool once_;
    bool whole_ = false;
    std::map<std::string, std::string> given_;
};

template <typename T> std::string bytes_of(const T *data, int64_t begin, int64_t end) {
    return {reinterpret_cast<const char *>(data + begin),
            static_cast<size_t>(end - begin) * sizeof(T)};
}

void put_results(Life *life, const batchllm_results &r) {
    for (int64_t i = 0; i < r.count; ++i) {
        std::string value = std::to_string(r.statuses[i]) + " " +
                            std::to_string(r.finish_reasons[i]) + " " +
                            std::to_string(r.prompt_tokens[i]) + " ";
        value += bytes_of(r.tokens, r.token_offsets[i], r.token_offsets[i + 1]) + "|";
        value += bytes_of(r.text, r.text_offsets[i], r.text_offsets[i + 1]) + "|";
        value += bytes_of(r.errors, r.error_offsets[i], r.error_offsets[i + 1]) + "|";
        value += bytes_of(r.logprobs, r.logprob_offsets[i], r.logprob_offsets[i + 1]) + "|";
        value += bytes_of(r.scores, r.score_offsets[i], r.score_offsets[i + 1]);
        // Includes the number of the row's results, so that half a row is detected.
        int64_t samples = 1;
        while (i + samples < r.count && r.samples[i + samples] != 0) ++samples;
        life->put("row " + std::to_string(r.tags[i]) + " sample " + std::to_string(r.samples[i]),
                  std::to_string(samples) + " " + value);
    }
}

bool poll_all(Life *life, batchllm_engine *engine) {
    for (bool more = true; more;) {
        batchllm_results *results = nullptr;
        if (!life->call("poll", [&] { return batchllm_poll(engine, 5, &results); })) return false;
        more = results->count > 0;
        put_results(life, *results);
        batchllm_results_free(results);
    }
    return true;
}

bool run_to_the_end(Life *life, batchllm_engine *engine) {
    batchllm_progress progress{};
    progress.struct_size = sizeof progress;
    do {
        // A step that fails leaves the engine failed; finished results can still be polled.
        if (!life->call(
                "step", [&] { return batchllm_step(engine, &progress); }, false)) {
            poll_all(life, engine);
            return false;
        }
        if (!poll_all(life, engine)) return false;
    } while (progress.rows_waiting + progress.rows_running > 0);
    return true;
}

struct Texts {
    std::string text;
    std::vector<int64_t> offsets{0};
    Texts(std::initializer_list<const char *> items) {
        for (const char *item : items) {
            text += item;
            offsets.push_back(static_cast<int64_t>(text.size()));
        }
    }
    int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

void sim_life(Life *life) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "sim";
    options.backend_options = "vocabulary=1000,eos_token=999,min_length=1,max_length=6,pages=12";
    options.step_tokens = 32;
    options.levels = 2;
    batchllm_engine *engine = nullptr;
    batchllm_plan *plan = nullptr;
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
    std::vector<batchllm_params> params(12);
    for (int32_t row = 0; row < 12; ++row) {
        for (int32_t i = 0; i < 20; ++i) tokens.push_back(i < 17 ? row / 4 + i : row);
        if (row == 5) tokens.back() = 5000; // a bad row
        offsets.push_back(static_cast<int64_t>(tokens.size()));
        batchllm_params_init(&params[static_cast<size_t>(row)], sizeof params[0]);
        params[static_cast<size_t>(row)].max_tokens = 6;
        params[static_cast<size_t>(row)].samples = 1 + row % 3;
        if (row % 2) params[static_cast<size_t>(row)].temperature = 1;
    }
    const int32_t continuations[] = {1, 2, 3};
    const int64_t continuation_offsets[] = {0, 1, 3}, continuation_rows[] = {0, 2};
    const uint64_t scored = 100;
    const bool done = life->call("create", [&] {
        return batchllm_engine_create(&options, &engine);
    }) && life->call("add", [&] {
        return batchllm_add_tokens(engine, 12, tokens.data(), offsets.data(), nullptr,
                                   params.data(), 12);
    }) && life->call("add_scores", [&] {
        return batchllm_add_scores(engine, 1, tokens.data(), offsets.data(), continuations,
                                   continuation_offsets, continuation_rows, &scored);
    }) && life->call("build_groups", [&] {
        return batchllm_build_groups(engine);
    }) && life->call("get_plan", [&] {
        return batchllm_engine_get_plan(engine, &plan);
    }) && life->call("use_plan", [&] {
        return batchllm_engine_use_plan(engine, plan);
    }) && life->call("add again", [&] {
        const uint64_t tags[] = {20, 21};
        return batchllm_add_tokens(engine, 2, tokens.data(), offsets.data(), tags, params.data(),
                                   1);
    }) && life->call("cancel", [&] {
        return batchllm_cancel(engine, 9);
    }) && run_to_the_end(life, engine);
    if (done) life->whole();
    batchllm_plan_destroy(plan);
    batchllm_engine_destroy(engine);
}

void cpu_life(Life *life) {
    batchllm_engine_options options;
    batchllm_engine_options_init(&options, sizeof options);
    options.backend = "cpu";
    options.model_dir = std::getenv("BATCHLLM_TEXT_MODEL");
    options.compute_type = "f32";
    options.kv_memory_bytes = 1 << 20;
    options.step_tokens = 32;
    options.threads = 2;
    batchllm_engine *engine = nullptr;
    const Texts prompts{"one text", "one text more", "another \xff", "one text, the last"};
    const Texts chats{R"([{"role": "user", "content": "Hello"}])",
                      R"([{"role": "critic", "content": "No"}])", R"({"messages": "none"})"};
    const Texts scored{"either"}, continuations{"one", "two"};
    const int64_t continuation_rows[] = {0, 2};
    const uint64_t chat_tags[] = {10, 11, 12}, score_tags[] = {20};
    const char *stops[] = {"zz", "end"};
    batchllm_params params;
    batchllm_params_init(&params, sizeof params);
    params.max_tokens = 3;
    params.logprobs = 2;
    params.samples = 2;
    params.temperature = 1;
    params.stop_strings = stops;
    params.stop_string_count = 2;
    const bool done = life->call("create", [&] {
        return batchllm_engine_create(&options, &engine);
    }) && life->call("add_text", [&] {
        return batchllm_add_text(engine, prompts.count(), prompts.text.data(),
                                 prompts.offsets.data(), nullptr, &params, 1);
    }) && life->call("add_chat", [&] {
        return batchllm_add_chat(engine, chats.count(), chats.text.data(), chats.offsets.data(),
                                 chat_tags, &params, 1);
    }) && life->call("add_score_text", [&] {
        return batchllm_add_score_text(engine, 1, scored.text.data(), scored.offsets.data(),
                                       continuations.text.data(), continuations.offsets.data(),
                                       continuation_rows, score_tags, nullptr);
    }) && run_to_the_end(life, engine);
    if (done) life->whole();
    batchllm_engine_destroy(engine);
}

void put_column(Life *life, const std::string &name, const batchllm_column &column) {
    for (int64_t i = 0; i < column.count; ++i) {
        std::string value =
            std::to_string(column.statuses[i]) + " " +
            bytes_of(column.errors, column.error_offsets[i], column.error_offsets[i + 1]) + "|";
        value += column.tokens != nullptr
                     ? bytes_of(column.tokens, column.offsets[i], column.offsets[i + 1])
                     : bytes_of(column.text, column.offsets[i], column.offsets[i + 1]);
        life->put(name + std::to_string(i), std::move(value));
    }
}

void tokenizer_life(Life *life) {
    batchllm_tokenizer *tokenizer = nullptr;
    batchllm_column *tokens = nullptr, *back = nullptr, *chat = nullptr;
    const Texts texts{"one text", "not \xff text", "<s>two</s>", ""};
    const Texts chats{R"([{"role": "user", "content": "Hello"}])",
                      R"([{"role": "critic", "content": "No"}])", R"({"messages": [], "x": 1})"};
    const bool done = life->call("create", [&] {
        return batchllm_tokenizer_create(std::getenv("BATCHLLM_TEXT_MODEL"), &tokenizer);
    }) && life->call("encode", [&] {
        return batchllm_tokenizer_encode(tokenizer, texts.count(), texts.text.data(),
                                         texts.offsets.data(), 3, 2, &tokens);
    }) && life->call("decode", [&] {
        return batchllm_tokenizer_decode(tokenizer, tokens->count, tokens->tokens, tokens->offsets,
                                         0, 2, &back);
    }) && life->call("chat", [&] {
        return batchllm_tokenizer_apply_chat_template(tokenizer, chats.count(), chats.text.data(),
                                                      chats.offsets.data(), 0, 2, &chat);
    });
    if (tokens != nullptr) put_column(life, "tokens ", *tokens);
    if (back != nullptr) put_column(life, "back ", *back);
    if (chat != nullptr) put_column(life, "chat ", *chat);
    if (done) life->whole();
    batchllm_column_free(tokens);
    batchllm_column_free(back);
    batchllm_column_free(chat);
    batchllm_tokenizer_destroy(tokenizer);
}

void plan_life(Life *life) {
    const std::string path = "/tmp/batchllm-torture-" + std::to_string(getpid()) + ".plan";
    std::vector<int32_t> tokens;
    std::vector<int64_t> offsets{0};
    for (int32_t row = 0; row < 30; ++row) {
        for (int32_t i = 0; i < 24; ++i) tokens.push_back(i < 18 ? row / 10 + i : row * i);
        offsets.push_back(static_cast<int64_t>(tokens.size()));
    }
    batchllm_plan_options options;
    batchllm_plan_options_init(&options, sizeof options);
    options.self_contained = 1;
    options.levels = 2;
    batchllm_plan *plan = nullptr, *loaded = nullptr, *again = nullptr;
    batchllm_plan_stats stats{};
    stats.struct_size = sizeof stats;
    const bool done = life->call("create", [&] {
        return batchllm_plan_create(30, tokens.data(), offsets.data(), nullptr, &options, nullptr,
                                    &plan);
    }) && life->call("save", [&] {
        return batchllm_plan_save(plan, path.c_str());
    }) && life->call("load", [&] {
        return batchllm_plan_load(path.c_str(), &loaded);
    }) && life->call("create from it", [&] {
        return batchllm_plan_create(30, tokens.data(), offsets.data(), nullptr, &options, loaded,
                                    &again);
    }) && life->call("stats", [&] { return batchllm_plan_get_stats(again, &stats); });
    if (done) {
        life->put("reused",
                  std::to_string(stats.reused_rows) + " " + std::to_string(stats.processed_tokens));
        for (int64_t g = 0; g < batchllm_plan_group_count(again); ++g) {
            batchllm_plan_group_info info{};
            info.struct_size = sizeof info;
            if (batchllm_plan_group(again, g, &info) != BATCHLLM_OK)
                throw Wrong{"a group that cannot be read"};
            life->put("group " + std::to_string(g), bytes_of(info.rows, 0, info.row_count));
        }
        life->whole();
    }
    batchllm_plan_destroy(plan);
    batchllm_plan_destroy(loaded);
    batchllm_plan_destroy(again);
    unlink(path.c_str());
}

struct Scenario {
    const char *name;
    void (*live)(Life *);
};
const Scenario scenarios[] = {
    {"sim", sim_life}, {"cpu", cpu_life}, {"tokenizer", tokenizer_life}, {"plan", plan_life}};

using Given = std::map<std::string, std::string>;

// One life with a fault; blocks: how many it left behind.
void live_once(const Scenario &scenario, unsigned kind, long k, bool forever, const Given *expected,
               long *blocks, long *calls, Given *given) {
    const long before = faults_live_blocks();
    {
        Life life(!forever);
        faults_pause(1);
        faults_begin(kind, k, forever);
        try {
            scenario.live(&life);
        } catch (...) {
            faults_end();
            throw;
        }
        *calls = faults_end();
        for (const auto &[key, value] : life.given()) {
            if (expected == nullptr) continue;
            const auto found = expected->find(key);
            if (found == expected->end() || found->second != value) throw Wrong{key + " differs"};
        }
        if (expected != nullptr && life.is_whole() && life.given().size() != expected->size()) {
            throw Wrong{"results are missing"};
        }
        if (expected == nullptr && !life.is_whole()) throw Wrong{"an undisturbed life fails"};
        if (given != nullptr) *given = life.given();
    }
    *blocks = faults_live_blocks() - before;
}

void try_fault(const Scenario &scenario, unsigned kind, long k, bool forever,
               const Given &expected) {
    // Memory that stays once may be a cache; memory that stays each time is leaked.
    long blocks = 1, calls = 0;
    for (int round = 0; round < 4 && blocks > 0; ++round) {
        live_once(scenario, kind, k, forever, &expected, &blocks, &calls, nullptr);
    }
    if (blocks > 0) throw Wrong{std::to_string(blocks) + " blocks of memory are lost"};
}

// ---- Each series runs in a child process, so that a crash only fails one try ----

struct Report {
    long k; // 0: the number of calls, in `total`
    long total;
    char text[400];
};

[[noreturn]] void child(const Scenario &scenario, unsigned kind, bool forever, long first,
                        long stride, int out) {
    alarm(0);
    long blocks = 0, calls = 0;
    Given expected;
    Report report{};
    const auto tell = [&](long k, const std::string &text) {
        report.k = k;
        std::snprintf(report.text, sizeof report.text, "%s", text.c_str());
        if (write(out, &report, sizeof report) != static_cast<ssize_t>(sizeof report)) _exit(2);
    };
    try {
        // The first run fills caches; the second one counts.
        live_once(scenario, kind, 0, false, nullptr, &blocks, &calls, &expected);
        live_once(scenario, kind, 0, false, nullptr, &blocks, &calls, nullptr);
    } catch (const Wrong &wrong) {
        tell(0, wrong.what);
        _exit(1);
    }
    report.total = calls;
    tell(0, "");
    for (long k = first; k <= calls; k += stride) {
        tell(-k, ""); // about to
        try {
            try_fault(scenario, kind, k, forever, expected);
            tell(k, "");
        } catch (const Wrong &wrong) {
            tell(k, wrong.what);
        }
    }
    _exit(0);
}

struct Series {
    long total = 0;
    long tried = 0;
    long failed = 0;
};

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void run_series(const Scenario &scenario, unsigned kind, bool forever, long stride, double end,
                Series *series) {
    for (long next = stride > 1 ? 1 + getpid() % stride : 1; next > 0;) {
        int ends[2];
        if (pipe(ends) != 0) std::exit(2);
        std::fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) {
            close(ends[0]);
            child(scenario, kind, forever, next, stride, ends[1]);
        }
        close(ends[1]);
        Report report{};
        long current = 0;
        next = 0;
        while (read(ends[0], &report, sizeof report) == static_cast<ssize_t>(sizeof report)) {
            current = -report.k;
            if (report.k == 0) series->total = report.total;
            if (report.k > 0) ++series->tried;
            if (report.text[0] != '\0') {
                ++series->failed;
                std::printf("FAILED %s: %s %ld %s: %s\n", scenario.name, fault_name(kind), report.k,
                            forever ? "forever" : "once", report.text);
            }
            if (end > 0 && now() > end) break;
        }
        const bool stopped = end > 0 && now() > end;
        if (stopped) kill(pid, SIGKILL);
        close(ends[0]);
        int status = 0;
        waitpid(pid, &status, 0);
        if (stopped || current <= 0) return;
        std::printf("FAILED %s: %s %ld %s: the process ends by %s %d\n", scenario.name,
                    fault_name(kind), current, forever ? "forever" : "once",
                    WIFSIGNALED(status) ? "signal" : "exit",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        ++series->tried;
        ++series->failed;
        next = current + stride;
    }
}

} // namespace

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 0;
    const std::string only = argc > 2 ? argv[2] : "";
    const double start = now();
    Series all;
    std::vector<std::function<void(double)>> work;
    for (const Scenario &scenario : scenarios) {
        if (!only.empty() && only != scenario.name) continue;
        if (std::getenv("BATCHLLM_TEXT_MODEL") == nullptr && scenario.live != sim_life &&
            scenario.live != plan_life)
            continue;
        for (int bit = 0; bit < FAULT_KINDS; ++bit) {
            for (const bool forever : {false, true}) {
                work.push_back([&all, &scenario, bit, forever, seconds](double end) {
                    Series series;
                    // If time is short, a series is sampled evenly.
                    const long stride = seconds == 0 || bit != 0    ? 1
                                        : scenario.live == sim_life ? 23
                                        : scenario.live == cpu_life ? 397
                                                                    : 41;
                    run_series(scenario, 1u << bit, forever, stride, end, &series);
                    if (series.total > 0) {
                        std::printf("%s: %s %s: %ld of %ld\n", scenario.name, fault_name(1u << bit),
                                    forever ? "forever" : "once", series.tried, series.total);
                    }
                    all.tried += series.tried;
                    all.failed += series.failed;
                });
            }
        }
    }
    for (size_t i = 0; i < work.size(); ++i) {
        const double left = seconds - (now() - start);
        // An even share of the remaining time.
        const double share = left / static_cast<double>(work.size() - i);
        work[i](seconds == 0 ? 0 : now() + (share > 0.1 ? share : 0.1));
    }
    std::printf("%ld tries, %ld failures\n", all.tried, all.failed);
    return all.failed > 0 || all.tried == 0 ? 1 : 0;
}
