// src/report: the parts of a report, and that its page handles any input.
#include <cmath>
#include <map>
#include <random>

#include "base/display.h"
#include "report/charts.h"
#include "report/icicle.h"
#include "report/markup.h"
#include "report/page.h"
#include "testing.h"

using namespace batchllm;

namespace {

using Tokens = std::vector<int32_t>;

Tokens tokens_of(std::initializer_list<std::pair<int32_t, int32_t>> parts) { // token, times
    Tokens tokens;
    for (const auto &[token, times] : parts) {
        tokens.insert(tokens.end(), static_cast<size_t>(times), token);
    }
    return tokens;
}

const SharingNode &child(const SharingTree &tree, const SharingNode &of, int32_t token) {
    for (const int32_t index : of.children) {
        if (tree.node(index).tokens.front() == token) return tree.node(index);
    }
    std::abort();
}

// Checks that the rows of every node are those below it plus those of groups that end at it.
void assert_sums(const SharingTree &tree, const SharingNode &node) {
    int64_t rows = node.rest_rows + node.ending_rows;
    for (const int32_t index : node.children) {
        rows += tree.node(index).rows;
        assert_sums(tree, tree.node(index));
    }
    assert_int_equal(rows, node.rows);
}

void a_tree_parts_where_prefixes_part(void **) {
    SharingTree tree;
    tree.add(tokens_of({{1, 30}, {2, 20}}), 0, 5, 50);
    tree.add(tokens_of({{1, 30}, {3, 10}}), 0, 7, 70);
    tree.add(tokens_of({{1, 10}}), 0, 2, 20); // ends within another prefix's node
    tree.add({}, 0, 1, 99);
    assert_int_equal(tree.root().rows, 15);
    assert_int_equal(tree.root().groups, 3);
    assert_int_equal(tree.root().ending_rows, 1);
    const SharingNode &top = child(tree, tree.root(), 1);
    assert_int_equal(top.length, 10);
    assert_int_equal(top.rows, 14);
    assert_int_equal(top.times, 3); // each group computes it separately
    assert_int_equal(top.ending_rows, 2);
    const SharingNode &middle = child(tree, top, 1);
    assert_int_equal(middle.length, 20);
    assert_int_equal(middle.times, 2);
    assert_int_equal(child(tree, middle, 2).rows, 5);
    assert_int_equal(child(tree, middle, 3).ending_tokens, 70);
    assert_int_equal(tree.size(), 5);
    assert_sums(tree, tree.root());
}

// With two levels, a head is computed by the first group that has it.
void what_another_group_has_computed_is_not_counted_again(void **) {
    SharingTree tree;
    tree.add(tokens_of({{1, 40}, {2, 20}}), 0, 5, 0);
    tree.add(tokens_of({{1, 40}, {3, 20}}), 40, 7, 0);
    tree.add(tokens_of({{1, 40}, {3, 30}}), 50, 1, 0); // 10 of the 20 tokens had been computed
    const SharingNode &head = child(tree, tree.root(), 1);
    assert_int_equal(head.length, 40);
    assert_int_equal(head.times, 1);
    assert_int_equal(head.rows, 13);
    const SharingNode &first = child(tree, head, 3);
    assert_int_equal(first.length, 10);
    assert_int_equal(first.times, 1);
    assert_int_equal(child(tree, first, 3).times, 2);
    assert_sums(tree, tree.root());
}

// The tree against a table of all prefixes: as long as nothing has been left out, rows and times are exact.
void a_tree_of_random_prefixes_counts_each_token_as_often_as_it_was_computed(void **) {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        SharingTree tree;
        std::map<Tokens, std::pair<int64_t, int64_t>> wanted; // path -> rows, times
        for (int group = 0; group < 40; ++group) {
            Tokens prefix;
            const auto length = static_cast<int32_t>(random() % 12 + 1);
            for (int32_t i = 0; i < length; ++i)
                prefix.push_back(static_cast<int32_t>(random() % 3));
            const auto from = static_cast<int64_t>(random() % static_cast<uint32_t>(length + 1));
            const auto rows = static_cast<int64_t>(random() % 5 + 1);
            tree.add(prefix, from, rows, 0);
            for (int32_t i = 0; i < length; ++i) {
                auto &[all, times] = wanted[Tokens(prefix.begin(), prefix.begin() + i + 1)];
                all += rows;
                times += i >= from ? 1 : 0;
            }
        }
        assert_sums(tree, tree.root());
        size_t seen = 0;
        const std::function<void(const SharingNode &, Tokens)> visit = [&](const SharingNode &node,
                                                                           Tokens path) {
            for (const int32_t token : node.tokens) {
                path.push_back(token);
                const auto found = wanted.find(path);
                assert_true(found != wanted.end());
                assert_int_equal(found->second.first, node.rows);
                assert_int_equal(found->second.second, node.times);
                ++seen;
            }
            for (const int32_t index : node.children) visit(tree.node(index), path);
        };
        visit(tree.root(), {});
        assert_int_equal(seen, wanted.size());
    }
}

void a_tree_is_bounded_and_loses_no_row(void **) {
    std::mt19937 random(3);
    SharingTree tree;
    int64_t rows = 0, groups = 0;
    for (int32_t i = 0; i < 60000; ++i) {
        Tokens prefix = tokens_of({{i % 3, 200}});
        for (int32_t j = 0; j < 40; ++j) prefix.push_back(static_cast<int32_t>(random()));
        const int64_t of = i == 30000 ? 5000 : 2;
        tree.add(prefix, 0, of, of * 3);
        rows += of;
        ++groups;
    }
    assert_true(tree.size() <= 2 * SharingTree::most_nodes + 1);
    assert_int_equal(tree.root().rows, rows);
    assert_int_equal(tree.root().groups, groups);
    assert_int_equal(child(tree, tree.root(), 1).rows, 40000);
    assert_sums(tree, tree.root());
    int64_t most = 0;
    for (const int32_t index : child(tree, tree.root(), 0).children) {
        most = std::max(most, tree.node(index).rows);
    }
    assert_int_equal(most, 5000); // the large one is still there
}

void lengths_are_counted(void **) {
    LengthCounts lengths;
    for (int64_t i = 1; i <= 1000; ++i) lengths.add(i);
    assert_int_equal(lengths.quantile(0.5), 500);
    assert_int_equal(lengths.quantile(0.95), 950);
    assert_int_equal(lengths.quantile(1), 1000);
    assert_int_equal(lengths.total(), 500500);
    assert_true(lengths.within(1, 101) == 100);
    std::mt19937_64 random(5);
    LengthCounts wide;
    std::vector<int64_t> all;
    for (int i = 0; i < 20000; ++i) {
        all.push_back(static_cast<int64_t>(random() >> (20 + random() % 40)));
        wide.add(all.back());
    }
    std::sort(all.begin(), all.end());
    for (const double share : {0.1, 0.5, 0.9, 0.99}) {
        const auto exact =
            static_cast<double>(all[static_cast<size_t>(std::ceil(share * 20000)) - 1]);
        const auto found = static_cast<double>(wide.quantile(share));
        const double capped = std::min(exact, std::pow(2, 40));
        assert_true(found <= capped && found >= capped * (1 - 1.0 / 512) - 1);
    }
    assert_true(std::abs(wide.within(0, 1e18) - 20000) < 1e-6);
    assert_true(std::abs(wide.within(0, 5000.5) + wide.within(5000.5, 1e18) - 20000) < 1e-6);
}

// For any number of batches, the area below the curve equals the sum over the batches.
void a_curve_keeps_its_area(void **) {
    std::mt19937 random(11);
    for (const double step : {1e-4, 0.02, 40.0}) {
        BatchCurve curve;
        double now = 0, area = 0;
        int64_t peak = 0;
        for (int i = 0; i < 30000; ++i) {
            const double seconds = step * static_cast<double>(1 + random() % 3);
            BatchTokens batch{
                static_cast<int64_t>(random() % 900), static_cast<int64_t>(random() % 300),
                static_cast<int64_t>(random() % 200), static_cast<int64_t>(random() % 5000)};
            now += seconds;
            curve.add(now, seconds, batch);
            area += static_cast<double>(batch.tokens()) * seconds;
            peak = std::max(peak, batch.pages);
        }
        assert_int_equal(curve.batches(), 30000);
        const std::vector<CurvePoint> points = curve.points(300);
        assert_true(points.size() <= 300 && points.size() >= 100);
        double found = 0, end = 0;
        int64_t most = 0;
        for (const CurvePoint &point : points) {
            assert_true(std::abs(point.begin - end) < 1e-6 * now);
            end = point.end;
            found += (point.decode + point.own + point.prefix) * (point.end - point.begin);
            most = std::max(most, point.pages_peak);
        }
        assert_true(std::abs(found / area - 1) < 1e-6);
        assert_true(std::abs(end / now - 1) < 1e-9);
        assert_int_equal(most, peak);
    }
}

void a_pause_is_empty_and_the_hosts_work_is_not(void **) {
    BatchCurve curve;
    curve.add(1.0, 1.0, {100, 0, 0, 7});
    curve.add(2.1, 1.0, {100, 0, 0, 7});  // 0.1 s later
    curve.add(12.1, 1.0, {100, 0, 0, 7}); // after 9 s of nothing
    double area = 0;
    for (const CurvePoint &point : curve.points(500)) {
        area += point.decode * (point.end - point.begin);
    }
    assert_true(std::abs(area - 310) < 2);
}

void what_comes_from_outside_is_escaped(void **) {
    assert_string_equal(escaped("<b a=\"1\" b='2'>&").c_str(),
                        "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;");
    assert_string_equal(escaped("a\nb\tc\rd").c_str(), "a\xE2\x86\xB5"
                                                       "b cd");
    const std::string bad = "\xEF\xBF\xBD";
    assert_string_equal(escaped("\x01\x1b[2J").c_str(), (bad + bad + "[2J").c_str());
    assert_string_equal(escaped("\xE2\x80\xAE"
                                "x")
                            .c_str(),
                        (bad + "x").c_str()); // right to left
    assert_string_equal(escaped("\xED\xA0\x80").c_str(), (bad + bad + bad).c_str()); // surrogate
    assert_string_equal(escaped("\xC0\xBC\xF0\x9F").c_str(), (bad + bad + bad + bad).c_str());
    assert_string_equal(escaped("\xEF\xBF\xBE").c_str(), bad.c_str()); // U+FFFE
    assert_string_equal(escaped("\xF0\x9F\x98\x80").c_str(), "\xF0\x9F\x98\x80");
    assert_string_equal(escaped_within("abcdefgh", 8).c_str(), "abcdefgh");
    assert_string_equal(escaped_within("abcdefghi", 8).c_str(), "abcde...");
    assert_string_equal(escaped_within("<<<<<<<<<", 8).c_str(), "&lt;&lt;&lt;&lt;&lt;...");
    assert_string_equal(escaped_within("abcdef", 3).c_str(), "");
    std::mt19937 random(9);
    for (int round = 0; round < 20000; ++round) {
        std::string text;
        for (auto i = random() % 12; i > 0; --i) text += static_cast<char>(random());
        const std::string out = escaped(text);
        for (const char c : out) assert_true(static_cast<unsigned char>(c) >= 0x20);
        assert_true(out.find_first_of("<>\"'") == std::string::npos);
    }
}

void numbers_are_written_for_people(void **) {
    assert_string_equal(format_count(1234567).c_str(), "1,234,567");
    assert_string_equal(format_count(-1234).c_str(), "-1,234");
    assert_string_equal(short_count(999).c_str(), "999");
    assert_string_equal(short_count(1500).c_str(), "1.5K");
    assert_string_equal(short_count(999999).c_str(), "1M");
    assert_string_equal(seconds_text(0.0004).c_str(), "0.40 ms");
    assert_string_equal(seconds_text(0.25).c_str(), "250 ms");
    assert_string_equal(seconds_text(9.5).c_str(), "9.50 s");
    assert_string_equal(seconds_text(125).c_str(), "2 min 05 s");
    assert_string_equal(seconds_text(7500).c_str(), "2 h 05 min");
    assert_string_equal(format_bytes(1536.0 * 1024 * 1024).c_str(), "1.5 GiB");
    assert_string_equal(percent_text(0.892).c_str(), "89.2 %");
}

// An engine's record with as much of everything as possible.
void a_page_is_bounded(void **) {
    JobRecord record;
    EngineFacts facts;
    facts.backend = facts.device = facts.compute_type = "x";
    facts.step_tokens = 2048;
    const std::string hostile = "</style></svg><script>alert(1)</script>\" onload='x' \xE2\x80\xAE";
    record.attach(&record, facts, batchllm_stats{},
                  [&](std::span<const int32_t>) { return hostile + hostile; });
    std::mt19937 random(21);
    Tokens row(3000);
    for (int i = 0; i < 20000; ++i) {
        for (size_t j = static_cast<size_t>(random() % 5) * 20; j < 200; ++j) {
            row[j] = static_cast<int32_t>(random());
        }
        GroupRun run;
        run.rows = random() % 50 + 1;
        run.unfinished = 1;
        const auto kept = record.start_group(row, 150, 0, run);
        assert_non_null(kept.get());
        record.end_run(kept.get(), 5, 5, static_cast<double>(random() % 1000));
        record.add_batch(i * 0.01, 0.01, {500, 500, 500, 10});
    }
    for (int i = 0; i < 1000; ++i)
        record.add_failure(1, hostile + std::to_string(i), hostile + std::string(5000, '<'));
    for (int i = 0; i < 64; ++i)
        assert_true(record.add_fact(hostile + std::to_string(i), std::string(5000, '&')));
    assert_false(record.add_fact("one more", ""));
    assert_true(record.add_fact(hostile + "1", "again"));
    assert_int_equal(record.slowest().size(), JobRecord::slowest_kept);
    assert_true(record.slowest().front().seconds >= record.slowest().back().seconds);
    PageOptions options;
    options.title = hostile;
    const std::string page = make_page(&record, options);
    std::printf("%zu bytes\n", page.size());
    assert_true(page.size() < 1000000);
    assert_true(page.find("<script") == std::string::npos);
    assert_true(page.find("\xE2\x80\xAE") == std::string::npos);
    assert_true(page.find("alert(1)") != std::string::npos); // as text
    assert_true(record.complete());
}

void an_empty_record_has_a_page(void **) {
    JobRecord record;
    const std::string page = make_page(&record, {});
    assert_true(page.find("No two rows share a prefix.") != std::string::npos);
    assert_string_equal(draw_batches({}, 10).c_str(), "");
    assert_string_equal(draw_lengths(LengthCounts(), "x").c_str(), "");
    assert_string_equal(draw_icicle(SharingTree()).c_str(), "");
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_parts_where_prefixes_part),
        cmocka_unit_test(what_another_group_has_computed_is_not_counted_again),
        cmocka_unit_test(a_tree_of_random_prefixes_counts_each_token_as_often_as_it_was_computed),
        cmocka_unit_test(a_tree_is_bounded_and_loses_no_row),
        cmocka_unit_test(lengths_are_counted),
        cmocka_unit_test(a_curve_keeps_its_area),
        cmocka_unit_test(a_pause_is_empty_and_the_hosts_work_is_not),
        cmocka_unit_test(what_comes_from_outside_is_escaped),
        cmocka_unit_test(numbers_are_written_for_people),
        cmocka_unit_test(a_page_is_bounded),
        cmocka_unit_test(an_empty_record_has_a_page),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
