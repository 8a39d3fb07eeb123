// src/table: templates, the order of fields, prompts.
#include <algorithm>
#include <numeric>
#include <random>

#include "processor_time.h"
#include "seed.h"
#include "table/field_order.h"
#include "table/table.h"
#include "table_jobs.h"
#include "testing.h"

#include <xxhash.h>

using namespace batchllm;

namespace {

// A column of cells; "\1" is a null.
struct Cells {
    table_jobs::Column column;
    std::vector<uint8_t> validity;

    Cells(std::string name, const std::vector<std::string> &cells) {
        column.name = std::move(name);
        validity.assign(cells.size() / 8 + 1, 0);
        for (size_t i = 0; i < cells.size(); ++i) {
            if (cells[i] != "\1") {
                column.text += cells[i];
                validity[i / 8] = static_cast<uint8_t>(validity[i / 8] | 1u << i % 8);
            }
            column.offsets.push_back(static_cast<int64_t>(column.text.size()));
        }
    }
    TableColumn view() const {
        TableColumn view = column.view();
        view.validity = validity.data();
        return view;
    }
};

Result<Table> make(const std::vector<Cells> &columns, const std::string &prompt,
                   bool reorder = false, bool chat = false, const std::string &system = "") {
    std::vector<TableColumn> views;
    for (const Cells &column : columns) views.push_back(column.view());
    const auto rows =
        columns.empty() ? 0 : static_cast<int64_t>(columns[0].column.offsets.size()) - 1;
    return make_table(rows, views, {prompt, reorder, chat, system});
}

void assert_prompt(const Table &table, int64_t row, const std::string &wanted) {
    assert_string_equal(std::string(table.prompt(row)).c_str(), wanted.c_str());
}

void assert_fails(const Result<Table> &table, const std::string &words) {
    assert_false(table.ok());
    assert_int_equal(table.status().code(), BATCHLLM_ERROR_INVALID_ARGUMENT);
    if (table.status().message().find(words) != std::string::npos) return;
    fail_msg("\"%s\" is not in: %s", words.c_str(), table.status().message().c_str());
}

void values_take_the_place_of_fields(void **) {
    const std::vector<Cells> columns = {
        {"a", {"x", "y\nz"}}, {"b c", {"", "{a}"}}, {"d", {"1", "2"}}};
    const Table table = make(columns, "{{{a}}} {b c}{a}!").value();
    assert_prompt(table, 0, "{x} x!");
    assert_prompt(table, 1, "{y\nz} {a}y\nz!"); // a value is not a template
    assert_int_equal(table.moved, 2);
    assert_int_equal(table.field_orders[1], 1);
}

void a_template_that_cannot_be_read_says_where(void **) {
    const std::vector<Cells> columns = {{"a", {"x"}}, {"b", {"y"}}, {"b", {"y"}}};
    assert_fails(make(columns, "x {a"), "{ without its } at byte 2");
    assert_fails(make(columns, "x {a{b}}"), "{ without its } at byte 2");
    assert_fails(make(columns, "x {a\n}"), "{ without its } at byte 2");
    assert_fails(make(columns, "{a} }"), "} without its { at byte 4");
    assert_fails(make(columns, "{a} {}"), "names no field");
    assert_fails(make(columns, "no field, {{a}}"), "it has no field");
    assert_fails(make(columns, ""), "it has no field");
    assert_fails(make(columns, "{c}"), "there is no column \"c\"; the columns are \"a\", \"b\"");
    assert_fails(make(columns, "{b}"), "two columns \"b\"");
    assert_fails(make(columns, "\xff{a}"), "UTF-8");
}

void a_null_is_the_error_of_its_row_alone(void **) {
    const std::vector<Cells> columns = {{"a", {"x", "\1", "z"}}, {"unused", {"\1", "\1", "\1"}}};
    for (const bool reorder : {false, true}) {
        const Table table = make(columns, "a={a}", reorder).value();
        assert_int_equal(table.statuses[0], BATCHLLM_OK);
        assert_int_equal(table.statuses[1], BATCHLLM_ERROR_ROW_NULL);
        assert_string_equal(table.status(1).message().c_str(), "field \"a\" is null");
        assert_prompt(table, 0, "a=x");
        assert_prompt(table, 1, "");
        assert_prompt(table, 2, "a=z");
        std::vector<int64_t> rows = table.row_order;
        if (reorder) assert_int_equal(rows.back(), 1);
        std::sort(rows.begin(), rows.end());
        assert_true(rows == (std::vector<int64_t>{0, 1, 2}));
    }
}

void chat_makes_conversations(void **) {
    const std::vector<Cells> columns = {{"a", {"say \"hi\"\n\t\x01"}}};
    const Table table = make(columns, "Q: {a}", false, true, "Be \\ kind.").value();
    assert_prompt(table, 0,
                  R"([{"role":"system","content":"Be \\ kind."},{"role":"user","content":)"
                  R"("Q: say \"hi\"\n\t\u0001"}])");
}

void lines_that_cannot_be_moved_are_refused(void **) {
    const std::vector<Cells> columns = {{"a", {"x"}}, {"b", {"y"}}};
    assert_fails(make(columns, "{a} and {b}", true), "\"a\" and \"b\" are in one line");
    assert_fails(make(columns, "{a}\n\n{b}", true), "a line without a field stands between");
    assert_fails(make(columns, "{a}\n{b}\n{a}", true), "\"a\" is in two lines");
    assert_true(make(columns, "{a} and {b}", false).ok());
}

void lines_move_with_their_text_and_a_bare_field_gets_its_name(void **) {
    // Columns by how much rows share: c is the same in all, b in two, a in none.
    const std::vector<Cells> columns = {
        {"a", {"1", "2", "3"}}, {"b", {"y", "x", "y"}}, {"c", {"same", "same", "same"}}};
    const Table table = make(columns, "Head {{\n{a}\n B={b};\n{c}?\nTail", true).value();
    assert_prompt(table, 0, "Head {\nc: same?\n B=y;\na: 1\nTail");
    assert_prompt(table, 2, "Head {\nc: same?\n B=y;\na: 3\nTail");
    const std::string middle(table.prompt(1));
    assert_true(middle.starts_with("Head {\nc: same?\n"));
    assert_int_equal(table.field_orders[0], 2);
    assert_int_equal(table.field_orders[1], 1);
    assert_int_equal(table.field_orders[2], 0);
    // Neighbours share: rows 0 and 2 are adjacent.
    const auto at = [&](int64_t row) {
        return std::find(table.row_order.begin(), table.row_order.end(), row) -
               table.row_order.begin();
    };
    assert_int_equal(std::abs(at(0) - at(2)), 1);
    const Table last = make(columns, "{a}\n{c}", true).value(); // nothing before or after
    assert_prompt(last, 1, "c: same\na: 2");
}

// ---- The order of fields ----

std::vector<CellColumn> random_cells(std::mt19937_64 &random, int32_t rows, size_t columns,
                                     int32_t values) {
    std::vector<CellColumn> cells(columns);
    for (CellColumn &column : cells) {
        for (int32_t i = 0; i < values; ++i) {
            column.lengths.push_back(1 + static_cast<int64_t>(random() % 20));
        }
        for (int32_t i = 0; i < rows; ++i) {
            column.codes.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(values)));
        }
    }
    return cells;
}

// Checks that each row occurs once, and in each row every column once.
void assert_permutations(const FieldOrder &order, size_t rows, size_t columns) {
    std::vector<int32_t> sorted = order.rows;
    std::sort(sorted.begin(), sorted.end());
    assert_int_equal(sorted.size(), rows);
    for (size_t i = 0; i < rows; ++i) assert_int_equal(sorted[i], static_cast<int>(i));
    for (size_t row = 0; row < rows; ++row) {
        const std::span<const int32_t> fields = order.of(static_cast<int32_t>(row), columns);
        std::vector<int32_t> all(fields.begin(), fields.end());
        std::sort(all.begin(), all.end());
        for (size_t i = 0; i < columns; ++i) assert_int_equal(all[i], static_cast<int>(i));
    }
}

// The most that can be shared, by trying every order of rows and, in each row, every order of
// fields.
int64_t most_of_all_orders(std::span<const CellColumn> cells) {
    const size_t rows = cells[0].codes.size();
    std::vector<std::vector<int32_t>> orders;
    std::vector<int32_t> fields(cells.size());
    std::iota(fields.begin(), fields.end(), 0);
    do orders.push_back(fields);
    while (std::next_permutation(fields.begin(), fields.end()));
    FieldOrder order = given_order(rows, cells.size());
    std::vector<size_t> chosen(rows, 0);
    int64_t most = 0;
    do {
        std::fill(chosen.begin(), chosen.end(), 0);
        for (size_t place = 0; place < rows;) {
            for (size_t row = 0; row < rows; ++row) {
                std::copy(orders[chosen[row]].begin(), orders[chosen[row]].end(),
                          order.fields.begin() + static_cast<std::ptrdiff_t>(row * cells.size()));
            }
            most = std::max(most, shared_bytes(cells, order).shared);
            for (place = 0; place < rows && ++chosen[place] == orders.size(); ++place) {
                chosen[place] = 0;
            }
        }
    } while (std::next_permutation(order.rows.begin(), order.rows.end()));
    return most;
}

void the_exact_order_is_the_best_of_all_orders(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int trial = 0; trial < 30; ++trial) {
        const size_t columns = 1 + random() % 3;
        const int32_t rows = columns == 3 ? 4 : 5;
        const std::vector<CellColumn> cells =
            random_cells(random, rows, columns, 1 + static_cast<int32_t>(random() % 4));
        const FieldOrder order = exact_order(cells);
        assert_permutations(order, static_cast<size_t>(rows), columns);
        assert_int_equal(shared_bytes(cells, order).shared, most_of_all_orders(cells));
    }
}

// Nearly equal rows have the most subsets to examine.
void a_small_table_takes_no_time(void **) {
    std::mt19937_64 random(seed_of_run());
    const double seconds = processor_seconds(1, [&] {
        for (const uint64_t rarity : {3, 30, 1000}) {
            std::vector<CellColumn> cells(exact_columns);
            for (size_t c = 0; c < exact_columns; ++c) {
                cells[c].lengths = {10, 11};
                for (size_t r = 0; r < static_cast<size_t>(exact_rows); ++r) {
                    const bool other = random() % rarity == 0 || (rarity == 30 && r == c);
                    cells[c].codes.push_back(other ? 1 : 0);
                }
            }
            assert_permutations(best_order(cells), static_cast<size_t>(exact_rows), exact_columns);
        }
    });
    assert_true(seconds < 10); // a hundredth of one
}

void every_search_gives_each_row_and_field_once(void **) {
    std::mt19937_64 random(seed_of_run());
    for (int trial = 0; trial < 200; ++trial) {
        const auto rows = static_cast<int32_t>(1 + random() % 200);
        const size_t columns = 1 + random() % 24;
        const std::vector<CellColumn> cells =
            random_cells(random, rows, columns, 1 + static_cast<int32_t>(random() % 60));
        const FieldOrder greedy = greedy_order(cells);
        assert_permutations(greedy, static_cast<size_t>(rows), columns);
        const FieldOrder best = best_order(cells);
        assert_permutations(best, static_cast<size_t>(rows), columns);
        std::vector<int32_t> fields(columns);
        std::iota(fields.begin(), fields.end(), 0);
        const FieldOrder sorted = fixed_order(cells, fields);
        assert_permutations(sorted, static_cast<size_t>(rows), columns);
        assert_true(shared_bytes(cells, best).shared >= shared_bytes(cells, sorted).shared);
        assert_true(best_order(cells).fields == best.fields); // the same every time
    }
}

void the_greedy_order_is_within_two_percent_of_the_optimum(void **) {
    double all_greedy = 0, all_exact = 0;
    for (const table_jobs::Job &job : table_jobs::all()) {
        const table_jobs::CutRates rates = table_jobs::cut_rates(job);
        std::printf("%-9s hit rate %.2f %%, the optimum %.2f %%\n", job.name, 100 * rates.greedy,
                    100 * rates.exact);
        assert_true(rates.greedy <= rates.exact + 1e-9);
        assert_true(rates.exact - rates.greedy < 0.02);
        all_greedy += rates.greedy;
        all_exact += rates.exact;
    }
    assert_true(all_greedy > 0.98 * all_exact);
}

void reordering_shares_more_than_the_given_order(void **) {
    double given = 0, sorted = 0, planned = 0;
    for (const table_jobs::Job &job : table_jobs::all()) {
        const std::vector<table_jobs::Column> made = table_jobs::make(job, 3000, 2);
        std::vector<TableColumn> columns;
        for (const table_jobs::Column &column : made) columns.push_back(column.view());
        const Table table =
            make_table(3000, columns, {table_jobs::template_of(job), true, false, ""}).value();
        std::printf("%-9s given %.1f %%, rows sorted %.1f %%, reordered %.1f %%\n", job.name,
                    100 * table.given.ratio(), 100 * table.sorted.ratio(),
                    100 * table.planned.ratio());
        assert_true(table.planned.shared >= table.sorted.shared);
        assert_true(table.sorted.shared >= table.given.shared);
        given += table.given.ratio();
        sorted += table.sorted.ratio();
        planned += table.planned.ratio();
    }
    std::printf("in the mean %.2f times the given order's, %.2f times its rows sorted\n",
                planned / given, planned / sorted);
    assert_true(planned >= 1.5 * given);
    assert_true(planned >= 1.5 * sorted);
}

// 100,000 rows of six loosely related columns: a search of some seconds.
void a_search_ends_soon_after_it_is_told_to_stop(void **) {
    std::mt19937_64 random(seed_of_run());
    std::vector<CellColumn> cells(6);
    for (CellColumn &column : cells) {
        for (int i = 0; i < 100000; ++i) {
            column.codes.push_back(static_cast<int32_t>(random() % 3000));
        }
        column.lengths.assign(3000, 20);
    }
    int asked = 0;
    const double at_once = processor_seconds(1, [&] {
        best_order(cells, [&] {
            ++asked;
            return true;
        });
    });
    assert_int_equal(asked, 1);
    asked = 0;
    const double later =
        processor_seconds(1, [&] { best_order(cells, [&] { return ++asked > 3; }); });
    assert_int_equal(asked, 4); // not asked again once it has returned true
    const double whole =
        processor_seconds(1, [&] { assert_permutations(best_order(cells), 100000, 6); });
    if (3 * std::max(at_once, later) > whole)
        fail_msg("stopped after %.3f and %.3f s, all of it took %.3f", at_once, later, whole);
}

// Plans and resumed jobs rely on this: the order depends only on rows and template, not on the
// machine, the compiler or the seed of the hashes. A change of the search changes this number, and
// the prompts of users.
void the_order_is_the_same_everywhere(void **) {
    std::vector<std::vector<std::string>> cells(6);
    uint64_t state = 1;
    const auto draw = [&state](uint64_t below) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % below;
    };
    for (int i = 0; i < 3000; ++i) {
        const uint64_t key = draw(40) * draw(40) / 40;
        const uint64_t values[] = {draw(1000000), key / 2, draw(7), key, 10 * key + draw(3), 5};
        for (size_t c = 0; c < cells.size(); ++c) {
            cells[c].push_back(std::string(3 * c, 'x') + std::to_string(values[c]));
        }
    }
    std::vector<Cells> columns;
    for (size_t c = 0; c < cells.size(); ++c)
        columns.emplace_back(std::string(1, 'a' + static_cast<char>(c)), cells[c]);
    const Table table = make(columns, "{a}\n{b}\n{c}\n{d}\n{e}\n{f}", true).value();
    assert_true(std::any_of(
        table.field_orders.begin() + 6, table.field_orders.end(), [&](const int32_t &column) {
            return column !=
                   table.field_orders[static_cast<size_t>(&column - table.field_orders.data()) % 6];
        })); // rows differ in it
    assert_true(table.planned.shared > table.sorted.shared);
    const uint64_t text = XXH3_64bits(table.text.data(), table.text.size());
    assert_true(text == 0xb579ebae1660bd8a);
    uint64_t rows = 0; // a hash of numbers, not of bytes, whose order depends on the machine
    for (const int64_t row : table.row_order) rows = rows * 31 + static_cast<uint64_t>(row);
    if (rows != 0x1dbab421fed0ca7e) fail_msg("%llx", static_cast<unsigned long long>(rows));
}

void a_table_that_is_stopped_says_so(void **) {
    std::vector<std::string> cells(100);
    for (size_t i = 0; i < cells.size(); ++i) cells[i] = std::to_string(i % 7);
    const Cells one("a", cells), two("b", cells);
    const std::vector<TableColumn> views = {one.view(), two.view()};
    TableOptions options;
    options.prompt = "{a}\n{b}";
    options.reorder = true;
    options.stop = [] { return true; };
    const Result<Table> stopped = make_table(100, views, options);
    assert_false(stopped.ok());
    assert_int_equal(stopped.status().code(), BATCHLLM_ERROR_STOPPED);
    options.stop = [] { return false; };
    assert_true(make_table(100, views, options).ok());
}

// Values whose hashes collide if the hash has no seed: each would be compared with all previous
// ones.
void values_made_to_meet_take_no_longer_than_others(void **) {
    constexpr size_t count = cases(12000, 3000);
    constexpr uint64_t places = (1u << 15) - 1;
    const auto column_of = [](bool meet) {
        std::vector<std::string> cells;
        for (uint64_t i = 0; cells.size() < count; ++i) {
            std::string cell(reinterpret_cast<const char *>(&i), sizeof i);
            if (meet && (XXH3_64bits(cell.data(), cell.size()) & places) != 0) continue;
            if (cell != "\1") cells.push_back(std::move(cell));
        }
        return Cells(meet ? "meet" : "other", cells);
    };
    std::vector<int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    const auto took = [&](const Cells &cells) {
        return std::max(2e-4, processor_seconds(3, [&] {
                            assert_int_equal(encode_cells(cells.view(), rows, 0).values(), count);
                        }));
    };
    const double meeting = took(column_of(true)), others = took(column_of(false));
    if (meeting > 10 * others)
        fail_msg("%.5f s for values that meet, %.5f for others", meeting, others);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(values_take_the_place_of_fields),
        cmocka_unit_test(a_template_that_cannot_be_read_says_where),
        cmocka_unit_test(a_null_is_the_error_of_its_row_alone),
        cmocka_unit_test(chat_makes_conversations),
        cmocka_unit_test(lines_that_cannot_be_moved_are_refused),
        cmocka_unit_test(lines_move_with_their_text_and_a_bare_field_gets_its_name),
        cmocka_unit_test(the_exact_order_is_the_best_of_all_orders),
        cmocka_unit_test(a_small_table_takes_no_time),
        cmocka_unit_test(every_search_gives_each_row_and_field_once),
        cmocka_unit_test(the_greedy_order_is_within_two_percent_of_the_optimum),
        cmocka_unit_test(reordering_shares_more_than_the_given_order),
        cmocka_unit_test(a_search_ends_soon_after_it_is_told_to_stop),
        cmocka_unit_test(the_order_is_the_same_everywhere),
        cmocka_unit_test(a_table_that_is_stopped_says_so),
        cmocka_unit_test(values_made_to_meet_take_no_longer_than_others),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
