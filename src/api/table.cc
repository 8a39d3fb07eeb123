// batchllm_table_*: rows as columns and a template to prompts.
#include "table/table.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "api/boundary.h"
#include "api/column.h"
#include "api/engine.h"
#include "api/pictures.h"

using namespace batchllm;
using api::guard;
using api::guard_out;
using api::need;
using api::need_zero;

struct batchllm_table {
    Table table;
    batchllm_column prompts{}; // the table's
};

namespace {

batchllm_table_options default_table_options() {
    batchllm_table_options options{};
    options.struct_size = sizeof options;
    options.template_bytes = -1;
    return options;
}

Result<TableOptions> read_options(const batchllm_table_options *options, int64_t rows) {
    RETURN_IF_ERROR(need("options", options));
    batchllm_table_options known = default_table_options();
    RETURN_IF_ERROR(copy_known("options", options, &known, sizeof known));
    if (known.template_text == nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "template_text is NULL");
    }
    RETURN_IF_ERROR(need_zero("options->reserved", known.reserved));
    if (known.fields != BATCHLLM_FIELDS_GIVEN && known.fields != BATCHLLM_FIELDS_REORDER) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "fields is %d: it must be %d or %d",
                     known.fields, BATCHLLM_FIELDS_GIVEN, BATCHLLM_FIELDS_REORDER);
    }
    TableOptions read;
    if (known.stop != nullptr) {
        read.stop = [stop = known.stop, user = known.stop_user] { return stop(user) != 0; };
    }
    read.prompt = known.template_bytes < 0
                      ? std::string(known.template_text)
                      : std::string(known.template_text, static_cast<size_t>(known.template_bytes));
    read.reorder = known.fields == BATCHLLM_FIELDS_REORDER;
    read.chat = known.chat != 0;
    if (known.system != nullptr) read.system = known.system;
    for (int64_t i = 0; known.pictures != nullptr && i < rows; ++i) {
        if (known.pictures[i] >= 0) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "options->pictures[%" PRId64 "] is %" PRId32,
                     i, known.pictures[i]);
    }
    if (known.pictures != nullptr) read.pictures = {known.pictures, static_cast<size_t>(rows)};
    if (!read.system.empty() && !read.chat) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "system is given without chat: plain text has no system message");
    }
    return read;
}

Result<std::vector<TableColumn>> read_columns(int64_t n, const batchllm_table_column *columns,
                                              int64_t count) {
    if (n < 0 || count < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%" PRId64 " rows, %" PRId64 " columns: neither can be negative", n, count);
    }
    if (count > 0) RETURN_IF_ERROR(need("columns", columns));
    std::vector<TableColumn> read;
    const auto *bytes = reinterpret_cast<const std::byte *>(columns);
    for (int64_t i = 0; i < count; ++i) {
        const std::string where = "column " + std::to_string(i);
        const std::byte *at = bytes + i * int64_t{columns->struct_size};
        uint32_t size = 0;
        std::memcpy(&size, at, sizeof size);
        // Checked before any struct_size is trusted: a wrong one could reach beyond the array.
        if (size != columns->struct_size || !possible_struct_size(size)) {
            return error(
                BATCHLLM_ERROR_INVALID_ARGUMENT,
                "%s: struct_size is %" PRIu32
                ": it must be sizeof(batchllm_table_column), and the first one's is %" PRIu32,
                where.c_str(), size, columns->struct_size);
        }
        batchllm_table_column known{};
        RETURN_IF_ERROR(copy_known("columns", at, &known, sizeof known).within(where));
        RETURN_IF_ERROR(need_zero("reserved", known.reserved).within(where));
        if (known.name == nullptr) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: name is NULL", where.c_str());
        }
        RETURN_IF_ERROR(
            check_column("text", known.text, "offsets", known.offsets, n).within(where));
        read.push_back({known.name, known.text, known.offsets, known.validity});
    }
    return read;
}

Result<PromptTemplate> read_template(const char *text, int64_t bytes) {
    RETURN_IF_ERROR(need("template_text", text));
    return PromptTemplate::parse(bytes < 0 ? std::string_view(text)
                                           : std::string_view(text, static_cast<size_t>(bytes)));
}

// The template's lines with one field each, if there are `count` fields.
Result<MovableTemplate> read_movable(const PromptTemplate &parsed, int64_t count) {
    ASSIGN_OR_RETURN(MovableTemplate movable, MovableTemplate::of(parsed));
    if (count == static_cast<int64_t>(parsed.fields.size())) return movable;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "order_count is %" PRId64 " and the template has %zu columns", count,
                 parsed.fields.size());
}

Result<PromptTemplate> reordered(const PromptTemplate &parsed, const int32_t *order,
                                 int64_t count) {
    ASSIGN_OR_RETURN(const MovableTemplate movable, read_movable(parsed, count));
    const std::span<const int32_t> fields(order, static_cast<size_t>(count));
    std::vector<char> seen(fields.size(), 0);
    for (const int32_t field : fields) {
        if (field >= 0 && field < count && !std::exchange(seen[static_cast<size_t>(field)], 1)) {
            continue;
        }
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "order: %d: each column's number is in it once", field);
    }
    return movable.in_order(parsed, fields);
}

// Cells that are numbers already.
CellColumn numbered_cells(const uint64_t *cells, const int32_t *bytes, int64_t rows, size_t stride,
                          int64_t line_bytes) {
    CellColumn column;
    std::unordered_map<uint64_t, int32_t> codes;
    for (int64_t row = 0; row < rows; ++row) {
        const size_t at = static_cast<size_t>(row) * stride;
        const auto [code, added] =
            codes.emplace(cells[at], static_cast<int32_t>(column.lengths.size()));
        if (added) column.lengths.push_back(bytes[at] + line_bytes);
        column.codes.push_back(code->second);
    }
    return column;
}

} // namespace

extern "C" {

int32_t batchllm_template_split(const char *template_text, int64_t template_bytes,
                                const int32_t *order, int64_t order_count, batchllm_column **out) {
    return guard_out(out, [&]() -> Status {
        ASSIGN_OR_RETURN(PromptTemplate read, read_template(template_text, template_bytes));
        if (order != nullptr) {
            ASSIGN_OR_RETURN(read, reordered(read, order, order_count));
        }
        auto made = std::make_unique<api::ColumnBatch>();
        const auto add = [&](const std::string &item) {
            made->all_text += item;
            made->all_offsets.push_back(static_cast<int64_t>(made->all_text.size()));
        };
        made->all_offsets.push_back(0);
        for (const TemplatePart &part : read.parts) {
            add(part.text);
            if (part.field >= 0) add(read.fields[static_cast<size_t>(part.field)]);
        }
        made->all_statuses.assign(made->all_offsets.size() - 1, BATCHLLM_OK);
        made->all_error_offsets.assign(made->all_offsets.size(), 0);
        made->struct_size = sizeof(batchllm_column);
        made->reserved = 0;
        made->count = static_cast<int64_t>(made->all_statuses.size());
        made->offsets = made->all_offsets.data();
        made->tokens = nullptr;
        made->text = made->all_text.data();
        made->statuses = made->all_statuses.data();
        made->error_offsets = made->all_error_offsets.data();
        made->errors = made->all_errors.data();
        *out = made.release();
        return {};
    });
}

int32_t batchllm_template_order(const char *template_text, int64_t template_bytes, int64_t n,
                                const uint64_t *cells, const int32_t *cell_bytes, int32_t *order,
                                int64_t order_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const PromptTemplate read, read_template(template_text, template_bytes));
        ASSIGN_OR_RETURN(const MovableTemplate movable, read_movable(read, order_count));
        RETURN_IF_ERROR(need("order", order));
        if (n < 0 || n > INT32_MAX - 1) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "n is %" PRId64, n);
        }
        if (n > 0) {
            RETURN_IF_ERROR(need("cells", cells));
            RETURN_IF_ERROR(need("cell_bytes", cell_bytes));
        }
        std::vector<CellColumn> columns;
        for (const FieldLine &line : movable.lines) { // in the order in which fields first appear
            const size_t at = n > 0 ? columns.size() : 0; // without rows the arrays may be null
            const size_t line_bytes = line.before.size() + line.after.size() + 1; // and the LF
            columns.push_back(numbered_cells(cells + at, cell_bytes + at, n, movable.lines.size(),
                                             static_cast<int64_t>(line_bytes)));
        }
        const std::vector<int32_t> best = best_fixed_fields(columns);
        std::copy(best.begin(), best.end(), order);
        return {};
    });
}

void batchllm_table_options_init(batchllm_table_options *options, size_t struct_size) {
    const batchllm_table_options defaults = default_table_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_table_create(int64_t n, const batchllm_table_column *columns, int64_t column_count,
                              const batchllm_table_options *options, batchllm_table **out) {
    return guard_out(out, [&]() -> Status {
        ASSIGN_OR_RETURN(const TableOptions read, read_options(options, n));
        ASSIGN_OR_RETURN(const std::vector<TableColumn> cells,
                         read_columns(n, columns, column_count));
        auto handle = std::make_unique<batchllm_table>();
        ASSIGN_OR_RETURN(handle->table, make_table(n, cells, read));
        const Table &table = handle->table;
        batchllm_column &prompts = handle->prompts;
        prompts.struct_size = sizeof prompts;
        prompts.count = table.rows();
        prompts.offsets = table.offsets.data();
        prompts.text = table.text.data();
        prompts.statuses = table.statuses.data();
        prompts.error_offsets = table.error_offsets.data();
        prompts.errors = table.errors.data();
        *out = handle.release();
        return {};
    });
}

void batchllm_table_destroy(batchllm_table *table) { delete table; }

const batchllm_column *batchllm_table_prompts(const batchllm_table *table) {
    return table == nullptr ? nullptr : &table->prompts;
}

int32_t batchllm_add_table_pictures(batchllm_engine *engine, const batchllm_table *table,
                                    const batchllm_picture_column *column, const uint64_t *tags,
                                    const batchllm_params *params, int64_t params_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const api::EngineUse use, api::EngineUse::begin(engine));
        RETURN_IF_ERROR(need("table", table));
        const int64_t rows = table->table.rows();
        ASSIGN_OR_RETURN(const PictureColumns pictures, api::read_pictures(column, rows));
        ASSIGN_OR_RETURN(const ParamsColumn read, ParamsColumn::open(params, params_count, rows));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_table(table->table, pictures, tags, read);
    });
}

int32_t batchllm_add_table(batchllm_engine *engine, const batchllm_table *table,
                           const uint64_t *tags, const batchllm_params *params,
                           int64_t params_count) {
    return batchllm_add_table_pictures(engine, table, nullptr, tags, params, params_count);
}

int32_t batchllm_table_get_info(const batchllm_table *table, batchllm_table_info *info) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("table", table));
        RETURN_IF_ERROR(need("info", info));
        const Table &of = table->table;
        batchllm_table_info full{};
        full.struct_size = sizeof full;
        full.fields = of.moved;
        full.rows = of.rows();
        full.row_order = of.row_order.data();
        full.field_orders = of.field_orders.data();
        full.given_hit_rate = of.given.ratio();
        full.sorted_hit_rate = of.sorted.ratio();
        full.hit_rate = of.planned.ratio();
        full.seconds = of.seconds;
        return api::copy_out("info", &full, sizeof full, info);
    });
}

} // extern "C"
