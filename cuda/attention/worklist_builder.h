// Builds a worklist in three steps: drafts of items from the nodes (worklist.cc); which drafts read
// pages that are widened before the launch (worklist_widen.cc); items of about equal length in two
// queues (worklist_items.cc).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attention/worklist.h"

namespace batchllm::cuda {

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
    int32_t shift = 0; // its tokens' positions are this much later
    bool edge =
        false; // in chunks: reads the page that the chunk begins within, all at the chunk's last position
};

// Lives for one call of build_worklist.
class WorklistBuilder {
  public:
    WorklistBuilder(std::span<const AttentionNode> nodes, int32_t tokens,
                    const WorklistOptions &options);
    void build(Worklist *out);

  private:
    bool decodes(const AttentionNode &node) const { return node.token_count <= stream_tokens_; }

    KeyStretch stretch_of(int32_t index) const {
        const AttentionNode &node = nodes_[static_cast<size_t>(index)];
        return {node.page_begin, node.keys, node.start};
    }
    void read(Draft *draft, int32_t node, int32_t keys);
    // SM time of an item with `tokens` query tokens.
    double time_of(bool matrix, size_t tokens, int64_t keys) const;
    // Jobs that share it.
    int32_t tiles_of(size_t tokens) const {
        const auto rows = static_cast<int32_t>(tokens) * ratio_;
        return options_.tile_rows > 0 ? (rows + options_.tile_rows - 1) / options_.tile_rows : 1;
    }
    bool is_wide(const Draft &draft) const {
        return draft.matrix && static_cast<int32_t>(draft.tokens.size()) * ratio_ > kNarrowRows;
    }
    int32_t first_page_of(const Draft::Read &read) const { // index in its node
        return read.stretch.page_begin - nodes_[static_cast<size_t>(read.node)].page_begin;
    }
    // The positions of the first and the last of some tokens; of a draft's, as it has them.
    std::pair<int32_t, int32_t> range_of(std::span<const int32_t> tokens) const;
    void set_range(Draft *draft) const;
    // Keys of a stretch that are before the windows of all queries, if the first query is at
    // `position`: whole pages, or the whole stretch. In chunks without the page that the chunk begins within, unless that is
    // what is read.
    int32_t unseen_keys(const KeyStretch &stretch, int32_t position, bool edge = false) const;
    int32_t chunk_begin(int32_t position) const {
        return position / options_.window * options_.window;
    }

    // Decides for each node with several decoding descendants whether they read it together.
    void share_prefixes();
    // Calls use(part) for tokens below a prefix that may read it together: all, or those of each chunk that it has keys of.
    template <typename Use> void for_parts_below(const KeyStretch &prefix,
                                                 const std::vector<int32_t> &tokens,
                                                 const Use &use) const;
    // Adds the items of a prefix that `tokens` read together. All tokens come after the whole
    // prefix, so only windows and chunks can hide parts of it.
    void stack(int32_t index, const std::vector<int32_t> &tokens);
    void own_items(int32_t index);
    // The end of a draft of a node's tokens from `first` on, up to `last`: in chunks, where a chunk ends; a token in the page
    // that its chunk begins within is alone.
    int32_t end_of_draft(const AttentionNode &node, int32_t first, int32_t last, bool *edge) const;
    // Adds the items of pages within which a chunk begins.
    void add_edges();
    // Of tokens that see later ones. Kernels let a token see so many keys up to its position. Without a window, its position
    // is the last one's. With one, items of their own show it the later keys, a window's length at a time, as if its position
    // were so much later.
    void place_together();
    void later_items(const SeenTogether &tokens);
    // Leaves out what is before every query's window.
    void clip(Draft *draft) const;

    // ---- Items of many rows that read widened pages ----

    // The pages of a node that drafts of many rows read.
    struct Wanted {
        int32_t first = INT32_MAX, end = 0; // range of its pages
        double saved = 0;                   // SM time per KV head if items need not widen them
        double with_others = 0;             // the same of all pages that these items read
        int32_t place = -1;                 // index of page `first` among the widened pages
        int32_t pages() const { return end - first; }
    };
    // Decides which pages are widened before the launch. Drafts that read any other page are cut to
    // kNarrowRows; pages that only they read are then not widened.
    void widen(Worklist *out);
    // wide: [drafts] whether a draft counts.
    std::vector<Wanted> wanted_by(const std::vector<bool> &wide) const;
    // Chooses the nodes whose pages are worth widening, as long as there is room; none if the extra
    // launch does not pay off.
    void place_widened(std::vector<Wanted> *wanted, Worklist *out) const;
    // Splits a draft with too many rows into drafts of up to kNarrowRows, each with what its own
    // tokens see.
    void halve(const Draft &draft);

    // ---- Items ----

    struct Timed {
        AttentionItem item;
        double time;
        int32_t root, leaf; // nodes whose keys its draft reads: the oldest and the newest
    };
    void emit(Worklist *out);
    // The longest items first, so that the SMs end together. In the matrix queue those of one prompt, or of what a
    // node's tokens read, come one after another, the longest first: in between, L2 would lose their keys (not latents',
    // whose tiles are counted to be taken by length).
    void order(bool matrix, std::vector<Timed> *queue) const;
    // The limit of a tile's time with which tiles, longest first, end earliest, merges included. times: [drafts].
    double longest_tile(const std::vector<double> &times, double share) const;
    // Makes one of each tile of an item.
    void split_into_tiles(Worklist *out) const;
    // Orders the tokens to merge by when their last items come if both queues end together, because
    // the merging warps wait for one token after another.
    void order_merges(Worklist *out) const;
    // The least time of an item: shorter ones are not worth a job.
    double least_time(const Draft &draft) const;
    // Cuts the draft's stretches into items of at most two stretches and about part_keys keys.
    void cut(const Draft &draft, int32_t part_keys, Worklist *out, std::vector<Timed> *queue);
    // Divides the SMs between the queues. Wide items are bound by their products and take the same
    // time beside others as alone; the others slow down until everything is read. Wide jobs get
    // whole rounds, since they are long.
    void divide_sms(Worklist *out) const;

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

inline int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

} // namespace batchllm::cuda
