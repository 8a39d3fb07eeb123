#include "attention/worklist_builder.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <tuple>

namespace batchllm::cuda {

WorklistBuilder::WorklistBuilder(std::span<const AttentionNode> nodes, int32_t tokens,
                                 const WorklistOptions &options)
    : nodes_(nodes), options_(options), ratio_(options.heads / options.kv_heads),
      matrix_tokens_(options.tile_rows > 0 ? options.matrix_tokens
                                           : std::max(1, options.matrix_rows / ratio_)),
      stream_tokens_(options.tile_rows > 0 ? options.stream_tokens : kStreamRows / ratio_),
      counts_(static_cast<size_t>(tokens)), positions_(static_cast<size_t>(tokens)),
      readers_(nodes.size()), reads_(nodes.size()) {
    for (const AttentionNode &node : nodes) {
        for (int32_t t = 0; t < node.token_count; ++t) {
            positions_[static_cast<size_t>(node.token_begin + t)] =
                node.start + node.keys - node.token_count + t;
        }
    }
}

void WorklistBuilder::build(Worklist *out) {
    place_together();
    share_prefixes();
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (nodes_[i].token_count > 0) own_items(static_cast<int32_t>(i));
    }
    if (options_.window > 0) {
        for (const SeenTogether &tokens : options_.together) later_items(tokens);
    }
    if (options_.chunked) add_edges();
    for (Draft &draft : drafts_) clip(&draft);
    out->widened.clear();
    if (options_.wide_from_scratch) widen(out);
    emit(out);
}

void WorklistBuilder::read(Draft *draft, int32_t node, int32_t keys) {
    if (keys == 0) return;
    KeyStretch stretch = stretch_of(node);
    stretch.keys = keys;
    draft->stretches.push_back({stretch, node});
    ++reads_[static_cast<size_t>(node)];
}

double WorklistBuilder::time_of(bool matrix, size_t tokens, int64_t keys) const {
    if (options_.tile_rows > 0) {
        return ceil_div(static_cast<int32_t>(keys), kPageKeys) * options_.tile_us *
               tiles_of(tokens);
    }
    const double pages = static_cast<double>(keys) / kPageKeys * options_.head_dim / 128;
    if (!matrix) return pages * options_.stream_us;
    return static_cast<int32_t>(tokens) * ratio_ > kNarrowRows ? pages * options_.wide_us / 2
                                                               : pages * options_.narrow_us;
}

template <typename Use> void WorklistBuilder::for_parts_below(const KeyStretch &prefix,
                                                              const std::vector<int32_t> &tokens,
                                                              const Use &use) const {
    if (!options_.chunked) return use(tokens);
    std::map<int32_t, std::vector<int32_t>> by_chunk;
    for (const int32_t token : tokens) {
        const int32_t begin = chunk_begin(positions_[static_cast<size_t>(token)]);
        if (begin < prefix.start + prefix.keys) by_chunk[begin].push_back(token);
    }
    for (const auto &[begin, part] : by_chunk) use(part);
}

void WorklistBuilder::share_prefixes() {
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
    double saved = 0; // in SM time
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (readers_[i] < 2) continue;
        const KeyStretch prefix = stretch_of(static_cast<int32_t>(i));
        double gain = 0;
        for_parts_below(prefix, below[i], [&](const std::vector<int32_t> &part) {
            const size_t tokens = part.size();
            const bool matrix = static_cast<int32_t>(tokens) > stream_tokens_;
            const size_t each = static_cast<size_t>(matrix ? matrix_tokens_ : stream_tokens_);
            const int32_t keys = prefix.keys - unseen_keys(prefix, range_of(part).first);
            double together = 2 * static_cast<double>(tokens) * ratio_ * options_.merge_us;
            // A stream item merges its warps' parts eight rows at a time.
            if (!matrix && static_cast<int32_t>(tokens) * ratio_ > 8) together += options_.item_us;
            for (size_t first = 0; first < tokens; first += each) {
                together +=
                    time_of(matrix, std::min(each, tokens - first), keys) + options_.item_us;
            }
            const double readers = tokens == below[i].size()
                                       ? readers_[i]
                                       : readers_[i] * static_cast<double>(tokens) /
                                             static_cast<double>(below[i].size());
            gain += readers * time_of(false, 1, keys) - together;
        });
        if (gain <= 0 && !options_.always_share) continue;
        shared_[i] = true;
        saved += gain;
    }
    if (saved * options_.kv_heads / options_.sms < options_.share_us && !options_.always_share) {
        shared_.assign(nodes_.size(), false);
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (!shared_[i]) continue;
        const auto index = static_cast<int32_t>(i);
        for_parts_below(stretch_of(index), below[i],
                        [&](const std::vector<int32_t> &part) { stack(index, part); });
    }
}

std::pair<int32_t, int32_t> WorklistBuilder::range_of(std::span<const int32_t> tokens) const {
    std::pair<int32_t, int32_t> range{INT32_MAX, 0};
    for (const int32_t token : tokens) {
        const int32_t position = positions_[static_cast<size_t>(token)];
        range = {std::min(range.first, position), std::max(range.second, position)};
    }
    return range;
}

int32_t WorklistBuilder::unseen_keys(const KeyStretch &stretch, int32_t position, bool edge) const {
    if (options_.window <= 0) return 0;
    const int32_t first = options_.chunked ? chunk_begin(position) : position - options_.window + 1;
    int32_t before = std::max(0, first - stretch.start);
    if (options_.chunked && !edge) before = ceil_div(before, kPageKeys) * kPageKeys;
    return before >= stretch.keys ? stretch.keys : before / kPageKeys * kPageKeys;
}

void WorklistBuilder::stack(int32_t index, const std::vector<int32_t> &tokens) {
    const bool matrix = static_cast<int32_t>(tokens.size()) > stream_tokens_;
    const size_t each = static_cast<size_t>(matrix ? matrix_tokens_ : stream_tokens_);
    for (size_t first = 0; first < tokens.size(); first += each) {
        const size_t count = std::min(each, tokens.size() - first);
        Draft draft;
        draft.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(first),
                            tokens.begin() + static_cast<ptrdiff_t>(first + count));
        draft.matrix = matrix;
        set_range(&draft);
        read(&draft, index, nodes_[static_cast<size_t>(index)].keys);
        drafts_.push_back(std::move(draft));
    }
}

void WorklistBuilder::own_items(int32_t index) {
    const AttentionNode &node = nodes_[static_cast<size_t>(index)];
    const bool decode = decodes(node);
    std::vector<int32_t> context; // nodes, oldest first
    for (int32_t up = node.parent; up >= 0; up = nodes_[static_cast<size_t>(up)].parent) {
        if (!decode || !shared_[static_cast<size_t>(up)]) context.insert(context.begin(), up);
    }
    const int32_t each = decode ? stream_tokens_ : matrix_tokens_;
    for (int32_t first = 0, last = 0; first < node.token_count; first = last) {
        last = std::min(node.token_count, first + each);
        Draft draft;
        if (options_.chunked) last = end_of_draft(node, first, last, &draft.edge);
        draft.matrix = draft.edge ? stream_tokens_ == 0 : !decode;
        for (int32_t t = first; t < last; ++t) draft.tokens.push_back(node.token_begin + t);
        set_range(&draft);
        if (!draft.edge) {
            for (const int32_t n : context) read(&draft, n, nodes_[static_cast<size_t>(n)].keys);
        }
        read(&draft, index, range_of(draft.tokens).second + 1 - node.start);
        drafts_.push_back(std::move(draft));
    }
}

int32_t WorklistBuilder::end_of_draft(const AttentionNode &node, int32_t first, int32_t last,
                                      bool *edge) const {
    const int32_t position = positions_[static_cast<size_t>(node.token_begin + first)];
    const int32_t begin = chunk_begin(position), before = begin - node.start;
    *edge = before > 0 && before % kPageKeys != 0 &&
            (position - node.start) / kPageKeys == before / kPageKeys;
    return *edge ? first + 1 : std::min(last, first + begin + options_.window - position);
}

void WorklistBuilder::add_edges() {
    std::vector<Draft> edges;
    for (const Draft &draft : drafts_) {
        if (draft.edge) continue;
        for (const Draft::Read &whole : draft.stretches) {
            const int32_t before = chunk_begin(draft.min_position) - whole.stretch.start;
            const int32_t end = ceil_div(std::max(before, 0), kPageKeys) * kPageKeys;
            if (before <= 0 || end <= before || before >= whole.stretch.keys) continue;
            Draft edge;
            edge.edge = true;
            edge.tokens = draft.tokens;
            edge.matrix = draft.matrix;
            set_range(&edge);
            read(&edge, whole.node, std::min(end, whole.stretch.keys));
            edges.push_back(std::move(edge));
        }
    }
    for (Draft &edge : edges) drafts_.push_back(std::move(edge));
}

void WorklistBuilder::place_together() {
    if (options_.window > 0) return;
    for (const SeenTogether &tokens : options_.together) {
        const auto first = positions_.begin() + tokens.token_begin;
        std::fill_n(first, tokens.token_count, first[tokens.token_count - 1]);
    }
}

void WorklistBuilder::later_items(const SeenTogether &together) {
    const auto index = static_cast<int32_t>(
        std::find_if(nodes_.begin(), nodes_.end(),
                     [&](const AttentionNode &node) {
                         return node.token_begin <= together.token_begin &&
                                together.token_begin < node.token_begin + node.token_count;
                     }) -
        nodes_.begin());
    const AttentionNode &node = nodes_[static_cast<size_t>(index)];
    const int32_t end = together.token_begin + together.token_count;
    const int32_t last = positions_[static_cast<size_t>(end - 1)];
    for (int32_t first = together.token_begin; first + 1 < end; first += matrix_tokens_) {
        // The last token sees nothing later.
        const int32_t count = std::min(matrix_tokens_, end - 1 - first);
        for (int32_t shift = options_.window;; shift += options_.window) {
            Draft draft;
            draft.matrix = true;
            draft.shift = shift;
            // Of those that this shift shows any keys.
            for (int32_t t = first; t < first + count; ++t) {
                if (positions_[static_cast<size_t>(t)] + shift - options_.window < last) {
                    draft.tokens.push_back(t);
                }
            }
            if (draft.tokens.empty()) break;
            set_range(&draft);
            read(&draft, index, last + 1 - node.start);
            drafts_.push_back(std::move(draft));
        }
    }
}

void WorklistBuilder::set_range(Draft *draft) const {
    std::tie(draft->min_position, draft->max_position) = range_of(draft->tokens);
    draft->min_position += draft->shift;
    draft->max_position += draft->shift;
    if (!draft->edge) return;
    draft->min_position = draft->max_position =
        chunk_begin(draft->min_position) + options_.window - 1;
}

void WorklistBuilder::clip(Draft *draft) const {
    std::vector<Draft::Read> kept;
    for (Draft::Read read : draft->stretches) {
        KeyStretch &s = read.stretch;
        const int32_t keys = unseen_keys(s, draft->min_position, draft->edge);
        if (keys == s.keys) continue;
        s.page_begin += keys / kPageKeys;
        assert(first_page_of(read) >= nodes_[static_cast<size_t>(read.node)].first_page);
        s.start += keys;
        s.keys -= keys;
        kept.push_back(read);
    }
    draft->stretches = std::move(kept);
}

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
    WorklistBuilder(nodes, tokens, options).build(worklist);
}

} // namespace batchllm::cuda
