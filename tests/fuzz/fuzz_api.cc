// libFuzzer: sequences of calls of the C interface, on the simulated backend, checked against the
// promises of the header: an expected status; exactly one result for every sample of an added row,
// with a row's samples adjacent; no more tokens than requested; counts that add up.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "batchllm.h"
#include "fuzz_folder.h"

using batchllm::fuzz::check;

namespace {

class Bytes {
  public:
    Bytes(const uint8_t *data, size_t size) : data_(data), size_(size) {}
    bool left() const { return size_ > 0; }
    int32_t next(int32_t below) {
        if (size_ == 0) return 0;
        --size_;
        return *data_++ % below;
    }

  private:
    const uint8_t *data_;
    size_t size_;
};

constexpr int32_t vocabulary = 64;
constexpr int32_t eos = 63;

struct InputRow {
    int32_t samples;
    int32_t max_tokens;
    int32_t min_tokens;
    int32_t prompt;
    bool bad;
    bool scored;
    bool cancelled = false;
};

class Engine {
  public:
    explicit Engine(Bytes *bytes) : bytes_(*bytes) {
        batchllm_engine_options options;
        batchllm_engine_options_init(&options, sizeof options);
        options.backend = "sim";
        std::string sim =
            "vocabulary=64,eos_token=63,min_length=1,max_length=8,page_tokens=4,pages=";
        sim += std::to_string(16 + bytes_.next(100));
        if (bytes_.next(2)) sim += ",overlap=1";
        options.backend_options = sim.c_str();
        options.step_tokens = 8 + bytes_.next(64);
        options.max_requests = bytes_.next(5);
        options.max_request_tokens = 40;
        options.levels = 1 + bytes_.next(2);
        options.enlarge = bytes_.next(3);
        options.order = bytes_.next(2);
        options.min_prefix_tokens = 1 + bytes_.next(4);
        options.devices = bytes_.next(4) == 0 ? "0,1" : "0";
        check(batchllm_engine_create(&options, &engine_) == BATCHLLM_OK);
    }
    ~Engine() {
        batchllm_plan_destroy(plan_);
        batchllm_engine_destroy(engine_);
    }

    void add() {
        const int32_t n = bytes_.next(5);
        std::vector<int32_t> tokens;
        std::vector<int64_t> offsets{0};
        std::vector<uint64_t> tags;
        std::vector<batchllm_params> params;
        for (int32_t i = 0; i < n; ++i) {
            InputRow row{};
            const int32_t shared = bytes_.next(16), own = bytes_.next(32);
            for (int32_t t = 0; t < shared; ++t) tokens.push_back(t % 8);
            for (int32_t t = 0; t < own; ++t) tokens.push_back(bytes_.next(vocabulary + 1));
            batchllm_params one;
            batchllm_params_init(&one, sizeof one);
            one.max_tokens = bytes_.next(12);
            one.samples = bytes_.next(4);
            one.temperature = static_cast<float>(bytes_.next(3)) - 0.5f;
            if (one.temperature < 0 && bytes_.next(4)) one.temperature = 0;
            one.logprobs = bytes_.next(4) - 1;
            one.ignore_eos = bytes_.next(2);
            if (bytes_.next(4) == 0) one.min_tokens = bytes_.next(6);
            if (bytes_.next(4) == 0) one.prompt_logprobs = bytes_.next(3) - 1;
            const auto *begin = tokens.data() + offsets.back();
            const int32_t length = shared + own;
            // A row with invalid parameters has one result.
            row.bad = one.max_tokens < 1 || one.samples < 1 || one.temperature < 0 ||
                      one.min_tokens > one.max_tokens;
            const int32_t checked = batchllm_engine_check_params(engine_, &one);
            check(checked == (row.bad ? BATCHLLM_ERROR_ROW_INVALID_PARAMETER : BATCHLLM_OK));
            row.samples = row.bad ? 1 : one.samples;
            row.bad = row.bad || length == 0 || length >= 40;
            for (int32_t t = 0; t < length; ++t) row.bad = row.bad || begin[t] >= vocabulary;
            row.max_tokens = one.max_tokens;
            row.min_tokens = one.min_tokens;
            row.prompt = length;
            offsets.push_back(static_cast<int64_t>(tokens.size()));
            tags.push_back(next_tag_);
            params.push_back(one);
            rows_[next_tag_++] = row;
        }
        const bool broken = n > 0 && bytes_.next(16) == 0;
        if (broken) offsets.back() = -1;
        const int32_t status =
            batchllm_add_tokens(engine_, n, tokens.data(), offsets.data(), tags.data(),
                                n > 0 ? params.data() : nullptr, n > 1 ? n : 1);
        check(status == (broken ? BATCHLLM_ERROR_INVALID_ARGUMENT : BATCHLLM_OK));
        if (!broken) return;
        check(batchllm_last_error()[0] != '\0');
        for (const uint64_t tag : tags) rows_.erase(tag); // no row was added
    }

    void add_score() {
        InputRow row{};
        row.samples = 1;
        row.scored = true;
        row.prompt = 1 + bytes_.next(20);
        std::vector<int32_t> tokens(static_cast<size_t>(row.prompt), 3), continuations;
        std::vector<int64_t> continuation_offsets{0};
        const int32_t count = bytes_.next(4);
        for (int32_t c = 0; c < count; ++c) {
            const int32_t length = bytes_.next(4);
            row.bad = row.bad || length == 0;
            for (int32_t i = 0; i < length; ++i) continuations.push_back(bytes_.next(vocabulary));
            continuation_offsets.push_back(static_cast<int64_t>(continuations.size()));
        }
        row.bad = row.bad || count == 0;
        row.max_tokens = count;
        const int64_t offsets[] = {0, row.prompt}, continuation_rows[] = {0, count};
        check(batchllm_add_scores(engine_, 1, tokens.data(), offsets, continuations.data(),
                                  continuation_offsets.data(), continuation_rows,
                                  &next_tag_) == BATCHLLM_OK);
        rows_[next_tag_++] = row;
    }

    void cancel() {
        cancelled_ = true;
        if (bytes_.next(8) == 0) {
            check(batchllm_cancel_all(engine_) == BATCHLLM_OK);
            for (auto &[tag, row] : rows_) row.cancelled = true;
            return;
        }
        const uint64_t tag =
            next_tag_ == 0 ? 0 : static_cast<uint64_t>(bytes_.next(256)) % next_tag_;
        check(batchllm_cancel(engine_, tag) == BATCHLLM_OK);
        if (rows_.count(tag)) rows_[tag].cancelled = true;
    }

    void plan() {
        if (bytes_.next(2)) {
            check(batchllm_build_groups(engine_) == BATCHLLM_OK);
            batchllm_plan *made = nullptr;
            const int32_t status = batchllm_engine_get_plan(engine_, &made);
            check(status == BATCHLLM_OK || (status == BATCHLLM_ERROR_STATE && made == nullptr));
            if (made == nullptr) return;
            batchllm_plan_destroy(plan_);
            plan_ = made;
            batchllm_plan_stats stats{};
            stats.struct_size = sizeof stats;
            check(batchllm_plan_get_stats(plan_, &stats) == BATCHLLM_OK);
            check(stats.processed_tokens <= stats.logical_tokens);
        } else if (plan_ != nullptr) {
            check(batchllm_engine_use_plan(engine_, plan_) == BATCHLLM_OK);
        }
    }

    void step() {
        batchllm_progress progress{};
        progress.struct_size = sizeof progress;
        check(batchllm_step(engine_, &progress) == BATCHLLM_OK);
        check(progress.rows_waiting >= 0 && progress.rows_running >= 0);
        check(progress.rows_waiting + progress.rows_running + progress.rows_done ==
              static_cast<int64_t>(rows_.size()) + polled_);
        check(progress.pages_used <= progress.pages_total);
    }

    void run() {
        struct Stop {
            int32_t left;
        } stop{bytes_.next(8)};
        const auto callback = [](void *user, const batchllm_progress *) -> int32_t {
            return --static_cast<Stop *>(user)->left == 0;
        };
        const int32_t status = batchllm_run(engine_, callback, &stop);
        check(status == BATCHLLM_OK || status == BATCHLLM_ERROR_STOPPED);
    }

    void poll(int64_t most) {
        batchllm_results *results = nullptr;
        check(batchllm_poll(engine_, most, &results) == BATCHLLM_OK && results != nullptr);
        for (int64_t i = 0; i < results->count;) {
            const auto found = rows_.find(results->tags[i]);
            check(found != rows_.end()); // each row once
            const InputRow row = found->second;
            check(most == 0 || i == 0 || i + row.samples <= most);
            for (int32_t sample = 0; sample < row.samples; ++sample, ++i) {
                check(i < results->count && results->tags[i] == found->first &&
                      results->samples[i] == sample);
                check_result(*results, i, row);
            }
            rows_.erase(found);
            ++polled_;
        }
        batchllm_results_free(results);
    }

    void end() {
        check(batchllm_run(engine_, nullptr, nullptr) == BATCHLLM_OK);
        poll(0);
        check(rows_.empty());
        batchllm_stats stats{};
        stats.struct_size = sizeof stats;
        check(batchllm_engine_stats(engine_, &stats) == BATCHLLM_OK);
        check(stats.rows == polled_ && stats.rows_done == polled_);
        // A prefix may have been computed for rows that were cancelled before they started.
        check(cancelled_ || stats.processed_prompt_tokens <=
                                stats.logical_prompt_tokens + stats.recomputed_tokens);
    }

  private:
    static void check_result(const batchllm_results &r, int64_t i, const InputRow &row) {
        const int64_t tokens = r.token_offsets[i + 1] - r.token_offsets[i];
        if (row.bad) {
            check(r.statuses[i] >= BATCHLLM_ERROR_ROW_EMPTY &&
                  r.finish_reasons[i] == BATCHLLM_FINISH_ERROR);
            check(r.error_offsets[i + 1] > r.error_offsets[i] && tokens == 0);
            return;
        }
        // The pool may be too small for the row's greatest length, which is also the row's error.
        if (r.statuses[i] == BATCHLLM_ERROR_ROW_TOO_LARGE ||
            r.statuses[i] == BATCHLLM_ERROR_ROW_TOO_LONG)
            return;
        check(r.statuses[i] == BATCHLLM_OK && r.prompt_tokens[i] == row.prompt);
        check(r.shared_tokens[i] >= 0 && r.shared_tokens[i] <= row.prompt);
        const int32_t finish = r.finish_reasons[i];
        check(row.cancelled || finish != BATCHLLM_FINISH_CANCELLED);
        if (row.scored) {
            check(tokens == 0);
            if (finish != BATCHLLM_FINISH_CANCELLED)
                check(r.score_offsets[i + 1] - r.score_offsets[i] == row.max_tokens);
            return;
        }
        check(tokens <= row.max_tokens && tokens + row.prompt <= 40);
        check(finish == BATCHLLM_FINISH_CANCELLED || tokens > 0);
        for (int64_t t = r.token_offsets[i]; t < r.token_offsets[i + 1]; ++t) {
            check(r.tokens[t] >= 0 && r.tokens[t] < vocabulary);
            check(r.tokens[t] != eos || t - r.token_offsets[i] >= row.min_tokens);
        }
    }

    Bytes &bytes_;
    batchllm_engine *engine_ = nullptr;
    batchllm_plan *plan_ = nullptr;
    std::map<uint64_t, InputRow> rows_; // not yet polled, by tag
    uint64_t next_tag_ = 0;
    int64_t polled_ = 0;
    bool cancelled_ = false; // any row, ever
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 4096) return 0;
    Bytes bytes(data, size);
    Engine engine(&bytes);
    while (bytes.left()) {
        switch (bytes.next(10)) {
        case 0:
        case 1:
        case 2:
            engine.add();
            break;
        case 3:
            engine.add_score();
            break;
        case 4:
            engine.cancel();
            break;
        case 5:
            engine.plan();
            break;
        case 6:
        case 7:
            engine.step();
            break;
        case 8:
            engine.run();
            break;
        case 9:
            engine.poll(bytes.next(4));
            break;
        }
    }
    engine.end();
    return 0;
}
