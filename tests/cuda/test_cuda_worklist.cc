// cuda/attention_worklist.h: what the attention kernels assume about a worklist.
#include "attention/family.h"
#include "attention/worklist_by_position.h"
#include "backend/gpu/key_segments.h"

#include <algorithm>
#include <array>
#include <random>

#include "seed.h"
#include "testing.h"

using namespace batchllm::cuda;

namespace {

struct Step {
    std::vector<AttentionNode> nodes;
    std::vector<int32_t> node_of, positions; // [tokens]
    int32_t pages = 0;
    std::vector<SeenTogether> together;
    std::vector<int32_t> last; // [tokens] or empty: of those that see later ones

    // The last position that a token sees.
    int32_t last_seen(int32_t token) const {
        return last.empty() ? positions[token] : std::max(last[token], positions[token]);
    }
    int32_t add(int32_t parent, int32_t keys, int32_t tokens) {
        const int32_t start = parent < 0 ? 0 : nodes[parent].start + nodes[parent].keys;
        nodes.push_back(
            {parent, start, keys, static_cast<int32_t>(positions.size()), tokens, pages});
        pages += (keys + kPageKeys - 1) / kPageKeys;
        for (int32_t t = 0; t < tokens; ++t) {
            node_of.push_back(static_cast<int32_t>(nodes.size()) - 1);
            positions.push_back(start + keys - tokens + t);
        }
        return static_cast<int32_t>(nodes.size()) - 1;
    }
    // Releases pages before the windows of all future tokens, like the scheduler.
    void give_back(int32_t window) {
        for (AttentionNode &node : nodes) {
            const int32_t stored = node.keys - node.token_count;
            if (window > 0) node.first_page = std::max(0, stored + 1 - window) / kPageKeys;
        }
    }
    int32_t tokens() const { return static_cast<int32_t>(positions.size()); }
    void build(const WorklistOptions &options, Worklist *list) const {
        build_worklist(nodes, tokens(), options, list);
    }
};

int32_t pick(std::mt19937_64 &random, int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
}

Step random_step(std::mt19937_64 &random) {
    Step step;
    const int32_t longest = pick(random, 0, 3) == 0 ? 9000 : 700;
    for (int32_t trees = pick(random, 1, 3); trees > 0; --trees) {
        int32_t parent = -1;
        for (int32_t depth = pick(random, 0, 3); depth > 0; --depth) {
            parent = step.add(parent, pick(random, 1, longest), pick(random, 0, 4) == 0 ? 1 : 0);
        }
        for (int32_t requests = pick(random, 1, 60); requests > 0; --requests) {
            const int32_t kind =
                pick(random, 0, 7); // decodes, checks proposed tokens, or is a prompt
            const int32_t tokens = kind < 4 ? 1 : pick(random, 1, kind < 6 ? 17 : 400);
            step.add(parent, tokens + pick(random, 0, 1) * pick(random, 0, longest), tokens);
        }
    }
    return step;
}

// Some tokens of some nodes see each other.
void add_pictures(std::mt19937_64 &random, Step *step) {
    step->last.resize(step->positions.size());
    for (const AttentionNode &node : step->nodes) {
        for (int32_t t = 0; t + 2 < node.token_count && pick(random, 0, 3) > 0;) {
            const int32_t first = pick(random, t, node.token_count - 2);
            const int32_t count = pick(random, 2, std::min(300, node.token_count - first));
            step->together.push_back({node.token_begin + first, count});
            t = first + count;
            std::fill_n(step->last.begin() + node.token_begin + first, count,
                        step->positions[node.token_begin + t - 1]);
        }
    }
}

WorklistOptions random_options(std::mt19937_64 &random) {
    const int32_t heads[][2] = {{32, 8}, {28, 4}, {8, 8}, {20, 1}, {52, 52}, {96, 1}};
    WorklistOptions options;
    const auto &shape = heads[pick(random, 0, 5)];
    options.heads = shape[0];
    options.kv_heads = shape[1];
    options.head_dim = 64 << pick(random, 0, 2);
    options.window = pick(random, 0, 2) == 0 ? pick(random, 1, 1000) : 0;
    options.chunked = options.window > 0 && pick(random, 0, 1) == 0;
    if (options.chunked && pick(random, 0, 2) == 0) options.window = 64 * pick(random, 1, 20);
    options.share = pick(random, 0, 3) > 0;
    options.always_share = pick(random, 0, 2) == 0;
    if (pick(random, 0, 3) == 0) options.matrix_rows = kNarrowRows;
    if (pick(random, 0, 3) == 0) options.matrix_split = options.stream_split = 1e-9;
    return options;
}

// For e4m3 on 9.0, with scratch for some pages, which half of the steps fill whatever it costs.
WorklistOptions e4m3_options(std::mt19937_64 &random) {
    WorklistOptions options = random_options(random);
    while (options.heads > kNarrowRows * options.kv_heads) options = random_options(random);
    options.kv_bytes = 1;
    const AttentionFamily *family = find_attention("sm90", 9, 0);
    const double splits[] = {options.matrix_split, options.stream_split};
    family->set_costs(&options);
    options.matrix_split = splits[0];
    options.stream_split = splits[1];
    assert_true(options.wide_from_scratch);
    const int32_t rooms[] = {0, 1, 20, 150, 100000};
    options.widened_room = rooms[pick(random, 0, 4)];
    if (pick(random, 0, 1) == 0) options.widen_us = options.widen_launch_us = 0;
    return options;
}

// Tokens with partials are merged once each, in the order of their last items, assuming that both
// queues take equally long.
void check_merges(const Step &step, const Worklist &list) {
    std::vector<double> last(static_cast<size_t>(step.tokens()));
    for (int32_t i = 0; i < list.matrix_items + list.stream_items; ++i) {
        const AttentionItem &item = list.items[i];
        const bool matrix = i < list.matrix_items;
        const double done = matrix ? (i + 1.0) / list.matrix_items
                                   : (i - list.matrix_items + 1.0) / list.stream_items;
        for (int32_t r = item.row_begin; r < item.row_begin + item.row_count; ++r) {
            double &end = last[list.rows[r].token];
            end = std::max(end, done);
        }
    }
    std::vector<bool> merged(static_cast<size_t>(step.tokens()));
    for (size_t i = 0; i < list.merged.size(); ++i) {
        const int32_t token = list.merged[i];
        assert_false(merged[token]);
        merged[token] = true;
        if (i > 0) assert_true(last[list.merged[i - 1]] <= last[token]);
    }
    for (int32_t t = 0; t < step.tokens(); ++t) {
        assert_int_equal(merged[t], list.partials[t].count > 0);
    }
}

// The first position that a token at `position` sees.
int32_t first_seen(const WorklistOptions &options, int32_t position) {
    const int32_t window = options.window;
    if (window <= 0) return 0;
    return options.chunked ? position / window * window : position - window + 1;
}

// Every key that a token sees is in one of its items, once, on its page; its slots are its own.
// Items read widened pages where they should, and each of these pages is read. Kernels show a row the keys of its item
// from its position - window + 1 to its position: in chunks none before the token's chunk.
void check_list(const Step &step, const WorklistOptions &options, const Worklist &list) {
    const int32_t ratio = options.heads / options.kv_heads;
    assert_int_equal(list.items.size(), list.matrix_items + list.stream_items);
    std::vector<std::vector<int32_t>> pages(static_cast<size_t>(step.tokens())); // by position
    for (int32_t t = 0; t < step.tokens(); ++t) pages[t].resize(step.last_seen(t) + 1, -1);
    std::vector<int32_t> covered(static_cast<size_t>(step.tokens()));
    std::vector<bool> used(static_cast<size_t>(list.slots));
    std::vector<bool> widened(static_cast<size_t>(step.pages)), read(list.widened.size());
    assert_true(static_cast<int32_t>(list.widened.size()) <= options.widened_room);
    for (const int32_t page : list.widened) {
        assert_false(widened[page]);
        widened[page] = true;
    }
    for (size_t i = 0; i < list.items.size(); ++i) {
        const AttentionItem &item = list.items[i];
        const bool matrix = i < static_cast<size_t>(list.matrix_items);
        const bool from_scratch =
            options.wide_from_scratch && matrix && item.row_count * ratio > kNarrowRows;
        assert_true(item.row_count > 0);
        const int32_t most = options.tile_rows == 0
                                 ? (matrix ? options.matrix_rows : kStreamRows) / ratio
                             : matrix ? options.matrix_tokens
                                      : options.stream_tokens;
        assert_true(item.row_count <= std::max(1, most));
        // sm90's consumers wait for a page of the first stretch.
        assert_true(item.stretch[0].keys > 0 && item.stretch[0].start <= item.max_position);
        bool partial = false;
        int32_t first = INT32_MAX, last = 0; // positions of its queries
        for (int32_t r = item.row_begin; r < item.row_begin + item.row_count; ++r) {
            const AttentionRow &row = list.rows[r];
            // Those that see later ones are told to see so much more, or again.
            const int32_t own = step.positions[row.token];
            const bool later = row.position != own;
            if (options.chunked) {
                const int32_t chunk = own / options.window;
                assert_int_equal(chunk, item.max_position / options.window);
                assert_true(!later || row.position == (chunk + 1) * options.window - 1);
            } else if (later && options.window > 0) {
                assert_int_equal((row.position - own) % options.window, 0);
            }
            if (options.window <= 0) assert_int_equal(row.position, step.last_seen(row.token));
            first = std::min(first, row.position);
            last = std::max(last, row.position);
            assert_true(item.min_position <= row.position);
            ++covered[row.token];
            if (row.slot >= 0) {
                const PartialRange &range = list.partials[row.token];
                assert_true(row.slot >= range.begin && row.slot < range.begin + range.count);
                assert_false(used[row.slot]);
                used[row.slot] = true;
                partial = true;
            }
            for (const KeyStretch &stretch : item.stretch) {
                for (int32_t k = 0; k < stretch.keys; ++k) {
                    const int32_t position = stretch.start + k;
                    if (position > row.position) break;
                    if ((later || options.chunked) && options.window > 0 &&
                        position <= row.position - options.window) {
                        continue;
                    }
                    assert_true(position <= step.last_seen(row.token));
                    if (options.chunked) assert_true(position >= first_seen(options, own));
                    assert_int_equal(pages[row.token][position], -1);
                    const int32_t page = stretch.page_begin + k / kPageKeys;
                    if (from_scratch) {
                        assert_true(page < static_cast<int32_t>(list.widened.size()));
                        read[page] = true;
                    }
                    pages[row.token][position] = from_scratch ? list.widened[page] : page;
                }
            }
        }
        assert_int_equal(item.partial != 0, partial);
        // The kernels mask nothing between the first query and the last one's window.
        assert_int_equal(item.min_position, first);
        if (options.window > 0) assert_int_equal(item.max_position, last);
        // No page is read unless some query sees part of it.
        for (const KeyStretch &stretch : item.stretch) {
            if (options.window <= 0 || stretch.keys == 0) continue;
            const int32_t page_end = stretch.start + std::min(kPageKeys, stretch.keys);
            assert_true(page_end > first_seen(options, first));
        }
    }
    // With windows, pages between those of several items are also widened.
    if (options.window <= 0) assert_true(std::count(read.begin(), read.end(), false) == 0);
    for (int32_t t = 0; t < step.tokens(); ++t) {
        assert_int_equal(list.partials[t].count, covered[t] > 1 ? covered[t] : 0);
        for (int32_t n = step.node_of[t]; n >= 0; n = step.nodes[n].parent) {
            const AttentionNode &node = step.nodes[n];
            for (int32_t k = 0; k < node.keys && node.start + k <= step.last_seen(t); ++k) {
                const int32_t position = node.start + k;
                const int32_t page = pages[t][position];
                const bool seen = position >= first_seen(options, step.positions[t]);
                if (seen || page >= 0) assert_int_equal(page, node.page_begin + k / kPageKeys);
                if (page >= 0) assert_true(k / kPageKeys >= node.first_page);
            }
        }
    }
}

void every_key_is_read_once(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int round = 0; round < 200; ++round) {
        Step step = random_step(random);
        const WorklistOptions options = random_options(random);
        step.give_back(options.window);
        Worklist list;
        step.build(options, &list);
        check_list(step, options, list);
    }
}

// As latents have it on sm90. The tiles of an item follow each other and cover its rows.
void tiles_cover_every_row(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int round = 0; round < 30; ++round) {
        const Step step = random_step(random);
        WorklistOptions options = random_options(random);
        const int32_t heads[] = {20, 16, 128, 7};
        options.heads = heads[pick(random, 0, 3)];
        options.kv_heads = 1;
        options.window = 0;
        options.chunked = false;
        options.tile_rows = 64;
        options.matrix_tokens = 16;
        options.stream_tokens = std::max(1, 64 / options.heads);
        options.tile_us = 2;
        Worklist list;
        step.build(options, &list);
        std::vector<AttentionItem> whole;
        int32_t matrix_items = 0;
        for (size_t i = 0; i < list.items.size();) {
            const AttentionItem item = list.items[i];
            for (int32_t row = 0; row < item.row_count * options.heads; row += 64, ++i) {
                assert_true(i < list.items.size());
                assert_int_equal(list.items[i].row_begin, item.row_begin);
                assert_int_equal(list.items[i].once, row);
            }
            whole.push_back(item);
            if (static_cast<int32_t>(i) <= list.matrix_items) ++matrix_items;
        }
        list.stream_items = static_cast<int32_t>(whole.size()) - matrix_items;
        list.matrix_items = matrix_items;
        list.items = whole;
        check_list(step, options, list);
    }
}

void tokens_that_see_each_other_read_later_keys_once(void **) {
    std::mt19937_64 random(seed_of_run());
    int64_t later = 0;
    for (int round = 0; round < 40; ++round) {
        Step step = random_step(random);
        const bool e4m3 = round % 3 == 0, by_position = round % 3 == 1;
        WorklistOptions options = e4m3 ? e4m3_options(random) : random_options(random);
        options.chunked = false;
        if (options.heads == 96) options.item_rows = kMatrixRows;
        if (options.window > 0) options.window = std::max(100, options.window);
        add_pictures(random, &step);
        options.together = step.together;
        step.give_back(options.window);
        Worklist list;
        if (by_position) {
            build_worklist_by_position(step.nodes, step.tokens(), options, &list);
        } else {
            step.build(options, &list);
            check_merges(step, list);
        }
        check_list(step, options, list);
        for (const AttentionRow &row : list.rows) later += row.position > step.positions[row.token];
    }
    assert_true(later > 0);
}

// Chunks that begin with a page need no items of their own: a prompt has as many as with windows, and none is split.
// Where they begin within one, tokens that come after it have two, and those in it one.
void pages_within_which_a_chunk_begins_have_items_of_their_own(void **) {
    WorklistOptions options;
    options.heads = 40;
    options.kv_heads = 8;
    options.head_dim = 128;
    options.window = 1024;
    options.chunked = true;
    options.matrix_split = options.stream_split = 1e-9;
    Step whole, behind;
    whole.add(-1, 3000, 3000);
    Worklist list;
    whole.build(options, &list);
    check_list(whole, options, list);
    assert_int_equal(list.slots, 0);
    for (const AttentionRow &row : list.rows) {
        assert_int_equal(row.position, whole.positions[row.token]);
    }
    const int32_t prefix = behind.add(-1, 100, 0); // 1024: the 29th key of a page of the prompt
    behind.add(prefix, 3000, 3000);
    behind.build(options, &list);
    check_list(behind, options, list);
    for (int32_t t = 0; t < behind.tokens(); ++t) {
        const int32_t position = behind.positions[t], chunk = position / 1024 * 1024;
        const int32_t page_end = ((chunk - 100) / kPageKeys + 1) * kPageKeys + 100;
        assert_int_equal(list.partials[t].count, chunk > 0 && position >= page_end ? 2 : 0);
    }
}

// Decoding tokens share what they see of a prefix: those of its last chunk read that, those of later ones nothing.
void tokens_of_one_chunk_share_its_part_of_a_prefix(void **) {
    WorklistOptions options;
    options.heads = 32;
    options.kv_heads = 8;
    options.head_dim = 128;
    options.window = 2048;
    options.chunked = true;
    options.always_share = true;
    Step step;
    const int32_t prefix = step.add(-1, 3000, 0);
    for (int32_t i = 0; i < 20; ++i) step.add(prefix, i < 10 ? 500 : 1500, 1);
    Worklist list;
    step.build(options, &list);
    check_list(step, options, list);
    int32_t together = 0;
    for (const AttentionItem &item : list.items) {
        if (item.row_count == 1) continue;
        assert_int_equal(item.row_count, 10);
        assert_true(item.stretch[0].start >= 2048 && item.stretch[0].start < 3000);
        assert_int_equal(item.stretch[1].keys, 0);
        for (int32_t r = item.row_begin; r < item.row_begin + item.row_count; ++r) {
            assert_true(list.rows[r].token < 10);
        }
        ++together;
    }
    assert_true(together > 0);
}

void tokens_are_merged_in_the_order_of_their_last_items(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int round = 0; round < 200; ++round) {
        const Step step = random_step(random);
        Worklist list;
        step.build(random_options(random), &list);
        check_merges(step, list);
    }
}

void with_widened_pages_every_key_is_read_once(void **) {
    std::mt19937_64 random(seed_of_run());
    int64_t widened = 0, narrow = 0;
    for (int round = 0; round < 80; ++round) {
        Step step = random_step(random);
        const WorklistOptions options = e4m3_options(random);
        step.give_back(options.window);
        Worklist list;
        step.build(options, &list);
        check_list(step, options, list);
        widened += static_cast<int64_t>(list.widened.size());
        narrow += list.matrix_items > 0 && list.widened.empty();
    }
    assert_true(widened > 0 && narrow > 0);
}

// A long prompt's pages are widened; those of a prefix that 16 requests share, and of decoding, are
// not.
void pages_of_prefill_are_widened(void **) {
    WorklistOptions options;
    options.heads = 32;
    options.kv_heads = 8;
    options.head_dim = 128;
    options.kv_bytes = 1;
    options.widened_room = 512;
    find_attention("sm90", 9, 0)->set_costs(&options);
    Worklist list;
    Step prefill, decode;
    prefill.add(-1, 8192, 8192);
    prefill.build(options, &list);
    assert_int_equal(list.widened.size(), 8192 / kPageKeys);
    options.widened_room = 8192 / kPageKeys - 1; // one too few
    prefill.build(options, &list);
    assert_int_equal(list.widened.size(), 0);
    for (const AttentionItem &item : list.items) assert_true(item.row_count * 4 <= kNarrowRows);
    options.widened_room = 512;
    const int32_t prefix = decode.add(-1, 4096, 0);
    for (int i = 0; i < 16; ++i) decode.add(prefix, 256, 1);
    decode.build(options, &list);
    assert_true(list.matrix_items > 0);
    assert_int_equal(list.widened.size(), 0);
    // By position, none are widened.
    build_worklist_by_position(prefill.nodes, prefill.tokens(), options, &list);
    assert_int_equal(list.widened.size(), 0);
    for (const AttentionItem &item : list.items) assert_true(item.row_count * 4 <= kNarrowRows);
}

// [tokens] what each of a token's partials covers: the node, counted from its own up, and the keys
// that it sees in the segment. Slots are in the order of positions.
std::vector<std::vector<std::array<int32_t, 3>>>
segments_of(const Step &step, const WorklistOptions &options, const Worklist &list) {
    std::vector<std::vector<std::array<int32_t, 3>>> all(static_cast<size_t>(step.tokens()));
    for (const AttentionItem &item : list.items) {
        assert_int_equal(item.stretch[1].keys, 0);
        const KeyStretch &s = item.stretch[0];
        for (int32_t r = item.row_begin; r < item.row_begin + item.row_count; ++r) {
            const AttentionRow &row = list.rows[r];
            const PartialRange &range = list.partials[row.token];
            int32_t up = 0, n = step.node_of[row.token];
            for (; s.start < step.nodes[n].start; ++up) n = step.nodes[n].parent;
            const int32_t first = s.start - step.nodes[n].start;
            const int32_t last = row.position - step.nodes[n].start;
            assert_int_equal(item.once >> 2 & 1, first / kPageKeys % 2);
            const int32_t low = options.window > 0 ? last - options.window + 1 : 0;
            const std::array<int32_t, 3> seen = {up, std::max(first, low),
                                                 std::min(first + s.keys, last + 1)};
            assert_true(seen[1] < seen[2]);
            auto &of_token = all[row.token];
            of_token.resize(static_cast<size_t>(std::max(1, range.count)));
            of_token[static_cast<size_t>(row.slot < 0 ? 0 : row.slot - range.begin)] = seen;
        }
    }
    return all;
}

// Only the token and its context, without the rest of the step.
Step alone(const Step &step, int32_t token) {
    std::vector<int32_t> path;
    for (int32_t n = step.node_of[token]; n >= 0; n = step.nodes[n].parent) path.push_back(n);
    Step made;
    int32_t parent = -1;
    for (size_t i = path.size(); i-- > 0;) {
        const AttentionNode &node = step.nodes[path[i]];
        const int32_t keys = i == 0 ? step.positions[token] + 1 - node.start : node.keys;
        parent = made.add(parent, keys, i == 0 ? 1 : 0);
        made.nodes.back().first_page = node.first_page;
    }
    return made;
}

// Whatever other tokens there are, and in whatever pieces its own request comes.
void by_position_a_token_has_partials_of_its_own(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int round = 0; round < 200; ++round) {
        Step step = random_step(random);
        WorklistOptions options = random_options(random);
        if (options.heads == 96) options.item_rows = kMatrixRows;
        step.give_back(options.window);
        Worklist list, single;
        build_worklist_by_position(step.nodes, step.tokens(), options, &list);
        check_list(step, options, list);
        const auto among = segments_of(step, options, list);
        for (const int32_t token : {0, step.tokens() / 2, step.tokens() - 1}) {
            const Step one = alone(step, token);
            build_worklist_by_position(one.nodes, 1, options, &single);
            assert_true(segments_of(one, options, single)[0] == among[token]);
            assert_true(single.slots <=
                        batchllm::most_partials(one.positions[0] + 1) + (options.chunked ? 1 : 0));
        }
    }
}

bool same(const Worklist &a, const Worklist &b) {
    return a.items.size() == b.items.size() &&
           std::equal(a.items.begin(), a.items.end(), b.items.begin(),
                      [](const AttentionItem &x, const AttentionItem &y) {
                          return x.row_begin == y.row_begin && x.row_count == y.row_count &&
                                 x.stretch[0].page_begin == y.stretch[0].page_begin &&
                                 x.stretch[1].page_begin == y.stretch[1].page_begin;
                      }) &&
           a.matrix_items == b.matrix_items && a.stream_items == b.stream_items &&
           a.matrix_ctas == b.matrix_ctas && a.matrix_by_head == b.matrix_by_head &&
           a.rows.size() == b.rows.size() && a.merged == b.merged && a.slots == b.slots &&
           a.widened == b.widened;
}

void jobs_of_a_prompt_come_one_after_another(void **) {
    WorklistOptions options;
    options.heads = 32;
    options.kv_heads = 8;
    options.head_dim = 128;
    Step step;
    for (const int32_t length : {512, 1024, 512, 704}) step.add(-1, length, length);
    const int32_t prefix = step.add(-1, 1000, 0);
    for (int i = 0; i < 3; ++i) step.add(prefix, 384, 384);
    Worklist list;
    step.build(options, &list);
    std::vector<int32_t> order; // the prompts, as their first jobs come
    int32_t last = INT32_MAX;
    for (int32_t i = 0; i < list.matrix_items; ++i) {
        const AttentionItem &item = list.items[i];
        const int32_t prompt = step.node_of[list.rows[item.row_begin].token];
        const int32_t keys = item.stretch[0].keys + item.stretch[1].keys;
        if (order.empty() || prompt != order.back()) {
            order.push_back(prompt);
        } else {
            assert_true(keys <= last);
        }
        last = keys;
    }
    assert_true(order == std::vector<int32_t>({5, 6, 7, 1, 3, 0, 2}));
}

void a_worklist_keeps_nothing_of_the_last_step(void **) {
    WorklistOptions options;
    options.heads = 32;
    options.kv_heads = 8;
    options.head_dim = 128;
    Step mixed, prefill;
    mixed.add(-1, 13312, 1024);
    for (int i = 0; i < 80; ++i) mixed.add(-1, 12288, 1);
    for (int i = 0; i < 8; ++i) prefill.add(-1, 512, 512);
    Worklist again, fresh;
    mixed.build(options, &again);
    assert_true(again.matrix_by_head);
    prefill.build(options, &again);
    prefill.build(options, &fresh);
    assert_true(same(again, fresh));
    std::mt19937_64 random(seed_of_run());
    for (int round = 0; round < 50; ++round) {
        const Step step = random_step(random);
        const WorklistOptions drawn =
            round % 2 == 0 ? random_options(random) : e4m3_options(random);
        Worklist alone;
        step.build(drawn, &again);
        step.build(drawn, &alone);
        assert_true(same(again, alone));
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_key_is_read_once),
        cmocka_unit_test(tiles_cover_every_row),
        cmocka_unit_test(tokens_that_see_each_other_read_later_keys_once),
        cmocka_unit_test(pages_within_which_a_chunk_begins_have_items_of_their_own),
        cmocka_unit_test(tokens_of_one_chunk_share_its_part_of_a_prefix),
        cmocka_unit_test(tokens_are_merged_in_the_order_of_their_last_items),
        cmocka_unit_test(with_widened_pages_every_key_is_read_once),
        cmocka_unit_test(pages_of_prefill_are_widened),
        cmocka_unit_test(by_position_a_token_has_partials_of_its_own),
        cmocka_unit_test(jobs_of_a_prompt_come_one_after_another),
        cmocka_unit_test(a_worklist_keeps_nothing_of_the_last_step),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
