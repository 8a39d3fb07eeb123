// What reordering fields gains on the seven tables of tests/helpers/table_jobs.h, how close it comes to the
// optimum on small samples of them, and how long it takes.
//     build/bench/table              one line per table
//     build/bench/table ROWS FIELDS  times one table with this many rows and fields
//     build/bench/table NAME ROWS FOLDER  writes this many rows of one of the seven tables as
//                                    FOLDER/NAME.jsonl, and its template as FOLDER/NAME.txt, for
//                                    batchllm run
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "../tests/helpers/table_jobs.h"
#include "plan/plan.h"
#include "table/table.h"

using namespace batchllm;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The share of the prompts that the library's own tree saves, with each byte a token.
double saving(const Table &table, int32_t levels) {
    std::vector<int32_t> tokens(table.text.begin(), table.text.end());
    std::vector<TokenRow> rows;
    for (int64_t i = 0; i < table.rows(); ++i) {
        const auto at = static_cast<size_t>(i);
        const auto length = static_cast<int32_t>(table.offsets[at + 1] - table.offsets[at]);
        rows.push_back({tokens.data() + table.offsets[at], length, length - 1});
    }
    PlanOptions options;
    options.levels = levels;
    Result<Plan> plan = make_plan(rows, {}, options, nullptr);
    if (!plan.ok()) std::exit((std::fprintf(stderr, "%s\n", plan.status().message().c_str()), 1));
    return 100 * plan->saving_ratio();
}

Table table_of(const std::vector<table_jobs::Column> &columns, const table_jobs::Job &job,
               bool reorder) {
    std::vector<TableColumn> views;
    for (const table_jobs::Column &column : columns) views.push_back(column.view());
    TableOptions options;
    options.prompt = table_jobs::template_of(job);
    options.reorder = reorder;
    Result<Table> table =
        make_table(static_cast<int64_t>(columns[0].offsets.size()) - 1, views, options);
    if (!table.ok()) std::exit((std::fprintf(stderr, "%s\n", table.status().message().c_str()), 1));
    return std::move(table).value();
}

void compare_all() {
    std::printf("                        hit rate of neighbours, %%    saved by the plan, %% "
                "(levels)            on cut-outs, %%\n");
    std::printf("table      rows fields  given sorted reordered  given 1   2   reordered 1   2  "
                "seconds  given reordered optimum\n");
    double given_sum = 0, sorted_sum = 0, moved_sum = 0;
    for (const table_jobs::Job &job : table_jobs::all()) {
        const std::vector<table_jobs::Column> columns = table_jobs::make(job, job.rows, 1);
        const Table given = table_of(columns, job, false);
        const Table moved = table_of(columns, job, true);
        const table_jobs::CutRates cuts = table_jobs::cut_rates(job);
        given_sum += moved.given.ratio();
        sorted_sum += moved.sorted.ratio();
        moved_sum += moved.planned.ratio();
        std::printf("%-9s %6d %5zu   %5.1f  %5.1f     %5.1f   %5.1f %5.1f       %5.1f %5.1f  "
                    "%6.3f  %5.1f     %5.1f   %5.1f\n",
                    job.name, job.rows, job.fields.size(), 100 * moved.given.ratio(),
                    100 * moved.sorted.ratio(), 100 * moved.planned.ratio(), saving(given, 1),
                    saving(given, 2), saving(moved, 1), saving(moved, 2), moved.seconds,
                    100 * cuts.given, 100 * cuts.greedy, 100 * cuts.exact);
    }
    std::printf("the mean hit rate is %.2f times that of the given order, %.2f times that of its "
                "rows sorted\n",
                moved_sum / given_sum, moved_sum / sorted_sum);
}

// Columns of keys, of values that they determine, and of values of all kinds of counts.
void time_one(int32_t rows, int32_t fields) {
    std::vector<std::string> names;
    for (int32_t i = 0; i < fields; ++i) names.push_back("field_" + std::to_string(i));
    table_jobs::Job job{"one", rows, 0, 0, {}};
    const int32_t distinct[] = {rows / 20, 0, 12, rows / 100, 1000, 0, 3, rows / 2, 40, 200};
    for (int32_t i = 0; i < fields; ++i) {
        table_jobs::Field field{names[static_cast<size_t>(i)].c_str(), 16, distinct[i % 10], 0.6};
        if (i % 10 == 3 || i % 10 == 8) field.parent = 0;
        job.fields.push_back(field);
    }
    const std::vector<table_jobs::Column> columns = table_jobs::make(job, rows, 1);
    const auto start = std::chrono::steady_clock::now();
    const Table table = table_of(columns, job, true);
    std::printf(
        "%d rows of %d fields: order found in %.2f s, prompts made in %.2f s more; hit rate "
        "%.1f %%, up from %.1f %%\n",
        rows, fields, table.seconds, seconds_since(start) - table.seconds,
        100 * table.planned.ratio(), 100 * table.given.ratio());
}

// Rows of one of the seven tables as lines of JSON, whose cells need no escapes. A table with fewer
// rows also has fewer distinct values, so that rows share as much. Returns 0 on success.
int write_job(const std::string &name, int32_t rows, const std::string &folder) {
    std::vector<table_jobs::Job> jobs = table_jobs::all();
    const auto job = std::find_if(jobs.begin(), jobs.end(),
                                  [&](const table_jobs::Job &one) { return name == one.name; });
    if (job == jobs.end()) {
        std::fprintf(stderr, "%s: there is no such table\n", name.c_str());
        return 1;
    }
    bool named = false; // whether a field names the column
    for (table_jobs::Field &field : job->fields) {
        named |= std::string_view(field.name) == "id";
        const int64_t fewer = int64_t{field.distinct} * rows / job->rows;
        field.distinct = std::min(field.distinct, std::max(12, static_cast<int32_t>(fewer)));
    }
    const std::vector<table_jobs::Column> columns = table_jobs::make(*job, rows, 1);
    std::ofstream lines(folder + "/" + name + ".jsonl");
    for (int32_t row = 0; row < rows; ++row) {
        lines << '{';
        if (!named) lines << "\"id\": \"" << row << "\", ";
        for (const table_jobs::Column &column : columns) {
            const auto at = static_cast<size_t>(row);
            const auto begin = static_cast<size_t>(column.offsets[at]);
            const auto end = static_cast<size_t>(column.offsets[at + 1]);
            lines << (&column == columns.data() ? "\"" : ", \"") << column.name << "\": \""
                  << column.text.substr(begin, end - begin) << '"';
        }
        lines << "}\n";
    }
    std::ofstream prompt(folder + "/" + name + ".txt");
    prompt << table_jobs::template_of(*job);
    if (lines.flush() && prompt.flush()) return 0;
    std::fprintf(stderr, "%s: cannot be written to\n", folder.c_str());
    return 1;
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 3) return write_job(argv[1], std::atoi(argv[2]), argv[3]);
    if (argc > 2) {
        time_one(std::atoi(argv[1]), std::atoi(argv[2]));
    } else {
        compare_all();
    }
    return 0;
}
