#include "runtime/row_store.h"

#include <algorithm>

namespace batchllm {

int32_t ScoreSpec::longest() const {
    int32_t most = 0;
    for (int32_t c = 0; c < count(); ++c) most = std::max(most, length(c));
    return most;
}

bool equal_rows(const Row &a, const Row &b) {
    const TokenRow x = a.token_row(), y = b.token_row();
    return x.length == y.length && same_prefix(x, y, x.length) &&
           (a.params == b.params || same_greedy_result(*a.params, *b.params));
}

int64_t RowStore::add(uint64_t tag, std::span<const int32_t> tokens,
                      std::shared_ptr<const PreparedParams> params,
                      std::unique_ptr<const ScoreSpec> score, int64_t tokens_to_come) {
    const int64_t length = static_cast<int64_t>(tokens.size());
    Segment *segment = segments_.empty() ? nullptr : segments_.back().get();
    if (segment == nullptr || !segment->open ||
        static_cast<int64_t>(segment->rows.size()) == segment_rows ||
        segment->used + length > segment->capacity) {
        auto fresh = std::make_unique<Segment>();
        fresh->capacity = next_capacity(length, tokens_to_come);
        // Not initialised, so that a small job touches only a few of its pages.
        fresh->tokens.reset(new int32_t[static_cast<size_t>(fresh->capacity)]);
        segments_.push_back(std::move(fresh));
        if (segment != nullptr) {
            segment->open = false;
            if (segment->live == 0) segments_[segments_.size() - 2].reset();
            drop_empty_front();
        }
        segment = segments_.back().get();
    }
    Row row;
    row.tag = tag;
    row.tokens = segment->tokens.get() + segment->used;
    row.length = static_cast<int32_t>(length);
    row.params = std::move(params);
    row.score = std::move(score);
    segment->rows.push_back(std::move(row));
    std::copy(tokens.begin(), tokens.end(), segment->tokens.get() + segment->used);
    segment->used += length;
    ++segment->live;
    ++rows_;
    return next_id() - 1;
}

// The number of tokens that are known to come. If rows come one by one: twice what the last rows
// filled, or as much as a whole segment of similar rows took.
int64_t RowStore::next_capacity(int64_t length, int64_t tokens_to_come) const {
    int64_t expected = std::max(tokens_to_come, least_segment_tokens);
    if (tokens_to_come <= length && !segments_.empty() && segments_.back() != nullptr) {
        const Segment &last = *segments_.back();
        const bool full = static_cast<int64_t>(last.rows.size()) == segment_rows;
        expected = std::max(expected, full ? last.used + last.used / 8 : 2 * last.capacity);
    }
    return std::max(length, std::min(expected, most_segment_tokens));
}

RowStore::Segment *RowStore::segment_of(int64_t id) {
    const int64_t index = id / segment_rows - first_;
    if (id < 0 || index < 0 || index >= static_cast<int64_t>(segments_.size())) return nullptr;
    return segments_[static_cast<size_t>(index)].get();
}

Row *RowStore::find(int64_t id) {
    Segment *segment = segment_of(id);
    if (segment == nullptr) return nullptr;
    const size_t index = static_cast<size_t>(id % segment_rows);
    if (index >= segment->rows.size()) return nullptr;
    Row &row = segment->rows[index];
    return row.state == RowState::released ? nullptr : &row;
}

void RowStore::release(int64_t id) {
    Row *row = find(id);
    if (row == nullptr) return;
    *row = Row{};
    row->state = RowState::released;
    --rows_;
    Segment *segment = segment_of(id);
    if (--segment->live > 0) return;
    if (segment->open) {
        // The last segment: its ids continue, but its token memory is free again.
        segment->used = 0;
        return;
    }
    segments_[static_cast<size_t>(id / segment_rows - first_)].reset();
    drop_empty_front();
}

void RowStore::drop_empty_front() {
    while (!segments_.empty() && segments_.front() == nullptr) {
        segments_.pop_front();
        ++first_;
    }
}

int64_t RowStore::next_id() const {
    const int64_t next_segment = first_ + static_cast<int64_t>(segments_.size());
    if (segments_.empty() || segments_.back() == nullptr) return next_segment * segment_rows;
    const std::unique_ptr<Segment> &last = segments_.back();
    return (next_segment - 1) * segment_rows + static_cast<int64_t>(last->rows.size());
}

void RowStore::take_back(int64_t id) {
    while (next_id() > id && !segments_.empty()) {
        Segment &last = *segments_.back();
        const int64_t first_of_last =
            (first_ + static_cast<int64_t>(segments_.size()) - 1) * segment_rows;
        const size_t keep = static_cast<size_t>(std::max<int64_t>(0, id - first_of_last));
        while (last.rows.size() > keep) {
            Row &row = last.rows.back();
            last.used = row.tokens - last.tokens.get();
            last.rows.pop_back();
            --last.live;
            --rows_;
        }
        if (keep > 0 || segments_.size() == 1) break;
        segments_.pop_back();
        if (segments_.back() == nullptr) break;
    }
}

int64_t RowStore::segments() const {
    return std::count_if(
        segments_.begin(), segments_.end(),
        [](const std::unique_ptr<Segment> &segment) { return segment != nullptr; });
}

} // namespace batchllm
