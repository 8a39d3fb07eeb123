// src/prefix: the tree against a naive one, and the choice of groups against trying everything.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" { // which cmocka 1.1.5 lacks
#include <cmocka.h>
}

#include <algorithm>
#include <cstdio>
#include <list>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "plan/checks.h"
#include "prefix/common_prefix.h"
#include "prefix/grouping.h"
#include "prefix/prefix_tree.h"
#include "seed.h"

using namespace batchllm;

namespace {

std::vector<TokenRun> runs_of(const TokenRows &rows) {
    std::vector<TokenRun> runs;
    for (const auto &row : rows) runs.push_back({row});
    return runs;
}

// Prefixes at which runs part or end together, and the runs below each.
std::map<std::vector<int32_t>, std::set<uint32_t>> naive_nodes(const TokenRows &rows) {
    std::map<std::vector<int32_t>, std::set<uint32_t>> below;
    for (uint32_t i = 0; i < rows.size(); ++i) {
        for (size_t n = 1; n <= rows[i].size(); ++n) {
            below[std::vector<int32_t>(rows[i].begin(),
                                       rows[i].begin() + static_cast<ptrdiff_t>(n))]
                .insert(i);
        }
    }
    std::map<std::vector<int32_t>, std::set<uint32_t>> nodes;
    for (const auto &[prefix, runs] : below) {
        if (runs.size() < 2) continue;
        constexpr int64_t end = INT64_MIN;
        std::set<int64_t> next;
        bool end_together = false;
        for (const uint32_t run : runs) {
            const bool ends = rows[run].size() == prefix.size();
            if (ends && !next.insert(end).second) end_together = true;
            if (!ends) next.insert(rows[run][prefix.size()]);
        }
        if (next.size() > 1 || end_together) nodes[prefix] = runs;
    }
    return nodes;
}

// Returns "" or what does not hold.
const char *fault_of(const PrefixTree &tree, const TokenRows &rows) {
    const auto nodes = tree.nodes();
    const auto leaves = tree.leaves();
    std::set<uint32_t> seen(leaves.begin(), leaves.end());
    if (seen.size() != rows.size() || leaves.size() != rows.size()) return "leaves";
    if (nodes[0].depth != 0 || nodes[0].begin != 0 || nodes[0].end != rows.size()) return "root";

    const auto expected = naive_nodes(rows);
    if (nodes.size() != expected.size() + 1) return "number of nodes";
    for (uint32_t v = 1; v < nodes.size(); ++v) {
        const PrefixTreeNode &node = nodes[v];
        const auto &first = rows[leaves[node.begin]];
        const auto found =
            expected.find(std::vector<int32_t>(first.begin(), first.begin() + node.depth));
        if (found == expected.end()) return "a node that is none";
        if (found->second !=
            std::set<uint32_t>(leaves.begin() + node.begin, leaves.begin() + node.end)) {
            return "runs below a node";
        }
        if (node.parent >= v) return "order of nodes";
        const PrefixTreeNode &parent = nodes[node.parent];
        if (parent.begin > node.begin || parent.end < node.end || parent.depth >= node.depth)
            return "parent";
        for (uint32_t u = 0; u < nodes.size(); ++u) {
            if (u != v && nodes[u].begin <= node.begin && nodes[u].end >= node.end &&
                nodes[u].depth < node.depth && nodes[u].depth > parent.depth) {
                return "a nearer parent";
            }
        }
    }
    for (uint32_t i = 0; i < leaves.size(); ++i) {
        uint32_t deepest = 0;
        for (uint32_t v = 1; v < nodes.size(); ++v) {
            if (nodes[v].begin <= i && i < nodes[v].end && nodes[v].depth > nodes[deepest].depth)
                deepest = v;
        }
        if (tree.leaf_parents()[i] != deepest) return "parent of a leaf";
    }
    return "";
}

void common_prefix_stops_at_the_first_difference(void **) {
    for (int32_t length = 0; length < 40; ++length) {
        for (int32_t differ = 0; differ <= length; ++differ) {
            std::vector<int32_t> a(static_cast<size_t>(length) + 1, 7), b = a;
            b[static_cast<size_t>(differ)] = differ % 2 ? -7 : 8;
            assert_int_equal(common_prefix(a.data(), b.data(), length), differ);
        }
    }
}

void tree_of_no_run_and_of_one_run_is_a_root(void **) {
    assert_int_equal(PrefixTree({}).nodes().size(), 1);
    const TokenRows rows = {{1, 2, 3}};
    const PrefixTree tree(runs_of(rows));
    assert_int_equal(tree.nodes().size(), 1);
    assert_int_equal(tree.leaf_parents()[0], 0);
}

void tree_of_random_runs_is_the_naive_tree(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int i = 0; i < 1500; ++i) {
        const TokenRows rows = random_rows(random, 1 + static_cast<int>(random() % 24),
                                           1 + static_cast<int>(random() % 3), 30);
        assert_string_equal(fault_of(PrefixTree(runs_of(rows)), rows), "");
    }
}

// A salt acts like one more token in front, except for the node that all runs of one salt would
// get.
void tree_of_salted_runs_is_a_tree_for_each_salt(void **) {
    std::mt19937_64 random(seed_of_run());
    using Nodes = std::multiset<std::pair<int32_t, std::set<uint32_t>>>;
    const auto nodes_of = [](const PrefixTree &tree, int32_t less) {
        Nodes nodes;
        for (const PrefixTreeNode &node : tree.nodes()) {
            if (node.depth <= less) continue;
            const auto leaves = tree.leaves().subspan(node.begin, node.end - node.begin);
            nodes.insert({node.depth - less, {leaves.begin(), leaves.end()}});
        }
        return nodes;
    };
    for (int i = 0; i < 1500; ++i) {
        const TokenRows rows = random_rows(random, 1 + static_cast<int>(random() % 24),
                                           1 + static_cast<int>(random() % 3), 30);
        TokenRows longer;
        std::vector<TokenRun> runs = runs_of(rows);
        for (TokenRun &run : runs) {
            run.salt = random() % 3 << 40;
            longer.push_back({static_cast<int32_t>(run.salt >> 40)});
            longer.back().insert(longer.back().end(), run.tokens.begin(), run.tokens.end());
        }
        const PrefixTree tree(runs), other(runs_of(longer));
        assert_true(nodes_of(tree, 0) == nodes_of(other, 1));
        const std::set<uint32_t> all(tree.leaves().begin(), tree.leaves().end());
        assert_int_equal(all.size(), rows.size());
        for (uint32_t v = 1; v < tree.nodes().size(); ++v) {
            const PrefixTreeNode &node = tree.nodes()[v], &parent = tree.nodes()[node.parent];
            assert_true(node.parent < v && parent.depth < node.depth);
            assert_true(parent.begin <= node.begin && node.end <= parent.end);
        }
    }
}

void tree_takes_any_token_number(void **) {
    const TokenRows rows = {{INT32_MAX},     {INT32_MIN}, {-1}, {0}, {INT32_MAX, -1},
                            {INT32_MIN, -1}, {-1, 0},     {},   {}};
    assert_string_equal(fault_of(PrefixTree(runs_of(rows)), rows), "");
}

// Each run is the previous one plus one token: a tree as high as it has nodes. (The runs are one
// buffer, so that comparing two costs nothing, and only the number of visits to runs matters.)
void tree_of_a_long_chain_is_built_in_little_time(void **) {
    const std::vector<int32_t> text(60000, 5);
    std::vector<TokenRun> runs;
    for (size_t n = 1; n <= text.size(); ++n) runs.push_back({{text.data(), n}});
    const PrefixTree tree(runs);
    assert_int_equal(tree.nodes().size(), text.size());
    const ChosenAbove chosen = choose_optimal(tree, runs, {1, UINT32_MAX});
    assert_int_equal(chosen.size(), tree.nodes().size());
}

int64_t saved(const PrefixTree &tree, const ChosenAbove &chosen) {
    int64_t sum = 0;
    std::set<uint32_t> prefixes;
    for (const uint32_t node : tree.leaf_parents()) {
        if (chosen[node] == no_node) continue;
        sum += tree.nodes()[chosen[node]].depth;
        prefixes.insert(chosen[node]);
    }
    for (const uint32_t node : prefixes) sum -= tree.nodes()[node].depth;
    return sum;
}

void algorithm_1_moves_a_grandchild_up_when_it_gains_more_than_is_lost(void **) {
    // A common head of 3 tokens; below it 3 runs that share 2 more (gain 2 * 2 > 3), and 2 runs that
    // share 3 more (gain 3, not above 3).
    const TokenRows rows = {{1, 1, 1, 2, 2, 10},    {1, 1, 1, 2, 2, 11},    {1, 1, 1, 2, 2, 12},
                            {1, 1, 1, 3, 3, 3, 10}, {1, 1, 1, 3, 3, 3, 11}, {1, 1, 1, 4}};
    const auto runs = runs_of(rows);
    const PrefixTree tree(runs);
    const ChosenAbove chosen = choose_paper(tree, 1);
    std::vector<int32_t> depths(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const uint32_t node = chosen[tree.leaf_parents()[i]];
        depths[tree.leaves()[i]] = node == no_node ? 0 : tree.nodes()[node].depth;
    }
    const std::vector<int32_t> expected = {5, 5, 5, 3, 3, 3};
    assert_true(depths == expected);
    assert_int_equal(saved(tree, chosen), 5 * 2 + 3 * 2);
}

void algorithm_1_lets_a_child_become_the_last_thing_below_it(void **) {
    // Without the run that ends early, both grandchildren are taken in full: the second costs
    // nothing.
    const TokenRows rows = {{1, 1, 1, 2, 2, 10},
                            {1, 1, 1, 2, 2, 11},
                            {1, 1, 1, 2, 2, 12},
                            {1, 1, 1, 3, 3, 3, 10},
                            {1, 1, 1, 3, 3, 3, 11}};
    const auto runs = runs_of(rows);
    const PrefixTree tree(runs);
    assert_int_equal(saved(tree, choose_paper(tree, 1)), 5 * 2 + 6 * 1);
}

// Algorithm 1 word for word, on a tree whose nodes are actually moved.
struct Node {
    int64_t tokens = 0;
    bool leaf = true;
    std::list<Node> children;
};

int64_t leaves_below(const Node &node) {
    if (node.leaf) return 1;
    int64_t sum = 0;
    for (const Node &child : node.children) sum += leaves_below(child);
    return sum;
}

Node node_over(const TokenRows &rows, const std::vector<uint32_t> &members, size_t depth) {
    if (members.size() == 1) return {};
    size_t common = depth;
    const auto alike = [&](size_t at) {
        for (const uint32_t row : members) {
            if (rows[row].size() <= at || rows[row][at] != rows[members[0]][at]) return false;
        }
        return true;
    };
    while (alike(common)) ++common;
    Node node{static_cast<int64_t>(common - depth), false, {}};
    std::map<int32_t, std::vector<uint32_t>> next;
    for (const uint32_t row : members) {
        if (rows[row].size() == common) {
            node.children.emplace_back();
        } else {
            next[rows[row][common]].push_back(row);
        }
    }
    for (const auto &[token, below] : next) node.children.push_back(node_over(rows, below, common));
    return node;
}

void enlarge(Node &node) {
    size_t children = node.children.size();
    for (auto child = node.children.begin(); children-- > 0; ++child) {
        if (child->leaf) continue;
        enlarge(*child);
        for (auto next = child->children.begin(); next != child->children.end();) {
            const auto grandchild = next++;
            if (grandchild->leaf) continue;
            if ((leaves_below(*grandchild) - 1) * grandchild->tokens - child->tokens > 0) {
                grandchild->tokens += child->tokens;
                node.children.splice(node.children.end(), child->children, grandchild);
            }
            if (child->children.size() == 1) {
                Node last = std::move(child->children.front());
                last.tokens += child->tokens;
                *child = std::move(last);
                break;
            }
        }
    }
}

void algorithm_1_saves_what_it_saves_on_a_tree_of_moving_nodes(void **) {
    std::mt19937_64 random(seed_of_run());
    int moved = 0;
    for (int i = 0; i < 2000; ++i) {
        const TokenRows rows = random_rows(random, 2 + static_cast<int>(random() % 60),
                                           1 + static_cast<int>(random() % 4), 40);
        std::vector<uint32_t> all(rows.size());
        std::iota(all.begin(), all.end(), 0u);
        Node root = node_over(rows, all, 0);
        if (root.tokens > 0) { // the root itself has no tokens
            Node above{0, false, {}};
            above.children.push_back(std::move(root));
            root = std::move(above);
        }
        const auto first_level = [&] {
            int64_t sum = 0;
            for (const Node &child : root.children) {
                if (!child.leaf) sum += (leaves_below(child) - 1) * child.tokens;
            }
            return sum;
        };
        const int64_t before = first_level();
        enlarge(root);
        const auto runs = runs_of(rows);
        const PrefixTree tree(runs);
        assert_int_equal(saved(tree, choose_paper(tree, 1)), first_level());
        moved += first_level() > before;
    }
    assert_true(moved > 500);
}

void optimum_equals_the_best_of_all_choices_of_prefixes(void **) {
    std::mt19937_64 random(seed_of_run());
    int checked = 0, above_paper = 0;
    for (int i = 0; i < 3000; ++i) {
        const TokenRows rows = random_rows(random, 2 + static_cast<int>(random() % 9),
                                           1 + static_cast<int>(random() % 3), 9);
        const int32_t min_prefix_tokens = random() % 3 == 0 ? 3 : 1;
        std::vector<TokenRow> whole;
        int64_t logical = 0;
        for (const auto &row : rows) {
            const auto length = static_cast<int32_t>(row.size());
            whole.push_back({row.data(), length, length});
            logical += length;
        }
        const int64_t least = least_processed(whole, min_prefix_tokens);
        if (least < 0) continue;
        ++checked;
        const auto runs = runs_of(rows);
        const PrefixTree tree(runs);
        const int64_t optimal =
            saved(tree, choose_optimal(tree, runs, {min_prefix_tokens, UINT32_MAX}));
        const int64_t paper = saved(tree, choose_paper(tree, min_prefix_tokens));
        assert_int_equal(optimal, logical - least);
        assert_true(optimal >= paper);
        above_paper += optimal > paper;
    }
    assert_true(checked > 500);
    assert_true(above_paper > 0);
}

void optimum_is_never_below_algorithm_1_on_large_trees(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int i = 0; i < 60; ++i) {
        const TokenRows rows = random_rows(random, 400, 1 + static_cast<int>(random() % 4), 80);
        const auto runs = runs_of(rows);
        const PrefixTree tree(runs);
        const int64_t optimal = saved(tree, choose_optimal(tree, runs, {1, UINT32_MAX}));
        assert_true(optimal >= saved(tree, choose_paper(tree, 1)));
        // Nor below any one simple choice: all nodes, or the root's children.
        ChosenAbove all(tree.nodes().size(), no_node), top = all;
        for (uint32_t v = 1; v < all.size(); ++v) {
            all[v] = v;
            const uint32_t parent = tree.nodes()[v].parent;
            top[v] = parent == 0 ? v : top[parent];
        }
        assert_true(optimal >= saved(tree, all));
        assert_true(optimal >= saved(tree, top));
    }
}

// With existing prefixes: the best choice if these cost nothing.
void optimum_with_existing_prefixes_equals_the_best_of_all_choices(void **) {
    std::mt19937_64 random(seed_of_run());
    int joined = 0;
    for (int i = 0; i < 2000; ++i) {
        TokenRows rows = random_rows(random, 2 + static_cast<int>(random() % 6),
                                     1 + static_cast<int>(random() % 3), 8);
        const auto counted = static_cast<uint32_t>(rows.size());
        const auto existing = 1 + random() % 2;
        for (uint64_t k = 0; k < existing; ++k) {
            auto prefix = rows[random() % counted];
            prefix.resize(1 + random() % prefix.size());
            rows.push_back(prefix);
        }
        const auto runs = runs_of(rows);
        const PrefixTree tree(runs);
        const auto nodes = tree.nodes();
        if (nodes.size() > 12) continue;
        uint32_t free_nodes = 0;
        for (size_t leaf = 0; leaf < rows.size(); ++leaf) {
            const uint32_t node = tree.leaf_parents()[leaf];
            if (tree.leaves()[leaf] >= counted &&
                rows[tree.leaves()[leaf]].size() == static_cast<size_t>(nodes[node].depth)) {
                free_nodes |= uint32_t{1} << node;
            }
        }
        const auto value = [&](uint32_t set) {
            int64_t sum = 0;
            for (uint32_t v = 1; v < nodes.size(); ++v) {
                if ((set >> v & 1) && !(free_nodes >> v & 1)) sum -= nodes[v].depth;
            }
            for (size_t leaf = 0; leaf < rows.size(); ++leaf) {
                if (tree.leaves()[leaf] >= counted) continue;
                uint32_t v = tree.leaf_parents()[leaf];
                while (v != 0 && !(set >> v & 1)) v = nodes[v].parent;
                sum += nodes[v].depth;
            }
            return sum;
        };
        int64_t best = 0;
        for (uint32_t set = 0; set < (uint32_t{1} << nodes.size()); set += 2) {
            best = std::max(best, value(set | free_nodes));
        }
        const ChosenAbove chosen = choose_optimal(tree, runs, {1, counted});
        uint32_t set = 0;
        for (uint32_t v = 1; v < nodes.size(); ++v) {
            if (chosen[v] == v) set |= uint32_t{1} << v;
        }
        assert_int_equal(set & free_nodes, free_nodes);
        assert_int_equal(value(set), best);
        joined += free_nodes != 0;
    }
    assert_true(joined > 200);
}

// What heads save, in parts of a token: each prefix takes the nearest head above it if that pays
// off.
int64_t saved_by_heads(const PrefixTree &tree, const TokenRows &rows,
                       const std::vector<int64_t> &readers, int64_t reading, uint32_t set) {
    int64_t sum = 0;
    for (uint32_t v = 1; v < tree.nodes().size(); ++v) {
        if (set >> v & 1) sum -= token_parts * int64_t{tree.nodes()[v].depth};
    }
    for (size_t leaf = 0; leaf < rows.size(); ++leaf) {
        const uint32_t run = tree.leaves()[leaf];
        uint32_t v = tree.leaf_parents()[leaf];
        while (v != 0 && !(set >> v & 1)) v = tree.nodes()[v].parent;
        if (v == 0) continue;
        const auto length = static_cast<int64_t>(rows[run].size());
        const int64_t depth = tree.nodes()[v].depth;
        const int64_t read = length == depth ? 0 : reading * (length - depth + readers[run]);
        sum += std::max<int64_t>(0, token_parts * depth - read);
    }
    return sum;
}

void heads_chosen_by_cost_equal_the_best_of_all_choices(void **) {
    std::mt19937_64 random(seed_of_run());
    int checked = 0, some = 0, fewer = 0;
    for (int i = 0; i < 4000; ++i) {
        const TokenRows rows = random_rows(random, 2 + static_cast<int>(random() % 9),
                                           1 + static_cast<int>(random() % 3), 30);
        std::vector<int64_t> readers(rows.size());
        const uint64_t most = random() % 2 ? 8 : 120;
        for (int64_t &tokens : readers) tokens = static_cast<int64_t>(random() % most);
        const auto runs = runs_of(rows);
        const PrefixTree tree(runs);
        const auto nodes = tree.nodes();
        if (nodes.size() > 10) continue;
        const int32_t least_tokens = random() % 3 == 0 ? 5 : 1;
        const auto reading = static_cast<int64_t>(1 + random() % 400); // up to 0.4 of a token
        const ChosenAbove chosen =
            choose_optimal(tree, runs, {least_tokens, UINT32_MAX, readers, reading});
        uint32_t set = 0, allowed = 0;
        for (uint32_t v = 1; v < nodes.size(); ++v) {
            if (chosen[v] == v) set |= uint32_t{1} << v;
            if (nodes[v].depth >= least_tokens) allowed |= uint32_t{1} << v;
        }
        int64_t best = 0;
        for (uint32_t other = 0; other < (uint32_t{1} << nodes.size()); other += 2) {
            if ((other & ~allowed) != 0) continue;
            best = std::max(best, saved_by_heads(tree, rows, readers, reading, other));
        }
        assert_int_equal(set & ~allowed, 0);
        assert_int_equal(saved_by_heads(tree, rows, readers, reading, set), best);
        const ChosenAbove free = choose_optimal(tree, runs, {least_tokens, UINT32_MAX});
        ++checked;
        some += set != 0;
        fewer += chosen != free;
    }
    assert_true(checked > 1000 && some > 200 && fewer > 200);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(common_prefix_stops_at_the_first_difference),
        cmocka_unit_test(tree_of_no_run_and_of_one_run_is_a_root),
        cmocka_unit_test(tree_of_random_runs_is_the_naive_tree),
        cmocka_unit_test(tree_of_salted_runs_is_a_tree_for_each_salt),
        cmocka_unit_test(tree_takes_any_token_number),
        cmocka_unit_test(tree_of_a_long_chain_is_built_in_little_time),
        cmocka_unit_test(algorithm_1_moves_a_grandchild_up_when_it_gains_more_than_is_lost),
        cmocka_unit_test(algorithm_1_lets_a_child_become_the_last_thing_below_it),
        cmocka_unit_test(algorithm_1_saves_what_it_saves_on_a_tree_of_moving_nodes),
        cmocka_unit_test(optimum_equals_the_best_of_all_choices_of_prefixes),
        cmocka_unit_test(optimum_is_never_below_algorithm_1_on_large_trees),
        cmocka_unit_test(optimum_with_existing_prefixes_equals_the_best_of_all_choices),
        cmocka_unit_test(heads_chosen_by_cost_equal_the_best_of_all_choices),
    };
    return cmocka_run_group_tests_name("prefix", tests, nullptr, nullptr);
}
