// The owners of an engine's rows, each by itself: rows of tokens without a model, and the parts that
// they pass through before the one that is tested.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/agenda.h"
#include "runtime/answers.h"
#include "runtime/intake.h"
#include "runtime/row_reader.h"

#include "testing.h"

namespace batchllm {

constexpr int32_t parts_vocabulary = 1000;
constexpr int32_t parts_eos = 999;
constexpr int64_t parts_longest = 400; // max_request_tokens

inline std::unique_ptr<RowReader> reader_without_model() {
    EngineOptions options;
    options.max_request_tokens = parts_longest;
    options.threads = 1;
    auto reader = RowReader::open(options);
    BackendInfo info;
    info.vocabulary = parts_vocabulary;
    info.eos_token = parts_eos;
    info.hidden = 2;
    assert_true(reader.ok() && (*reader)->take_model(nullptr, info, options).ok());
    return std::move(reader).value();
}

// Rows that wait, and everything before their plan.
struct WaitingRows {
    std::unique_ptr<RowReader> reader = reader_without_model();
    RunLimits limits{parts_longest, 0, nullptr, true};
    Answers answers{reader.get()};
    Intake intake{reader.get(), limits, &answers};

    // change(&params): what differs from the defaults.
    template <typename Change>
    void add(const std::vector<std::vector<int32_t>> &prompts, Change change) {
        std::vector<int32_t> tokens;
        std::vector<int64_t> offsets{0};
        for (const std::vector<int32_t> &prompt : prompts) {
            tokens.insert(tokens.end(), prompt.begin(), prompt.end());
            offsets.push_back(static_cast<int64_t>(tokens.size()));
        }
        batchllm_params params = default_params();
        params.max_tokens = 10;
        change(&params);
        const auto count = static_cast<int64_t>(prompts.size());
        const auto column = ParamsColumn::open(&params, 1, count);
        assert_true(column.ok());
        assert_true(
            intake.add_tokens({count, tokens.data(), offsets.data()}, nullptr, *column).ok());
    }
    void add(const std::vector<std::vector<int32_t>> &prompts) {
        add(prompts, [](batchllm_params *) {});
    }

    RowState state(int64_t id) {
        const Row *row = intake.rows()->find(id);
        return row == nullptr ? RowState::released : row->state;
    }
};

// `length` tokens that begin with `common` tokens which depend on `kind` alone.
inline std::vector<int32_t> prompt_of(int32_t kind, int32_t common, int32_t own, int32_t length) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < length; ++i) {
        prompt.push_back(i < common ? (kind * 37 + i) % 900 : (own * 13 + i * 7 + 1) % 900);
    }
    return prompt;
}

} // namespace batchllm
