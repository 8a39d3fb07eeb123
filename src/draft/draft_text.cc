#include "draft/draft_text.h"

#include <algorithm>

namespace batchllm {
namespace {

constexpr size_t least_buckets = 256;
constexpr int32_t most_compared = 16;
static_assert(DraftText::least_match == 3);

// Of the three tokens before `next`.
size_t bucket_of(const int32_t *next, size_t buckets) {
    uint64_t hash = static_cast<uint32_t>(next[-1]);
    hash = hash * 0x9e3779b97f4a7c15u + static_cast<uint32_t>(next[-2]);
    hash = hash * 0x9e3779b97f4a7c15u + static_cast<uint32_t>(next[-3]);
    hash *= 0xbf58476d1ce4e5b9u;
    return static_cast<size_t>(hash >> 32) & (buckets - 1);
}

} // namespace

std::span<const int32_t> DraftText::tail() const {
    const auto count = std::min(tokens_.size(), static_cast<size_t>(longest_match));
    return std::span(tokens_).last(count);
}

void DraftText::append(int32_t token) {
    if (tokens_.size() >= most_) forget_half();
    tokens_.push_back(token);
    before_.push_back(-1);
    if (tokens_.size() > latest_.size()) {
        rehash(std::max(least_buckets, 2 * latest_.size()));
    } else {
        index(tokens_.size() - 1);
    }
}

void DraftText::index(size_t next) {
    if (next < least_match) return;
    int32_t &latest = latest_[bucket_of(tokens_.data() + next, latest_.size())];
    before_[next] = latest;
    latest = static_cast<int32_t>(next);
}

void DraftText::rehash(size_t buckets) {
    latest_.assign(buckets, -1);
    for (size_t next = 0; next < tokens_.size(); ++next) index(next);
}

void DraftText::forget_half() {
    const size_t half = (tokens_.size() + 1) / 2;
    tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(half));
    before_.assign(tokens_.size(), -1);
    begin_ += static_cast<int64_t>(half);
    rehash(latest_.size());
}

DraftText::Match DraftText::find(std::span<const int32_t> recent) const {
    Match best;
    if (recent.size() < least_match || latest_.empty()) return best;
    const int32_t *const end = recent.data() + recent.size();
    const auto most = static_cast<int32_t>(std::min<size_t>(recent.size(), longest_match));
    int32_t next = latest_[bucket_of(end, latest_.size())];
    for (int32_t i = 0; i < most_compared && next >= 0 && best.length < most; ++i) {
        const int32_t here = std::min(most, next);
        int32_t length = 0;
        while (length < here && tokens_[static_cast<size_t>(next - 1 - length)] == end[-1 - length])
            ++length;
        if (length >= least_match && length > best.length) best = {begin_ + next, length};
        next = before_[static_cast<size_t>(next)];
    }
    return best;
}

} // namespace batchllm
