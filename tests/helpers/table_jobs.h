// Seven tables with the shape of those in Liu et al., "Optimizing LLM queries in relational data
// analytics workloads": with their names and similar numbers of rows and fields. Lengths, distinct
// counts, skew and dependencies are stated below and are our own: the values are synthetic.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "table/cells.h"
#include "table/field_order.h"

namespace table_jobs {

struct Field {
    const char *name;
    int32_t bytes;       // mean length; a value has half to one and a half times as many
    int32_t distinct;    // values; 0: every row has its own
    double skew = 0;     // frequency of values: rank^-skew
    int32_t parent = -1; // field whose value determines this one's
    double noise = 0;    // share of rows in which the parent does not determine it
};

struct Job {
    const char *name;
    int32_t rows;
    double sorted; // share of rows that follow one with the same value of the key
    int32_t key;   // field
    std::vector<Field> fields;
};

inline std::vector<Job> all() {
    std::vector<Job> jobs = {
        {"movies",
         15000,
         0.5,
         2,
         {{"genres", 24, 120, 0, 2},
          {"info", 300, 0, 0, 2},
          {"title", 18, 1000, 0.8},
          {"company", 20, 250, 0, 2},
          {"review", 120, 0},
          {"type", 5, 2, 0.5},
          {"link", 30, 0, 0, 2},
          {"top_critic", 5, 2, 1}}},
        {"products",
         14890,
         0.4,
         2,
         {{"description", 400, 0, 0, 2},
          {"id", 12, 0},
          {"product", 12, 3000, 1},
          {"price", 6, 400, 0, 2},
          {"rating", 3, 5, 1},
          {"heading", 25, 9000, 0.5},
          {"text", 200, 0},
          {"verified", 5, 2, 2}}},
        {"bird",
         14920,
         0.1,
         2,
         {{"text", 180, 0}, {"body", 700, 0, 0, 2}, {"post", 7, 4000, 0.7}, {"date", 19, 0, 0, 2}}},
        {"pdmx", 10000, 0.1, 0, {{"artist", 16, 1500, 0.8}}},
        {"beer",
         28479,
         0.6,
         0,
         {{"id", 6, 3000, 0.9},
          {"name", 25, 0, 0, 0},
          {"style", 18, 100, 0, 0},
          {"appearance", 4, 9, 1},
          {"taste", 4, 9, 1},
          {"profile", 12, 4000, 0.8},
          {"brewer", 6, 900, 0, 0},
          {"time", 10, 0}}},
        {"fever",
         19929,
         0.1,
         1,
         {{"claim", 50, 0},
          {"evidence_1", 400, 2500, 0.6},
          {"evidence_2", 400, 2500, 0, 1, 0.3},
          {"evidence_3", 400, 2500, 0, 2, 0.4},
          {"evidence_4", 400, 2500, 0, 3, 0.5}}},
        {"squad",
         22665,
         0.1,
         1,
         {{"question", 60, 0},
          {"context_1", 700, 2000, 0.3},
          {"context_2", 700, 2000, 0, 1, 0.35},
          {"context_3", 700, 2000, 0, 1, 0.4},
          {"context_4", 700, 2000, 0, 1, 0.5}}},
    };
    // A score has 16 fields that its artist determines, half of them loosely; 25 with few values;
    // 10 with many; 5 of its own.
    Job &pdmx = jobs[3];
    static std::vector<std::string> names;
    for (int i = 0; i < 56; ++i) names.push_back("field_" + std::to_string(i));
    for (int i = 0; i < 56; ++i) {
        const char *name = names[static_cast<size_t>(i)].c_str();
        if (i % 7 < 2) {
            pdmx.fields.push_back({name, 14, 300, 0, 0, i % 2 == 0 ? 0.0 : 0.3});
        } else if (i % 7 < 5) {
            pdmx.fields.push_back({name, 6, 2 + i % 5, 1});
        } else if (i % 11 != 0) {
            pdmx.fields.push_back({name, 8, 200 + 10 * i, 0.5});
        } else {
            pdmx.fields.push_back({name, 20, 0});
        }
    }
    return jobs;
}

inline std::string text_of(const std::string &field, int64_t value, int32_t mean_bytes) {
    uint64_t state =
        std::hash<std::string>()(field) + static_cast<uint64_t>(value) * 0x9e3779b97f4a7c15u;
    const auto next = [&state] {
        state ^= state >> 30;
        state *= 0xbf58476d1ce4e5b9u;
        state ^= state >> 27;
        state *= 0x94d049bb133111ebu;
        state ^= state >> 31;
        return state;
    };
    const auto bytes =
        static_cast<size_t>(mean_bytes / 2) + next() % static_cast<size_t>(mean_bytes);
    std::string text = std::to_string(value);
    while (text.size() < bytes) {
        text += ' ';
        for (uint64_t letters = 2 + next() % 7; letters > 0; --letters) {
            text += static_cast<char>('a' + next() % 26);
        }
    }
    return text;
}

// Ranks drawn with probability rank^-skew.
class Ranks {
  public:
    Ranks(int32_t values, double skew) {
        double sum = 0;
        for (int32_t i = 0; i < values; ++i) {
            sum += std::pow(i + 1, -skew);
            ends_.push_back(sum);
        }
    }
    int64_t draw(std::mt19937_64 &random) const {
        const double at = std::uniform_real_distribution<double>(0, ends_.back())(random);
        return std::min<int64_t>(std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin(),
                                 static_cast<int64_t>(ends_.size()) - 1);
    }

  private:
    std::vector<double> ends_;
};

struct Column {
    std::string name;
    std::string text;
    std::vector<int64_t> offsets = {0};
    batchllm::TableColumn view() const { return {name, text.data(), offsets.data(), nullptr}; }
};

inline std::vector<Column> make(const Job &job, int32_t rows, uint64_t seed) {
    std::mt19937_64 random(seed);
    const size_t width = job.fields.size();
    std::vector<std::vector<int64_t>> values(width,
                                             std::vector<int64_t>(static_cast<size_t>(rows)));
    std::vector<Ranks> ranks;
    for (const Field &field : job.fields)
        ranks.emplace_back(std::max(1, field.distinct), field.skew);
    std::uniform_real_distribution<double> share(0, 1);
    const auto fill = [&](size_t f, size_t row) {
        const Field &field = job.fields[f];
        if (field.parent >= 0 && share(random) >= field.noise) {
            const int64_t of = values[static_cast<size_t>(field.parent)][row];
            // Another number, determined by the parent's.
            values[f][row] = field.distinct == 0 ? of : (of * 7919 + 13) % field.distinct;
        } else if (field.distinct == 0) {
            values[f][row] = static_cast<int64_t>(row) + 1000000;
        } else {
            values[f][row] = ranks[f].draw(random);
        }
    };
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        const auto key = static_cast<size_t>(job.key);
        if (row > 0 && share(random) < job.sorted) {
            values[key][row] = values[key][row - 1];
        } else {
            fill(key, row);
        }
        // Parents are the key, or come before what they determine.
        for (size_t f = 0; f < width; ++f) {
            if (f != key) fill(f, row);
        }
    }
    std::vector<Column> columns;
    for (size_t f = 0; f < width; ++f) {
        Column column;
        column.name = job.fields[f].name;
        for (const int64_t value : values[f]) {
            column.text += text_of(column.name, value, job.fields[f].bytes);
            column.offsets.push_back(static_cast<int64_t>(column.text.size()));
        }
        columns.push_back(std::move(column));
    }
    return columns;
}

// "Judge the row.\nname: {name}\n...Answer:"
inline std::string template_of(const Job &job) {
    std::string text = "Judge the row.\n";
    for (const Field &field : job.fields) {
        text += std::string(field.name) + ": {" + field.name + "}\n";
    }
    return text + "Answer:";
}

// Rows of a table that have something in common, in the table's order.
inline std::vector<int64_t> cut_out(std::span<const batchllm::TableColumn> columns, int64_t rows,
                                    size_t wanted, std::mt19937_64 &random) {
    std::vector<int64_t> taken = {static_cast<int64_t>(random() % static_cast<uint64_t>(rows))};
    for (int tries = 0; tries < 100 && taken.size() < wanted; ++tries) {
        const batchllm::TableColumn &column = columns[random() % columns.size()];
        const int64_t like = taken[random() % taken.size()];
        const auto start = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
        for (int64_t i = 0; i < rows; ++i) {
            const int64_t row = (start + i) % rows;
            if (column[row] != column[like]) continue;
            if (std::find(taken.begin(), taken.end(), row) != taken.end()) continue;
            taken.push_back(row);
            break;
        }
    }
    std::sort(taken.begin(), taken.end());
    return taken;
}

// Mean hit rates on samples of 12 rows and 5 fields, from 0 to 1.
struct CutRates {
    double given = 0;
    double greedy = 0;
    double exact = 0;
};

inline CutRates cut_rates(const Job &job) {
    constexpr int cuts = 12;
    constexpr int32_t rows = 3000;
    std::mt19937_64 random(5);
    const std::vector<Column> made = make(job, rows, 1);
    std::vector<batchllm::TableColumn> columns;
    for (const Column &column : made) columns.push_back(column.view());
    CutRates rates;
    for (int cut = 0; cut < cuts; ++cut) {
        const std::vector<int64_t> taken = cut_out(columns, rows, 12, random);
        std::vector<size_t> fields(columns.size());
        std::iota(fields.begin(), fields.end(), 0);
        std::shuffle(fields.begin(), fields.end(), random);
        fields.resize(std::min<size_t>(5, fields.size()));
        std::vector<batchllm::CellColumn> cells;
        for (const size_t field : fields) {
            cells.push_back(batchllm::encode_cells(columns[field], taken, 8));
        }
        const auto rate = [&](const batchllm::FieldOrder &order) {
            return batchllm::shared_bytes(cells, order).ratio() / cuts;
        };
        rates.given += rate(batchllm::given_order(taken.size(), cells.size()));
        rates.greedy += rate(batchllm::greedy_order(cells));
        rates.exact += rate(batchllm::exact_order(cells));
    }
    return rates;
}

} // namespace table_jobs
