// Added columns -> rows with their own copy of the tokens, stored in segments. A segment is freed
// as soon as the last of its rows is released. A waiting row costs sizeof(Row) plus its tokens.
//
//     segment 0                         segment 1
//     +--------------------------+      +--------------------------+
//     | rows   [<= 4096]         |      | rows                     |     id = segment * 4096 + index
//     | tokens t t t t t t ..    |      | tokens                   |
//     +--------------------------+      +--------------------------+
//
// Always: ids increase in order of addition and are never reused; a row's tokens do not move until
// it is released.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/columns.h"
#include "runtime/picture_library.h"

namespace batchllm {

// The continuations of a scored row: number c is tokens[offsets[c], offsets[c + 1]).
struct ScoreSpec {
    std::vector<int32_t> tokens;
    std::vector<int32_t> offsets{0};

    int32_t count() const { return static_cast<int32_t>(offsets.size()) - 1; }
    int32_t length(int32_t c) const { return offsets[c + 1] - offsets[c]; }
    std::span<const int32_t> continuation(int32_t c) const {
        return {tokens.data() + offsets[c], static_cast<size_t>(length(c))};
    }
    int32_t longest() const;
    void append(std::span<const int32_t> continuation) {
        tokens.insert(tokens.end(), continuation.begin(), continuation.end());
        offsets.push_back(static_cast<int32_t>(tokens.size()));
    }
};

enum class RowState : uint8_t {
    waiting,  // planned or not, but the scheduler does not have it
    started,  // a run computes it
    answered, // its result has been made; a run may still use its tokens
    released, // nothing is left of it
};

struct Row {
    uint64_t tag = 0;
    const int32_t *tokens = nullptr; // [length]
    int32_t length = 0;
    RowState state = RowState::waiting;
    bool follower = false;   // an equal, earlier row is computed instead
    int64_t next_equal = -1; // the next row answered by the same computation
    std::shared_ptr<const PreparedParams> params;
    std::unique_ptr<const ScoreSpec> score;      // null: the parameters determine the task
    std::shared_ptr<const RowPictures> pictures; // null: none

    Task task() const { return score != nullptr ? Task::score : params->task; }
    // How many tokens are computed: only the first if the result needs no other.
    int32_t computed_length() const {
        return task() == Task::embed && params->form.pooling == Pooling::first ? 1 : length;
    }
    bool wants_prompt_logprobs() const {
        return task() == Task::generate && params->prompt_logprobs >= 0;
    }
    // How many of them rows may share: none if the result needs something from each token.
    int32_t shareable() const {
        const bool mean = task() == Task::embed && params->form.pooling == Pooling::mean;
        return mean || wants_prompt_logprobs() ? 0 : computed_length() - 1;
    }
    TokenRow token_row() const { return {tokens, computed_length(), shareable(), params->salt}; }
};

// Whether one computation can answer both of two greedy rows.
bool equal_rows(const Row &a, const Row &b);

class RowStore {
  public:
    // The maximum number of rows in a segment.
    static constexpr int64_t segment_rows = 4096;

    // Copies the tokens. Strong guarantee: adds nothing if memory runs out. tokens_to_come: if
    // known, the number of tokens in this row and those added right after it, up to segment_rows
    // rows; a new segment is made that large.
    int64_t add(uint64_t tag, std::span<const int32_t> tokens,
                std::shared_ptr<const PreparedParams> params,
                std::unique_ptr<const ScoreSpec> score, int64_t tokens_to_come = 0);

    // The row, or null if it has been released.
    Row *find(int64_t id);

    // Releases the row. Its tokens are freed with the last row of its segment.
    void release(int64_t id);

    // The smallest id that no row has yet.
    int64_t next_id() const;
    // Removes the rows from `id` on, which must be the last ones added and must all be waiting.
    void take_back(int64_t id);

    // Calls visit(id, row) for each row that has not been released, in order of id.
    template <typename Visit> void for_each(Visit visit);

    int64_t segments() const; // that hold memory; for tests
    int64_t rows() const { return rows_; }

  private:
    static constexpr int64_t least_segment_tokens = 1 << 12;
    static constexpr int64_t most_segment_tokens = 1 << 18;

    struct Segment {
        std::vector<Row> rows;
        std::unique_ptr<int32_t[]> tokens;
        int64_t capacity = 0;
        int64_t used = 0;
        int64_t live = 0; // rows not released
        bool open = true; // rows may still be added
    };

    int64_t next_capacity(int64_t length, int64_t tokens_to_come) const;
    Segment *segment_of(int64_t id);
    void drop_empty_front();

    std::deque<std::unique_ptr<Segment>> segments_; // null: all of its rows have been released
    int64_t first_ = 0;                             // number of segments_[0]
    int64_t rows_ = 0;                              // not released
};

template <typename Visit> void RowStore::for_each(Visit visit) {
    for (size_t s = 0; s < segments_.size(); ++s) {
        if (segments_[s] == nullptr) continue;
        std::vector<Row> &rows = segments_[s]->rows;
        for (size_t i = 0; i < rows.size(); ++i) {
            if (rows[i].state == RowState::released) continue;
            visit((first_ + static_cast<int64_t>(s)) * segment_rows + static_cast<int64_t>(i),
                  rows[i]);
        }
    }
}

} // namespace batchllm
