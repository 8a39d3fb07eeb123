// batchllm_table_*: rows as columns and a template to prompts.
#include "table/table.h"

#include <cinttypes>
#include <cstring>

#include "api/boundary.h"
#include "api/engine.h"

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

batchllm_table_options default_options() {
    batchllm_table_options options{};
    options.struct_size = sizeof options;
    options.template_bytes = -1;
    return options;
}

Result<TableOptions> read_options(const batchllm_table_options *options) {
    RETURN_IF_ERROR(need("options", options));
    batchllm_table_options known = default_options();
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

} // namespace

extern "C" {

void batchllm_table_options_init(batchllm_table_options *options, size_t struct_size) {
    const batchllm_table_options defaults = default_options();
    api::init_struct(&defaults, sizeof defaults, options, struct_size);
}

int32_t batchllm_table_create(int64_t n, const batchllm_table_column *columns, int64_t column_count,
                              const batchllm_table_options *options, batchllm_table **out) {
    return guard_out(out, [&]() -> Status {
        ASSIGN_OR_RETURN(const TableOptions read, read_options(options));
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

int32_t batchllm_add_table(batchllm_engine *engine, const batchllm_table *table,
                           const uint64_t *tags, const batchllm_params *params,
                           int64_t params_count) {
    return guard([&]() -> Status {
        ASSIGN_OR_RETURN(const api::EngineUse use, api::EngineUse::begin(engine));
        RETURN_IF_ERROR(need("table", table));
        ASSIGN_OR_RETURN(const ParamsColumn column,
                         ParamsColumn::open(params, params_count, table->table.rows()));
        ASSIGN_OR_RETURN(Intake * intake, engine->engine->intake());
        return intake->add_table(table->table, tags, column);
    });
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
