#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>

#include "attention/worklist_builder.h"

namespace batchllm::cuda {

namespace {

// Wide jobs take this much longer beside streams, because the device lowers its clock to stay
// within its power limit. Its memory stays as fast.
constexpr double kPowerLimit = 1.17;

} // namespace

void WorklistBuilder::emit(Worklist *out) {
    double total = 0;
    std::vector<double> times(drafts_.size());
    std::vector<int64_t> lengths(drafts_.size());
    for (size_t i = 0; i < drafts_.size(); ++i) {
        const Draft &draft = drafts_[i];
        for (const Draft::Read &read : draft.stretches) lengths[i] += read.stretch.keys;
        times[i] = time_of(draft.matrix, draft.tokens.size(), lengths[i]) +
                   options_.item_us * tiles_of(draft.tokens.size());
        total += times[i];
    }
    const double share = total * options_.kv_heads / options_.sms;
    const double tile_limit = options_.tile_rows > 0 ? longest_tile(times, share) : 0;
    std::vector<Timed> queues[2];
    out->rows.clear();
    for (size_t i = 0; i < drafts_.size(); ++i) {
        const Draft &draft = drafts_[i];
        const double queue_share =
            tile_limit > 0 ? tile_limit
                           : share / (draft.matrix ? options_.matrix_split : options_.stream_split);
        const double limit =
            std::max(queue_share * tiles_of(draft.tokens.size()), least_time(draft));
        const int64_t keys = lengths[i];
        const int32_t parts = std::max(1, static_cast<int32_t>(std::ceil(times[i] / limit)));
        const int64_t per_part = (keys + parts - 1) / parts;
        const int32_t part_keys = static_cast<int32_t>((per_part + 127) / 128 * 128); // whole tiles
        cut(draft, part_keys, out, &queues[draft.matrix ? 0 : 1]);
    }
    give_slots(counts_, out);
    out->items.clear();
    for (auto &queue : queues) {
        order(&queue == &queues[0], &queue);
        for (Timed &timed : queue) {
            for (int32_t r = 0; r < timed.item.row_count; ++r) {
                if (out->rows[static_cast<size_t>(timed.item.row_begin + r)].slot >= 0) {
                    timed.item.partial = 1;
                }
            }
            out->items.push_back(timed.item);
        }
    }
    out->matrix_items = static_cast<int32_t>(queues[0].size());
    out->stream_items = static_cast<int32_t>(queues[1].size());
    order_merges(out);
    divide_sms(out);
    if (options_.tile_rows > 0) split_into_tiles(out);
}

void WorklistBuilder::order(bool matrix, std::vector<Timed> *queue) const {
    if (!matrix || options_.tile_rows > 0) { // longest_tile() counts on it
        std::stable_sort(queue->begin(), queue->end(),
                         [](const Timed &a, const Timed &b) { return a.time > b.time; });
        return;
    }
    std::vector<double> below(nodes_.size()),
        own(nodes_.size()); // the longest item of each root and leaf
    for (const Timed &timed : *queue) {
        double &root = below[static_cast<size_t>(timed.root)];
        double &leaf = own[static_cast<size_t>(timed.leaf)];
        root = std::max(root, timed.time);
        leaf = std::max(leaf, timed.time);
    }
    const auto place = [&](const Timed &timed) {
        return std::tuple(-below[static_cast<size_t>(timed.root)], timed.root,
                          -own[static_cast<size_t>(timed.leaf)], timed.leaf, -timed.time);
    };
    std::stable_sort(queue->begin(), queue->end(),
                     [&](const Timed &a, const Timed &b) { return place(a) < place(b); });
}

double WorklistBuilder::longest_tile(const std::vector<double> &times, double share) const {
    if (options_.matrix_split < 1e-6) return HUGE_VAL; // nothing is to be split
    double best = 0, least = 0;
    for (const double factor : {1.05, 0.75, 0.55, 0.37, 0.27}) {
        std::vector<double> jobs;
        double merged = 0; // time of all SMs
        for (size_t i = 0; i < drafts_.size(); ++i) {
            const int32_t tiles = tiles_of(drafts_[i].tokens.size());
            const double limit = std::max(factor * share * tiles, least_time(drafts_[i]));
            const double parts = std::max(1.0, std::ceil(times[i] / limit));
            jobs.insert(jobs.end(), static_cast<size_t>(tiles * static_cast<int32_t>(parts)),
                        times[i] / (tiles * parts));
            merged += (parts - 1) * static_cast<double>(drafts_[i].tokens.size()) * ratio_ *
                      options_.merge_us;
        }
        std::sort(jobs.begin(), jobs.end(), std::greater<>());
        std::priority_queue<double, std::vector<double>, std::greater<>> sms;
        for (int32_t i = 0; i < options_.sms; ++i) sms.push(0);
        double end = 0;
        for (const double job : jobs) {
            const double until = sms.top() + job;
            sms.pop();
            sms.push(until);
            end = std::max(end, until);
        }
        end += merged / options_.sms;
        if (best == 0 || end < least) {
            best = factor * share;
            least = end;
        }
    }
    return best;
}

void WorklistBuilder::split_into_tiles(Worklist *out) const {
    std::vector<AttentionItem> tiles;
    const auto matrix_items = static_cast<size_t>(out->matrix_items);
    for (size_t i = 0; i < out->items.size(); ++i) {
        AttentionItem item = out->items[i];
        for (item.once = 0; item.once < item.row_count * ratio_; item.once += options_.tile_rows) {
            tiles.push_back(item);
        }
        if (i + 1 == matrix_items) out->matrix_items = static_cast<int32_t>(tiles.size());
    }
    out->stream_items = static_cast<int32_t>(tiles.size()) - out->matrix_items;
    out->items = std::move(tiles);
}

void WorklistBuilder::order_merges(Worklist *out) const {
    std::vector<int32_t> left = counts_; // items left of each token
    const int64_t matrix = out->matrix_items, stream = out->stream_items;
    out->merged.clear();
    for (int64_t m = 0, s = 0; m < matrix || s < stream;) {
        const bool next = s == stream || (m < matrix && (m + 1) * stream <= (s + 1) * matrix);
        const AttentionItem &item = out->items[static_cast<size_t>(next ? m++ : matrix + s++)];
        for (int32_t r = 0; r < item.row_count; ++r) {
            const AttentionRow &row = out->rows[static_cast<size_t>(item.row_begin + r)];
            if (--left[static_cast<size_t>(row.token)] == 0 && row.slot >= 0) {
                out->merged.push_back(row.token);
            }
        }
    }
}

double WorklistBuilder::least_time(const Draft &draft) const {
    return time_of(draft.matrix, draft.tokens.size(), is_wide(draft) ? 512 : 256);
}

void WorklistBuilder::cut(const Draft &draft, int32_t part_keys, Worklist *out,
                          std::vector<Timed> *queue) {
    size_t at = 0;
    int32_t used = 0; // keys of stretch `at` already used
    while (at < draft.stretches.size()) {
        AttentionItem item{};
        item.min_position = draft.min_position;
        item.max_position = draft.max_position;
        int32_t room = part_keys;
        int32_t filled = 0;
        for (int32_t k = 0; k < 2 && at < draft.stretches.size() && room > 0; ++k) {
            const KeyStretch &s = draft.stretches[at].stretch;
            int32_t take = std::min(room, s.keys - used);
            // Never cuts inside a tile, nor leaves less than one tile.
            if (take < s.keys - used) take = ceil_div(take, 128) * 128;
            if (s.keys - used - take < 128) take = s.keys - used;
            take = std::min(take, s.keys - used);
            const bool once = reads_[static_cast<size_t>(draft.stretches[at].node)] == 1;
            item.once |= static_cast<int32_t>(once) << k;
            item.stretch[k] = {s.page_begin + used / kPageKeys, take, s.start + used};
            used += take;
            room -= take;
            filled += take;
            if (used == s.keys) {
                ++at;
                used = 0;
            }
        }
        item.row_begin = static_cast<int32_t>(out->rows.size());
        item.row_count = static_cast<int32_t>(draft.tokens.size());
        for (const int32_t token : draft.tokens) {
            ++counts_[static_cast<size_t>(token)];
            const int32_t own = positions_[static_cast<size_t>(token)] + draft.shift;
            out->rows.push_back({token, -1, draft.edge ? draft.max_position : own, 0});
        }
        queue->push_back(
            {item,
             time_of(draft.matrix, draft.tokens.size(), filled) / tiles_of(draft.tokens.size()),
             draft.stretches.front().node, draft.stretches.back().node});
    }
}

void WorklistBuilder::divide_sms(Worklist *out) const {
    out->matrix_by_head = 0; // because a worklist is reused
    if (out->matrix_items == 0 || out->stream_items == 0) {
        out->matrix_ctas = out->matrix_items > 0 ? options_.sms : 0;
        return;
    }
    double wide = 0, narrow = 0, stream = 0, wide_items = 0; // SM time of one KV head's jobs
    for (size_t i = 0; i < out->items.size(); ++i) {
        const AttentionItem &item = out->items[i];
        const bool matrix = i < static_cast<size_t>(out->matrix_items);
        const double time = time_of(matrix, static_cast<size_t>(item.row_count),
                                    item.stretch[0].keys + item.stretch[1].keys) +
                            options_.item_us;
        if (!matrix) {
            stream += time;
        } else if (item.row_count * ratio_ > kNarrowRows) {
            wide += time;
            ++wide_items;
        } else {
            narrow += time;
        }
    }
    double keys = 0; // keys that must come from memory
    bool prompts = false;
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (reads_[i] > 0) keys += nodes_[i].keys;
        prompts |= nodes_[i].token_count > 0 && !decodes(nodes_[i]);
    }
    if (!prompts) stream *= options_.decode_share;
    const double heads = options_.kv_heads, sms = options_.sms;
    const double bytes = keys * heads * 2 * options_.head_dim * options_.kv_bytes;
    const double time = std::max(bytes / options_.bytes_us, (wide + narrow + stream) * heads / sms);
    // At least half for narrow jobs, so that a decode step's long jobs are not its last. Jobs that
    // widen their keys, and those of heads of 512, are bound by their work more than by memory: four
    // fifths were the fastest (docs/lab/attention.md).
    const double of_narrow = options_.kv_bytes == 1 || options_.head_dim > 256 ? 0.8 : 0.5;
    double ctas = narrow > 0 ? of_narrow * sms : sms / 4;
    if (wide_items > 0) {
        const double longest = kPowerLimit * wide / wide_items;
        const double rounds = std::max(1.0, std::floor(time / longest));
        const double of_wide = std::min(sms, std::ceil(wide_items * heads / rounds));
        ctas = std::max(ctas, of_wide + (sms - of_wide) * narrow / (narrow + stream));
    }
    out->matrix_ctas =
        std::max(1, std::min(options_.sms - 1, static_cast<int32_t>(std::lround(ctas))));
    // With long wide jobs of all heads at once, the keys of the streams would evict theirs from L2.
    out->matrix_by_head =
        wide > wide_items * time_of(true, static_cast<size_t>(matrix_tokens_), 4096);
}

} // namespace batchllm::cuda
