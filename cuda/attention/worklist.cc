#include "attention/worklist.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <tuple>

namespace batchllm::cuda {
namespace {

// So much longer do wide jobs take beside streams once the device lowers its clock to stay within its
// power. Its memory is as fast as before.
constexpr double kPowerLimit = 1.17;

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

// An item before it is split: query tokens and the stretches that they see.
struct Draft {
    std::vector<int32_t> tokens;
    struct Read {
        KeyStretch stretch;
        int32_t node;
    };
    std::vector<Read> stretches;
    int32_t min_position;
    int32_t max_position;
    bool matrix;
};

class Builder {
  public:
    Builder(std::span<const AttentionNode> nodes, int32_t tokens, const WorklistOptions &options)
        : nodes_(nodes), options_(options), ratio_(options.heads / options.kv_heads),
          matrix_tokens_(std::max(1, kMatrixRows / ratio_)), stream_tokens_(kStreamRows / ratio_),
          counts_(static_cast<size_t>(tokens)), positions_(static_cast<size_t>(tokens)),
          readers_(nodes.size()), reads_(nodes.size()) {
        for (const AttentionNode &node : nodes) {
            for (int32_t t = 0; t < node.token_count; ++t) {
                positions_[static_cast<size_t>(node.token_begin + t)] =
                    node.start + node.keys - node.token_count + t;
            }
        }
    }

    void build(Worklist *out) {
        share_prefixes();
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (nodes_[i].token_count > 0) own_items(static_cast<int32_t>(i));
        }
        for (Draft &draft : drafts_) clip(&draft);
        out->widened.clear();
        if (options_.wide_from_scratch) widen(out);
        emit(out);
    }

  private:
    bool decodes(const AttentionNode &node) const { return node.token_count <= stream_tokens_; }

    KeyStretch stretch_of(int32_t index) const {
        const AttentionNode &node = nodes_[static_cast<size_t>(index)];
        return {node.page_begin, node.keys, node.start};
    }

    void read(Draft *draft, int32_t node, int32_t keys) {
        if (keys == 0) return;
        KeyStretch stretch = stretch_of(node);
        stretch.keys = keys;
        draft->stretches.push_back({stretch, node});
        ++reads_[static_cast<size_t>(node)];
    }

    // SM time of an item of `tokens` query tokens.
    double time_of(bool matrix, size_t tokens, int64_t keys) const {
        const double pages = static_cast<double>(keys) / kPageKeys * options_.head_dim / 128;
        if (!matrix) return pages * options_.stream_us;
        return static_cast<int32_t>(tokens) * ratio_ > kNarrowRows ? pages * options_.wide_us / 2
                                                                   : pages * options_.narrow_us;
    }

    // For each node with several decoding descendants: do they read it together?
    void share_prefixes() {
        shared_.assign(nodes_.size(), false);
        if (!options_.share) return;
        std::vector<std::vector<int32_t>> below(nodes_.size()); // decoding tokens under each node
        for (const AttentionNode &node : nodes_) {
            if (node.token_count == 0 || !decodes(node)) continue;
            for (int32_t up = node.parent; up >= 0; up = nodes_[static_cast<size_t>(up)].parent) {
                for (int32_t t = 0; t < node.token_count; ++t) {
                    below[static_cast<size_t>(up)].push_back(node.token_begin + t);
                }
                ++readers_[static_cast<size_t>(up)];
            }
        }
        double saved = 0; // SM time
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (readers_[i] < 2) continue;
            const size_t tokens = below[i].size();
            const bool matrix = static_cast<int32_t>(tokens) > stream_tokens_;
            const size_t each = static_cast<size_t>(matrix ? matrix_tokens_ : stream_tokens_);
            const KeyStretch prefix = stretch_of(static_cast<int32_t>(i));
            const int32_t keys = prefix.keys - unseen_keys(prefix, range_of(below[i]).first);
            double together = 2 * static_cast<double>(tokens) * ratio_ * options_.merge_us;
            // A stream item merges its warps eight rows at a time.
            if (!matrix && static_cast<int32_t>(tokens) * ratio_ > 8) together += options_.item_us;
            for (size_t first = 0; first < tokens; first += each) {
                together +=
                    time_of(matrix, std::min(each, tokens - first), keys) + options_.item_us;
            }
            const double gain = readers_[i] * time_of(false, 1, keys) - together;
            if (gain <= 0 && !options_.always_share) continue;
            shared_[i] = true;
            saved += gain;
        }
        if (saved * options_.kv_heads / options_.sms < options_.share_us &&
            !options_.always_share) {
            shared_.assign(nodes_.size(), false);
        }
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (shared_[i]) stack(static_cast<int32_t>(i), below[i]);
        }
    }

    // The positions of the first and the last of some tokens.
    std::pair<int32_t, int32_t> range_of(std::span<const int32_t> tokens) const {
        std::pair<int32_t, int32_t> range{INT32_MAX, 0};
        for (const int32_t token : tokens) {
            const int32_t position = positions_[static_cast<size_t>(token)];
            range = {std::min(range.first, position), std::max(range.second, position)};
        }
        return range;
    }

    // Keys of a stretch that lie before the windows of all queries, the first of which is at `position`:
    // whole pages, or the whole stretch.
    int32_t unseen_keys(const KeyStretch &stretch, int32_t position) const {
        if (options_.window <= 0) return 0;
        const int32_t before = position - options_.window + 1 - stretch.start;
        if (before >= stretch.keys) return stretch.keys;
        return std::max(0, before) / kPageKeys * kPageKeys;
    }

    // The items of a prefix that `tokens` read together. Each of them stands after the whole prefix, so
    // that windows alone hide anything of it.
    void stack(int32_t index, const std::vector<int32_t> &tokens) {
        const bool matrix = static_cast<int32_t>(tokens.size()) > stream_tokens_;
        const size_t each = static_cast<size_t>(matrix ? matrix_tokens_ : stream_tokens_);
        for (size_t first = 0; first < tokens.size(); first += each) {
            const size_t count = std::min(each, tokens.size() - first);
            Draft draft;
            draft.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(first),
                                tokens.begin() + static_cast<ptrdiff_t>(first + count));
            draft.matrix = matrix;
            std::tie(draft.min_position, draft.max_position) = range_of(draft.tokens);
            read(&draft, index, nodes_[static_cast<size_t>(index)].keys);
            drafts_.push_back(std::move(draft));
        }
    }

    void own_items(int32_t index) {
        const AttentionNode &node = nodes_[static_cast<size_t>(index)];
        const bool decode = decodes(node);
        std::vector<int32_t> context; // nodes, oldest first
        for (int32_t up = node.parent; up >= 0; up = nodes_[static_cast<size_t>(up)].parent) {
            if (!decode || !shared_[static_cast<size_t>(up)]) context.insert(context.begin(), up);
        }
        const int32_t each = decode ? stream_tokens_ : matrix_tokens_;
        const int32_t before = node.keys - node.token_count;
        for (int32_t first = 0; first < node.token_count; first += each) {
            const int32_t last = std::min(node.token_count, first + each);
            Draft draft;
            draft.matrix = !decode;
            for (int32_t t = first; t < last; ++t) draft.tokens.push_back(node.token_begin + t);
            draft.min_position = node.start + before + first;
            draft.max_position = node.start + before + last - 1;
            for (const int32_t n : context) read(&draft, n, nodes_[static_cast<size_t>(n)].keys);
            read(&draft, index, before + last);
            drafts_.push_back(std::move(draft));
        }
    }

    // Leaves out what lies before every query's window.
    void clip(Draft *draft) const {
        std::vector<Draft::Read> kept;
        for (Draft::Read read : draft->stretches) {
            KeyStretch &s = read.stretch;
            const int32_t keys = unseen_keys(s, draft->min_position);
            if (keys == s.keys) continue;
            s.page_begin += keys / kPageKeys;
            assert(first_page_of(read) >= nodes_[static_cast<size_t>(read.node)].first_page);
            s.start += keys;
            s.keys -= keys;
            kept.push_back(read);
        }
        draft->stretches = std::move(kept);
    }

    // ---- Items of many rows, where they read widened pages ----

    bool is_wide(const Draft &draft) const {
        return draft.matrix && static_cast<int32_t>(draft.tokens.size()) * ratio_ > kNarrowRows;
    }
    int32_t first_page_of(const Draft::Read &read) const { // in its node
        return read.stretch.page_begin - nodes_[static_cast<size_t>(read.node)].page_begin;
    }

    // A node's pages, as far as drafts of many rows read them.
    struct Wanted {
        int32_t first = INT32_MAX, end = 0; // of its pages
        double saved = 0;   // SM time of one KV head, by not widening them on the way
        int32_t place = -1; // of page `first` among the widened
        int32_t pages() const { return end - first; }
    };

    // Decides which pages are widened before the launch. Drafts that read any others are cut to kNarrowRows; what
    // they alone would have had widened is then not.
    void widen(Worklist *out) {
        std::vector<bool> wide(drafts_.size());
        for (size_t i = 0; i < drafts_.size(); ++i) wide[i] = is_wide(drafts_[i]);
        std::vector<Wanted> wanted;
        for (bool fewer = true; fewer;) {
            fewer = false;
            wanted = wanted_by(wide);
            place_widened(&wanted, out);
            for (size_t i = 0; i < drafts_.size(); ++i) {
                const auto there = [&](const Draft::Read &read) {
                    return wanted[static_cast<size_t>(read.node)].place >= 0;
                };
                const auto &reads = drafts_[i].stretches;
                if (!wide[i] || std::all_of(reads.begin(), reads.end(), there)) continue;
                wide[i] = false;
                fewer = true;
            }
        }
        std::vector<Draft> drafts = std::move(drafts_);
        drafts_.clear();
        for (size_t i = 0; i < drafts.size(); ++i) {
            if (is_wide(drafts[i]) && !wide[i]) {
                halve(drafts[i]);
                continue;
            }
            for (Draft::Read &read : drafts[i].stretches) {
                const Wanted &of_node = wanted[static_cast<size_t>(read.node)];
                if (!wide[i]) break;
                read.stretch.page_begin = of_node.place + first_page_of(read) - of_node.first;
            }
            drafts_.push_back(std::move(drafts[i]));
        }
    }

    // wide: [drafts] those that count.
    std::vector<Wanted> wanted_by(const std::vector<bool> &wide) const {
        std::vector<Wanted> wanted(nodes_.size());
        for (size_t i = 0; i < drafts_.size(); ++i) {
            if (!wide[i]) continue;
            for (const Draft::Read &read : drafts_[i].stretches) {
                Wanted &of_node = wanted[static_cast<size_t>(read.node)];
                const int32_t keys = read.stretch.keys, page = first_page_of(read);
                of_node.first = std::min(of_node.first, page);
                of_node.end = std::max(of_node.end, page + ceil_div(keys, kPageKeys));
                of_node.saved +=
                    2 * time_of(true, 1, keys) - time_of(true, drafts_[i].tokens.size(), keys);
            }
        }
        return wanted;
    }

    // The nodes whose pages are worth it, as long as there is room; none if a launch more does not pay.
    void place_widened(std::vector<Wanted> *wanted, Worklist *out) const {
        out->widened.clear();
        double gain = 0; // of all, SM time of one KV head
        for (size_t n = 0; n < nodes_.size(); ++n) {
            Wanted &of_node = (*wanted)[n];
            const int32_t pages = of_node.pages();
            if (of_node.end == 0) continue;
            const double gain_here =
                of_node.saved - pages * options_.widen_us * options_.head_dim / 128;
            const auto begin = static_cast<int32_t>(out->widened.size());
            if (gain_here <= 0 || pages > options_.widened_room - begin) continue;
            gain += gain_here;
            of_node.place = begin;
            for (int32_t page = of_node.first; page < of_node.end; ++page) {
                out->widened.push_back(nodes_[n].page_begin + page);
            }
        }
        if (gain * options_.kv_heads / options_.sms >= options_.widen_launch_us) return;
        out->widened.clear();
        for (Wanted &of_node : *wanted) of_node.place = -1;
    }

    // A draft of too many rows as drafts of up to kNarrowRows, each of what its own tokens see.
    void halve(const Draft &draft) {
        const auto each = static_cast<size_t>(std::max(1, kNarrowRows / ratio_));
        for (const Draft::Read &read : draft.stretches) --reads_[static_cast<size_t>(read.node)];
        for (size_t first = 0; first < draft.tokens.size(); first += each) {
            const size_t count = std::min(each, draft.tokens.size() - first);
            const auto begin = draft.tokens.begin() + static_cast<ptrdiff_t>(first);
            Draft part;
            part.matrix = true;
            part.tokens.assign(begin, begin + static_cast<ptrdiff_t>(count));
            std::tie(part.min_position, part.max_position) = range_of(part.tokens);
            for (Draft::Read read : draft.stretches) {
                read.stretch.keys =
                    std::min(read.stretch.keys, part.max_position + 1 - read.stretch.start);
                if (read.stretch.keys <= 0) continue;
                ++reads_[static_cast<size_t>(read.node)];
                part.stretches.push_back(read);
            }
            clip(&part);
            drafts_.push_back(std::move(part));
        }
    }

    struct Timed {
        AttentionItem item;
        double time;
    };

    void emit(Worklist *out) {
        double total = 0;
        std::vector<double> times(drafts_.size());
        std::vector<int64_t> lengths(drafts_.size());
        for (size_t i = 0; i < drafts_.size(); ++i) {
            const Draft &draft = drafts_[i];
            for (const Draft::Read &read : draft.stretches) lengths[i] += read.stretch.keys;
            times[i] = time_of(draft.matrix, draft.tokens.size(), lengths[i]) + options_.item_us;
            total += times[i];
        }
        const double share = total * options_.kv_heads / options_.sms;
        std::vector<Timed> queues[2];
        out->rows.clear();
        for (size_t i = 0; i < drafts_.size(); ++i) {
            const Draft &draft = drafts_[i];
            const double queue_share =
                share / (draft.matrix ? options_.matrix_split : options_.stream_split);
            const double limit = std::max(queue_share, least_time(draft));
            const int64_t keys = lengths[i];
            const int32_t parts = std::max(1, static_cast<int32_t>(std::ceil(times[i] / limit)));
            const int64_t per_part = (keys + parts - 1) / parts;
            const int32_t part_keys =
                static_cast<int32_t>((per_part + 127) / 128 * 128); // whole tiles
            cut(draft, part_keys, out, &queues[draft.matrix ? 0 : 1]);
        }
        give_slots(counts_, out);
        out->items.clear();
        for (auto &queue : queues) {
            std::stable_sort(queue.begin(), queue.end(),
                             [](const Timed &a, const Timed &b) { return a.time > b.time; });
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
        divide_sms(out);
    }

    // Of an item: shorter ones are not worth a job.
    double least_time(const Draft &draft) const {
        return time_of(draft.matrix, draft.tokens.size(), is_wide(draft) ? 512 : 256);
    }

    // Cuts the draft's stretches into items of at most two stretches and about part_keys keys.
    void cut(const Draft &draft, int32_t part_keys, Worklist *out, std::vector<Timed> *queue) {
        size_t at = 0;
        int32_t used = 0; // keys of stretch `at` already given out
        while (at < draft.stretches.size()) {
            AttentionItem item{};
            item.min_position = draft.min_position;
            item.max_position = draft.max_position;
            int32_t room = part_keys;
            int32_t filled = 0;
            for (int32_t k = 0; k < 2 && at < draft.stretches.size() && room > 0; ++k) {
                const KeyStretch &s = draft.stretches[at].stretch;
                int32_t take = std::min(room, s.keys - used);
                // Never cut inside a tile, nor leave a rest of less than one.
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
                out->rows.push_back({token, -1, positions_[static_cast<size_t>(token)], 0});
            }
            queue->push_back({item, time_of(draft.matrix, draft.tokens.size(), filled)});
        }
    }

    // Wide items are bound by their products and take as long beside others as alone; the rest slows
    // down until the whole is read. Whole rounds of wide jobs, since they are long.
    void divide_sms(Worklist *out) const {
        out->matrix_by_head = 0; // a worklist is built again and again
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
        double keys = 0; // that must come from memory
        for (size_t i = 0; i < nodes_.size(); ++i) {
            if (reads_[i] > 0) keys += nodes_[i].keys;
        }
        const double heads = options_.kv_heads, sms = options_.sms;
        const double bytes = keys * heads * 2 * options_.head_dim * options_.kv_bytes;
        const double time =
            std::max(bytes / options_.bytes_us, (wide + narrow + stream) * heads / sms);
        // At least half for narrow jobs, so that a decode step's long ones are not its last.
        double ctas = narrow > 0 ? sms / 2 : sms / 4;
        if (wide_items > 0) {
            const double longest = kPowerLimit * wide / wide_items;
            const double rounds = std::max(1.0, std::floor(time / longest));
            const double of_wide = std::min(sms, std::ceil(wide_items * heads / rounds));
            ctas = std::max(ctas, of_wide + (sms - of_wide) * narrow / (narrow + stream));
        }
        out->matrix_ctas =
            std::max(1, std::min(options_.sms - 1, static_cast<int32_t>(std::lround(ctas))));
        // Long wide jobs of all heads would find their keys driven from L2 by those of the streams.
        out->matrix_by_head =
            wide > wide_items * time_of(true, static_cast<size_t>(matrix_tokens_), 4096);
    }

    std::span<const AttentionNode> nodes_;
    const WorklistOptions &options_;
    int32_t ratio_;
    int32_t matrix_tokens_;
    int32_t stream_tokens_;
    std::vector<int32_t> counts_; // [tokens] items that cover each
    std::vector<int32_t> positions_;
    std::vector<int32_t> readers_; // [nodes] decoding nodes below each
    std::vector<int32_t> reads_;   // [nodes] drafts that read its keys
    std::vector<bool> shared_;
    std::vector<Draft> drafts_;
};

} // namespace

void give_slots(std::span<const int32_t> counts, Worklist *out) {
    out->partials.assign(counts.size(), {0, 0});
    out->merged.clear();
    out->slots = 0;
    for (size_t t = 0; t < counts.size(); ++t) {
        if (counts[t] < 2) continue;
        out->partials[t] = {out->slots, counts[t]};
        out->merged.push_back(static_cast<int32_t>(t));
        out->slots += counts[t];
    }
    std::vector<int32_t> given(counts.size(), 0);
    for (AttentionRow &row : out->rows) {
        const PartialRange &range = out->partials[static_cast<size_t>(row.token)];
        if (range.count > 0) row.slot = range.begin + given[static_cast<size_t>(row.token)]++;
    }
}

void build_worklist(std::span<const AttentionNode> nodes, int32_t tokens,
                    const WorklistOptions &options, Worklist *worklist) {
    Builder(nodes, tokens, options).build(worklist);
}

} // namespace batchllm::cuda
