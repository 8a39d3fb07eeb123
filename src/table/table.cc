#include "table/table.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <unordered_map>

#include "base/json_escape.h"
#include "base/printable.h"

namespace batchllm {
namespace {

constexpr int32_t bad_table = BATCHLLM_ERROR_INVALID_ARGUMENT;
constexpr size_t most_reordered = (size_t{1} << 31) - 2;

std::string names_of(std::span<const TableColumn> columns) {
    constexpr size_t most = 20;
    std::string names;
    for (size_t i = 0; i < std::min(columns.size(), most); ++i) {
        names += (i > 0 ? ", " : "") + in_quotes(columns[i].name);
    }
    return columns.size() > most ? names + ", ..." : names;
}

// Template field -> column.
Result<std::vector<int32_t>> find_columns(const PromptTemplate &prompt,
                                          std::span<const TableColumn> columns) {
    constexpr int32_t twice = -1;
    std::unordered_map<std::string_view, int32_t> numbers;
    for (size_t i = 0; i < columns.size(); ++i) {
        const auto [known, added] = numbers.emplace(columns[i].name, static_cast<int32_t>(i));
        if (!added) known->second = twice;
    }
    std::vector<int32_t> found;
    for (const std::string &name : prompt.fields) {
        const auto column = numbers.find(name);
        if (column == numbers.end()) {
            return error(bad_table, "template: there is no column %s; the columns are %s",
                         in_quotes(name).c_str(), names_of(columns).c_str());
        }
        if (column->second == twice) {
            return error(bad_table, "template: there are two columns %s", in_quotes(name).c_str());
        }
        found.push_back(column->second);
    }
    return found;
}

// Makes prompts from the template and the columns of its fields.
class Renderer {
  public:
    Renderer(std::span<const TableColumn> columns, const PromptTemplate &prompt,
             std::vector<int32_t> column_of, const TableOptions &options)
        : columns_(columns), prompt_(prompt), column_of_(std::move(column_of)) {
        if (!options.chat) return;
        before_ = "[";
        if (!options.system.empty()) {
            before_ += R"({"role":"system","content":")";
            append_json_escaped(&before_, options.system);
            before_ += "\"},";
        }
        before_ += R"({"role":"user","content":)";
        pictures_ = options.pictures;
        escaped_ = true;
    }

    const TableColumn &column(int32_t field) const {
        return columns_[static_cast<size_t>(column_of_[static_cast<size_t>(field)])];
    }
    int32_t column_number(int32_t field) const { return column_of_[static_cast<size_t>(field)]; }
    const std::vector<int32_t> &column_numbers() const { return column_of_; }

    void given(int64_t row, std::string *out) const {
        begin(row, out);
        for (const TemplatePart &part : prompt_.parts) {
            add(part.text, out);
            if (part.field >= 0) add(column(part.field)[row], out);
        }
        end(row, out);
    }

    // order: of the template's lines.
    void moved(const MovableTemplate &movable, int64_t row, std::span<const int32_t> order,
               std::string *out) const {
        begin(row, out);
        add(movable.head, out);
        for (size_t i = 0; i < order.size(); ++i) {
            const FieldLine &line = movable.lines[static_cast<size_t>(order[i])];
            if (i > 0) add("\n", out);
            add(line.before, out);
            add(column(line.field)[row], out);
            add(line.after, out);
        }
        add(movable.tail, out);
        end(row, out);
    }

  private:
    int32_t pictures(int64_t row) const {
        return pictures_.empty() ? 0 : pictures_[static_cast<size_t>(row)];
    }
    void begin(int64_t row, std::string *out) const {
        *out += before_;
        if (!escaped_) return;
        const int32_t count = pictures(row);
        if (count > 0) *out += '[';
        for (int32_t i = 0; i < count; ++i) *out += R"({"type":"image"},)";
        *out += count > 0 ? R"({"type":"text","text":")" : "\"";
    }
    void end(int64_t row, std::string *out) const {
        if (escaped_) *out += pictures(row) > 0 ? "\"}]}]" : "\"}]";
    }
    void add(std::string_view text, std::string *out) const {
        if (escaped_) {
            append_json_escaped(out, text);
        } else {
            *out += text;
        }
    }

    std::span<const TableColumn> columns_;
    const PromptTemplate &prompt_;
    std::vector<int32_t> column_of_;    // [fields]
    std::string before_;                // in every prompt
    std::span<const int32_t> pictures_; // [rows] or none
    bool escaped_ = false;
};

// The first of the template's fields that has no value in the row, or -1.
int32_t null_field(const PromptTemplate &prompt, const Renderer &renderer, int64_t row) {
    for (size_t i = 0; i < prompt.fields.size(); ++i) {
        if (renderer.column(static_cast<int32_t>(i)).is_null(row)) return static_cast<int32_t>(i);
    }
    return -1;
}

// The rows that have all values; the others get an error.
std::vector<int64_t> check_rows(int64_t rows, const PromptTemplate &prompt,
                                const Renderer &renderer, Table *table) {
    std::vector<int64_t> good;
    good.reserve(static_cast<size_t>(rows));
    table->error_offsets.push_back(0);
    for (int64_t row = 0; row < rows; ++row) {
        const int32_t field = null_field(prompt, renderer, row);
        table->statuses.push_back(field < 0 ? BATCHLLM_OK : BATCHLLM_ERROR_ROW_NULL);
        if (field < 0) {
            good.push_back(row);
        } else {
            table->errors +=
                "field " + in_quotes(prompt.fields[static_cast<size_t>(field)]) + " is null";
        }
        table->error_offsets.push_back(static_cast<int64_t>(table->errors.size()));
    }
    return good;
}

// Finds the order of the valid rows and of their fields.
FieldOrder plan_fields(const MovableTemplate &movable, const Renderer &renderer,
                       std::span<const int64_t> good, const StopCheck &stop, Table *table) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<CellColumn> cells;
    for (const FieldLine &line : movable.lines) {
        if (stop()) return {};
        const size_t line_bytes = line.before.size() + line.after.size() + 1;
        cells.push_back(
            encode_cells(renderer.column(line.field), good, static_cast<int64_t>(line_bytes)));
    }
    std::vector<int32_t> as_given(cells.size());
    std::iota(as_given.begin(), as_given.end(), 0);
    table->given = shared_bytes(cells, given_order(good.size(), cells.size()));
    table->sorted = shared_bytes(cells, fixed_order(cells, as_given));
    FieldOrder order = best_order(cells, stop);
    table->planned = shared_bytes(cells, order);
    table->seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return order;
}

void render_given(const Renderer &renderer, Table *table) {
    table->offsets.push_back(0);
    for (int64_t row = 0; row < table->rows(); ++row) {
        if (table->statuses[static_cast<size_t>(row)] == BATCHLLM_OK) {
            renderer.given(row, &table->text);
        }
        table->offsets.push_back(static_cast<int64_t>(table->text.size()));
        table->row_order.push_back(row);
        for (const int32_t column : renderer.column_numbers()) {
            table->field_orders.push_back(column);
        }
    }
}

void render_moved(const Renderer &renderer, const MovableTemplate &movable,
                  std::span<const int64_t> good, const FieldOrder &order, Table *table) {
    table->offsets.push_back(0);
    for (const int32_t place : order.rows) {
        table->row_order.push_back(good[static_cast<size_t>(place)]);
    }
    int32_t place = 0;
    for (int64_t row = 0; row < table->rows(); ++row) {
        if (table->statuses[static_cast<size_t>(row)] == BATCHLLM_OK) {
            const std::span<const int32_t> lines = order.of(place++, movable.lines.size());
            renderer.moved(movable, row, lines, &table->text);
            for (const int32_t line : lines) {
                table->field_orders.push_back(
                    renderer.column_number(movable.lines[static_cast<size_t>(line)].field));
            }
        } else {
            table->row_order.push_back(row);
            for (const int32_t column : renderer.column_numbers()) {
                table->field_orders.push_back(column);
            }
        }
        table->offsets.push_back(static_cast<int64_t>(table->text.size()));
    }
}

} // namespace

Result<Table> make_table(int64_t rows, std::span<const TableColumn> columns,
                         const TableOptions &options) {
    for (const std::string *text : {&options.prompt, &options.system}) {
        if (is_utf8(*text)) continue;
        return error(bad_table, "%s: it is not valid UTF-8",
                     text == &options.prompt ? "template" : "system");
    }
    ASSIGN_OR_RETURN(const PromptTemplate prompt, PromptTemplate::parse(options.prompt));
    ASSIGN_OR_RETURN(std::vector<int32_t> column_of, find_columns(prompt, columns));
    MovableTemplate movable;
    if (options.reorder) {
        ASSIGN_OR_RETURN(movable, MovableTemplate::of(prompt));
    }
    const Renderer renderer(columns, prompt, std::move(column_of), options);
    Table table;
    table.chat = options.chat;
    table.moved = static_cast<int32_t>(prompt.fields.size());
    const std::vector<int64_t> good = check_rows(rows, prompt, renderer, &table);
    if (!options.reorder) {
        render_given(renderer, &table);
        return table;
    }
    if (good.size() > most_reordered) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%zu rows: fields of at most 2^31 - 2 rows can be reordered", good.size());
    }
    bool stopped = false;
    const StopCheck stop = [&] {
        stopped = stopped || (options.stop && options.stop());
        return stopped;
    };
    const FieldOrder order = plan_fields(movable, renderer, good, stop, &table);
    if (stop()) {
        return error(BATCHLLM_ERROR_STOPPED, "the search for an order of fields was stopped");
    }
    render_moved(renderer, movable, good, order, &table);
    return table;
}

} // namespace batchllm
