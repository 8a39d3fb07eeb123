// How a worklist is made: drafts of items from the nodes (worklist.cc), which of them read pages that are widened
// before (worklist_widen.cc), then items of about equal length in two queues (worklist_items.cc).
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
    // SM time of an item of `tokens` query tokens.
    double time_of(bool matrix, size_t tokens, int64_t keys) const;
    bool is_wide(const Draft &draft) const {
        return draft.matrix && static_cast<int32_t>(draft.tokens.size()) * ratio_ > kNarrowRows;
    }
    int32_t first_page_of(const Draft::Read &read) const { // in its node
        return read.stretch.page_begin - nodes_[static_cast<size_t>(read.node)].page_begin;
    }
    // The positions of the first and the last of some tokens.
    std::pair<int32_t, int32_t> range_of(std::span<const int32_t> tokens) const;
    // Keys of a stretch that lie before the windows of all queries, the first of which is at `position`:
    // whole pages, or the whole stretch.
    int32_t unseen_keys(const KeyStretch &stretch, int32_t position) const;

    // For each node with several decoding descendants: do they read it together?
    void share_prefixes();
    // The items of a prefix that `tokens` read together. Each of them stands after the whole prefix, so
    // that windows alone hide anything of it.
    void stack(int32_t index, const std::vector<int32_t> &tokens);
    void own_items(int32_t index);
    // Leaves out what lies before every query's window.
    void clip(Draft *draft) const;

    // ---- Items of many rows, where they read widened pages ----

    // A node's pages, as far as drafts of many rows read them.
    struct Wanted {
        int32_t first = INT32_MAX, end = 0; // of its pages
        double saved = 0;   // SM time of one KV head, by not widening them on the way
        int32_t place = -1; // of page `first` among the widened
        int32_t pages() const { return end - first; }
    };
    // Decides which pages are widened before the launch. Drafts that read any others are cut to kNarrowRows; what
    // they alone would have had widened is then not.
    void widen(Worklist *out);
    // wide: [drafts] those that count.
    std::vector<Wanted> wanted_by(const std::vector<bool> &wide) const;
    // The nodes whose pages are worth it, as long as there is room; none if a launch more does not pay.
    void place_widened(std::vector<Wanted> *wanted, Worklist *out) const;
    // A draft of too many rows as drafts of up to kNarrowRows, each of what its own tokens see.
    void halve(const Draft &draft);

    // ---- Items ----

    struct Timed {
        AttentionItem item;
        double time;
    };
    void emit(Worklist *out);
    // The tokens to be merged, in the order in which their last items come if both queues end together: the warps
    // that merge wait for one token after another.
    void order_merges(Worklist *out) const;
    // Of an item: shorter ones are not worth a job.
    double least_time(const Draft &draft) const;
    // Cuts the draft's stretches into items of at most two stretches and about part_keys keys.
    void cut(const Draft &draft, int32_t part_keys, Worklist *out, std::vector<Timed> *queue);
    // Wide items are bound by their products and take as long beside others as alone; the rest slows
    // down until the whole is read. Whole rounds of wide jobs, since they are long.
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
